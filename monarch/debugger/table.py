"""Sessions as a table: the grid that the library `tabulate` draws, which programs that read it know. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_HEAD_PADDING = 2  # a column is at least so much wider than its heading


def grid(headers: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """Numbers stand at the right of their column, text at the left. No newline at the end."""
    right = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(headers))]
    cells = [[str(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max([len(header) + _HEAD_PADDING, *(len(row[at]) for row in cells)]) for at, header in enumerate(headers)]

    def line(texts: Sequence[str]) -> str:
        placed = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(texts, widths, right, strict=True)
        ]
        return "| " + " | ".join(placed) + " |"

    def rule(stroke: str) -> str:
        return "+" + "+".join(stroke * (width + 2) for width in widths) + "+"

    lines = [rule("-"), line(headers), rule("=")]
    for row in cells:
        lines += [line(row), rule("-")]
    if not rows:
        lines.append(rule("-"))
    return "\n".join(lines)
