"""Output of the command line: every text that comes from a program goes through here on its way to a terminal, a pipe or a
file, made fit by `_text.visible` and its kin. A file is shown on a terminal later.

What a command's process writes itself (`monarch exec`, `monarch run`) is different: a pipe or file gets its very bytes, and
`OutputFilter` makes them fit for a terminal.
"""

from __future__ import annotations

import codecs
import logging
import re
import sys
from typing import Any

from monarch._linux.locks import Lock
from monarch._text import coloured, fitting, one_line, visible

_ERASE_LINE = "\r\x1b[K"
_ERASE_ALL = "\x1b[H\x1b[2J"


def show(text: str = "", end: str = "\n") -> None:
    """Prints what was asked for, on stdout."""
    print(visible(text), end=end, flush=True)


def show_coloured(text: str, end: str = "\n") -> None:
    """Prints lines of a log, which may have colours of their own."""
    print(coloured(text), end=end, flush=True)


def note(text: str) -> None:
    """Prints what is said beside it, on stderr."""
    print(visible(text), file=sys.stderr, flush=True)


def erase_all() -> None:
    """Makes the window empty, where stdout is one."""
    if sys.stdout.isatty():
        print(_ERASE_ALL, end="", flush=True)


_lock = Lock()
_standing: tuple[str, Any] | None = None  # what `replace_line` has put into the line of the cursor, and where
_hidden = False  # behind half a line that somebody else has written


def erase_line(stream: Any = None) -> None:
    """Makes the line of the cursor empty, on a terminal (None: stdout)."""
    global _standing
    with _lock:
        _standing = None
        print(_ERASE_LINE, end="", file=stream, flush=True)


def replace_line(text: str, width: int, stream: Any) -> None:
    """Shows a text on a terminal in place of the line that is there, as much of it as has room. It stands until
    `erase_line`."""
    global _hidden, _standing
    with _lock:
        line = fitting(one_line(text), width)
        print(f"{_ERASE_LINE}{line}", end="", file=stream, flush=True)
        _standing, _hidden = (line, stream), False


def write_beside(text: str, stream: Any) -> None:
    """Writes to a terminal; the line that stands is taken away before, and shown again behind whole lines."""
    global _hidden
    with _lock:
        if not _hidden:
            _show_standing(_ERASE_LINE)
        stream.write(text)
        stream.flush()
        if _standing is not None:
            _hidden = not text.endswith("\n")
            if not _hidden:
                _show_standing(_standing[0])


def _show_standing(text: str) -> None:
    """Writes where the line stands, if one does; where that has been closed, none does any more."""
    global _standing
    if _standing is not None:
        try:
            print(text, end="", file=_standing[1], flush=True)
        except (OSError, ValueError):
            _standing = None


class VisibleFormatter(logging.Formatter):
    """A formatter of log records that people see on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


_BEGUN = re.compile("\x1b(?:\\[[0-9;:]{0,64})?\\Z")  # what may become a colour
_COLOUR = re.compile("(\x1b\\[[0-9;:]{0,64}m|\r)")
_NO_COLOUR = "\x1b[0m"


class OutputFilter:
    """Output of a process on its way to a terminal, in pieces as they come. Colours stay, and `\\r`, by which a progress bar
    begins its line again; what else a terminal would obey is written out, and bytes that are no UTF-8. `by_line`: no colour
    goes on behind the end of its line, where another process's may follow. Pure. Bound: 70 characters are kept back."""

    def __init__(self, by_line: bool) -> None:
        self._by_line = by_line
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._kept = ""
        self._has_colour = False

    def feed(self, data: bytes, last: bool = False) -> bytes:
        """Returns what is to be written for these bytes. `last`: no more will come."""
        text = self._kept + self._decode(data, last)
        self._kept = ""
        if not last and (begun := _BEGUN.search(text)) is not None:
            text, self._kept = text[: begun.start()], begun.group()
        parts = text.split("\n")
        found = "\n".join([self._line(part) + self._ended() for part in parts[:-1]] + [self._line(parts[-1])])
        if last and self._has_colour:
            found += _NO_COLOUR
            self._has_colour = False
        return found.encode()

    def _line(self, line: str) -> str:
        parts = _COLOUR.split(line)
        for place, part in enumerate(parts):
            if not place % 2:
                parts[place] = visible(part)
            elif part == "\r":
                parts[place] = f"{self._ended()}\r"
            else:
                self._has_colour = part not in (_NO_COLOUR, "\x1b[m")
        return "".join(parts)

    def _ended(self) -> str:
        if not self._by_line or not self._has_colour:
            return ""
        self._has_colour = False
        return _NO_COLOUR
