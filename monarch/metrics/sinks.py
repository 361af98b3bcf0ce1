"""Sinks: places to which `log` writes through, at once and in the process that logs. Each is opened by a call, in the process
whose values it is to have: on rank 0, or on all ranks. One that fails is left out from then on, which is said once."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any, TextIO

from monarch._linux import private_files
from monarch.metrics import logged
from monarch.metrics.passing import Pairs

LARGEST = 1 << 30  # bytes that are written to a file

_CSV = "time,mesh,rank,step,name,value\n"


def to_file(path: str | os.PathLike[str]) -> str:
    """Writes what this process logs to a file as well, anew: CSV where its name ends in `.csv`, else JSON lines, with time
    (seconds since 1970), mesh, rank, step, name and value. `{mesh}` and `{rank}` in the path stand for those of the caller:
    two processes do not write one file. Returns the path. A line is in the file when `log` returns. At 1 GiB it ends, which
    is said. OSError when it cannot be written.

    Since 0.2.0.
    """
    mesh, rank = logged.who()
    whole = os.path.abspath(os.fspath(path).replace("{mesh}", mesh.replace(os.sep, "_")).replace("{rank}", str(rank)))
    private_files.make_folder(os.path.dirname(whole), mine=False, closed=False)
    file = open(private_files.open_output(whole), "w", buffering=1, encoding="utf-8")  # noqa: SIM115
    logged.sinks.append(FileSink(whole, file, whole.endswith(".csv")))
    return whole


def to_tensorboard(folder: str | os.PathLike[str], **options: Any) -> Any:
    """Writes what this process logs through to TensorBoard, by `torch.utils.tensorboard.SummaryWriter(folder, **options)`,
    which it returns: `close()` it at the end. ImportError, which says what is missing, without torch or tensorboard. OSError
    when the folder cannot be made, or others may write in it: TensorBoard follows links that they may have put there. A
    folder that is a URL is taken as it is.

    Since 0.2.0.
    """
    try:
        from torch.utils import tensorboard
    except ImportError as exc:
        raise _missing("TensorBoard", exc, "torch tensorboard") from None
    made: Any = tensorboard
    where = os.fspath(folder)
    if "://" not in where:
        where = private_files.closed_folder(private_files.make_folder(where, mine=False, closed=False))
    writer = made.SummaryWriter(where, **{"flush_secs": 5, **options})

    def write(step: int, values: Pairs, mesh: str, rank: int) -> None:
        for name, value in values:
            writer.add_scalar(name, value, step)

    _add(write, "TensorBoard")
    return writer


def to_wandb(**options: Any) -> Any:
    """Writes what this process logs through to Weights & Biases, by `wandb.init(**options)`, whose run it returns: `finish()`
    it at the end. Steps have to grow there: it leaves others out. ImportError, which says what is missing, without wandb.

    Since 0.2.0.
    """
    try:
        import wandb
    except ImportError as exc:
        raise _missing("Weights & Biases", exc, "wandb") from None
    run: Any = wandb.init(**options)

    def write(step: int, values: Pairs, mesh: str, rank: int) -> None:
        run.log(dict(values), step=step)

    _add(write, "Weights & Biases")
    return run


def to_opentelemetry() -> None:
    """Writes what this process logs through to OpenTelemetry: each name is a gauge, with `mesh` and `rank` as attributes. The
    step is left out. Where it goes says the program's own provider, or OTEL_EXPORTER_OTLP_ENDPOINT. ImportError, which says
    what is missing, without opentelemetry. A name there begins with a letter and has up to 255 letters, digits and any of
    _-./ : an underscore stands for each other character, and two names that differ in those alone are one.

    Since 0.2.0.
    """
    try:
        from opentelemetry import metrics
    except ImportError as exc:
        raise _missing("OpenTelemetry", exc, "'pymonarch[otel]'") from None
    meter = metrics.get_meter("monarch.metrics")
    gauges: dict[str, Any] = {}  # as many as a process has names

    def write(step: int, values: Pairs, mesh: str, rank: int) -> None:
        for name, value in values:
            gauge = gauges.get(name)
            if gauge is None:
                gauge = gauges[name] = meter.create_gauge(_instrument(name))
            gauge.set(value, {"mesh": mesh, "rank": rank})

    _add(write, "OpenTelemetry")


class FileSink:
    """Lines of a file: CSV or JSON."""

    def __init__(self, path: str, file: TextIO, csv: bool, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._file = file
        self._csv = csv
        self._now = now
        self._left = LARGEST
        if csv:
            self._file.write(_CSV)

    def __call__(self, step: int, values: Pairs, mesh: str, rank: int) -> None:
        at = round(self._now(), 3)
        make = self._csv_line if self._csv else self._json_line
        text = "".join(make(at, mesh, rank, step, name, value) for name, value in values)
        self._left -= len(text)
        if self._left < 0:
            self.close()
            raise OSError(f"{self.path} has {LARGEST >> 30} GiB, which is all that is written")
        self._file.write(text)

    def close(self) -> None:
        self._file.close()

    def __repr__(self) -> str:
        return f"to_file({self.path!r})"

    def _json_line(self, at: float, mesh: str, rank: int, step: int, name: str, value: float) -> str:
        line = {"time": at, "mesh": mesh, "rank": rank, "step": step, "name": name, "value": value}
        return f"{json.dumps(line)}\n"  # NaN and Infinity as Python's json reads them

    def _csv_line(self, at: float, mesh: str, rank: int, step: int, name: str, value: float) -> str:
        return f"{at},{_cell(mesh)},{rank},{step},{_cell(name)},{value!r}\n"


def _instrument(name: str) -> str:
    """Returns a name as OpenTelemetry takes it: `loss (train)` is `loss__train_`."""
    name = re.sub(r"[^\w./-]", "_", name, flags=re.ASCII)
    return name[:255] if name[:1].isalpha() else f"m{name}"[:255]


def _cell(text: str) -> str:
    """A text as spreadsheets read it, which take none of these for a formula."""
    if text[:1] in "=+-@\t\r":
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if any(each in text for each in ',"\r\n') else text


def _missing(what: str, exc: ImportError, packages: str) -> ImportError:
    return ImportError(f"{what} needs what is not installed here ({exc}): pip install {packages}", name=exc.name)


def _add(write: logged.Sink, name: str) -> None:
    write.__qualname__ = f"to {name}"
    logged.sinks.append(write)
