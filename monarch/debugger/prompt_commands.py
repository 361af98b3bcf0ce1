"""Commands that are typed at the prompt of the debugger. Pure.

    help | h
    list | l
    attach | a NAME RANK
    cast NAME ranks(SELECTION) COMMAND OF PDB
    continue | c
    quit | q

NAME is of letters, digits, `-` and `_`. SELECTION is a rank, ranks with commas, a range a:b:c whose parts may be left out, or
DIMENSION=ITEM with commas between, where an item is a number, a range or (numbers with commas).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

HELP = """\
help, h                          this page
list, l                          the endpoints that stand at a breakpoint
attach, a ACTOR RANK             talk to one of them: everything typed goes to its pdb, until you type "detach"
cast ACTOR ranks(WHICH) COMMAND  the same command to the pdbs of several ranks, whose answers are not shown.
                                 WHICH: 3   0,1,4   2:8   0:8:2   hosts=0,gpus=(1,3)   hosts=1:,gpus=0
continue, c                      clear all breakpoints and let everything go on
quit, q                          leave; what stands at a breakpoint stays there
"""
_SHOWN = 80


@dataclass(frozen=True)
class Range:
    """A range(start, stop, step); parts that are None were left out."""

    start: int | None
    stop: int | None
    step: int | None

    def has(self, number: int) -> bool:
        start, step = self.start or 0, self.step or 1
        return number >= start and (self.stop is None or number < self.stop) and (number - start) % step == 0


Item = Range | frozenset[int]  # some numbers along one dimension


@dataclass(frozen=True)
class Selection:
    """Some ranks of a mesh: by their `ranks`, or by coordinates (`dims`)."""

    ranks: Item | None = None
    dims: tuple[tuple[str, Item], ...] = ()

    def has(self, rank: int, coords: Mapping[str, int]) -> bool:
        if self.ranks is not None:
            return _in(rank, self.ranks)
        return all(label in coords and _in(coords[label], item) for label, item in self.dims)


def _in(number: int, item: Item) -> bool:
    return item.has(number) if isinstance(item, Range) else number in item


@dataclass(frozen=True)
class HelpCommand:
    pass


@dataclass(frozen=True)
class ListCommand:
    pass


@dataclass(frozen=True)
class AttachCommand:
    actor: str
    rank: int


@dataclass(frozen=True)
class CastCommand:
    actor: str
    which: Selection
    command: str


@dataclass(frozen=True)
class ContinueCommand:
    pass


@dataclass(frozen=True)
class QuitCommand:
    pass


Command = HelpCommand | ListCommand | AttachCommand | CastCommand | ContinueCommand | QuitCommand

_WORDS: dict[str, Command] = {
    "help": HelpCommand(),
    "h": HelpCommand(),
    "list": ListCommand(),
    "l": ListCommand(),
    "continue": ContinueCommand(),
    "c": ContinueCommand(),
    "quit": QuitCommand(),
    "q": QuitCommand(),
}
_ATTACH = re.compile(r"(?:attach|a)\s+([-_a-zA-Z0-9]+)\s+(\d{1,9})")
_CAST = re.compile(r"cast\s+([-_a-zA-Z0-9]+)\s+ranks\(((?:[^()]|\([^()]*\))*)\)\s+(\S.*)")
_DIM = re.compile(r"([_a-zA-Z][_a-zA-Z0-9/]*)\s*=\s*(\([^()]*\)|[^,()=]+)")
_NUMBER = re.compile(r"\d{1,9}")


def parse(line: str) -> Command | None:
    """The command of a line; None for an empty one. ValueError says what is wrong with it."""
    text = line.strip()
    if not text:
        return None
    known = _WORDS.get(text)
    if known is not None:
        return known
    first = text.split()[0]
    if first in ("attach", "a"):
        found = _ATTACH.fullmatch(text)
        if found is None:
            raise ValueError(f"{_clip(text)!r}: expected attach ACTOR RANK, as in: attach trainers 3")
        return AttachCommand(found[1], int(found[2]))
    if first == "cast":
        found = _CAST.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{_clip(text)!r}: expected cast ACTOR ranks(WHICH) COMMAND, as in: cast trainers ranks(0:4) n"
            )
        return CastCommand(found[1], selection(found[2]), found[3])
    if first in _WORDS:
        raise ValueError(f"{first} takes nothing behind it")
    raise ValueError(f"{_clip(text)!r} is no command; help shows them")


def selection(text: str) -> Selection:
    text = text.strip()
    if "=" not in text:
        return Selection(ranks=_item(text))
    dims: list[tuple[str, Item]] = []
    place = 0
    while True:
        found = _DIM.match(text, place)
        if found is None:
            _bad(text)
        if any(label == found[1] for label, _ in dims):
            raise ValueError(f"{found[1]} is there twice in ranks({_clip(text)})")
        inside = found[2].strip()
        dims.append((found[1], _item(inside[1:-1]) if inside.startswith("(") else _one(inside)))
        place = found.end()
        rest = re.compile(r"\s*(,?)\s*").match(text, place)
        assert rest is not None
        place = rest.end()
        if place == len(text) and not rest[1]:
            return Selection(dims=tuple(dims))
        if not rest[1]:
            _bad(text)


def _item(text: str) -> Item:
    parts = [part.strip() for part in text.strip().split(",")]
    if len(parts) > 1 and not parts[-1]:  # (2,) as in Python
        parts.pop()
    if len(parts) == 1:
        return _one(parts[0])
    return frozenset(_number(part) for part in parts)


def _one(text: str) -> Item:
    if ":" not in text:
        return frozenset({_number(text)})
    parts = text.split(":")
    if len(parts) > 3:
        _bad(text)
    start, stop, step = [None if not part.strip() else _number(part) for part in [*parts, ""][:3]]
    if step == 0:
        raise ValueError("the step of a range is at least 1")
    return Range(start, stop, step)


def _number(text: str) -> int:
    if _NUMBER.fullmatch(text.strip()) is None:
        _bad(text)
    return int(text)


def _bad(text: str) -> NoReturn:
    raise ValueError(f"{_clip(text)!r}: expected ranks such as 3, 0,1,4, 2:8:2 or hosts=0,gpus=(1,3)")


def _clip(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
