"""Text of programs made fit to send: bounded, and of characters that UTF-8 has.

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
