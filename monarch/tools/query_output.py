"""The answer to a query as text: a table for people, or JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = ("table", "json", "jsonl")


def shown(reply: Mapping[str, Any], form: str) -> str:
    """The text to print, without its last line's end; "" for nothing."""
    rows = reply["rows"]
    if form == "json":
        return json.dumps(reply, indent=2, sort_keys=True)
    if form == "jsonl":
        return "\n".join(json.dumps(row, sort_keys=True) for row in rows)
    return table(rows, reply.get("columns", ()))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Columns in the order of their first appearance; numbers stand at the right."""
    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    count = "(1 row)" if len(rows) == 1 else f"({len(rows)} rows)"
    if not names:
        return count
    cells = [[cell(row.get(name)) for name in names] for row in rows]
    widths = [max([len(name), *(len(line[at]) for line in cells)]) for at, name in enumerate(names)]
    right = [bool(rows) and all(_is_number(row.get(name)) for row in rows) for name in names]

    def line(words: Sequence[str]) -> str:
        padded = (
            word.rjust(width) if to_right else word.ljust(width)
            for word, width, to_right in zip(words, widths, right, strict=True)
        )
        return " | ".join(padded).rstrip()

    rule = "-+-".join("-" * width for width in widths)
    return "\n".join([line(names), rule, *map(line, cells), count])


def cell(value: Any) -> str:
    """One line, and no control characters of a terminal."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        text = value.replace("\n", "\\n").replace("\t", "\\t")
        return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, separators=(",", ":"), sort_keys=True)
    return str(value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
