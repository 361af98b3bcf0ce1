"""The parts of a file that its older copy elsewhere has. Pure: signatures in, byte ranges out.

The older copy is known by the blocks at multiples of a fixed size: a digest and the first bytes of each. Where the new file
differs, a block behind the difference need not lie at such a multiple any more. rsync finds it with a checksum that rolls
over every byte (Tridgell, 1999), which is not for an interpreter. Here `bytes.find` looks for the first bytes of the blocks
that may come next, and the digest confirms. What is found so: changes in place and insertions of any length, removals of up
to 2 MiB or of whole blocks. What is not is sent again.
"""

from __future__ import annotations

import hashlib

BLOCK = 128 << 10
_DIGEST = 16
_ANCHOR = 16
_RECORD = _DIGEST + _ANCHOR
_AHEAD = 16  # blocks that may come next, counted from the last one found
_AROUND = 2  # and on both sides of where a change in place would end
_TRIES = 4  # digests per search: in a file of zeros the first bytes of a block are everywhere

# A range of the older copy (offset, length), or bytes it lacks.
Piece = tuple[int, int] | bytes


def block_digest(block: bytes | memoryview) -> bytes:
    """16 bytes of blake2b: two different blocks with one digest do not happen."""
    return hashlib.blake2b(block, digest_size=_DIGEST).digest()


def signature(block: bytes) -> bytes:
    """Returns what the other side is told of a block: 32 bytes."""
    return block_digest(block) + block[:_ANCHOR].ljust(_ANCHOR, b"\0")


class Matcher:
    """Takes a new file in parts and gives it back as pieces, in order. Keeps two blocks of it.

    `signatures`: of all blocks of the older copy, one behind the other; ValueError when that cannot be.
    """

    def __init__(self, signatures: bytes, block: int = BLOCK) -> None:
        if len(signatures) % _RECORD:
            raise ValueError(f"{len(signatures)} bytes are no signatures of {_RECORD} bytes each")
        starts = range(0, len(signatures), _RECORD)
        self._digests = [signatures[at : at + _DIGEST] for at in starts]
        self._anchors = [signatures[at + _DIGEST : at + _RECORD] for at in starts]
        self._index = {digest: index for index, digest in enumerate(self._digests)}
        self._block = block
        self._next = 0  # the block behind the last one found
        self._passed = 0  # blocks of the new file since then
        self._rest = b""

    def feed(self, data: bytes) -> list[Piece]:
        """Returns as much as can be told by now; perhaps nothing."""
        return self._match(self._rest + data, final=False)

    def flush(self) -> list[Piece]:
        """Returns the rest: the file ends here."""
        return self._match(self._rest, final=True)

    def _match(self, data: bytes, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        view = memoryview(data)
        at = missing = 0  # where we are, and where what the older copy lacks begins
        while at < len(data) and (final or len(data) - at >= 2 * self._block):
            index = self._find(view[at : at + self._block])
            if index is None:
                self._passed += 1
                at = self._search(data, at)
                continue
            if missing < at:
                pieces.append(data[missing:at])
            length = min(self._block, len(data) - at)
            _append_range(pieces, index * self._block, length)
            at = missing = at + length
            self._next, self._passed = index + 1, 0
        if missing < at:
            pieces.append(data[missing:at])
        self._rest = data[at:]
        return pieces

    def _find(self, block: memoryview) -> int | None:
        """The older block with this content, the one that comes next if there are several."""
        digest = block_digest(block)
        if self._next < len(self._digests) and self._digests[self._next] == digest:
            return self._next
        return self._index.get(digest)

    def _search(self, data: bytes, start: int) -> int:
        """Returns where an older block begins, after `start` and at most a block behind it; else the end of that."""
        end = min(start + self._block, len(data))
        hits = set()
        for index in self._candidates():
            hit = data.find(self._anchors[index], start + 1, end + _ANCHOR)
            if hit >= 0:
                hits.add((hit, self._digests[index]))
        view = memoryview(data)
        for hit, digest in sorted(hits)[:_TRIES]:
            if hit < end and block_digest(view[hit : hit + self._block]) == digest:
                return hit
        return end

    def _candidates(self) -> set[int]:
        here = self._next + self._passed
        near = {*range(self._next, self._next + _AHEAD), *range(here - _AROUND, here + _AROUND + 1)}
        return {index for index in near if 0 <= index < len(self._digests)}


def _append_range(pieces: list[Piece], offset: int, length: int) -> None:
    last = pieces[-1] if pieces else None
    if isinstance(last, tuple) and last[0] + last[1] == offset:
        pieces[-1] = (last[0], last[1] + length)
    else:
        pieces.append((offset, length))
