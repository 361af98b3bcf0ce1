"""Output of `--json`: documents of `monarch.tools.documents`, each one line of stdout, and nothing else there.

What a job's file, a library or a process that inherits stdout prints goes to stderr meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

from monarch._linux.locks import Lock
from monarch.tools import exit_codes

if TYPE_CHECKING:
    from monarch.tools.documents import Document, StreamLine


class _Stdout:
    """The stdout that the command was given: a descriptor, or the stream of a test or a notebook."""

    descriptor = 1
    stream: TextIO | None = None
    lock = Lock()  # lines of several processes come from several threads


def add_argument(parser: argparse.ArgumentParser, **more: Any) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout, one document a line", **more)


def show(document: StreamLine) -> None:
    """Prints it. To be called in `only_json`."""
    import msgspec

    line = f"{json.dumps(msgspec.to_builtins(document))}\n"
    with _Stdout.lock:
        if _Stdout.stream is not None:
            _Stdout.stream.write(line)
            _Stdout.stream.flush()
            return
        data = line.encode()
        while data:
            data = data[os.write(_Stdout.descriptor, data) :]


def stream_name(number: int) -> Literal["stdout", "stderr"]:
    """Returns what documents call the stream that a process has as 1, or 2."""
    return "stdout" if number == 1 else "stderr"


def end(document: Document) -> int:
    """Prints the last document of a verb, and returns the exit status that it has."""
    show(document)
    return document.exit_status


def fail(verb: str, error: BaseException, message: str, status: int) -> int:
    """Prints why the verb could not do it, and returns the exit status."""
    from monarch.tools.documents import CommandFailed

    word = exit_codes.MEANINGS[status][0]
    return end(CommandFailed(exit_status=status, verb=verb, kind=word, type=type(error).__name__, message=message))


def make_private(descriptor: int | None = None) -> None:
    """Takes the rights of others from the file that stdout is, or `descriptor`, if it is one."""
    at = _Stdout.descriptor if descriptor is None else descriptor
    found = os.fstat(at)
    if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
        os.fchmod(at, 0o600)


@contextmanager
def only_json() -> Iterator[None]:
    """Inside, stdout is for `show` alone."""
    before = sys.stdout
    before.flush()
    try:
        own = before.fileno() == 1
    except (OSError, ValueError):
        own = False
    if own:
        _Stdout.descriptor = os.dup(1)
        os.dup2(2, 1)
    else:
        _Stdout.stream = before
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = before
        if own:
            os.dup2(_Stdout.descriptor, 1)
            os.close(_Stdout.descriptor)
        _Stdout.descriptor, _Stdout.stream = 1, None
