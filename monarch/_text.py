"""Text of programs made fit to send: bounded, and of characters that UTF-8 has; and fit for a terminal: of characters that
people see. Times, sizes and counts for people.

Messages are UTF-8, and a text of a program need not be: `os.fsdecode(b"caf\\xe9")` holds a lone surrogate. Every message that
carries such text cleans it when it is made (`_wire/message.py: Text`), so that no report, error or name can keep an
answer from its caller.

A name, a message or a line of a log may hold what a terminal obeys, and what it does not show. So what is printed of a
program goes through `visible` or one of its kin first: escape sequences, other control characters, marks that turn the
direction of text around and characters of no width are written out (`\\x1b`, `\\u202e`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

TEXT_LIMIT = 100_000  # characters of a text in a message; the middle of a longer one is left out
NAME_LIMIT = 1_000  # characters of a name


def sendable(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text` with escapes in place of lone surrogates (`\\udce9`), and without its middle when it is over `limit`
    characters. What is fit to send is returned as it is."""
    if len(text) > limit:
        text = clip(text, limit)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        text = clip(text.encode(errors="backslashreplace").decode(), limit)
    return text


def clip(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text`, or its two ends with a note between them: `limit` characters at most."""
    if len(text) <= limit:
        return text
    note = f"\n[{len(text) - limit} characters left out]\n"
    keep = max(0, limit - len(note))
    return (text[: keep - keep // 2] + note + text[len(text) - keep // 2 :])[:limit]


def text_of(value: object) -> str:
    """`str(value)`, fit to send, also when that raises, or gives no str."""
    try:
        text = str(value)
    except BaseException as exc:  # of the program, which may raise anything
        return f"<{type(value).__name__} whose str() raised {type(exc).__name__}>"
    return sendable(str.__str__(text))


# --- for people: one number reads the same everywhere


def duration(seconds: float) -> str:
    """Returns a time as text: `12 ms`, `1.2 s`, `1 min 1 s`, `2 h 1 min`, `3 d 2 h`."""
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def age(seconds: float) -> str:
    """Returns a time in few characters, for columns: 4.2s, 3m05s, 2h07m, 3d02h."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def size(count: float | None) -> str:
    """Returns bytes as text: `512 MiB`, `1.5 GiB`; `-` where they are not known."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB"):
        if round(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB" if round(count) < 1024 else f"{count / 1024:.1f} TiB"


def counted(number: int, noun: str) -> str:
    """Returns `1 host`, `2 hosts`, `1,000 processes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def ranges(ranks: Iterable[int], most: int | None = None) -> str:
    """`0-16, 18-63`; with `most`, so many ranges and how many ranks there are more."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = runs if most is None else runs[:most]
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in shown)
    left = len(ordered) - sum(last - first + 1 for first, last in shown)
    return f"{text} and {left} more" if left else text


def bracketed(host: str) -> str:
    """`host` as it stands in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def first_line(said: object) -> str:
    """Returns the first line of a text, or of what an exception says; of one that says nothing its class."""
    lines = str(said).strip().splitlines()
    return lines[0] if lines else type(said).__name__ if isinstance(said, BaseException) else ""


# --- for terminals

_COLOUR = "(\x1b\\[[0-9;:]{0,64}m)"  # of text and what is behind it, and bold and the like: SGR of ECMA-48
_NO_COLOUR = "\x1b[0m"
# Letters, marks and signs that show nothing: fillers of Hangul, two vowels of Khmer, the joiner of graphemes, empty braille.
_UNSEEN = frozenset("\u115f\u1160\u3164\uffa0\u17b4\u17b5\u034f\u2800")


def visible(text: str) -> str:
    """`text` as a terminal may get it: characters that are seen, spaces, tabs and ends of lines stay, a line that ends as on
    Windows ends plainly, all others are written out. What is fit is returned as it is."""
    return text if _is_fit(text) else "\n".join(map(_visible_line, text.split("\n")))


_RAISED = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b")  # the line of a traceback that says what


def raised_line(lines: Sequence[str]) -> str:
    """Returns the last of these lines of a report that names an exception; "" if none does."""
    return next((line.strip() for line in reversed(lines) if _RAISED.match(line.strip())), "")


def one_line(text: str) -> str:
    """`visible`, in one line that cannot pass for several: tabs and ends of lines are written out too. For names, and in
    tables."""
    return text if _is_fit(text) else _written_out(text, "")


def coloured(text: str) -> str:
    """`visible` but for colours, which each line that has some ends."""
    if "\x1b" not in text:
        return visible(text)
    return "\n".join(map(_coloured_line, text.split("\n")))


def _is_fit(text: str) -> bool:
    return text.isprintable() and (text.isascii() or _UNSEEN.isdisjoint(text))


def _visible_line(line: str) -> str:
    return line if _is_fit(line) else _written_out(line.removesuffix("\r"), "\t")


def _coloured_line(line: str) -> str:
    import re

    parts = re.split(_COLOUR, line.removesuffix("\r"))
    parts[::2] = map(_visible_line, parts[::2])
    if len(parts) > 1 and not (parts[-1] == "" and parts[-2] in (_NO_COLOUR, "\x1b[m")):
        parts.append(_NO_COLOUR)
    return "".join(parts)


def _written_out(text: str, keep: str) -> str:
    return "".join(
        char if _is_fit(char) or char in keep or _is_space(char) else char.encode("unicode_escape").decode()
        for char in text
    )


def _is_space(char: str) -> bool:
    """A space that is not the usual one, as Chinese has it. Ends of lines of Unicode are none."""
    return char > "\x85" and char.isspace() and char not in "\u2028\u2029"


def columns(text: str) -> int:
    """Returns how many columns of a terminal a fit text takes: two for characters of East Asia and most emoji, none for marks
    that stand above another character."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(0 if category(char) in ("Mn", "Me") else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def aligned(text: str, width: int, *, right: bool = False) -> str:
    """Returns a fit text with spaces behind it, or before it, up to that many columns."""
    spaces = " " * (width - columns(text))
    return spaces + text if right else text + spaces


def fitting(text: str, width: int) -> str:
    """Returns as much of a fit text as has room in that many columns."""
    if columns(text) <= width:
        return text
    text = text[:width]
    while columns(text) > width:
        text = text[:-1]
    return text
