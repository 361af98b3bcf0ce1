"""Which part of an object cannot be pickled: looked for only after pickling it has failed.

Pure but for the `fails` it is given, which tries to pickle a part. It is asked at most `MOST` times, and the parts are looked
at from the outside in, so that a large object costs no more than its few levels.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MOST = 300  # parts that are tried; what was found until then is named
_DEEPEST = 20  # levels


def find(value: Any, name: str, fails: Callable[[Any], bool]) -> tuple[str, Any]:
    """The innermost part of `value`, called `name`, that cannot be pickled: how a program would write it, and itself."""
    left = MOST
    seen = {id(value)}
    for _ in range(_DEEPEST):
        for part, inner in parts(value, name):
            if id(inner) in seen:
                continue
            if not left:
                return name, value
            left -= 1
            if fails(inner):
                seen.add(id(inner))
                name, value = part, inner
                break
        else:
            return name, value
    return name, value


def parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What an object holds, with the expression that leads there."""
    if isinstance(value, Mapping):
        for key, inner in list(value.items()):
            yield f"{name}[{_short(key)}]", inner
            yield f"the key {_short(key)} of {name}", key
    elif isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", None)  # of a named tuple
        for index, inner in enumerate(value):
            yield f"{name}.{fields[index]}" if fields else f"{name}[{index}]", inner
    elif isinstance(value, (set, frozenset)):
        for inner in list(value):
            yield f"an element of {name}", inner
    elif isinstance(value, functools.partial):
        yield f"{name}.func", value.func
        yield f"{name}.args", value.args
        yield f"{name}.keywords", value.keywords
    elif isinstance(value, types.MethodType):
        yield f"{name}.__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value, name)
    elif not isinstance(value, type):
        for attribute, inner in list(getattr(value, "__dict__", {}).items()):
            yield f"{name}.{attribute}", inner
        for attribute in _slots(type(value)):
            if hasattr(value, attribute):
                yield f"{name}.{attribute}", getattr(value, attribute)


def _of_function(function: types.FunctionType, name: str) -> Iterator[tuple[str, Any]]:
    """The variables that it takes with it: those of the functions around it, globals, defaults."""
    try:
        used = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # a variable that is not bound yet
        return
    for kind in (used.nonlocals, used.globals):
        for variable, inner in kind.items():
            if not isinstance(inner, types.ModuleType):
                yield f"{variable}, which {name} uses", inner
    for index, inner in enumerate(function.__defaults__ or ()):
        yield f"default {index} of {name}", inner


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 40 else f"{text[:37]}..."
