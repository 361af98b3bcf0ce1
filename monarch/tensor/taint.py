"""Which commands between ranks a value depends on.

A failure on one rank reaches the others only through such commands (collectives, moves): they take part with other data, so
that their peers go on, and what they give is not to be trusted. Whoever fetches a value asks every rank of every such command
that the value depends on and that no answer has confirmed yet.
"""

from __future__ import annotations

from collections.abc import Iterable


class Taint:
    """One command between ranks (`ident`, over the ranks `ranks` of the engine), and those its inputs depend on. Immutable, but
    for `parents`, which go when the command is known to have gone well."""

    __slots__ = ("ident", "parents", "ranks")

    def __init__(self, ident: int, ranks: frozenset[int], parents: tuple[Taint, ...]) -> None:
        self.ident = ident
        self.ranks = ranks
        self.parents = parents


def merge(first: Taint | None, second: Taint | None) -> Taint | None:
    """What depends on both. One of them where that says it all; else a node without a command of its own (ident -1)."""
    if first is None or first is second:
        return second
    if second is None or second in first.parents:
        return first
    if first in second.parents:
        return second
    return Taint(-1, frozenset(), (first, second))


def unconfirmed(taints: Iterable[Taint | None], confirmed: int) -> list[Taint]:
    """Every command the values depend on, of those later than ident `confirmed`; parents of earlier ones are let go."""
    found: list[Taint] = []
    seen: set[int] = set()
    open_ = [taint for taint in taints if taint is not None]
    while open_:
        taint = open_.pop()
        if id(taint) in seen:
            continue
        seen.add(id(taint))
        if 0 <= taint.ident <= confirmed:
            taint.parents = ()
            continue
        if taint.ident >= 0:
            found.append(taint)
        open_.extend(taint.parents)
    return found
