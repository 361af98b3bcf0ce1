"""Prints in the client what its processes write: on a thread of its own, in order."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from monarch._runtime.future import Slot
from monarch._runtime.loop import start_thread
from monarch._runtime.proc import Proc
from monarch._wire.address import agent_of
from monarch._wire.message import Flush, Flushed, Output, Printed
from monarch._wire.peer import PeerEnded

_KEPT = 100_000  # pieces of output waiting to be printed; at the bound the oldest go, and it is said


class Printer:
    """`show(number, text)` prints a piece of output of stream 1 (stdout) or 2 (stderr); notebooks replace it."""

    def __init__(self, proc: Proc) -> None:
        self.show: Callable[[int, str], None] = show
        self.used = False  # whether anything ever came
        self.far_agents: Callable[[], list[str]] = list  # of other hosts, whose processes' output comes here
        self._proc = proc
        self._output: deque[tuple[int, str]] = deque()
        self._printed: dict[
            tuple[str, int], int
        ] = {}  # (agent, source) -> characters to tell it of once all is printed
        self._changed = threading.Condition()
        self._printing = False
        self._dropped = 0
        self._flushes: dict[int, Slot] = {}
        self._flush_count = 0
        proc.receivers[Output] = lambda connection, output, frame: self._on_output(connection.remote, output)
        proc.receivers[Flushed] = lambda connection, flushed, frame: self._flushes.pop(flushed.token, Slot()).set()

    def _on_output(self, agent: str, output: Output) -> None:
        with self._changed:
            if output.source:
                told = agent, output.source
                self._printed[told] = self._printed.get(told, 0) + len(output.text)
            if len(self._output) >= _KEPT:
                self._output.popleft()
                self._dropped += 1
            self._output.append((output.stream, output.text))
            if not self.used:
                self.used = True
                start_thread(self._print, "monarch-output")
            self._changed.notify_all()

    def _print(self) -> None:
        """On a thread of its own: `sys.stdout` may be anything a program put there, and may block."""
        while True:
            with self._changed:
                self._printing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._output))
                pieces = list(self._output)
                self._output.clear()
                printed, self._printed = self._printed, {}
                dropped, self._dropped = self._dropped, 0
                self._printing = True
            if dropped:
                pieces.append(
                    (
                        2,
                        f"monarch: {dropped} pieces of output were dropped: they came faster than the terminal takes them\n",
                    )
                )
            for number, text in pieces:
                try:
                    self.show(number, text)
                except Exception:  # closed, or None under pythonw; what a program put there may raise anything
                    continue
            for (agent, source), size in printed.items():
                self._proc.tell(agent, Printed(source, size))

    def flush(self, timeout: float) -> None:
        """Waits until what the processes wrote before now is printed here, at most `timeout` seconds."""
        deadline = monotonic() + timeout
        flushed = []
        for agent in dict.fromkeys([agent_of(self._proc.address), *self.far_agents()]):
            slot = Slot()
            self._flush_count += 1
            self._flushes[self._flush_count] = slot
            try:
                self._proc.post(agent, Flush(self._flush_count))
            except PeerEnded:
                continue
            flushed.append(slot)
        for slot in flushed:
            slot.wait(max(0.0, deadline - monotonic()))
        self.wait_printed(max(0.0, deadline - monotonic()))

    def wait_printed(self, timeout: float) -> None:
        """Waits until what has come is printed, at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._output and not self._printing, timeout)


def show(number: int, text: str) -> None:
    """Prints output of a process: on sys.stdout (1) or sys.stderr (2) as they are now."""
    stream = sys.stdout if number == 1 else sys.stderr
    stream.write(text)
    stream.flush()
