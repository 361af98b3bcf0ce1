"""Texts that `?`, help() and repr() show of an actor mesh and of its endpoints: what the program's class says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class OfInstances:
    """An attribute that instances work out, and that the class does not have, or as `on_class`: `inspect` looks at both."""

    def __init__(self, read: Callable[[Any], Any], on_class: Any = None) -> None:
        self._read = read
        self._on_class = on_class

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is not None:
            return self._read(instance)
        if self._on_class is None:
            raise AttributeError("instances have it, the class does not")
        return self._on_class


def endpoint_doc(method: Callable[..., Any], count: int) -> str:
    import inspect  # slow to import, here and below

    own = inspect.getdoc(method)
    return (f"{own}\n\n" if own else "") + (
        f"An endpoint on {_actors(count)}. Say how with an adverb: call (every actor, all answers), call_one (the only\n"
        f"actor), choose (any one), stream (answers as they come), map (many items, each on whichever is free),\n"
        f"broadcast (no answers), map (each of many items on whichever is free); with_timeout(seconds) limits the wait."
    )


def mesh_doc(cls: type, count: int, endpoints: Iterable[Any]) -> str:
    """Returns the docstring of a mesh. `endpoints`: those of the mesh."""
    import inspect

    own = vars(cls).get("__doc__")
    lines = [f"{endpoint.__name__}{signature_of(endpoint)}" for endpoint in endpoints]
    return (f"{inspect.cleandoc(own)}\n\n" if own else "") + "\n    ".join(
        [f"A mesh of {_actors(count)} of class {cls.__qualname__}. Endpoints, each with adverbs:", *lines]
    )


def signature_of(endpoint: Any) -> str:
    """Its parameters and result as text; "" of what does not tell them."""
    try:
        return str(endpoint.__signature__)
    except (TypeError, ValueError):
        return ""


def _actors(count: int) -> str:
    return "1 actor" if count == 1 else f"{count} actors"
