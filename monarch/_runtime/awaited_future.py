"""A Future that says in its own words what it waits for: that of a package above actors, which asks others for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from monarch._runtime.future import Future, Source, Then, detach, make_future

S = TypeVar("S")
T = TypeVar("T")


def follow_as(what: object, future: Future[S], convert: Callable[[S], T], advice: str | None = None) -> Future[T]:
    """The Future of `convert(result)`, as by `follow`. A timeout says that there is no result from `str(what)`, and then
    `advice`; that of `future` without one. For optional packages."""
    return make_future(_Awaited(detach(future), convert, what, advice))


class _Awaited(Then):
    """Its timeouts, and what is printed of it, are told in other words."""

    __slots__ = ("_advice", "_what")

    def __init__(self, first: Source, convert: Callable[[Any], Any], what: object, advice: str | None) -> None:
        super().__init__(first, convert)
        self._what, self._advice = what, advice

    def awaited(self) -> str:
        return f" from {self._what}"

    def of(self) -> str:
        return str(self._what)

    def advice(self) -> str:
        return super().advice() if self._advice is None else self._advice

    def looks(self) -> Callable[[], None] | None:
        return super().looks() if self._advice is None else None
