"""Sources of the bytes of a part of a tensor, when several owners hold parts of it. Pure.

Everything is a box of the whole tensor: the owners' parts, the part that a reader wants, and the boxes that they have in
common. `assign` gives each element of what is wanted to exactly one owner; `Block` says which bytes that is on either side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from monarch.rdma.shards import Piece, Range

Box = tuple[Range, ...]  # of each dimension; () is all of a tensor without dimensions


def size_of(box: Box) -> int:
    """Returns how many elements it has."""
    return math.prod(stop - start for start, stop in box)


def common(one: Box, other: Box) -> Box | None:
    """Returns what both hold; None if that is nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def around(box: Box, part: Box) -> list[Box]:
    """`box` without `part`, which lies in it: at most two boxes for each dimension."""
    result = []
    for dim, ((low, high), (start, stop)) in enumerate(zip(box, part, strict=True)):
        for rest in ((low, start), (stop, high)):
            if rest[0] < rest[1]:
                result.append((*part[:dim], rest, *box[dim + 1 :]))
    return result


def shown(box: Box) -> str:
    """Returns the box as torch would write it: "[0:4, 8:16]"."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]"


class AssignedBox(NamedTuple):
    """A part of an array, and the owner from whom it is read."""

    owner: int
    box: Box


def assign(
    wanted: Box, held: Sequence[tuple[int, Box]], pick: Callable[[Sequence[int], int], int]
) -> tuple[list[AssignedBox], list[Box]]:
    """Decides who gives which part of `wanted`, every element once, and what nobody has.

    `held` are owners and the boxes they have, which may overlap. Of those that have the same box, `pick(owners, elements)`
    chooses. Boxes that share more with `wanted` come first, so that little is cut up where boxes overlap.
    """
    sharers: dict[Box, list[int]] = {}
    for owner, box in held:
        part = common(wanted, box)
        if part is not None:
            sharers.setdefault(part, []).append(owner)
    left, result = [wanted] if size_of(wanted) else [], []
    for box, owners in sorted(sharers.items(), key=lambda one: (-size_of(one[0]), one[0])):
        taken = [(rest, part) for rest in left if (part := common(rest, box)) is not None]
        if not taken:
            continue
        owner = pick(owners, sum(size_of(part) for _, part in taken))
        for rest, part in taken:
            left.remove(rest)
            left += around(rest, part)
            result.append(AssignedBox(owner, part))
    return result, left


class Balance:
    """Chooses among owners of the same bytes: those that are near before others, then those that have been given the least.

    `turn` tells readers apart that do not know of each other: where all else is equal they begin with different owners.
    """

    def __init__(self, near: Sequence[bool], turn: int) -> None:
        self._near = near
        self._turn = turn
        self._given = [0] * len(near)

    def pick(self, owners: Sequence[int], size: int) -> int:
        count = len(self._near)
        best = min(owners, key=lambda one: (not self._near[one], self._given[one], (one - self._turn) % count))
        self._given[best] += size
        return best


class Block(NamedTuple):
    """Bytes that are copied as one box: `size` consecutive ones, repeated along `counts`.

    `there` and `here` are where the first lies at the owner and in the reader; `steps` how far to the next one, along each
    of `counts`, at the owner and in the reader.
    """

    there: int
    here: int
    size: int
    counts: tuple[int, ...] = ()
    steps_there: tuple[int, ...] = ()
    steps_here: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return self.size * math.prod(self.counts)

    def moved(self, there: int, here: int) -> Block:
        """The same box, so many bytes further on."""
        return self._replace(there=self.there + there, here=self.here + here)

    def pieces(self) -> Iterator[Piece]:
        """All of it as copies of consecutive bytes."""
        for at in itertools.product(*map(range, self.counts)):
            yield (
                self.there + sum(map(int.__mul__, at, self.steps_there)),
                self.here + sum(map(int.__mul__, at, self.steps_here)),
                self.size,
            )

    def cut(self, limit: int) -> Iterator[Block]:
        """The same copies in blocks of at most `limit` bytes each."""
        if self.total <= limit:
            yield self
        elif not self.counts:
            for at in range(0, self.size, limit):
                yield Block(self.there + at, self.here + at, min(limit, self.size - at))
        else:
            inner = Block(self.there, self.here, self.size, self.counts[1:], self.steps_there[1:], self.steps_here[1:])
            step_there, step_here = self.steps_there[0], self.steps_here[0]
            rows = limit // inner.total
            for at in range(0, self.counts[0], max(1, rows)):
                there, here = at * step_there, at * step_here
                if rows:
                    counts = (min(rows, self.counts[0] - at), *self.counts[1:])
                    yield self.moved(there, here)._replace(counts=counts)
                else:
                    yield from inner.moved(there, here).cut(limit)


def block(theirs: Box, mine: Box, part: Box, item: int) -> Block:
    """The bytes of `part` in contiguous tensors of `item` bytes an element that hold `theirs` and `mine`."""
    inner = len(part)  # dimensions from here on lie together on both sides
    unit = item
    while inner and part[inner - 1] == theirs[inner - 1] == mine[inner - 1]:
        inner -= 1
        unit *= part[inner][1] - part[inner][0]
    if inner:  # and of the next dimension, what is wanted of it
        inner -= 1
        unit *= part[inner][1] - part[inner][0]
    there, steps_there = _place(theirs, part, item)
    here, steps_here = _place(mine, part, item)
    outer = [i for i in range(inner) if part[i][1] - part[i][0] > 1]
    return Block(
        there,
        here,
        unit,
        tuple(part[i][1] - part[i][0] for i in outer),
        tuple(steps_there[i] for i in outer),
        tuple(steps_here[i] for i in outer),
    )


def _place(held: Box, part: Box, item: int) -> tuple[int, list[int]]:
    """Returns where `part` begins in a contiguous tensor that holds `held`, and the steps of its dimensions. Bytes."""
    steps = [item] * len(held)
    for i in range(len(held) - 2, -1, -1):
        steps[i] = steps[i + 1] * (held[i + 1][1] - held[i + 1][0])
    start = sum((low - first) * step for (low, _), (first, _), step in zip(part, held, steps, strict=True))
    return start, steps
