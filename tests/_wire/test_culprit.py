"""Tests of which part of an object cannot be pickled."""

from __future__ import annotations

import functools
import threading
from collections import namedtuple
from typing import Any

import pytest

from monarch._wire import codec, culprit

BAD = threading.Lock()
Pair = namedtuple("Pair", "left right")


class Box:
    def __init__(self, inner: Any) -> None:
        self.fine = 1
        self.inner = inner

    def method(self) -> None:
        """Bound to a box."""


class Slotted:
    __slots__ = ("absent", "inner")

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def closure(inner: Any) -> Any:
    return lambda: inner


def fails(part: Any) -> bool:
    try:
        codec.encode(part)
    except Exception:
        return True
    return False


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (BAD, "x"),
        ([1, [BAD]], "x[1][0]"),
        ({"a": {"b": BAD}}, "x['a']['b']"),
        ({BAD: 1}, "the key"),
        ((1, BAD), "x[1]"),
        ({BAD}, "an element of x"),
        (Pair(1, BAD), "x.right"),
        (Box([BAD]), "x.inner[0]"),
        (Slotted(BAD), "x.inner"),
        (Box(BAD).method, "x.__self__.inner"),
        (functools.partial(print, BAD), "x.args[0]"),
        (closure(Box(BAD)), "inner (which x uses).inner"),
    ],
)
def test_the_innermost_part_is_found(value: Any, where: str) -> None:
    part, found = culprit.find(value, "x", fails)
    assert part.startswith(where) and found is BAD


def test_an_object_that_is_bad_as_a_whole_is_named_itself() -> None:
    class Refuses:
        def __init__(self) -> None:
            self.fine = 1

        def __reduce__(self) -> Any:
            raise TypeError("not me")

    value = Refuses()
    assert culprit.find([value], "x", fails) == ("x[0]", value)


def test_circles_and_large_objects_are_given_up() -> None:
    circle: list[Any] = [BAD]
    circle.insert(0, circle)
    assert culprit.find(circle, "x", fails) == ("x[1]", BAD)
    tried = []

    def counted(part: Any) -> bool:
        tried.append(part)
        return False

    assert culprit.find(list(range(10**6)), "x", counted)[0] == "x"
    assert len(tried) == culprit.MOST


def test_code_of_the_object_that_raises_leaves_the_error_as_it_was() -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            raise ValueError("on purpose")

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("again")

    error = ValueError("on purpose")
    culprit.explain(error, "the arguments of a.b()", {"n": Hostile()})
    assert error.__notes__ == ["while encoding the arguments of a.b(): nothing was sent"]


def test_a_note_names_the_argument_its_part_and_what_to_do() -> None:
    error = TypeError("cannot pickle '_thread.lock' object")
    culprit.explain(error, "the arguments of a.b()", {"fine": 1, "n": [BAD]})
    (note,) = error.__notes__
    assert note.startswith(
        "while encoding the arguments of a.b(): nothing was sent. n[0] cannot be sent: it is of type _thread.lock. Locks, "
    )
