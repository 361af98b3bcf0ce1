"""The files of a simulation: traces, memory views, the history of commands, the graph."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import torch

from monarch._linux import private_files
from monarch.tensor.frames import internal
from monarch.tensor.simulator.history import CommandHistory
from monarch.tensor.simulator.ir import IRGraph
from monarch.tensor.simulator.machine import SimulatedMachine
from monarch.tensor.simulator.task import SimulatedCommand
from monarch.tensor.simulator.trace_file import MEGABYTE, TraceMode, memory_view, trace

LIMIT = 1 << 19  # commands of one iteration that a trace shows; later ones are only counted


class SimulateMode(StrEnum):
    """The output of a simulation: traces and memory views; a line of text; the history of commands; all files; or nothing."""

    SIMULATE = "simulate"
    SIMULATE_WITH_REPORT_ONLY = "simulate_with_report_only"
    COMMAND_HISTORY = "command_history"
    EVERYTHING = "everything"
    QUIET = "quiet"


class Reports:
    """Gathers the commands of a simulation and writes its files: after a step those with its number in their names, at
    the end those without, of what came after the last step."""

    def __init__(
        self, simulate: SimulateMode, shown: TraceMode, trace_path: Path, history_path: Path, grouped: bool, graph: bool
    ) -> None:
        self.simulate = simulate
        self.shown = shown
        self.trace_path = trace_path
        self.history_path = history_path
        self.graph = IRGraph() if graph else None
        self._history = CommandHistory()
        self._grouped = grouped
        self._commands: list[SimulatedCommand] = []
        self._left_out = 0
        self._iteration = 0

    @property
    def traces(self) -> bool:
        return self.simulate in (SimulateMode.SIMULATE, SimulateMode.EVERYTHING)

    def add(self, command: SimulatedCommand) -> None:
        """Adds the command that was issued next to each report that is wanted."""
        if self.traces:
            if len(self._commands) < LIMIT:
                self._commands.append(command)
            else:
                self._left_out += 1
        if self.simulate in (SimulateMode.COMMAND_HISTORY, SimulateMode.EVERYTHING):
            self._history.add(command)
        if self.graph is not None:
            self.graph.add(command)

    def step(self, machine: SimulatedMachine, streams: dict[int, str]) -> tuple[float, float]:
        """Writes the files of an iteration and begins the next. (Its seconds, the megabytes there were at most.)"""
        if self.traces:
            self.write(machine, streams, f"_{self._iteration}")
        what = f"iteration {self._iteration}"
        self._iteration += 1
        self._commands, self._left_out = [], 0
        return self._told(machine, what)

    def finish(self, machine: SimulatedMachine, streams: dict[int, str]) -> None:
        """Writes the files of the end."""
        if self.traces:
            self.write(machine, streams)
        if self.simulate in (SimulateMode.COMMAND_HISTORY, SimulateMode.EVERYTHING):
            private_files.write_output(self.history_path, pickle.dumps(self._history.contents()))
        self._told(machine, "until the end")

    def _told(self, machine: SimulatedMachine, what: str) -> tuple[float, float]:
        elapsed, peak = machine.turn()
        seconds, megabytes = elapsed / 1e9, peak / MEGABYTE
        if self.simulate is SimulateMode.SIMULATE_WITH_REPORT_ONLY:
            print(f"simulated {what}: {seconds:.6f} s, at most {megabytes:.2f} MB on a device")
        return seconds, megabytes

    def write(self, machine: SimulatedMachine, streams: dict[int, str], suffix: str = "") -> Path:
        """Writes trace and memory view of this iteration as it is now. The trace's path."""
        frames = _frames(self._commands)
        lines = {order: [f"{f['filename']}:{f['line']} {f['name']}" for f in found] for order, found in frames.items()}
        found = trace(
            self._commands, machine.devices, streams, self.shown, lambda command: lines.get(command.order, []),
            self._grouped, machine.dropped + self._left_out,
        )  # fmt: skip
        path = self.trace_path.with_name(f"{self.trace_path.stem}{suffix}{self.trace_path.suffix}")
        private_files.write_output(path, json.dumps(found).encode())
        view = memory_view(machine.devices, lambda order: frames.get(order, []))
        private_files.write_output(path.with_name(f"memory_view{suffix}.pt"), pickle.dumps(view))
        return path


def _frames(commands: Sequence[SimulatedCommand]) -> dict[int, list[dict[str, object]]]:
    """The program's lines behind each command, innermost first, by its order."""
    found: dict[int, list[dict[str, object]]] = {}
    captured = [command for command in commands if command.stack is not None and not isinstance(command.stack, str)]
    stacks = torch._C._profiler.symbolize_tracebacks([command.stack for command in captured]) if captured else []
    for command, stack in zip(captured, stacks, strict=True):
        found[command.order] = [frame for frame in stack if not internal(frame["filename"])]
    for command in commands:
        if isinstance(command.stack, str):  # of a recording: `file:line in function`
            place, _, name = command.stack.partition(" in ")
            filename, _, line = place.rpartition(":")
            found[command.order] = [{"filename": filename, "line": int(line or 0), "name": name}]
    return found
