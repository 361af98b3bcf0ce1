"""Parameters of endpoints that take the value of a reference: it is fetched before the endpoint runs.

Which parameters these are is read off the annotations when the endpoint is declared. One without any costs a call nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin

from monarch.actor.lowlevel import annotations_of
from monarch.references.object_ref import ObjectRef

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class _Mark:
    def __repr__(self) -> str:
        return "fetched before the endpoint runs"

    def __reduce__(self) -> str:
        return "_MARK"  # classes of a program's own file are pickled whole


_MARK = _Mark()

# Any: a caller may pass an ObjectRef; T is what the body is checked with.
Fetched = Annotated[T | Any, _MARK]
"""The annotation of a parameter of an endpoint that takes the value of a reference.

    @endpoint
    def total(self, numbers: Fetched[list[int]]) -> int: ...

    actors.total.call(ref)   # or a list

An ObjectRef that is itself the argument is fetched before the endpoint runs, in the actor's process, all of a call's side by
side; any other argument, and references within it, are passed as they are. `Fetched[T] | None` is fetched as well. What
`ref.get()` would raise fails the call, with a note that names the argument, and the endpoint does not run. On an actor
without an event loop, and for an `async def` endpoint, the messages behind it wait; concurrent endpoints do not. `*args` and
`**kwargs` may be annotated.

Since 0.2.0.
"""


class ArgumentFetcher:
    """The parameters of one method that take values. `skip`: how many parameters are not the caller's."""

    def __init__(self, method: Callable[..., Any], marked: set[str], skip: int) -> None:
        self._method = method.__qualname__
        self._ports = skip - 1  # before the caller's arguments, behind `self`
        self._places: dict[int, str] = {}
        self._rest = sys.maxsize  # the first of the arguments for `*args: Fetched[T]`
        self._names: set[str] = set()
        self._others = False  # whether `**kwargs: Fetched[T]`
        known = set()
        for place, parameter in enumerate(list(inspect.signature(method).parameters.values())[skip:]):
            known.add(parameter.name)
            if parameter.name not in marked:
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = place
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._others = True
            else:
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    self._places[place] = parameter.name
                if parameter.kind is not parameter.POSITIONAL_ONLY:
                    self._names.add(parameter.name)
        self._known = known

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with the values; waits for them on this thread."""
        asked = [(place, ref, ref._store.reader.fetch(ref)) for place, ref in self._refs(args, kwargs)]
        found = {}
        for place, ref, value in asked:
            try:
                found[place] = value.get()
            except Exception as exc:
                self._explain(exc, place, ref)
                raise
        return _replaced(args, kwargs, found)

    async def values_later(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Does as `values`, while the event loop runs on."""
        asked = [(place, ref, _task(ref)) for place, ref in self._refs(args, kwargs)]
        found = {}
        try:
            for place, ref, value in asked:
                try:
                    found[place] = await value
                except Exception as exc:
                    self._explain(exc, place, ref)
                    raise
        finally:
            for _, _, value in asked:
                value.cancel()
        return _replaced(args, kwargs, found)

    def before(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns an async method that does as `fn`, once the values are there."""

        @functools.wraps(fn)
        async def with_values(*args: Any, **kwargs: Any) -> Any:
            given, kwargs = await self.values_later(args[self._ports :], kwargs)
            return await fn(*args[: self._ports], *given, **kwargs)

        return with_values

    def _refs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[int | str, ObjectRef[Any]]]:
        for place, arg in enumerate(args):
            if isinstance(arg, ObjectRef) and (place in self._places or place >= self._rest):
                yield place, arg
        for name, arg in kwargs.items():
            if isinstance(arg, ObjectRef) and (name in self._names or (self._others and name not in self._known)):
                yield name, arg

    def _explain(self, exc: Exception, place: int | str, ref: ObjectRef[Any]) -> None:
        name = self._places.get(place, f"*[{place}]") if isinstance(place, int) else place
        exc.add_note(f"{self._method} did not run: its argument {name}, {ref}, could not be fetched")


def _task(ref: ObjectRef[T]) -> asyncio.Task[T]:
    import asyncio

    return asyncio.get_running_loop().create_task(ref._store.reader.fetch_later(ref))


def _replaced(
    args: tuple[Any, ...], kwargs: dict[str, Any], found: dict[int | str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (
        tuple([found.get(place, arg) for place, arg in enumerate(args)]),
        {name: found.get(name, arg) for name, arg in kwargs.items()},
    )


def fetching(method: Callable[..., Any], values: Sequence[str], skip: int) -> ArgumentFetcher:
    """Returns what fetches these arguments of a method, the first `skip` of which are not the caller's."""
    return ArgumentFetcher(inspect.unwrap(method), set(values), skip)


def marked(method: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the parameters that are annotated with Fetched, or with a union that has it. Of annotations that are texts only
    names are looked at: what they hold may not be there yet, or for type checkers only."""
    plain = inspect.unwrap(method)
    return tuple(
        name for name, written in annotations_of(plain).items() if name != "return" and _is_marked(written, plain)
    )


def _is_marked(annotation: Any, method: Callable[..., Any]) -> bool:
    if isinstance(annotation, str):
        return any(_is_named(each, method) for each in _alternatives(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return any(_is_marked(each, method) for each in get_args(annotation))
    return get_origin(annotation) is Annotated and _MARK in annotation.__metadata__


def _alternatives(text: str) -> Iterator[str]:
    """Splits the text of a union, however it is written, into its members."""
    depth, begin = 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "[(") - (sign in "])")
        if not depth and sign in "|,":
            yield from _alternatives(text[begin:place])
            begin = place + 1
    last = text[begin:].strip()
    head, bracket, inside = last.partition("[")
    if begin == 0 and bracket and head.split(".")[-1].strip() in ("Optional", "Union"):
        yield from _alternatives(inside.rstrip().removesuffix("]"))
    elif begin:
        yield from _alternatives(last)
    else:
        yield last


def _is_named(text: str, method: Callable[..., Any]) -> bool:
    head, bracket, _ = text.partition("[")
    names = head.strip().split(".")
    found = getattr(method, "__globals__", {}).get(names[0])
    for name in names[1:]:
        found = getattr(found, name, None)
    return bool(bracket) and (found is Fetched or (found is None and names[-1] == "Fetched"))
