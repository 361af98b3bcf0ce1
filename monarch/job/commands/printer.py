"""What commands write, on the client's stdout and stderr."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Sequence
from typing import Any

_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")
_LONGEST = 256 * 1024  # of a line that has not ended: then it is printed all the same


class CommandPrinter:
    """`prefixes`: of each process, what its lines begin with. Lines stay whole, and a progress bar's parts count as
    lines; None prints what comes as it comes."""

    def __init__(self, prefixes: Sequence[str | None]) -> None:
        self._prefixes = prefixes
        self._partial: dict[tuple[int, int], bytes] = {}
        self._decoders: dict[tuple[int, int], Any] = {}

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

    def end(self, rank: int) -> None:
        """Lines that process `rank` did not end are printed."""
        for stream in (1, 2):
            if self._partial.get((rank, stream)):
                self.write(rank, stream, b"\n")

    def _print(self, rank: int, stream: int, data: bytes) -> None:
        target = sys.stdout if stream == 1 else sys.stderr
        buffer = getattr(target, "buffer", None)
        if buffer is not None:
            target.flush()
            buffer.write(data)
            buffer.flush()
            return
        # A notebook's stream, which takes text only.
        decoder = self._decoders.setdefault((rank, stream), codecs.getincrementaldecoder("utf-8")(errors="replace"))
        target.write(decoder.decode(data))
        target.flush()
