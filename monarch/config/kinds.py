"""The types a setting can have: what is accepted, what is kept, what is shown.

Each kind has four verbs. `check` takes a value from a program, `read` takes text from the environment; both
return what is kept inside. `show` gives it back to a program, `write` gives the text that `read` takes. A
refusal is a TypeError or a ValueError whose text is the reason alone: who asks knows the setting's name and
adds it.
"""

from __future__ import annotations

import math
import numbers
import operator
from abc import ABC, abstractmethod
from typing import Any

from monarch.config.encoding import Encoding
from monarch.config.transport import BindSpec
from monarch.config.units import format_duration, parse_duration

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class Kind(ABC):
    """The type of a setting: what values it takes, and how they are written."""

    #: what to call the type in a message
    name: str

    @abstractmethod
    def check(self, value: object) -> Any:
        """The kept form of a program's `value`. TypeError or ValueError with the reason."""

    @abstractmethod
    def read(self, text: str) -> Any:
        """The kept form of `text`. ValueError with the reason."""

    def show(self, kept: Any) -> Any:
        """Returns the form in which a program sees the kept value."""
        return kept

    def write(self, kept: Any) -> str:
        """The text that `read` takes back."""
        return str(kept)


class Flag(Kind):
    name = "bool"

    def check(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise _wrong_type("True or False", value)
        return value

    def read(self, text: str) -> bool:
        lowered = text.strip().lower()
        if lowered not in _TRUE + _FALSE:
            raise ValueError(f"expected one of {', '.join(_TRUE + _FALSE)}")
        return lowered in _TRUE


class Count(Kind):
    """A whole number, at least `minimum` and, where there is one, at most `maximum`."""

    name = "int"

    def __init__(self, minimum: int = 0, maximum: int | None = None) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def check(self, value: object) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise _wrong_type("an int", value)
        count = operator.index(value)
        if count < self.minimum:
            raise ValueError(f"expected an int of at least {self.minimum}")
        if self.maximum is not None and count > self.maximum:
            raise ValueError(f"expected an int of at most {self.maximum}")
        return count

    def read(self, text: str) -> int:
        try:
            count = int(text)
        except ValueError:
            raise ValueError("expected an int") from None
        return self.check(count)


class Share(Kind):
    """A number from 0 to 1."""

    name = "float"

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise _wrong_type("a float", value)
        number = float(value)
        if math.isnan(number) or not 0 <= number <= 1:
            raise ValueError("expected a number from 0 to 1")
        return number

    def read(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise ValueError("expected a number") from None
        return self.check(number)


class TextKind(Kind):
    name = "str"

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise _wrong_type("a str", value)
        return str(value)

    def read(self, text: str) -> str:
        return text


class Choice(TextKind):
    """A text out of a few words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def check(self, value: object) -> str:
        return self.read(super().check(value))

    def read(self, text: str) -> str:
        if text not in self._words:
            raise ValueError(f"expected one of {', '.join(self._words)}")
        return text


class Duration(Kind):
    """Kept as float seconds, given and shown as text like "1m 30s"."""

    name = "duration"

    def check(self, value: object) -> float:
        if not isinstance(value, str):
            raise _wrong_type('a duration such as "30s"', value)
        try:
            return parse_duration(value)
        except ValueError as error:  # what is promised for a bad duration is a TypeError
            raise TypeError(str(error)) from None

    def read(self, text: str) -> float:
        return parse_duration(text)

    def show(self, kept: float) -> str:
        return format_duration(kept)

    write = show


class EncodingName(Kind):
    name = "Encoding"

    def check(self, value: object) -> Encoding:
        if not isinstance(value, Encoding):
            raise _wrong_type("a member of monarch.config.Encoding", value)
        return value

    def read(self, text: str) -> Encoding:
        for encoding in Encoding:
            if encoding.value == text.strip().lower():
                return encoding
        raise ValueError(f"expected one of {', '.join(encoding.value for encoding in Encoding)}")

    def write(self, kept: Encoding) -> str:
        return str(kept.value)


class TransportKind(Kind):
    name = "BindSpec"

    def check(self, value: object) -> BindSpec:
        return BindSpec(value)  # type: ignore[arg-type]  # BindSpec refuses other types in its own words

    def read(self, text: str) -> BindSpec:
        return BindSpec(text)


class OrNone(Kind):
    """Another kind, or None, which is the empty text."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.name = f"{kind.name} or None"

    def check(self, value: object) -> Any:
        return None if value is None else self.kind.check(value)

    def read(self, text: str) -> Any:
        return self.kind.read(text) if text else None

    def show(self, kept: Any) -> Any:
        return None if kept is None else self.kind.show(kept)

    def write(self, kept: Any) -> str:
        return "" if kept is None else self.kind.write(kept)


def _wrong_type(expected: str, value: object) -> TypeError:
    return TypeError(f"expected {expected}, got {type(value).__name__}")
