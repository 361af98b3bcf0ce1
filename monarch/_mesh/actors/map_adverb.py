"""The adverb `map` of an endpoint: arguments and types. `map_schedule` decides, `map_results` does it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, overload

from monarch._mesh.actors.adverb_codes import CALL_ONE, MAP_CHUNK
from monarch._runtime.future import Future
from monarch._runtime.replies import OneReply

if TYPE_CHECKING:
    from monarch._mesh.actors.map_results import MapResults

S = TypeVar("S")
T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

ErrorTypes: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]


class OneArgument(Protocol[T_contra, S_co]):
    """An endpoint that can be called with one argument."""

    def call_one(self, item: T_contra, /) -> Future[S_co]: ...


class MapAdverb:
    """The part of Endpoint that has `map`."""

    __slots__ = ()

    @overload
    def map(
        self: OneArgument[T, S],
        items: Iterable[T],
        *,
        ordered: bool = True,
        in_flight: int = 1,
        chunksize: int = 1,
        retries: int = 0,
        retry_on: ErrorTypes = (),
        return_exceptions: Literal[False] = False,
    ) -> MapResults[S]: ...
    @overload
    def map(
        self: OneArgument[T, S],
        items: Iterable[T],
        *,
        ordered: bool = True,
        in_flight: int = 1,
        chunksize: int = 1,
        retries: int = 0,
        retry_on: ErrorTypes = (),
        return_exceptions: Literal[True],
    ) -> MapResults[S | Exception]: ...
    def map(
        self: Any,
        items: Iterable[Any],
        *,
        ordered: bool = True,
        in_flight: int = 1,
        chunksize: int = 1,
        retries: int = 0,
        retry_on: ErrorTypes = (),
        return_exceptions: bool = False,
    ) -> Any:
        """Runs once for each item, as its argument, on whichever rank is free; an iterator (and async iterator) of results.

            for score in scorers.score.map(samples, in_flight=2, retries=1):
                ...

        `ordered`: results come in the order of the items; otherwise as they are there (`.indexed()` says whose they are).
        `in_flight`: items a rank has at a time; 2 or more pays when they take less than a millisecond. The first items are
        sent now, the others while results are read: items are pulled in the thread or task that reads, as ranks become free,
        and at most four times as many as fit in flight before their results are read.

        `chunksize`: items that go to a rank in one message, and whose results come back in one: 100 and more pays when they
        take less than 0.1 ms. The rank runs them one after the other; one that raises, or whose result cannot be sent, fails
        alone. `in_flight` then counts chunks, `with_timeout` limits each chunk, what is too large to send is so for a chunk,
        and a chunk whose rank died fails or is sent again as a whole: some of its items may have run.

        An item whose rank died is sent to another rank up to `retries` times; the rank is used again once it was restarted.
        An item that failed otherwise is sent again only if its error, or the exception in its ActorError, is a `retry_on`.
        What is sent again may have run before. An error is raised when its turn comes, or with `return_exceptions` given;
        a note names item, endpoint and rank. `with_timeout` limits each item, from when it was sent.

        The iterator is for one reader at a time. It has `indexed()`: from then on (index of the item, result) pairs;
        `progress`: how many items were `pulled`, are `in_flight`, `done`, `failed`, `given`, and how often one was
        `sent_again`; and `close()`, as at the end of a `with` block: nothing more is sent, and what runs goes on.
        While the client waits for results, a map of more than 3 s says on stderr how far it is, as `monarch.progress` does
        (setting `show_progress`); on a terminal that line is gone when a result is given.

        ValueError and TypeError for numbers below their bounds, `retry_on` without `retries` or with chunks, chunks for
        endpoints that answer through a port, and async iterables.
        """
        if self._property._checked:
            self._check((None,), {})
        if isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1:
            raise ValueError(f"in_flight is how many items a rank has at a time, 1 or more, got {in_flight!r}")
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise ValueError(f"chunksize is how many items go in one message, 1 or more, got {chunksize!r}")
        if chunksize > 1 and retry_on != ():
            raise ValueError("retry_on is for items that are sent one by one: leave chunksize at 1")
        if chunksize > 1 and self._property._user_port:
            raise ValueError(
                f"{self._name} answers through a port, an item at a time: leave chunksize at 1, or return the result"
            )
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ValueError(f"retries is how often an item is sent again, 0 or more, got {retries!r}")
        if retry_on != () and not retries:
            raise ValueError("retry_on has no effect without retries: say how often, as in retries=2")
        kinds = retry_on if isinstance(retry_on, tuple) else (retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise TypeError(f"retry_on is an exception class, or a tuple of them, got {retry_on!r}")
        if not hasattr(items, "__iter__") and hasattr(items, "__aiter__"):
            raise TypeError(f"map() takes an iterable of items, and {items!r} can only be iterated with `async for`")
        from monarch._mesh.actors.map_results import MapResults  # loaded by programs that use it
        from monarch._mesh.actors.map_schedule import MapSchedule

        target = self._target or self._make_target()
        schedule = MapSchedule(len(target.addresses), in_flight, retries, ordered)

        adverb = CALL_ONE if chunksize == 1 else MAP_CHUNK
        caller = sys._getframe(1)
        code, instruction = caller.f_code, caller.f_lasti

        def send(reply: OneReply, item: Any, rank: int) -> None:
            reply.code, reply.instruction = code, instruction
            self._cast(reply, adverb, (item,), {}, only=rank)

        if chunksize == 1:
            return MapResults(target, send, items, schedule, kinds, return_exceptions)
        from monarch._mesh.actors.map_chunks import ChunkedResults

        return ChunkedResults(chunksize, target, send, items, schedule, kinds, return_exceptions)
