"""Variables of frames as text, for the question "locals". That calls `repr` of the program, which may wait, or never end.

It runs on one thread of a process at most, which a look starts and which ends with it. A look has SECONDS. A `repr` that
takes longer keeps that thread; until it returns, later looks show numbers and texts, and say of all else which one is waited
for. A variable is shown with TEXT characters, VARIABLES of each frame.
"""

from __future__ import annotations

import inspect
import time
from itertools import islice
from types import FrameType
from typing import Any

from monarch._linux.locks import Condition, Lock
from monarch._runtime.loop import start_thread
from monarch._short_reprs import ShortRepr
from monarch._text import NAME_LIMIT, clip, duration, sendable

SECONDS = 1.0
TEXT = 200
VARIABLES = 50
_SECRET = ("password", "passwd", "secret", "token", "credential", "api_key", "apikey", "private_key")
_HIDDEN = "<hidden: its name says that it is secret>"
_PLAIN = (int, float, complex, bool, type(None), str, bytes)  # whose repr is no code of the program
_AT = 80  # characters of which variable is waited for

_class_name = type.__dict__["__name__"].__get__  # a metaclass may have code of its own for `__name__`


class LocalsLook:
    """The frames of one look, and the texts of their variables. It is over when its time is: what is found later is left
    out."""

    def __init__(self) -> None:
        self.over = False
        self.at = ""  # what the thread is at
        self.since = 0.0
        self._lock = Lock()
        self._frames: list[tuple[FrameType, dict[str, str]]] = []

    def note(self, frame: FrameType) -> dict[str, str]:
        """Returns the variables of a frame, which are there when the look has ended."""
        found: dict[str, str] = {}
        self._frames.append((frame, found))
        return found

    def read(self) -> None:
        """Calls `repr` of one variable after the other until the time is over."""
        for number in range(len(self._frames)):
            if self.over:
                return
            frame, found = self._frames[number]
            function = frame.f_code.co_name
            for name, value in _items(frame):
                self.at = clip(f"{name}, of class {_class_name(type(value))}, in {function}()", _AT)
                self.since = time.monotonic()
                text = shown(name, value)
                with self._lock:
                    if self.over:
                        return
                    found[name] = text

    def end(self, why: str = "") -> None:
        """Its time is over. `why`: of what was not read."""
        with self._lock:
            self.over = True
        why = why or waited(self)
        frames, self._frames = self._frames, []
        for frame, found in frames:
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # else its variables may be a mapping of the program
                for name, value in _items(frame):
                    if name not in found:
                        plain = type(value) in _PLAIN or _is_secret(name)
                        found[name] = shown(name, value) if plain else f"<{_class_name(type(value))}; {why}>"[:TEXT]


def waited(look: LocalsLook) -> str:
    """Returns a sentence for people: whose `repr` has not returned, and for how long."""
    return f"no repr() is called before that of {look.at} returns, which runs for {duration(time.monotonic() - look.since)}"


class LocalsThread:
    """The thread that reads variables, one at most."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._changed = Condition()
        self._look: LocalsLook | None = None  # whose thread runs

    def fill(self, look: LocalsLook) -> None:
        """Returns when the look has ended. RuntimeError when there can be no more threads."""
        with self._changed:
            self._changed.wait_for(lambda: self._look is None or self._look.over, self._seconds)
            if self._look is not None:
                look.end(waited(self._look))
                return
            start_thread(self._read, "monarch-locals", look)
            self._look = look
            self._changed.wait_for(lambda: self._look is not look, self._seconds)
        look.end()

    def _read(self, look: LocalsLook) -> None:
        try:
            look.read()
        finally:
            with self._changed:
                self._look = None
                self._changed.notify_all()


def _items(frame: FrameType) -> list[tuple[str, Any]]:
    return list(islice(frame.f_locals.items(), VARIABLES))


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET)


def shown(name: str, value: Any) -> str:
    """Returns the text of a variable. Calls `__repr__` of the program."""
    if _is_secret(name):
        return _HIDDEN
    try:
        text = _short.repr(value)
    except BaseException as exc:  # of the program, which may raise anything
        text = f"<its repr raised {_class_name(type(exc))}>"
    return sendable(text, NAME_LIMIT)[:TEXT]


_short = ShortRepr(TEXT)
