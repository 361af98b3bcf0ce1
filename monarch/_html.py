"""Drawings for notebooks: meshes, values, futures and failures as HTML without scripts and style sheets. Pure: plain data in,
text out.

Light and dark pages can be read alike: text has the colour of the page, a square has its own, and a sign beside its colour.
All that comes from a program is escaped, and made of characters that people see. A drawing is bounded, whatever it is of: so
many squares, rows and characters as the constants say, 100,000 characters in all. What is beyond is folded, and counted.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from monarch._text import clip, counted, one_line, raised_line, ranges, visible

SQUARES = 256  # more ranks share a square
ACROSS = 32  # squares in a row
GROUPS = 8  # groups of ranks that are in trouble, each with why
ROWS = 50  # rows of values
VALUE = 120  # characters of a value
NAME = 120  # characters of a name or a point
TITLE = 80  # characters that are shown of a square when one points at it
TRACEBACK = 6_000  # characters; the middle of a longer one is left out
FACTS = 12  # lines of facts

# What a square looks like, the worst first: a square of many ranks shows the worst of them. White is read on each of them.
STATES = {
    "dead": ("\u2715", "#b3261e"),
    "stopped": ("\u25a0", "#5f6368"),
    "restarting": ("\u21bb", "#6d5200"),
    "starting": ("\u2026", "#6d5200"),
    "not answered": ("\u2026", "#6d5200"),
    "unknown": ("?", "#6b6f76"),
    "restarted": ("\u21ba", "#1565c0"),
    "running": ("", "#1b7a48"),
    "answered": ("", "#1b7a48"),
}
_WORST = list(STATES)
_FAINT = "opacity:.75"
_TABLE = "border-collapse:separate;border-spacing:2px;margin:4px 0;width:auto;font-size:12px;color:inherit"
_HEAD = "text-align:left;font-weight:normal;padding:0 6px 0 0;" + _FAINT
_PRE = "white-space:pre-wrap;background-color:rgba(128,128,128,.14);color:inherit;padding:6px 8px;margin:4px 0;font-size:12px"


class DrawnMesh(NamedTuple):
    """A mesh as it is drawn. `states` has one of STATES for each rank, `ranks` the number by which reports know it, `whys`
    what is said of some by their index, `facts` lines of (what, text)."""

    kind: str
    name: str
    sizes: Mapping[str, int]
    ranks: Sequence[int]
    states: Sequence[str]
    whys: Mapping[int, str] = {}
    facts: Sequence[tuple[str, str]] = ()
    note: str = ""


def drawn(draw: Callable[[], str]) -> str | None:
    """Returns what `draw` draws; None, for which a notebook shows the text of `repr`, where anything goes wrong."""
    try:
        return draw()
    except Exception:  # also of the program's own classes, which may raise anything
        return None


def mesh(of: DrawnMesh) -> str:
    """Draws a grid of ranks by point with their states, and what is known of those that do not run."""
    parts = [_title(of.kind, of.name, of.sizes), _legend(of.states)]
    parts.append(_grid(of.sizes, _squares(of)))
    parts += _troubles(of)
    parts += _facts(of.facts)
    if of.note:
        parts.append(_line(of.note))
    return _wrapped(parts)


def values(sizes: Mapping[str, int], texts: Sequence[str], left_out: str = "", summary: str = "") -> str:
    """Draws values by point. Short ones are a grid; else ranks with the same value share a row, and there are ROWS rows.

    `texts`: of the first values, in the order of ranks; `left_out` says why there is none of the others.
    """
    count = math.prod(sizes.values())
    parts = [_title("ValueMesh", "", sizes)]
    if summary:
        parts.append(_line(summary))
    if len(texts) == count <= SQUARES and all(len(text) <= 12 for text in texts):
        parts.append(_grid(sizes, [_Square(text, "", _at(sizes, rank)) for rank, text in enumerate(texts)]))
    else:
        parts += _rows(sizes, texts)
    if left_out:
        parts.append(_line(left_out))
    return _wrapped(parts)


def summary(of: Sequence[object]) -> str:
    """Returns the least, the greatest and the mean of values that are all numbers; "" of others, and of a single one."""
    if len(of) < 2 or not all(type(value) in (int, float) for value in of):
        return ""
    try:
        numbers = [float(value) for value in of]  # type: ignore[arg-type]
    except OverflowError:  # an int beyond what a float holds
        return ""
    found = [number for number in numbers if math.isfinite(number)]
    odd = [rank for rank, number in enumerate(numbers) if not math.isfinite(number)]
    parts = []
    if found:
        least, most = min(found), max(found)
    if found and least == most:
        parts.append(f"all are {least:g}" if not odd else f"the others are {least:g}")
    elif found:
        parts.append(f"least {least:g} (rank {numbers.index(least)})")
        parts.append(f"greatest {most:g} (rank {numbers.index(most)})")
        parts.append(f"mean {math.fsum(number / len(found) for number in found):g}")
    if odd:
        parts.append(f"not finite on rank(s) {ranges(odd, 8)}")
    return ", ".join(parts)


def future(of: str, state: str, ranks: tuple[Sequence[int], int] | None = None, result: str = "") -> str:
    """Draws a Future. `of`: what is awaited; `state`: a sentence; `ranks`: who of how many has not answered; `result`: the
    drawing of what came of it."""
    parts = [f"<div><b>Future</b>{f' of {_code(of)}' if of else ''}: {_escaped(state, 400)}</div>"]
    if ranks is not None and ranks[0] and ranks[1] > 1:
        parts.append(f"<div>no answer yet from rank(s) {_escaped(ranges(ranks[0], 16), 300)}</div>")
    if result:
        parts.append(result)
    return _wrapped(parts)


def failure(
    kind: str, sentence: str, facts: Iterable[tuple[str, str]] = (), cause: str = "", text: str = "", called: str = ""
) -> str:
    """Draws what went wrong: a sentence, where, the root cause; and `text`, a traceback or report that `called` names, which
    opens at a click."""
    sign, colour = STATES["dead"]
    parts = [
        f'<div style="border-left:4px solid {colour};padding-left:8px"><b>{sign} {_escaped(kind)}</b>: '
        f"{_escaped(sentence, 600)}</div>"
    ]
    parts += _facts([*facts, *([("root cause", cause)] if cause else [])], 600)
    if text.strip():
        lines = text.strip("\n").count("\n") + 1
        parts.append(
            f"<details><summary>{_escaped(called or 'report')} ({counted(lines, 'line')})</summary>"
            f'<pre style="{_PRE}">{html.escape(visible(clip(text.strip(chr(10)), TRACEBACK)))}</pre></details>'
        )
    return _wrapped(parts)


def of_report(kind: str, report: str) -> tuple[str, str, list[tuple[str, str]], str, str, str]:
    """Returns the arguments of `failure` for the report of a failure: its first line is the sentence, and where that ends
    with a colon the next is the cause."""
    first, _, rest = report.strip().partition("\n")
    cause = brief_cause(rest.strip()) if first.endswith(":") else ""
    return kind, first, [], cause, rest and report, "report"


def brief_cause(cause: str) -> str:
    """Returns the first line of a cause; where that says only who raised, also what."""
    first, _, rest = cause.partition("\n")
    raised = raised_line(rest.splitlines()) if first.endswith(" raised:") else ""
    return f"{first} {raised}" if raised else first


def waiting(lines: Sequence[str]) -> str:
    """Draws the calls that a cell waits for, as of now: a line of each."""
    shown = [f"<div>{_escaped(line, 600)}</div>" for line in lines[:GROUPS]]
    more = [_line(f"and {counted(len(lines) - GROUPS, 'call')} more")] if len(lines) > GROUPS else []
    return _wrapped([*shown, *more])


def waited(text: str) -> str:
    """Draws what is left of it when the wait is over."""
    return _wrapped([_line(text)])


# --- parts


class _Square(NamedTuple):
    text: str
    colour: str  # "" for that of the page
    title: str


def _squares(of: DrawnMesh) -> list[_Square]:
    count = len(of.states)
    size = 1
    while count > size * SQUARES:
        size *= 2
    if size == 1:
        return [_square(of, index) for index in range(count)]
    found = []
    for begin in range(0, count, size):
        states = of.states[begin : begin + size]
        sign, colour = STATES[min(set(states), key=_WORST.index)]
        last = begin + len(states) - 1
        title = f"ranks {of.ranks[begin]} to {of.ranks[last]}: {_counts(states)}"
        found.append(_Square(f"{sign} {of.ranks[begin]}".strip(), colour, title))
    return found


def _square(of: DrawnMesh, index: int) -> _Square:
    state, why = of.states[index], of.whys.get(index, "")
    sign, colour = STATES[state]
    point = _at(of.sizes, index)
    title = f"rank {of.ranks[index]}{f' ({point})' if point else ''}: {state}{f', {why}' if why else ''}"
    return _Square(f"{sign} {of.ranks[index]}".strip(), colour, title)


def _counts(states: Iterable[str]) -> str:
    counts = _tally(states)
    return ", ".join(f"{count:,} {state}" for state, count in counts.items())


def _tally(states: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for state in states:
        counts[state] = counts.get(state, 0) + 1
    return {state: counts[state] for state in reversed(_WORST) if state in counts}


def _legend(states: Sequence[str]) -> str:
    found = []
    for state, count in _tally(states).items():
        sign, colour = STATES[state]
        found.append(f'<span style="{_filled(colour)}">{f"{sign} " if sign else ""}{count:,} {state}</span>')
    folded = f" {_folding(len(states))}" if len(states) > SQUARES else ""
    return f"<div>{' '.join(found)}{folded}</div>"


def _folding(count: int) -> str:
    size = 2
    while count > size * SQUARES:
        size *= 2
    return f'<span style="{_FAINT}">each square is {size} ranks and shows the worst of them</span>'


def _grid(sizes: Mapping[str, int], squares: Sequence[_Square]) -> str:
    """A row of squares for each coordinate of all but the last dimension, where its size has room in one."""
    dims = list(sizes.items())
    whole = len(squares) == math.prod(sizes.values())  # else a square is several ranks
    last = max(dims[-1][1], 1) if dims else 1
    regular = bool(dims) and whole and last <= ACROSS and len(squares) <= last * ACROSS
    across = last if regular else ACROSS
    rows = []
    if regular and across > 1:
        heads = "".join(f'<th scope="col" style="{_HEAD};text-align:center">{index}</th>' for index in range(across))
        rows.append(f'<tr><th style="{_HEAD}">{_escaped(dims[-1][0], 40)}</th>{heads}</tr>')
    for begin in range(0, len(squares), across):
        outer = _at(dict(dims[:-1]), begin // across) if regular else _at(sizes, begin) if whole else ""
        cells = "".join(map(_cell, squares[begin : begin + across]))
        head = f'<th scope="row" style="{_HEAD}">{_escaped(outer)}</th>'
        rows.append(f"<tr>{head}{cells}</tr>")
    return f'<table style="{_TABLE}"><tbody>{"".join(rows)}</tbody></table>'


def _cell(square: _Square) -> str:
    look = _filled(square.colour) if square.colour else "padding:0 6px;border:1px solid rgba(128,128,128,.4)"
    title = f' title="{_escaped(square.title, TITLE)}"' if square.title else ""
    return f'<td{title} style="{look};text-align:center">{_escaped(square.text, TITLE)}</td>'


def _filled(colour: str) -> str:
    return f"background-color:{colour};color:#fff;padding:0 6px"


def _rows(sizes: Mapping[str, int], texts: Sequence[str]) -> list[str]:
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(rank)
    rows = []
    for text, ranks in list(groups.items())[:ROWS]:
        point = _at(sizes, ranks[0]) if len(ranks) == 1 else counted(len(ranks), "rank")
        rows.append(
            f'<tr><th scope="row" style="{_HEAD}">{_escaped(ranges(ranks, 4), 80)}</th>'
            f'<td style="{_HEAD}">{_escaped(point)}</td>'
            f'<td style="text-align:left;padding:0 6px"><code>{_escaped(text, VALUE)}</code></td></tr>'
        )
    parts = [f'<table style="{_TABLE}"><tbody>{"".join(rows)}</tbody></table>'] if rows else []
    if len(groups) > ROWS:
        left = sum(len(ranks) for ranks in list(groups.values())[ROWS:])
        parts.append(_line(f"and the values of {counted(left, 'rank')} more; .values() has all of them"))
    return parts


def _troubles(of: DrawnMesh) -> list[str]:
    groups: dict[tuple[str, str], list[int]] = {}
    for index, why in of.whys.items():
        groups.setdefault((of.states[index], why), []).append(of.ranks[index])
    found = [
        f"<div>{STATES[state][0]} rank{'s' if len(ranks) > 1 else ''} {_escaped(ranges(ranks, 8))} {state}: "
        f"{_escaped(why, 300)}</div>"
        for (state, why), ranks in sorted(groups.items(), key=lambda item: (_WORST.index(item[0][0]), item[1]))
    ]
    if len(found) > GROUPS:
        found[GROUPS:] = [_line(f"and {counted(len(found) - GROUPS, 'reason')} more")]
    return found


def _facts(facts: Sequence[tuple[str, str]], limit: int = 300) -> list[str]:
    return [
        f'<div><span style="{_FAINT}">{_escaped(what)}:</span> {_escaped(text, limit)}</div>'
        for what, text in facts[:FACTS]
    ]


def _title(kind: str, name: str, sizes: Mapping[str, int]) -> str:
    shape = ", ".join(f"{label}={size}" for label, size in sizes.items())
    count = counted(math.prod(sizes.values()), "rank")
    named = f" {_code(name)}" if name else ""
    return f'<div><b>{_escaped(kind)}</b>{named} {_escaped(shape)} <span style="{_FAINT}">{count}</span></div>'


def _at(sizes: Mapping[str, int], rank: int) -> str:
    """Returns the point of a rank: `hosts=0, gpus=3`; "" without dimensions."""
    found = []
    for label, size in reversed(list(sizes.items())):
        rank, index = divmod(rank, size)
        found.append(f"{label}={index}")
    return ", ".join(reversed(found))


def _line(text: str) -> str:
    return f'<div style="{_FAINT}">{_escaped(text, 400)}</div>'


def _code(text: str) -> str:
    return f"<code>{_escaped(text)}</code>"


def _escaped(text: str, limit: int = NAME) -> str:
    """Returns a text in one line for a page: `limit` of its characters, and at most twice as many when it is escaped."""
    escaped = html.escape(_fit(text, limit))
    return escaped if len(escaped) <= 2 * limit else html.escape(_fit(text, limit // 3))


def _fit(text: str, limit: int) -> str:
    text = one_line(text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}\u2026"


def _wrapped(parts: Iterable[str]) -> str:
    return f'<div style="font:13px/1.5 system-ui,sans-serif;color:inherit">{"".join(parts)}</div>'
