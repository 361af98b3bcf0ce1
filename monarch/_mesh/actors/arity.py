"""The check that arguments fit a method, found out before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Arity:
    """Checks arguments against a signature; the common case (positional only) without binding."""

    __slots__ = ("_most", "_name", "_needed", "_simple", "signature")

    def __init__(self, method: Callable[..., Any], skip: int) -> None:
        import inspect  # slow to import

        whole = inspect.signature(method)
        parameters = list(whole.parameters.values())[skip:]
        self._name = getattr(method, "__qualname__", repr(method))
        self.signature = whole.replace(parameters=parameters)
        kinds = [p.kind for p in parameters]
        self._simple = all(k is inspect.Parameter.POSITIONAL_OR_KEYWORD for k in kinds)
        self._needed = sum(1 for p in parameters if p.default is inspect.Parameter.empty)
        self._most = len(parameters)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._simple and not kwargs and self._needed <= len(args) <= self._most:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as exc:
            limit = ". A time limit is set with mesh.endpoint.with_timeout(seconds)" if "'timeout'" in str(exc) else ""
            raise TypeError(f"{exc}: it is {self._name}{self.signature}{limit}") from None


_arities: dict[tuple[Any, int], Arity] = {}


def arity_of(method: Callable[..., Any], skip: int) -> Arity:
    """Returns the Arity of `method` without its first `skip` parameters. Kept for 4096 methods; then all are forgotten."""
    key = (method, skip)
    known = _arities.get(key)
    if known is None:
        if len(_arities) > 4096:
            _arities.clear()
        known = _arities[key] = Arity(method, skip)
    return known


def named(method: Callable[..., Any], skip: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of their parameters, the first `skip` of which are not the caller's."""
    try:
        return dict(arity_of(method, skip).signature.bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # they do not fit, or nobody knows what would
        return {f"argument {index}": arg for index, arg in enumerate(args)} | kwargs


def check_arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TypeError when the arguments do not fit the class's constructor."""
    if cls.__init__ is object.__init__ and cls.__new__ is object.__new__:
        if args or kwargs:
            raise TypeError(f"{cls.__qualname__} has no __init__ that takes arguments, and spawn was given some for it")
        return
    arity_of(cls.__init__, 1).check(args, kwargs)
