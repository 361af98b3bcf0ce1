"""What commands write, on the client's stdout and stderr: as it is for one process, line by line with a prefix for
several."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from typing import Any

_LONGEST = 256 * 1024  # of a line that has not ended: then it is printed all the same


class CommandPrinter:
    """`prefixes`: of each process, what its lines begin with; "" prints what comes as it comes."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = prefixes
        self._partial: dict[tuple[int, int], bytes] = {}
        self._decoders: dict[tuple[int, int], Any] = {}

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Something that process `rank` wrote to 1 or 2."""
        prefix = self._prefixes[rank]
        if not prefix:
            self._print(rank, stream, data)
            return
        whole, end, rest = (self._partial.get((rank, stream), b"") + data).rpartition(b"\n")
        if not end and len(rest) > _LONGEST:
            whole, end, rest = rest, b"\n", b""
        self._partial[rank, stream] = rest
        if end:
            start = prefix.encode()
            self._print(rank, stream, b"".join(start + line + b"\n" for line in whole.split(b"\n")))

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
        decoder = self._decoders.setdefault(
            (rank, stream), codecs.getincrementaldecoder("utf-8")(errors="replace")
        )  # a notebook's, which takes text only
        target.write(decoder.decode(data))
        target.flush()
