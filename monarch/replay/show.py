"""Events for people: what the actor did, as a call reads."""

from __future__ import annotations

from typing import Any

from monarch._text import clip
from monarch._wire import codec
from monarch._wire.message import VALUE
from monarch.replay.events import Asked, Done, Event, Opened, Piece, Sent
from monarch.replay.player import scrub

_VALUE = 200  # characters of one value


class Show:
    """Decodes payloads, which is only done of a recording that is trusted."""

    def text(self, event: Event, pieces: list[Piece]) -> str:
        if isinstance(event, Asked):
            where = "" if len(event.ranks) != 1 or event.ranks == [0] else f"[{event.ranks[0]}]"
            return f"it called {event.mesh}{where}.{event.method}({self._arguments(event, pieces)})"
        if isinstance(event, Sent):
            what = "sent" if event.kind == VALUE else "sent the exception"
            return f"it {what} {self._value(event.size, pieces)} to a port"
        if isinstance(event, Opened):
            return "it opened a channel"
        assert isinstance(event, Done)
        if event.outcome == "raised":
            return f"message {event.number} raised {clip(event.text, _VALUE)}"
        if event.outcome == "nothing":
            return f"message {event.number} ended"
        return f"message {event.number} returned {self._value(event.size, pieces)}"

    def same(self, then: list[Piece], now: list[Piece]) -> bool:
        """Whether two payloads mean the same: equal pickles do, and values that look or compare equal."""
        try:
            first, second = codec.decode(then[0], then[1:]), codec.decode(now[0], now[1:])
        except Exception:
            return False
        if scrub(repr(first)) == scrub(repr(second)):
            return True
        try:
            return bool(first == second)
        except Exception:
            return False

    def _arguments(self, event: Asked, pieces: list[Piece]) -> str:
        if not pieces:
            return f"... {event.size} bytes"
        try:
            args, kwargs = codec.decode(pieces[0], pieces[1:])
        except Exception as exc:
            return f"... {event.size} bytes, which cannot be decoded here: {exc}"
        shown = [_short(value) for value in args] + [f"{name}={_short(value)}" for name, value in kwargs.items()]
        return ", ".join(shown)

    def _value(self, size: int, pieces: list[Piece]) -> str:
        if not pieces:
            return f"{size} bytes"
        try:
            return _short(codec.decode(pieces[0], pieces[1:]))
        except Exception:
            return f"{size} bytes"


def _short(value: Any) -> str:
    try:
        return clip(repr(value), _VALUE)
    except Exception:
        return f"<{type(value).__name__}>"
