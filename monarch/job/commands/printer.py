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
    """`prefixes`: of each process, what its lines begin with; a pair where those of stdout and stderr differ. Lines stay
    whole, and a progress bar's parts count as lines; None prints what comes as it comes. Pipes and files get the bytes as
    they are; a terminal gets colours and what is seen (`OutputFilter`)."""

    def __init__(self, prefixes: Sequence[str | tuple[str | None, str | None] | None]) -> None:
        self._prefixes = [one if isinstance(one, tuple) else (one, one) for one in prefixes]
        self._partial: dict[tuple[int, int], bytes] = {}
        self._prompts: set[tuple[int, int]] = set()  # whose line was shown before its end
        self._decoders: dict[tuple[int, int], Any] = {}
        self._filters: dict[tuple[int, int], OutputFilter] = {}

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Something that process `rank` wrote to 1 or 2."""
        prefix = self._prefixes[rank][stream - 1]
        if prefix is None or (rank, stream) in self._prompts:
            self._print(rank, stream, data)
            if b"\n" in data and (rank, stream) in self._prompts:
                self._prompts.discard((rank, stream))
                self._end_filter(rank, stream)
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

    def has_partial(self, rank: int) -> bool:
        """Returns whether process `rank` has begun a line that is not shown yet."""
        return any(self._partial.get((rank, stream)) for stream in (1, 2))

    def show_partial(self, rank: int) -> None:
        """Shows the beginning of a line, which is a prompt when nothing follows. What follows is shown as it comes."""
        for stream in (1, 2):
            if data := self._partial.pop((rank, stream), b""):
                prefix = self._prefixes[rank][stream - 1] or ""
                self._prompts.add((rank, stream))
                self._end_filter(rank, stream)  # an edited line moves the cursor, which lines of several may not
                self._print(rank, stream, prefix.encode() + data)

    def end(self, rank: int, status: int = 0) -> None:
        """Prints lines that process `rank` did not end. `status`: with which it has ended."""
        for stream in (1, 2):
            if self._partial.get((rank, stream)):
                self.write(rank, stream, b"\n")
            self._prompts.discard((rank, stream))
            self._end_filter(rank, stream)

    def _end_filter(self, rank: int, stream: int) -> None:
        filter = self._filters.pop((rank, stream), None)
        if filter is not None and (left := filter.feed(b"", last=True)):
            self._put(stream, left)

    def _print(self, rank: int, stream: int, data: bytes) -> None:
        target = sys.stdout if stream == 1 else sys.stderr
        if getattr(target, "buffer", None) is not None:
            if target.isatty():
                of_several = self._prefixes[rank][stream - 1] is not None and (rank, stream) not in self._prompts
                filter = self._filters.setdefault((rank, stream), OutputFilter(of_several))
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
