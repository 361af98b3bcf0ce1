"""`monarch.Simulator`: a mesh of any size without processes, which tells how long a program would take, and how much
memory."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from monarch._linux import private_files
from monarch.actor import NDSlice, Shape
from monarch.tensor.controller.mesh import DeviceMesh
from monarch.tensor.simulator.estimates import RuntimeEstimator
from monarch.tensor.simulator.reports import Reports, SimulateMode
from monarch.tensor.simulator.simulated_engine import SimulatedEngine
from monarch.tensor.simulator.trace_file import TraceMode


class Simulator:
    """A simulated cluster of `hosts` times `gpus` ranks: `mesh`, with the dimensions `host` and `gpu`, is used as any
    other.

    No operation is executed; what it would give is known from its metadata. Each rank has streams whose clocks advance
    by estimates (`estimator`; `set_custom_timing` changes them), and memory that is counted as it is allocated and
    freed. What is fetched is zeros; Python that runs here runs as ever. `step()` (also `mesh.client.step()`)
    ends an iteration.

    - `simulate_mode`: "simulate" writes traces and memory views, "simulate_with_report_only" prints a line at each
      step and at the end, "command_history" writes the history of commands, "everything" all files, "quiet" none.
    - `trace_mode`: tracks of a trace, "stream_only", "controller_trace_only" or "everything".
    - `trace_path`: Chrome traces, viewed with Perfetto or chrome://tracing. A step writes `trace_<iteration>.json` and
      `memory_view_<iteration>.pt` (for torch's memory viewer) there, `mesh.exit()` the same without a number, of what
      came after the last step.
    - `command_history_path`: pickled plain data, written by `mesh.exit()`.
    - `group_workers`: ranks that have done the same are simulated, and shown, as one.
    - `build_ir`: gathers the graph of commands for `export_ir`.

    ValueError for an unknown mode and sizes below 1; NotImplementedError for `upload_trace`.
    """

    def __init__(
        self,
        hosts: int,
        gpus: int,
        *,
        simulate_mode: str = SimulateMode.SIMULATE,
        trace_mode: str = TraceMode.EVERYTHING,
        upload_trace: bool = False,
        trace_path: str | Path = "trace.json",
        command_history_path: str | Path = "command_history.pkl",
        group_workers: bool = False,
        build_ir: bool = False,
    ) -> None:
        for name, size in (("hosts", hosts), ("gpus", gpus)):
            if size < 1:
                raise ValueError(f"{name}={size}: a simulated mesh has at least one of each")
        shape = Shape(["host", "gpu"], NDSlice.new_row_major([hosts, gpus]))
        if upload_trace:
            raise _no_upload("Simulator(upload_trace=True)")
        reports = Reports(
            _mode(SimulateMode, "simulate_mode", simulate_mode), _mode(TraceMode, "trace_mode", trace_mode),
            Path(trace_path), Path(command_history_path), group_workers, build_ir,
        )  # fmt: skip
        self.estimator = RuntimeEstimator()
        self._ctrl = SimulatedEngine("simulated", shape, reports, self.estimator, group_workers)

    @property
    def mesh(self) -> DeviceMesh:
        """The simulated mesh; `mesh.exit()` writes the last files."""
        return self._ctrl.root

    def step(self) -> tuple[float, float]:
        """Ends an iteration: (seconds it took, megabytes that a device had at most), both simulated."""
        return self._ctrl.step()

    @property
    def ir(self) -> Any:
        """The IRGraph of what was issued so far. RuntimeError without `build_ir`."""
        graph = self._ctrl.reports.graph
        if graph is None:
            raise RuntimeError("this simulation records no graph: make it with Simulator(..., build_ir=True)")
        if not self._ctrl.ended:
            self._ctrl.flush()
        return graph

    def export_ir(self, path: str | Path) -> None:
        """Writes the pickled IRGraph. RuntimeError without `build_ir`."""
        private_files.write_output(path, pickle.dumps(self.ir))

    def display(self) -> Any:
        """Shows the trace of this iteration in a notebook, made by the program `trace2html` (of Catapult).

        RuntimeError when that program is not installed or fails, ImportError without IPython.
        """
        program = shutil.which("trace2html")
        if program is None:
            raise RuntimeError(
                f"display() draws with the program trace2html of Catapult, which is not on the PATH; the trace itself, "
                f"{self._ctrl.reports.trace_path}, can be opened with https://ui.perfetto.dev or chrome://tracing"
            )
        from IPython.display import HTML, display

        trace = self._ctrl.write()
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "trace.html"
            done = subprocess.run(
                [program, str(trace), "--output", str(page)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"trace2html ended with {done.returncode}: {done.stderr.strip()[-500:]}")
            return display(HTML(page.read_text()))

    def upload(self) -> None:
        """Not available: NotImplementedError says what to do."""
        raise _no_upload("Simulator.upload()")

    def __repr__(self) -> str:
        return f"<Simulator of {self.mesh.mesh_name}{', ended' if self._ctrl.ended else ''}>"


def _no_upload(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"{what}: there is no server that traces could go to. Open the trace file with https://ui.perfetto.dev or chrome://tracing"
    )


def _mode(kind: Any, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, map(str, kind)))}") from None
