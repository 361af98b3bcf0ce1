"""A Future that says in its own words what it waits for: that of a package above actors, which asks others for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from monarch._runtime.future import Future, Rescued, Source, Then, detach, make_future

S = TypeVar("S")
T = TypeVar("T")


def follow_as(
    what: object,
    future: Future[S],
    convert: Callable[[S], T],
    advice: str | None = None,
    rescue: Callable[[Exception], BaseException] | None = None,
) -> Future[T]:
    """The Future of `convert(result)`, as by `follow`. A timeout says that there is no result from `str(what)`, and then
    `advice`; that of `future` without one. For optional packages."""
    source = detach(future)
    return make_future(_Awaited(source if rescue is None else Rescued(source, rescue), convert, what, advice))


class _Awaited(Then):
    """Its timeouts end with advice of its own."""

    __slots__ = ("_advice",)

    def __init__(self, first: Source, convert: Callable[[Any], Any], of: object, advice: str | None) -> None:
        super().__init__(first, convert, of)
        self._advice = advice

    def advice(self) -> str:
        return super().advice() if self._advice is None else self._advice

    def looks(self) -> Callable[[], None] | None:
        return super().looks() if self._advice is None else None
