"""Prints in the client what its processes write: on a thread of its own, in order."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from monarch._linux.locks import Condition
from monarch._mesh.output.left_out import LeftOut
from monarch._runtime.future import Slot
from monarch._runtime.loop import start_thread
from monarch._runtime.proc import Proc
from monarch._wire.address import agent_of
from monarch._wire.message import Flush, Flushed, Output, Printed
from monarch._wire.peer import PeerEnded
from monarch._wire.transport.base import Connection

if TYPE_CHECKING:
    from monarch._linux.terminal import OutputFilter

KEPT = 16 * 2**20  # characters that wait to be printed; at the bound the oldest go, and it is said whose and how much

_TOLD = 2**16  # characters printed until their agents are told so, while more wait


class Printer:
    """`show(number, text)` prints a piece of output of stream 1 (stdout) or 2 (stderr); notebooks replace it."""

    def __init__(self, proc: Proc) -> None:
        self.show: Callable[[int, str], None] = _Streams().show
        self.used = False  # whether anything ever came
        self.far_agents: Callable[[], list[str]] = list  # of other hosts, whose processes' output comes here
        self._proc = proc
        self._output: deque[tuple[str, Output]] = deque()  # with the agent that sent it
        self._size = 0
        self._printed: dict[tuple[str, int], int] = {}  # (agent, number) -> characters of which it is to be told
        self._left_out = LeftOut("the terminal does not read")
        self._changed = Condition()
        self._printing = False
        self._flushes: dict[int, Slot] = {}
        self._flush_count = 0
        proc.receivers[Output] = lambda connection, output, frame: self._on_output(connection, output)
        proc.receivers[Flushed] = lambda connection, flushed, frame: self._flushes.pop(flushed.token, Slot()).set()

    def _on_output(self, connection: Connection, output: Output) -> None:
        agent = connection.remote if output.counted else ""
        with self._changed:
            while self._output and self._size + len(output.text) > KEPT:
                oldest = self._pop()
                self._left_out.add(oldest.source, len(oldest.text))
            self._output.append((agent, output))
            self._size += len(output.text)
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
                note = self._left_out.take()
                output = Output(2, note) if note else self._pop()
                self._printing = True
            try:
                self.show(output.stream, output.text)
            except Exception:  # closed, or None under pythonw; what a program put there may raise anything
                pass
            self._tell_printed()

    def _pop(self) -> Output:
        agent, output = self._output.popleft()
        self._size -= len(output.text)
        if output.counted:
            told = agent, output.counted
            self._printed[told] = self._printed.get(told, 0) + len(output.text)
        return output

    def _tell_printed(self) -> None:
        """Tells agents that count what is on its way, from time to time."""
        with self._changed:
            if not self._printed or (self._output and sum(self._printed.values()) < _TOLD):
                return
            printed, self._printed = self._printed, {}
        for (agent, counted), size in printed.items():
            self._proc.tell(agent, Printed(counted, size))

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


class _Streams:
    """The sys.stdout (1) and sys.stderr (2) of this process, as they are when something is shown.

    What comes is of processes that do not have our terminal: of other hosts, mostly. There it is made fit for one, so that
    none of them can ask it, name it, paste from it or write over what others have said.
    """

    def __init__(self) -> None:
        self._filters: dict[int, OutputFilter] = {}

    def show(self, number: int, text: str) -> None:
        """Prints output of a process."""
        stream = sys.stdout if number == 1 else sys.stderr
        if not getattr(stream, "isatty", bool)():
            stream.write(text)
            stream.flush()
            return
        from monarch._linux import terminal  # only a program at a terminal needs it

        if number not in self._filters:
            self._filters[number] = terminal.OutputFilter(by_line=True)
        text = self._filters[number].feed(text.encode(errors="backslashreplace")).decode()
        terminal.write_beside(text, stream)
