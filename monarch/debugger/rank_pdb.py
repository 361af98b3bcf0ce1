"""The pdb of one rank: Python's own, whose terminal is far away, and that sees the program and not the runtime below it."""

from __future__ import annotations

import code
import io
import os
import pdb  # noqa: T100
import sys
import traceback
from types import FrameType, TracebackType
from typing import Any, Protocol

from monarch.debugger.sources import FetchedSources

# Not stepped into, and the stack ends there.
_SKIPPED = ("monarch", "monarch.*", "asyncio", "asyncio.*", "selectors", "contextlib", "threading")
_BELOW = ("monarch._mesh.actors.behaviour", "monarch._mesh.actors.async_behaviour", "monarch._runtime.instrument")


class LetGo(BaseException):
    """Nobody talks to this pdb any more: it is to clear its breakpoints and go on."""


class Abandon(BaseException):
    """The actor is being stopped: its endpoint is to end."""


class ControllerLine(Protocol):
    """The way to the debugger's controller. `line` raises LetGo and Abandon."""

    def write(self, text: str) -> None: ...
    def line(self) -> str: ...
    def stands_at(self, function: str, lineno: int) -> None: ...
    def continues(self) -> None: ...


class _PdbOutput(io.TextIOBase):
    def __init__(self, line: ControllerLine) -> None:
        self._line = line

    def write(self, text: str) -> int:
        self._line.write(text)
        return len(text)

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


class _PdbInput(io.TextIOBase):
    def __init__(self, line: ControllerLine) -> None:
        self._line = line

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        return self._line.line()

    def readable(self) -> bool:
        return True


class RankPdb(pdb.Pdb):
    """`let_go`: it has been told to go on, and stops no more."""

    def __init__(self, line: ControllerLine, sources: FetchedSources) -> None:
        self._line = line
        self._sources = sources
        stdin: Any = _PdbInput(line)
        stdout: Any = _PdbOutput(line)
        super().__init__(stdin=stdin, stdout=stdout, skip=_SKIPPED, nosigint=True)
        self.let_go = False
        self._abandoned = False

    # --- stopping

    def stop(self, frame: FrameType, header: str | None) -> None:
        """At the next line of `frame`."""
        if self.let_go:
            return
        if header is not None:
            self.message(header)
        self.set_trace(frame)

    def post_mortem(self, error: BaseException) -> None:
        """Stops where the error was raised."""
        if self.let_go:
            return
        self.reset()
        self.message(traceback.format_exception_only(error)[-1].strip())
        self.interaction(None, error.__traceback__)

    def end(self) -> None:
        """Ends the pdb: the endpoint has returned."""
        self.clear_all_breaks()
        self.forget()
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if getattr(frame.f_trace, "__self__", None) is self:
                del frame.f_trace
            frame = frame.f_back

    def _cmdloop(self) -> None:
        for frame, _ in self.stack:
            self._sources.provide(frame.f_code.co_filename, frame.f_globals)
        frame, lineno = self.stack[self.curindex]
        self._line.stands_at(_function(frame), lineno)
        try:
            super()._cmdloop()
        except LetGo:
            self._go_on()
        except Abandon:
            self.set_quit()

    def _go_on(self) -> None:
        self.let_go = True
        self.clear_all_breaks()
        self.set_continue()

    def set_continue(self) -> None:
        super().set_continue()
        if not self.breaks:
            self._line.continues()

    # --- what it shows

    def setup(self, f: FrameType | None, tb: TracebackType | None) -> Any:
        done = super().setup(f, tb)
        for frame, _ in self.stack:
            self._sources.provide(frame.f_code.co_filename, frame.f_globals)
        return done

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Without what the runtime is in, below the endpoint."""
        stack, index = super().get_stack(f, t)
        runtime = [at for at, (frame, _) in enumerate(stack) if frame.f_globals.get("__name__") in _BELOW]
        first = runtime[-1] + 1 if runtime else 0
        return (stack[first:], max(0, index - first)) if first < len(stack) else (stack, index)

    def lookupmodule(self, filename: str) -> str | None:
        """`break FILE:LINE`, also for files that only the client has."""
        found: str | None = super().lookupmodule(filename)
        if found is not None and os.path.exists(found):
            return found
        return self._sources.provide(filename if filename.endswith(".py") else f"{filename}.py") or found

    # --- commands

    def do_clear(self, arg: str) -> Any:
        """clear [file:line | number ...]: without an argument all breakpoints, without asking."""
        if not arg:
            self.clear_all_breaks()
            return None
        return super().do_clear(arg)

    do_cl = do_clear

    def do_quit(self, arg: str) -> bool:
        """q(uit): ends the endpoint; its call fails with BdbQuit."""
        self._user_requested_quit = True
        self.set_quit()
        return True

    do_q = do_exit = do_EOF = do_quit

    def do_run(self, arg: str) -> None:
        """Nothing can be run anew here."""
        self.error("an endpoint cannot be run again from its debugger: call it again")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """interact: a Python prompt with the names of this place; exit() leaves it."""
        names = {**self.curframe.f_globals, **self.curframe_locals}  # type: ignore[union-attr]
        console = _Console(self, names)
        try:
            console.interact(banner="*interactive* (exit() leaves it)", exitmsg="")
        except _Leave:
            pass


class _Console(code.InteractiveConsole):
    def __init__(self, owner: RankPdb, names: dict[str, Any]) -> None:
        super().__init__({**names, "exit": _leave, "quit": _leave})
        self._owner = owner

    def raw_input(self, prompt: str = "") -> str:
        self._owner.stdout.write(prompt)
        return self._owner.stdin.readline().rstrip("\n")

    def write(self, data: str) -> None:
        self._owner.stdout.write(data)

    def runcode(self, code: Any) -> None:
        kept, sys.stdout = sys.stdout, self._owner.stdout
        try:
            super().runcode(code)
        finally:
            sys.stdout = kept


class _Leave(SystemExit):
    pass


def _leave() -> None:
    raise _Leave


def _function(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}"
