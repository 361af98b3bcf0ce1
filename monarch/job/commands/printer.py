"""Output of commands, on the client's stdout and stderr."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from monarch._linux.terminal import OutputFilter

_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")
_LONGEST = 256 * 1024  # of a line that has not ended: then it is printed all the same


class CommandPrinter:
    """`prefixes`: of each process, what its lines begin with. Lines stay whole, and a progress bar's parts count as
    lines; None prints what comes as it comes. Pipes and files get the bytes as they are; a terminal gets colours and
    what is seen (`OutputFilter`)."""

    def __init__(self, prefixes: Sequence[str | None]) -> None:
        self._prefixes = prefixes
        self._partial: dict[tuple[int, int], bytes] = {}
        self._decoders: dict[tuple[int, int], Any] = {}
        self._filters: dict[tuple[int, int], OutputFilter] = {}

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Something that process `rank` wrote to 1 or 2."""
        prefix = self._prefixes[rank]
        if prefix is None:
            self._print(rank, stream, data)
            return
        data = self._partial.get((rank, stream), b"") + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(data) > _LONGEST:
            data += b"\n"
            end = len(data)
        self._partial[rank, stream] = data[end:]
        if end:
            lines = data[:end]
            if prefix:
                lines = b"".join(prefix.encode() + line for line in _LINES.findall(lines))
            self._print(rank, stream, lines)

    def end(self, rank: int, status: int = 0) -> None:
        """Prints lines that process `rank` did not end. `status`: with which it has ended."""
        for stream in (1, 2):
            if self._partial.get((rank, stream)):
                self.write(rank, stream, b"\n")
            filter = self._filters.pop((rank, stream), None)
            if filter is not None and (left := filter.feed(b"", last=True)):
                self._put(stream, left)

    def _print(self, rank: int, stream: int, data: bytes) -> None:
        target = sys.stdout if stream == 1 else sys.stderr
        if getattr(target, "buffer", None) is not None:
            if target.isatty():
                filter = self._filters.setdefault((rank, stream), OutputFilter(self._prefixes[rank] is not None))
                data = filter.feed(data)
            self._put(stream, data)
            return
        # A notebook's stream, which takes text only.
        decoder = self._decoders.setdefault((rank, stream), codecs.getincrementaldecoder("utf-8")(errors="replace"))
        target.write(decoder.decode(data))
        target.flush()

    def _put(self, stream: int, data: bytes) -> None:
        target = sys.stdout if stream == 1 else sys.stderr
        target.flush()
        target.buffer.write(data)
        target.buffer.flush()


class LinePrinter(CommandPrinter):
    """Output of commands for a program: `line(rank, stream, text)` for each line, without its end, and `ended(rank, status)`.
    Parts of a progress bar count as lines."""

    def __init__(self, count: int, line: Callable[[int, int, str], None], ended: Callable[[int, int], None]) -> None:
        super().__init__([""] * count)
        self._line = line
        self._ended = ended

    def end(self, rank: int, status: int = 0) -> None:
        super().end(rank, status)
        self._ended(rank, status)

    def _print(self, rank: int, stream: int, data: bytes) -> None:
        for line in _LINES.findall(data):
            self._line(rank, stream, line.rstrip(b"\r\n").decode(errors="replace"))
