"""Which parts of a file its older copy elsewhere has. Pure: digests in, byte ranges out.

Blocks have a fixed size and lie at multiples of it, so what was inserted in the middle of a file moves all that follows
out of step and is sent again with it. Finding it all the same takes a rolling checksum at every byte (Tridgell, 1999), which
is not for an interpreter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

BLOCK = 128 << 10
_SIZE = 16

# A range of the older copy (offset, length), or bytes it lacks.
Piece = tuple[int, int] | bytes


def block_digest(block: bytes | memoryview) -> bytes:
    """16 bytes of blake2b: two different blocks with one digest do not happen."""
    return hashlib.blake2b(block, digest_size=_SIZE).digest()


def split(digests: bytes) -> list[bytes]:
    """Digests as they travel, one behind the other. ValueError for a length that is no multiple of 16."""
    if len(digests) % _SIZE:
        raise ValueError(f"{len(digests)} bytes are no list of digests of {_SIZE}")
    return [digests[at : at + _SIZE] for at in range(0, len(digests), _SIZE)]


class Older:
    """An older copy, as the digests of its blocks."""

    def __init__(self, digests: Sequence[bytes], block: int = BLOCK) -> None:
        self._digests = digests
        self._block = block
        self._offsets = {digest: index * block for index, digest in enumerate(digests)}

    def pieces(self, offset: int, data: bytes) -> list[Piece]:
        """`data`, which begins at `offset` of the new file (a multiple of the block size), as pieces in order."""
        result: list[Piece] = []
        view = memoryview(data)
        missing = 0  # where in `data` the bytes begin that the older copy lacks
        for start in range(0, len(data), self._block):
            block = view[start : start + self._block]
            there = self._find(offset + start, block_digest(block))
            if there is None:
                continue
            if missing < start:
                result.append(bytes(view[missing:start]))
            _append_range(result, there, len(block))
            missing = start + len(block)
        if missing < len(data):
            result.append(bytes(view[missing:]))
        return result

    def _find(self, offset: int, digest: bytes) -> int | None:
        index = offset // self._block
        if index < len(self._digests) and self._digests[index] == digest:
            return offset
        return self._offsets.get(digest)


def _append_range(pieces: list[Piece], offset: int, length: int) -> None:
    last = pieces[-1] if pieces else None
    if isinstance(last, tuple) and last[0] + last[1] == offset:
        pieces[-1] = (last[0], last[1] + length)
    else:
        pieces.append((offset, length))
