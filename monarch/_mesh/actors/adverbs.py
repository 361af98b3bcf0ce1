"""Errors where an adverb is used and there is no mesh to send to, or an endpoint is used without one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn

# The public methods of Endpoint; a test compares.
ADVERBS = frozenset(
    ["call", "call_one", "choose", "stream", "map", "broadcast", "rref", "bind", "keep", "with_timeout"]
)


def not_callable(endpoint: str) -> str:
    """Returns what `mesh.endpoint(...)` raises."""
    return (
        f"endpoint {endpoint!r} is not callable itself: say how, with .call(...), .call_one(...), .broadcast(...), "
        f".choose(...) or .stream(...)"
    )


def no_adverb(endpoint: str, name: str) -> str:
    """Returns what `mesh.endpoint.NAME` raises, where NAME is no adverb."""
    mistake = f"'Endpoint' object has no attribute {name!r}"
    if name.startswith("_"):
        return mistake
    return f"{mistake}: say first how {endpoint!r} is called, as in .call(...) or .call_one(...)"


def on_the_class(method: Callable[..., Any], adverb: str) -> str:
    cls, name = _names(method)
    return (
        f"{cls}.{name}.{adverb}: {cls} is the class, and only a mesh of its actors can be sent anything: "
        f'mesh = procs.spawn("{cls.lower()}", {cls}, ...), then mesh.{name}.{adverb}(...)'
    )


class OnAnInstance:
    """An adverb of an endpoint that was found on an instance: calling it says what to do."""

    def __init__(self, cls: str, name: str, adverb: str) -> None:
        self._said = (cls, name, adverb)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        cls, name, adverb = self._said
        raise RuntimeError(
            f"{name}.{adverb}(...) on an instance of {cls}, where {name} is a plain method: call it as {name}(...). Only a "
            f'mesh of actors can be sent anything: mesh = procs.spawn("{cls.lower()}", {cls}, ...), then '
            f"mesh.{name}.{adverb}(...)"
        )


def as_local_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method as instances have it: with adverbs that explain. A copy, so that the program's function stays as it is."""
    if type(method) is not FunctionType:
        return method
    copy = FunctionType(method.__code__, method.__globals__, method.__name__, method.__defaults__, method.__closure__)
    copy.__kwdefaults__ = method.__kwdefaults__
    cls, name = _names(method)
    for adverb in ADVERBS:
        setattr(copy, adverb, OnAnInstance(cls, name, adverb))
    return functools.update_wrapper(copy, method)


def _names(method: Callable[..., Any]) -> tuple[str, str]:
    """The class and the name of a method, as far as it says them."""
    *outer, name = getattr(method, "__qualname__", repr(method)).split(".")
    return (outer[-1] if outer and outer[-1] != "<locals>" else "the class"), name
