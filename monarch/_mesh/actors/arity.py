"""The parameters of a method: whether arguments fit them, found out before anything is sent, and which take values of
references.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from monarch._mesh import plugins


class Arity:
    """Checks arguments against a signature; the common case (positional only) without binding."""

    __slots__ = ("_most", "_name", "_needed", "_simple", "signature")

    def __init__(self, method: Callable[..., Any], skip: int) -> None:
        import inspect  # slow to import

        whole = inspect.signature(method)
        parameters = [p.replace(annotation=_as_written(p.annotation)) for p in list(whole.parameters.values())[skip:]]
        self._name = getattr(method, "__qualname__", repr(method))
        self.signature = whole.replace(parameters=parameters, return_annotation=_as_written(whole.return_annotation))
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


class _Annotation(str):
    """An annotation that is kept as text (`from __future__ import annotations`), shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _as_written(annotation: Any) -> Any:
    return _Annotation(annotation) if type(annotation) is str else annotation


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


def check_takes_self(method: Callable[..., Any]) -> None:
    """Raises TypeError for a function without parameters: as a method it could never be called."""
    code = getattr(method, "__code__", None)
    if code is not None and not code.co_argcount and not code.co_flags & 0x04:  # no *args either
        name = method.__qualname__
        raise TypeError(
            f"endpoint {name} takes no parameters, and the first one of a method is self: def {code.co_name}(self)"
        )


# --- parameters that take values of references, as far as one sees without loading monarch.references

_FETCHED = "monarch.references.fetched"


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns a function's annotations; as texts where names in them are not there yet. For optional packages.

    Since 0.2.0.
    """
    try:
        return dict(getattr(function, "__annotations__", None) or {})
    except NameError:  # Python 3.14 reads them only now
        from annotationlib import Format, get_annotations  # type: ignore[import-not-found,unused-ignore]

        return dict(get_annotations(function, format=Format.STRING))


def values_taken(method: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the parameters annotated with Fetched."""
    if not hasattr(sys.modules.get(_FETCHED), "marked"):  # not loaded, or half: that loads endpoints of ours
        written = annotations_of(method).values()
        if not any("Fetched[" in one for one in written if isinstance(one, str)):
            return ()
    return plugins.outer("references.marked")(method)  # type: ignore[no-any-return]
