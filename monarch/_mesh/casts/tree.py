"""The shape of a tree of host agents. Pure.

A plan's hosts stand in one order. The agent at the root cuts the list (but for its own host, where that is the first) into
at most `width` contiguous parts of nearly equal size; the first host of each is a child, which does the same with the rest
of its part. So what is below a host follows from the list alone: whoever takes a dead host's place cuts just as it did.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from monarch._wire.address import host_of, name_of
from monarch._wire.message import PlanHost


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


def depth(count: int, width: int) -> int:
    """How many agents a cast passes on its longest way from the root to one of `count` other hosts."""
    levels = 0
    while count:
        count = len(split(count, width)[0]) - 1
        levels += 1
    return levels


def arrange(own: str, addresses: Sequence[str]) -> list[PlanHost]:
    """The hosts of a view's receivers, `addresses[i]` being the process of its rank i, as they go into a CastPlan.

    The host `own` comes first if it is among them (then the plan says `serve`), the others in the order of their first rank.
    """
    hosts: dict[str, PlanHost] = {}
    for index, address in enumerate(addresses):
        host = host_of(address)
        known = hosts.get(host)
        if known is None:
            known = hosts[host] = PlanHost(host, [], [])
        known.names.append(name_of(address))
        known.indices.append(index)
    first = hosts.pop(own, None)
    return [*([] if first is None else [first]), *hosts.values()]
