"""Text of programs made fit to send: bounded, and of characters that UTF-8 has. Times, sizes and counts for people.

Messages are UTF-8, and a text of a program need not be: `os.fsdecode(b"caf\\xe9")` holds a lone surrogate. Every message that
carries such text cleans it when it is made (`_wire/message.py: Text`), so that no report, error or name can keep an
answer from its caller. Imports nothing.
"""

from __future__ import annotations

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


def first_line(said: object) -> str:
    """Returns the first line of a text, or of what an exception says; of one that says nothing its class."""
    lines = str(said).strip().splitlines()
    return lines[0] if lines else type(said).__name__ if isinstance(said, BaseException) else ""
