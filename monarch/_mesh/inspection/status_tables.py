"""Tables that parts of a process tell of themselves: `monarch status` and the terminal screen show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from monarch._text import one_line

MOST_ROWS = 200  # of a table; then how many more there are
MOST_TABLES = 64  # of a process


class StatusTable(msgspec.Struct, frozen=True):
    """A title, and rows of text under their columns. What a row says beyond its columns is in `notes`, by its place."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: dict[int, str] = {}

    def lines(self) -> list[str]:
        """Returns it for people."""
        if not self.columns:
            return [one_line(self.title)]
        table = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        for place, note in self.notes.items():
            lines[place + 1] += f"  {note}"
        return [one_line(line) for line in (self.title, *lines)]


_tellers: dict[object, Callable[[], StatusTable]] = {}


def tell_table(key: object, tell: Callable[[], StatusTable] | None) -> None:
    """Has this process tell the table that `tell` makes; None: no more. It is called on the I/O thread, beside the threads of
    who gives it: quick, without waiting. For optional packages."""
    if tell is None:
        _tellers.pop(key, None)
    else:
        _tellers[key] = tell


def answer(proc: Any, argument: bytes) -> bytes:
    """Question "tables": the tables of this process."""
    return msgspec.msgpack.encode([_told(tell) for tell in list(_tellers.values())[:MOST_TABLES]])


def _told(tell: Callable[[], StatusTable]) -> StatusTable:
    for _ in range(3):
        try:
            table = tell()
            break
        except RuntimeError:  # what it reads was changed meanwhile
            continue
    else:
        return StatusTable("a table that changes too fast to be read", [], [])
    if len(table.rows) <= MOST_ROWS:
        return table
    notes = {place: note for place, note in table.notes.items() if place < MOST_ROWS}
    notes[MOST_ROWS - 1] = f"{notes.get(MOST_ROWS - 1, '')}  and {len(table.rows) - MOST_ROWS} more".strip()
    return StatusTable(table.title, table.columns, table.rows[:MOST_ROWS], notes)


def decode(body: bytes) -> list[StatusTable]:
    """Returns the tables of an answer."""
    return msgspec.msgpack.decode(body, type=list[StatusTable])
