"""The answer to a query as text: a table for people, or JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from monarch._text import aligned, columns, one_line

FORMATS = ("table", "json", "jsonl")


def shown(reply: Mapping[str, Any], form: str) -> str:
    """The text to print, without its last line's end; "" for nothing."""
    rows = reply["rows"]
    if form == "json":
        return json.dumps(reply, indent=2, sort_keys=True)
    if form == "jsonl":
        return "\n".join(json.dumps(row, sort_keys=True) for row in rows)
    return table(rows, reply.get("columns", ()))


def table(rows: Sequence[Mapping[str, Any]], order: Sequence[str] = ()) -> str:
    """Columns in the order of their first appearance; numbers stand at the right."""
    names = list(dict.fromkeys([*order, *(name for row in rows for name in row)]))
    count = "(1 row)" if len(rows) == 1 else f"({len(rows)} rows)"
    if not names:
        return count
    cells = [[cell(row.get(name)) for name in names] for row in rows]
    heads = [cell(name) for name in names]
    widths = [max(map(columns, column)) for column in zip(heads, *cells, strict=True)]
    right = [bool(rows) and all(_is_number(row.get(name)) for row in rows) for name in names]

    def line(words: Sequence[str]) -> str:
        padded = (
            aligned(word, width, right=to_right) for word, width, to_right in zip(words, widths, right, strict=True)
        )
        return " | ".join(padded).rstrip()

    rule = "-+-".join("-" * width for width in widths)
    return "\n".join([line(heads), rule, *map(line, cells), count])


def cell(value: Any) -> str:
    """One line, fit for a terminal."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, separators=(",", ":"), sort_keys=True)
    return str(value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
