"""The check that weights that were read are whole. Pure: the owner's two counters in, a verdict out.

The owner keeps two counters beside the weights, and `copies` places for them (1 or 2). Version v lies in place
v % copies. To make v: `begun` becomes v, then place v % copies is written to, then `published` becomes v. A reader reads
both counters, the place of `published`, and both counters again.

With one place this is a sequence lock (Lamport, "Concurrent Reading and Writing", 1977; Linux's seqlock): the owner never
waits and copies nothing, readers try again when an update came in between. With two, an update is a copy into the place
that nobody reads, and a reader fails only if a second one begins while it reads.

Weights may have several owners, each of a part. Then a version counts only if all of them have it: the one to read is the
lowest that was published, if the others still have that, and it is whole if it is whole at each.

A counter that is read while it is written may be a mixture of both its values. Such a mixture is accepted nowhere:
counting up by one changes bytes from 255 to 0 and one byte by one, so a mixture is either one of the two values or lies
256 or more away from one of them, on the wrong side of `readable` or `whole`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Header(NamedTuple):
    """The counters: the version whose making has begun, and the last one that was finished."""

    begun: int
    published: int

    def readable(self, copies: int) -> bool:
        """True if the published version stands somewhere untouched."""
        return self.published <= self.begun < self.published + copies


def whole(version: int, after: Header, copies: int) -> bool:
    """True if what was read as `version` is that version and nothing else, by the counters read afterwards."""
    return version <= after.begun < version + copies


def agreed(owners: Iterable[tuple[Header, int]]) -> int | None:
    """The version that can be read of all owners, by the counters and the copies of each; None if there is none now."""
    seen = list(owners)
    version = min(header.published for header, _ in seen)
    if all(header.readable(copies) and header.begun < version + copies for header, copies in seen):
        return version
    return None
