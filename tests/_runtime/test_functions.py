"""Tests of what is asked of functions and classes without the module `inspect`: it would say the same."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import pytest

from monarch._runtime.functions import attribute_of, is_async, is_awaitable


class Things:
    def plain(self) -> None: ...

    async def waits(self) -> None: ...

    @staticmethod
    async def static() -> None: ...

    async def __call__(self) -> None: ...


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


FUNCTIONS = [
    Things.plain,
    Things.waits,
    Things().plain,
    Things().waits,
    Things.static,
    Things(),
    Things,
    len,
    decorated(Things.plain),
    decorated(Things.waits),
    functools.partial(Things.waits, None),
    functools.partial(Things.plain, None),
    *([inspect.markcoroutinefunction(decorated(Things.waits))] if sys.version_info >= (3, 12) else []),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_async(function: Any) -> None:
    assert is_async(function) == inspect.iscoroutinefunction(function)


class Meta(type):
    of_the_meta_class = 1


class Base:
    inherited = property(lambda self: 1)
    nothing = None


class Derived(Base, metaclass=Meta):
    own = staticmethod(len)

    def __getattr__(self, name: str) -> int:
        return 1


@pytest.mark.parametrize("name", ["inherited", "nothing", "own", "__init__", "__dict__", "absent"])
def test_what_stands_in_a_class(name: str) -> None:
    assert attribute_of(Derived, name) is inspect.getattr_static(Derived, name, None)


@pytest.mark.parametrize("value", [None, True, False, 0, "", [], Things()])
def test_what_needs_no_loop(value: Any) -> None:
    assert is_awaitable(value) == inspect.isawaitable(value)


def test_what_is_awaited() -> None:
    coroutine = Things().waits()
    assert is_awaitable(coroutine)
    coroutine.close()
