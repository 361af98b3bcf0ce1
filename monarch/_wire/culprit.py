"""The part of an object that cannot be pickled: looked for only after pickling it has failed.

`find` is pure but for the `fails` it is given, which tries to pickle a part. It is asked at most `MOST` times, and the parts
are looked at from the outside in, so that a large object costs no more than its few levels.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from monarch._errors import MessageTooLargeError
from monarch._wire import codec

MOST = 300  # parts that are tried; what was found until then is named
_DEEPEST = 20  # levels
_OF_EVERY_CLASS = ("__dict__", "__weakref__", "_abc_impl")


def explain(
    exc: BaseException, what: str, values: Mapping[str, Any], encode: Callable[[Any], object] = codec.encode
) -> None:
    """Adds to what encoding raised, of `values` by name, what it was and which part of it: as a note of the exception."""
    text = f"while encoding {what}: nothing was sent"
    if not isinstance(exc, MessageTooLargeError):
        try:
            text += _named(exc, values, lambda part: _fails(encode, part))
        except BaseException:  # the objects' own code runs here, and has failed once already
            pass
    try:
        exc.add_note(text)
    except Exception:  # of a class of the program's that takes none
        pass


def _named(exc: BaseException, values: Mapping[str, Any], fails: Callable[[Any], bool]) -> str:
    for name, value in values.items():
        if fails(value):
            part, culprit = find(value, name, fails)
            kind = type(culprit)
            shown = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            text = f". {part} cannot be sent: it is of type {shown}"
            if "cannot pickle" not in str(exc):  # then it says itself what to do
                return text
            return (
                f"{text}. Locks, sockets, open files and the like stay in their process: send what they are made from "
                f"(an address, a path), and make them where they are used; or give the class a __reduce__ or __getstate__ "
                f"that leaves them out"
            )
    return ""


def _fails(encode: Callable[[Any], object], part: Any) -> bool:
    try:
        encode(part)
    except BaseException:
        return True
    return False


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
    """Returns what an object holds, with the expression that leads there. Nothing of what stays in its process as a
    whole."""
    if codec.is_forbidden(type(value)):
        return
    wrapped = getattr(value, "__wrapped__", None)  # of a decorated function, an endpoint among them
    if wrapped is not None:
        yield name, wrapped
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
    elif isinstance(value, type):
        if not codec.importable(value.__module__):  # otherwise its name is sent
            for attribute, inner in list(vars(value).items()):
                if attribute not in _OF_EVERY_CLASS:
                    yield f"{name}.{attribute}", inner
    else:
        for attribute, inner in list(getattr(value, "__dict__", {}).items()):
            yield f"{name}.{attribute}", inner
        for attribute in _slots(type(value)):
            if hasattr(value, attribute):
                yield f"{name}.{attribute}", getattr(value, attribute)


def _of_function(function: types.FunctionType, name: str) -> Iterator[tuple[str, Any]]:
    """The variables that it takes with it: those of the functions around it, globals, defaults."""
    import inspect  # slow to import, and needed here alone

    try:
        used = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # a variable that is not bound yet
        return
    for kind in (used.nonlocals, used.globals):
        for variable, inner in kind.items():
            if not isinstance(inner, types.ModuleType):
                yield f"{variable} (which {name} uses)", inner
    for index, inner in enumerate(function.__defaults__ or ()):
        yield f"default {index} of {name}", inner


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 40 else f"{text[:37]}..."
