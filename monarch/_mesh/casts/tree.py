"""The shape of a tree of host agents. Pure.

A plan's hosts stand in one order. The agent at the root cuts the list (but for its own host, where that is the first) into
at most `width` contiguous parts of nearly equal size; the first host of each is a child, which does the same with the rest
of its part. So what is below a host follows from the list alone: whoever takes a dead host's place cuts just as it did.
"""

from __future__ import annotations

import itertools


def split(count: int, width: int) -> list[range]:
    """`count` places in at most `width` contiguous parts, none empty, whose sizes differ by one at most, larger first.

    ValueError when `width` is below 1.
    """
    if width < 1:
        raise ValueError(f"a tree's width is at least 1, got {width} (setting max_cast_fanout)")
    parts = min(count, width)
    if not parts:
        return []
    size, larger = divmod(count, parts)
    starts = [part * size + min(part, larger) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]
