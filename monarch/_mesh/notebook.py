"""The client in IPython and Jupyter: what processes print comes out under the cell that was running.

Settings turn on log forwarding there, so output comes through the agent to the client's printer thread. A
Jupyter kernel files each piece of output under a cell by a context variable, which a thread of ours does not
have; so the printer writes in a copy of the context of the cell that ran last. After each cell the output is
flushed, so that it is complete before the next one.

Loaded only where IPython is; imports nothing of it.
"""

from __future__ import annotations

import contextvars
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from monarch._mesh.client import Client, forget_fault, on_interrupt
from monarch._runtime.future import Future, let_block, running_loop

_FLUSH = 1.0  # seconds a cell's end may be held up by output; what is late comes out under the next cell


def attach(client: Client) -> None:
    """Follows the cells of the interactive shell of this process, if it has one."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython is not None else None
    if shell is not None:
        Cells(client, shell)


class Cells:
    """Does what is to be done around each cell."""

    def __init__(self, client: Client, shell: Any) -> None:
        self._client = client
        self._print = client.show
        client.show = self._show
        self._begins()
        shell.events.register("pre_run_cell", self._on_begin)
        shell.events.register("post_run_cell", self._on_end)

    def _on_begin(self, info: Any) -> None:
        forget_fault()  # one that came between two cells was shown and has no cell to interrupt
        self._begins()

    def _on_end(self, result: Any) -> None:
        if self._client.proc.closed is None:
            self._client.flush_output(_FLUSH)

    def _begins(self) -> None:
        self._context = contextvars.copy_context()
        let_block(running_loop())
        _watch_interrupts()

    def _show(self, number: int, text: str) -> None:
        self._context.run(self._print, number, text)


def _watch_interrupts() -> None:
    """Jupyter sets a handler of SIGINT for each cell. The one for cells with `await` only tells the event
    loop, which hears nothing while `get()` blocks it; so ours stands before it."""
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, on_interrupt)
    elif callable(before) and before is not on_interrupt and not isinstance(before, _Before):
        signal.signal(signal.SIGINT, _Before(before))


class _Before:
    """A handler of SIGINT: interrupts a blocked `get()`, else leaves it to the handler it replaced."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler

    def __call__(self, number: int, stack: FrameType | None) -> None:
        frame = stack
        while frame is not None:
            if frame.f_code is Future.get.__code__:
                on_interrupt(number, stack)
            frame = frame.f_back
        self._handler(number, stack)
