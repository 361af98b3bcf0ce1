"""Curves as text: dots of braille, two by four in each character, with axes, and what a curve says in words. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monarch._text import columns, counted, fitting, one_line
from monarch.telemetry.curves import Curve
from monarch.telemetry.runs import KeptRun

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a character, by line and column
_LABEL = 9  # columns of the numbers beside a plot
COLOURS = (36, 33, 35, 32, 34, 31)  # of SGR, one for each run
_END = "\x1b[0m"


class PlottedLine(NamedTuple):
    """The points of one line: steps and values, None for a gap."""

    steps: Sequence[int]
    values: Sequence[float | None]


def number(value: float | None) -> str:
    """Returns a number in at most eight characters or so."""
    if value is None:
        return "none"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def plot(lines: Sequence[PlottedLine], width: int, height: int, coloured: bool = False) -> list[str]:
    """Returns `height` rows and one with the steps, `width` columns wide."""
    points = [
        (step, value)
        for line in lines
        for step, value in zip(line.steps, line.values, strict=True)
        if value is not None
    ]
    if not points:
        return ["no value was a finite number"]
    across, down = 2 * max(4, width - _LABEL - 2), 4 * max(1, height)
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    low, high = min(value for _, value in points), max(value for _, value in points)
    if high - low <= 1e-9 * abs(high):  # a straight line lies in the middle
        half = abs(high) / 2 or 1.0
        low, high = max(low - half, -sys.float_info.max), min(high + half, sys.float_info.max)
    scale = 1.0 if math.isfinite((down - 1) * (high - low)) else 2.0**-20  # else it is beyond what a float can be
    top, tall = high * scale, high * scale - low * scale

    def place(step: int, value: float) -> tuple[int, int]:
        x = round((across - 1) * (step - first) / (last - first)) if last > first else across // 2
        return x, round((down - 1) * (top - value * scale) / tall)

    cells: dict[tuple[int, int], list[int]] = {}  # (row, column) -> dots, line
    for which, line in enumerate(lines):
        before: tuple[int, int] | None = None
        for step, value in zip(line.steps, line.values, strict=True):
            now = None if value is None else place(step, value)
            if now is not None:
                for x, y in _between(before or now, now):
                    cell = cells.setdefault((y // 4, x // 2), [0, which])
                    cell[0] |= _DOTS[y % 4][x % 2]
                    cell[1] = which
            before = now
    rows = []
    for row in range(down // 4):
        label = number(high) if row == 0 else number(low) if row == down // 4 - 1 else ""
        text = "".join(_cell(cells.get((row, column)), coloured) for column in range(across // 2)).rstrip()
        rows.append(f"{label:>{_LABEL}} ┤{text}")
    ends = f"{first:,}", f"{last:,}"
    room = across // 2 - len(ends[0])
    rows.append(
        f"{'':{_LABEL}}  {ends[0]}{ends[1]:>{room}}"
        if last > first
        else f"{'':{_LABEL}}  {ends[0]:^{across // 2}}".rstrip()
    )
    return rows


def _cell(cell: list[int] | None, coloured: bool) -> str:
    if cell is None:
        return " "
    dots = chr(0x2800 + cell[0])
    return f"\x1b[{COLOURS[cell[1] % len(COLOURS)]}m{dots}{_END}" if coloured else dots


def _between(start: tuple[int, int], end: tuple[int, int]) -> Iterable[tuple[int, int]]:
    """Yields the dots of a straight line."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for step in range(steps + 1):
        yield (
            round(start[0] + (end[0] - start[0]) * step / steps),
            round(start[1] + (end[1] - start[1]) * step / steps),
        )


def sentence(curve: Curve) -> str:
    """Returns what the last point says, and whether a rank differs or a value is no number."""
    place = next((at for at in reversed(range(len(curve.steps))) if curve.mean[at] is not None), -1)
    if place < 0:
        text = f"no value is a finite number, at {counted(len(curve.steps), 'step')}"
    else:
        text = f"{number(curve.mean[place])} at step {curve.steps[place]:,}"
        if curve.count[place] > 1 and curve.least_rank[place] != curve.most_rank[place]:
            least = f"{number(curve.least[place])} (rank {curve.least_rank[place]})"
            text += f", from {least} to {number(curve.most[place])} (rank {curve.most_rank[place]})"
    odd = [at for at, count in enumerate(curve.odd) if count]
    if odd and place >= 0:
        where = f"step {curve.steps[odd[0]]:,}, rank {curve.odd_rank[odd[0]]}"
        text += f"; NaN or infinite at {counted(len(odd), 'point')}, first at {where}"
    rank, points = curve.standing_out()
    if points and (rank, points) != (curve.odd_rank[odd[0]] if odd else -1, len(odd)):
        text += f"; rank {rank} differs from all others at {points:,} of {counted(len(curve.steps), 'point')}"
    return text


def page(curves: Sequence[Curve], width: int, height: int) -> str:
    """Returns the curves of one program, `height` rows each beside their titles."""
    blocks = []
    for curve in curves:
        blocks.append(
            "\n".join(
                [
                    *_title(f"{curve.mesh} · {curve.name}  {sentence(curve)}", width),
                    *plot([PlottedLine(curve.steps, curve.mean)], width, height),
                ]
            )
        )
    return "\n\n".join(blocks)


def nothing_logged(match: str = "") -> str:
    """Returns what is said where there is no curve."""
    what = f"under a name with {match!r} in it" if match else "yet: it calls monarch.metrics.log(step=..., loss=...)"
    return f"the program has logged nothing {what}"


def _title(text: str, width: int) -> list[str]:
    """Returns it in one line, or in two."""
    text = one_line(text)
    if columns(text) <= width:
        return [text]
    first, _, rest = text.partition("; ")
    return [fitting(first, width), *([fitting(f"  {rest}", width)] if rest else [])]


def comparison(
    runs: Sequence[KeptRun], curves: Sequence[Sequence[Curve]], width: int, height: int, coloured: bool
) -> str:
    """Returns the curves of several runs (each with its own `curves`), those of one mesh and name in one plot."""
    keys = dict.fromkeys((curve.mesh, curve.name) for own in curves for curve in own)
    blocks = []
    for mesh, name in keys:
        found = [
            (at, curve) for at, own in enumerate(curves) for curve in own if (curve.mesh, curve.name) == (mesh, name)
        ]
        lines = [PlottedLine([], [])] * len(runs)
        text = [fitting(one_line(f"{mesh} · {name}"), width)]
        for at, curve in found:
            lines[at] = PlottedLine(curve.steps, curve.mean)
            mark = f"\x1b[{COLOURS[at % len(COLOURS)]}m━{_END}" if coloured else "-"
            first, *rest = _title(f"{runs[at].name}  {sentence(curve)}", max(20, width - 4))
            text += [f"  {mark} {first}", *(f"    {line}" for line in rest)]
        blocks.append("\n".join([*text, *plot(lines, width, height, coloured)]))
    return "\n\n".join(blocks)
