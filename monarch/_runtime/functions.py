"""Questions about functions and classes for the start of a program. The module `inspect` says the same, and takes longer to
import than all that is asked."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

_ASYNC = 0x80  # inspect.CO_COROUTINE


def is_async(function: Callable[..., Any]) -> bool:
    """Returns `inspect.iscoroutinefunction(function)`."""
    plain = function.__func__ if type(function) is MethodType else function
    if type(plain) is FunctionType:
        if plain.__code__.co_flags & _ASYNC:
            return True
        if not any(name.startswith("_is_coroutine") for name in plain.__dict__):  # marked as one, from Python 3.12 on
            return False
    import inspect

    return inspect.iscoroutinefunction(function)


def attribute_of(cls: type, name: str) -> Any:
    """Returns what stands under `name` in a class or one of its bases, descriptors as they are; None for nothing."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def is_awaitable(value: object) -> bool:
    """Returns `inspect.isawaitable(value)`."""
    if value is None or value is True or value is False:  # what hooks return that need no loop
        return False
    import inspect

    return inspect.isawaitable(value)
