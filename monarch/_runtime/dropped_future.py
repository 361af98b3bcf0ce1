"""A Future whose result is read even if it is dropped unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from monarch._runtime.future import Future, Source, Then, detach, make_future

T = TypeVar("T")


def read_if_dropped(future: Future[T], read: Callable[[Future[T]], None]) -> Future[T]:
    """The same as `future`, which nobody has observed and is used up. If it is dropped unseen, `read` gets another of the
    same result, once that is there: on any thread, in the middle of anything, so it may take no lock. For optional
    packages."""
    return make_future(_Unread(detach(future), read))


class _Unread(Then):
    """Its first source keeps it until that is ready; then only the observer does."""

    __slots__ = ("_read",)

    def __init__(self, first: Source, read: Callable[[Future[Any]], None]) -> None:
        self._read: Callable[[Future[Any]], None] | None = read
        super().__init__(first, lambda value: value)

    def value(self) -> Any:
        self._read = None
        return super().value()

    def __del__(self) -> None:
        if self._read is not None and self.ready:
            self._read(make_future(self._first))
