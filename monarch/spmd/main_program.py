"""A Python program run as `__main__` inside a process that runs already."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

INTERRUPTED = 130


def is_python(words: Sequence[str]) -> bool:
    """True if these words of a command are a Python program: a file `*.py`, or `-m` and a module."""
    return bool(words) and (words[0] == "-m" or words[0].endswith(".py"))


def run_main(words: Sequence[str]) -> None:
    """Runs `script.py args...` or `-m module args...` as `python` would: `sys.argv`, `__main__`, and the first entry of
    `sys.path`, which is the script's folder, or the working directory for a module. Raises what the program raises,
    SystemExit included. ValueError when there is no program among the words."""
    if not words or list(words) == ["-m"]:
        raise ValueError("No script or module specified")
    if words[0] == "-m":
        with _argv_and_path(list(words[1:]), os.getcwd()):
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        script = os.path.abspath(words[0])
        with _argv_and_path(list(words), os.path.dirname(script)):
            runpy.run_path(script, run_name="__main__")


def main_status(words: Sequence[str]) -> int:
    """Runs the program and returns the exit status that `python` would have had; tracebacks go to stderr, as they do
    there."""
    try:
        if words[0] != "-m" and not os.path.exists(words[0]):
            print(f"{sys.executable}: can't open file {os.path.abspath(words[0])!r}: No such file", file=sys.stderr)
            return 2
        run_main(words)
        return 0
    except SystemExit as exc:
        return exit_status(exc)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as exc:
        traceback.print_exception(type(exc), exc, _of_program(exc.__traceback__))
        return 1
    finally:
        flush()


def exit_status(exc: SystemExit) -> int:
    """Returns what `sys.exit` was given, as an exit status. A text is printed and means 1."""
    if exc.code is None:
        return 0
    if isinstance(exc.code, int):
        return exc.code & 0xFF
    print(exc.code, file=sys.stderr)
    return 1


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed by the program, or none at all
            pass


def _of_program(tb: TracebackType | None) -> TracebackType | None:
    """Without the frames of this file and of runpy, which say nothing about the program."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while tb is not None and tb.tb_frame.f_code.co_filename in ours:
        tb = tb.tb_next
    return tb


@contextmanager
def _argv_and_path(argv: list[str], first: str) -> Iterator[None]:
    before = sys.argv, sys.path
    # Another list, not a change of this one: other threads may be looking for a module in it, and would miss an entry.
    sys.argv, sys.path = argv, [first, *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = before
