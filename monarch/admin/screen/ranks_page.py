"""The ranks on a screen: the doctor's sentence, a grid for each mesh, a row for each rank. Pure: state and size in, lines
out.

Every state has a sign of its own, so that the screen can be read without colours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from monarch._text import age, aligned, columns, fitting, one_line, size
from monarch.admin.payloads import DeviceUse
from monarch.admin.rank_states import LETTERS, worse
from monarch.admin.screen.ranks import ORDERS, RankRow, RanksState

SIGNS = {
    "failed": ("X", "error"),
    "unknown": ("?", "error"),
    "stopping": ("-", "warning"),
    "processing": ("#", "good"),
    "initializing": ("+", "warning"),
    "created": ("+", "warning"),
    "loading": ("+", "warning"),
    "saving": ("+", "warning"),
    "idle": (".", "dim"),
    "client": (".", "dim"),
    "stopped": ("x", "dim"),
}
_BLAMED = "!"  # the doctor names it
_WORDS = {_BLAMED: "named by the doctor", "+": "starts", "?": "no answer"}  # others: the state
_SENTENCE = 3  # lines at most
_GRID = 0.4  # part of the screen that the grids may take
_NAME = 24  # columns of a mesh's name
_TEN = 10  # signs, then a space
KEYS = (
    ("/", "filter"),
    ("Enter", "stacks"),
    ("l", "logs"),
    ("d", "doctor"),
    ("m", "metrics"),
    ("b", "debug"),
    ("t", "tree"),
    ("?", "help"),
    ("".join(ORDERS), "sort"),
    ("q", "quit"),
)


class TonedText(NamedTuple):
    """`tone`: "", "good", "warning", "error", "dim", "accent", or "selected"."""

    text: str
    tone: str = ""


PageLine = list[TonedText]


class ScreenAbout(NamedTuple):
    """The texts above the ranks. `sentence`: the doctor's; `wrong`: it says what is wrong. `error`: why nothing
    comes. `more`: findings beside the first."""

    title: str
    sentence: str
    wrong: bool = False
    error: str = ""
    more: int = 0


def page(state: RanksState, about: ScreenAbout, width: int, height: int | None = None) -> list[PageLine]:
    """`height` None: as many lines as there are ranks, and no keys, for a file. Lines are `width` columns at most."""
    lines = [[TonedText(_cut(about.title, width), "accent")]]
    if about.error:
        lines += [[TonedText(text, "error")] for text in _folded(f"ERROR: {about.error}", width)]
    elif about.sentence:
        more = f" (and {about.more} more: d)" if about.more else ""
        mark, tone = (f"{_BLAMED} ", "error") if about.wrong else ("", "good")
        lines += [[TonedText(text, tone)] for text in _folded(f"{mark}{about.sentence}{more}", width)]
    most = None if height is None else max(2, int(height * _GRID))
    lines += _grids(state.groups(), width, most)
    if height is None:
        return [*lines, *_table(state, width, None)]
    bottom = [_bottom(state, width)]
    lines += _table(state, width, max(2, height - len(lines) - len(bottom)))
    lines = lines[: height - len(bottom)]
    lines += [[]] * (height - len(bottom) - len(lines))
    return [*lines, *bottom]


def text(lines: Sequence[PageLine]) -> str:
    """Returns the lines without their colours."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def _folded(text: str, width: int) -> list[str]:
    """Breaks a text between words, into a few lines; the last has an ellipsis when something is left out."""
    lines = [""]
    for word in one_line(text).split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if columns(joined) <= width or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(word)
    if len(lines) > _SENTENCE:
        lines[_SENTENCE - 1 :] = [" ".join(lines[_SENTENCE - 1 :])]
    return [_cut(line, width) for line in lines]


def _cut(text: str, width: int) -> str:
    text = one_line(text)
    return text if columns(text) <= width else fitting(text, width - 1) + "…" if width > 1 else ""


# --- grids


