"""Values of a program as short text: `repr` that looks at the beginning of what is large."""

from __future__ import annotations

import contextvars
import reprlib
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from math import prod
from typing import Any

from monarch._text import clip, counted

CHARACTERS = 200  # of the text of a value
SECONDS = 0.5  # for the texts of many values
LINES = 64  # values that have a line of their own in IPython
LONGEST = 1_000  # characters of it
_FEW = 8  # elements of an array that are shown


class ShortRepr(reprlib.Repr):
    """`repr` that takes little time where it can, and has few characters: of what is large it looks at the beginning."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = characters

    def repr1(self, x: Any, level: int) -> str:
        kind = type(x)
        if hasattr(kind, "shape") and hasattr(kind, "dtype") and isinstance(x.shape, tuple) and not self.shows(x):
            device = getattr(x, "device", "")
            return f"<{kind.__name__} {tuple(x.shape)} {x.dtype}{f' {device}' if device != '' else ''}>"
        for base, of in _OF_BASE.items():
            if kind.__repr__ is base.__repr__:  # also of a class derived from it
                return str(getattr(self, of)(x, level))
        return super().repr1(x, level)

    def shows(self, x: Any) -> bool:
        """Returns whether the elements of this array or tensor are shown; they may be on a device."""
        return False

    def repr_dict(self, x: Any, level: int) -> str:
        if not x or level <= 0:
            return "{...}" if x else "{}"
        pieces = [f"{self.repr1(key, level - 1)}: {self.repr1(x[key], level - 1)}" for key in islice(x, self.maxdict)]
        return "{" + ", ".join([*pieces, "..."] if len(x) > self.maxdict else pieces) + "}"

    def _repr_named(self, x: Any, level: int) -> str:
        return f"{type(x).__name__}({self.repr_dict(x, level)})"

    repr_defaultdict = repr_OrderedDict = repr_Counter = _repr_named

    def repr_set(self, x: Any, level: int) -> str:
        return "set()" if not x else self._first(x, level, "{", "}")

    def repr_frozenset(self, x: Any, level: int) -> str:
        return self._first(x, level, "frozenset({", "})")

    def _first(self, x: Any, level: int, left: str, right: str) -> str:
        if level <= 0:
            return f"{left}...{right}"
        pieces = [self.repr1(each, level - 1) for each in islice(x, self.maxset)]
        return left + ", ".join([*pieces, "..."] if len(x) > self.maxset else pieces) + right

    def repr_bytes(self, x: Any, level: int) -> str:
        text = repr(bytes(x[: self.maxstring]))
        return text if len(x) <= self.maxstring else f"<{len(x):,} bytes that begin with {text}>"

    repr_bytearray = repr_bytes


_OF_BASE = {
    dict: "repr_dict",
    list: "repr_list",
    tuple: "repr_tuple",
    set: "repr_set",
    frozenset: "repr_frozenset",
    str: "repr_str",
    bytes: "repr_bytes",
    bytearray: "repr_bytearray",
}


class ValueRepr(ShortRepr):
    """The same for results of a program: small arrays and tensors of the host's memory with their elements."""

    def shows(self, x: Any) -> bool:
        kind = type(x)
        return (
            kind.__module__ in ("torch", "numpy")
            and str(getattr(x, "device", "cpu")) == "cpu"
            and prod(x.shape) <= _FEW
        )


def texts_of(
    values: Sequence[object], clock: Callable[[], float], make: Callable[[object], str], found: list[str]
) -> None:
    """Makes the texts of the first values, as many as SECONDS allow. Of a value whose own `repr` raises it says so."""
    until = clock() + SECONDS
    for value in values:
        if clock() > until:
            return
        try:
            text = make(value)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # of the program, which may raise anything
            text = f"<{_class_name(type(value))} whose repr() raised {_class_name(type(exc))}>"
        found.append(text)


def texts_in_time(values: Sequence[object], make: Callable[[object], str]) -> tuple[list[str], str]:
    """Returns the texts of the first values, as many as SECONDS allow, and why there are none of the others; "" when there
    are all. A `repr` that does not return keeps a thread, of which there is one at most: until then there are the texts of
    numbers and strings only."""
    found: list[str] = []
    left = "making the text of a value takes long here"
    plain = next((place for place, value in enumerate(values) if type(value) not in _PLAIN), len(values))
    if plain == len(values):
        texts_of(values, time.monotonic, make, found)
    elif _making.acquire(False):
        done = threading.Event()

        def run() -> None:
            try:
                texts_of(values, time.monotonic, make, found)
            finally:
                _making.release()
                done.set()

        try:
            threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
        except BaseException:  # the process has as many threads as it may
            _making.release()
            raise
        done.wait(SECONDS)
    else:
        left = "the repr() of a value that was shown before has not returned"
        texts_of(values[:plain], time.monotonic, make, found)
    texts = list(found)
    missing = len(values) - len(texts)
    return texts, f"{counted(missing, 'value')} more: {left}" if missing else ""


_making = threading.Lock()
_PLAIN = (int, float, complex, bool, type(None), str, bytes)  # whose repr is no code of the program
_class_name = type.__dict__["__name__"].__get__  # a metaclass may have code of its own for `__name__`


def short_texts(values: Sequence[object]) -> tuple[list[str], str]:
    """Does as `texts_in_time`, with CHARACTERS of each."""
    return texts_in_time(values, ValueRepr(CHARACTERS).repr)


def listed(items: Sequence[tuple[object, object]]) -> str | None:
    """Returns a line for each of the first LINES values and where it is, of LONGEST characters each, and how many values
    there are more; None where nothing of them would be left out."""
    values = [value for _, value in items[:LINES]]
    raised: list[object] = []

    def text(value: object) -> str:
        raised.append(value)
        made = repr(value)
        raised.pop()
        return made

    texts, left = texts_in_time(values, text)
    if len(texts) == len(items) and not raised and all(len(text) <= LONGEST for text in texts):
        return None
    lines = [f"  {place!r}: {clip(text, LONGEST)}" for (place, _), text in zip(items, texts, strict=False)]
    if left:
        lines.append(f"  {left}")
    more = [f"  and {counted(len(items) - LINES, 'value')} more; .values() has all of them"] if items[LINES:] else []
    return "\n".join(lines + more)