def _sign(row: RankRow) -> TonedText:
    sign, tone = SIGNS[row.state]
    return TonedText(_BLAMED, "error") if row.blamed and row.state != "failed" else TonedText(sign, tone)


def _grids(groups: Sequence[Sequence[RankRow]], width: int, most: int | None) -> list[PageLine]:
    """`most`: lines that all of them have; meshes in which something is wrong come first when there is not room for all."""
    if most is not None and 2 * len(groups) > most:
        groups = sorted(
            groups, key=lambda rows: not any(row.blamed or row.state in ("failed", "unknown") for row in rows)
        )
    name = min(_NAME, max((columns(one_line(rows[0].mesh)) for rows in groups), default=0))
    lines: list[PageLine] = []
    seen: dict[str, str] = {}
    for place, rows in enumerate(groups):
        left = None if most is None else most - len(lines) - 1
        if left is not None and left < 2 and place < len(groups) - 1:
            lines.append([TonedText(f"and {len(groups) - place} more meshes", "dim")])
            break
        share = None if left is None else max(1, left // (len(groups) - place))
        grid, each = _cells(rows, width - 8, share)
        title = aligned(_cut(rows[0].mesh, name), name)
        note = f"{len(rows)}: {_counted(rows)}" + (f" (a sign is {each} ranks)" if each > 1 else "")
        for line in grid:
            seen.update({span.text: span.tone for span in line if span.text.strip()})
        if len(grid) == 1 and name + 2 + _wide(grid[0]) + 2 + columns(note) <= width:
            lines.append([TonedText(title + "  ", "accent"), *grid[0], TonedText("  " + note, "dim")])
            continue
        lines.append([TonedText(title + "  ", "accent"), TonedText(_cut(note, width - name - 2), "dim")])
        per = each * sum(span.text != " " for span in grid[0])
        lines += [[TonedText(f"{at * per:>6}  ", "dim"), *line] for at, line in enumerate(grid)]
    if groups and (most is None or len(lines) <= most):
        lines.append(_legend(seen, width))
    return lines


def _wide(line: PageLine) -> int:
    return sum(columns(span.text) for span in line)


def _legend(seen: dict[str, str], width: int) -> PageLine:
    words = {SIGNS[state][0]: state for state in reversed(LETTERS)} | _WORDS
    parts = [f"{sign} {words[sign]}" for sign in (_BLAMED, "X", "?", "#", "+", "-", ".", "x") if sign in seen]
    return [TonedText(_cut("  ".join(parts), width), "dim")]


def _cells(rows: Sequence[RankRow], width: int, most: int | None) -> tuple[list[PageLine], int]:
    """(lines of signs, ranks for which each sign stands: the worst of them is shown)."""
    per_line = max(_TEN, width // (_TEN + 1) * _TEN)
    room = len(rows) if most is None else most * per_line
    each = max(1, -(-len(rows) // room))
    signs = [_sign(_worst(rows[at : at + each])) for at in range(0, len(rows), each)]
    lines = []
    for start in range(0, len(signs), per_line):
        line: PageLine = []
        for at, sign in enumerate(signs[start : start + per_line]):
            line += [TonedText(" "), sign] if at and at % _TEN == 0 else [sign]
        lines.append(line)
    return lines, each


def _worst(rows: Sequence[RankRow]) -> RankRow:
    found = rows[0]
    for row in rows[1:]:
        if row.state != found.state and worse(LETTERS[row.state], LETTERS[found.state]) == LETTERS[row.state]:
            found = row
    blamed = next((row for row in rows if row.blamed), None)
    return blamed if blamed is not None and found.state != "failed" else found


def _counted(rows: Sequence[RankRow]) -> str:
    counts = Counter(row.state for row in rows)
    return ", ".join(
        f"{counts[state]} {_WORDS['?'] if state == 'unknown' else state}" for state in LETTERS if counts[state]
    )


# --- rows


_HEADS = ("RANK", "STATE", "ENDPOINT", "TIME", "LINE", "HOST", "CPU", "MEM", "GPU")
_RIGHT = {"TIME", "CPU", "MEM", "GPU"}
_FEWEST = {"RANK": 12, "ENDPOINT": 6, "LINE": 8, "HOST": 4}  # columns that those keep which may be cut
_DROPPED = ("HOST", "MEM", "GPU", "CPU", "LINE", "STATE")  # in this order, where there is no room


def _fields(row: RankRow) -> tuple[str, ...]:
    """Returns the texts of its columns; "" of a GPU where there is none."""
    return (
        row.name,
        row.state,
        row.does,
        age(row.seconds) if row.seconds else "",
        row.place,
        row.host,
        "" if row.processor is None else f"{row.processor:.0%}",
        "" if row.memory is None else _short(row.memory),
        "" if row.device is None else _device(row.device),
    )


def _device(device: DeviceUse) -> str:
    load = "" if device.load_percent is None else f"{device.load_percent:.0f}% "
    return f"{load}{_short(device.memory_used_bytes)}/{_short(device.memory_total_bytes)}"


def _short(count: int) -> str:
    """Returns a number of bytes as a column has it: 29M."""
    return size(count).replace("iB", "").replace(" ", "")


def _table(state: RanksState, width: int, lines: int | None) -> list[PageLine]:
    """Rows around the selected one, as many as have room."""
    if not state.rows:
        return [[TonedText("no rank has this in it: Esc shows all" if state.filter else "no ranks yet", "dim")]]
    count = len(state.rows) if lines is None else max(1, lines - 1)
    top = max(0, min(state.position - count // 2, len(state.rows) - count))
    shown = state.rows[top : top + count]
    fields = [tuple(map(one_line, _fields(row))) for row in shown]
    arrow = "↑" if state.reversed else "↓"
    heads = tuple(head + arrow if head == ORDERS[state.order][0] else head for head in _HEADS)
    widths = _widths([heads, *fields], width - 2)
    head = TonedText("  " + _joined(heads, widths), "accent")
    found: list[PageLine] = [[head]]
    for row, texts in zip(shown, fields, strict=True):
        selected = lines is not None and row.reference == state.selected
        mark = ">" if selected else _BLAMED if row.blamed else " "
        tone = SIGNS[row.state][1] if row.state not in ("processing", "idle", "client") else ""
        tone = "selected" if selected else "error" if row.blamed else tone
        found.append([TonedText(f"{mark} {_joined(texts, widths)}", tone)])
    return found


def _widths(rows: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """Returns as much as every column needs; where that is too much the widest of those that may be cut give way, then some
    are left out (0)."""
    widths = [max(columns(row[at]) for row in rows) for at in range(len(_HEADS))]
    if not any(row[-1] for row in rows[1:]):  # no rank uses a GPU
        widths[-1] = 0
    dropped = list(_DROPPED)
    while sum(room + 2 for room in widths if room) - 2 > width:
        may = [at for at, head in enumerate(_HEADS) if head in _FEWEST and widths[at] > _FEWEST[head]]
        if may:
            widths[max(may, key=lambda at: widths[at])] -= 1
        elif dropped:
            widths[_HEADS.index(dropped.pop(0))] = 0
        else:
            break
    return widths


def _joined(texts: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        aligned(_cut(text, room), room, right=head in _RIGHT)
        for head, text, room in zip(_HEADS, texts, widths, strict=True)
        if room
    )
    return "  ".join(cells).rstrip()


def _bottom(state: RanksState, width: int) -> PageLine:
    """Returns the line of keys: those that have room, the most used first."""
    line: PageLine = []
    filtered = f"filter: {state.filter}  " if state.filter else ""
    if filtered:
        line.append(TonedText(_cut(filtered, width // 2), "warning"))
    for key, said in KEYS:
        if _wide(line) + columns(f"{key} {said}") <= width:
            line += [TonedText(key, "accent"), TonedText(f" {said}  ", "dim")]
    if line:
        line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
    return line
