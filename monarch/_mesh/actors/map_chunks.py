"""Chunks of `Endpoint.map`: several items that go to a rank in one message, and their results, which come back in one.

`Chunked` runs them, in the actor; `ChunkedResults` gives them, at the caller. Loaded by programs that use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import length_hint
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from monarch._mesh.actors.map_results import MapProgress, MapResults
from monarch._mesh.actors.receivers import ReceiversUnknown
from monarch._runtime.context import current
from monarch._runtime.remote_errors import decode_answer
from monarch._wire import codec, culprit
from monarch._wire.frame import Buffer
from monarch._wire.message import ERROR

if TYPE_CHECKING:
    from monarch._mesh.actors.behaviour import ActorBehaviour, Method

R = TypeVar("R")

Encoded = tuple[bytes, Sequence[Buffer]]  # an error, as it comes in an answer of its own


class ChunkResult(NamedTuple):
    """Result of a chunk on its rank: a value an item, or None and an encoded error."""

    rank: int
    values: list[Any]
    errors: dict[int, Encoded]


class Chunked:
    """A method that takes a chunk of its items, which it runs one after the other. An item that raises fails alone."""

    def __init__(self, behaviour: ActorBehaviour, method: Method) -> None:
        self._behaviour = behaviour
        self._method = method

    def run(self, items: list[Any]) -> ChunkResult:
        """Runs an ordinary method."""
        fn, fetching = self._method.fn, self._method.fetching
        result = self._empty()
        done, left = result.values.append, iter(items)
        while True:  # entered anew behind an item that raised: the others pay nothing for that
            try:
                if fetching is None:
                    for item in left:
                        done(fn(item))
                else:
                    for item in left:
                        args, _ = fetching.values((item,), {})
                        done(fn(*args))
                return result
            except Exception as exc:
                self._failed(result, exc)

    async def run_later(self, items: list[Any]) -> ChunkResult:
        """Runs an ordinary method that takes values of references, of an actor with an event loop, which runs on until they
        are there."""
        fn, fetching = self._method.fn, self._method.fetching
        result = self._empty()
        for item in items:
            try:
                args, _ = await fetching.values_later((item,), {})
                with self._behaviour._no_loop_for(fn):
                    result.values.append(fn(*args))
            except Exception as exc:
                self._failed(result, exc)
        return result

    async def run_async(self, items: list[Any]) -> ChunkResult:
        """Runs an `async` method."""
        result = self._empty()
        for item in items:
            try:
                result.values.append(await self._method.fn(item))
            except Exception as exc:
                self._failed(result, exc)
        return result

    def _empty(self) -> ChunkResult:
        return ChunkResult(self._behaviour.instance.rank, [], {})

    def _failed(self, result: ChunkResult, exc: Exception) -> None:
        behaviour = self._behaviour
        call = current.get().call  # type: ignore[union-attr]  # a message is being handled
        assert call is not None
        if behaviour.debugging is not None:
            behaviour.debugging.returned(behaviour.instance, call, exc)
        result.errors[len(result.values)] = behaviour.encode_error(call.method, exc)
        result.values.append(None)


def without_unsendable(behaviour: ActorBehaviour, method: str, result: ChunkResult) -> ChunkResult:
    """Returns the result with errors in place of the values that cannot be sent."""
    values, errors = list(result.values), dict(result.errors)
    for place, value in enumerate(values):
        try:
            codec.encode_value(value)
        except ReceiversUnknown:  # a handle, which `_reply` knows how to send
            continue
        except BaseException as exc:  # of the value's own methods, which may raise anything
            culprit.explain(exc, f"the return value of {method}", {"result": value})
            values[place], errors[place] = None, behaviour.encode_error(method, exc)
    return ChunkResult(result.rank, values, errors)


_BRIEF = 0.001  # seconds that the program may take for the results of one run, if it goes on as before
_LONGEST = 512  # results of one run


def run_length(last: int, seconds: float) -> int:
    """Returns how many results the next run may have; the last one, and a step, had `last` and took so long. Pure."""
    if seconds > _BRIEF:
        return int(last * _BRIEF / seconds)
    return min(_LONGEST, 2 * last + 1)


class ChunkedResults(MapResults[R]):
    """The results of `Endpoint.map` with chunks, to its reader the same as without. To `MapResults` a chunk is an item.

    Most results are given in *runs*, an iterator of a list that a loop takes them from without a step of Python. In between
    ranks are sent what they have room for, so a run is as long as the program reads in a millisecond.
    """

    def __init__(self, size: int, *made_of: Any) -> None:
        self._size = size
        self._pulled = self._opened = self._failed = self._sent_again = 0  # items; failed: of those given
        self._chunks: dict[int, range] = {}  # the items of those that were not given
        self._begun: list[Any] = []  # a chunk that is being pulled; Ctrl-C may come meanwhile
        # The chunk whose turn it is. Its results from `_place` on are not in the run.
        self._values: list[Any] = []
        self._errors: dict[int, Exception] = {}
        self._first = self._place = 0
        self._unread: Iterator[Any] = iter(())  # of the run
        self._run: Iterator[R] = self._unread  # the same, as readers get it
        self._length, self._began = 0, 0.0
        super().__init__(*made_of)

    @property
    def progress(self) -> MapProgress:
        left = length_hint(self._unread) + len(self._values) - self._place
        done, failed = self._opened, self._failed + sum(place >= self._place for place in self._errors)
        for chunk, items in self._chunks.items():
            if self._schedule.is_done(chunk):
                result, error = self._outcomes[chunk]
                done += len(items)
                failed += len(items) if error is not None else len(result.errors)
        in_flight = sum(len(self._chunks[chunk]) for chunk in self._replies)
        return MapProgress(self._pulled, in_flight, done, failed, self._opened - left, self._sent_again)

    def indexed(self) -> MapResults[tuple[int, R]]:
        if not self._indexed:
            super().indexed()
            rest = len(list(self._unread))  # a loop that has the run finds it empty, and asks for the next
            self._unread, self._run, self._place = self._next_run(self._place - rest, rest)
        return cast("MapResults[tuple[int, R]]", self)

    def _pull(self) -> tuple[Any] | None:
        chunk = self._begun
        try:
            chunk.extend(islice(self._items, self._size - len(chunk)))  # which keeps what came before an error
        except Exception as exc:
            self._pulled += len(chunk)
            self._no_more(exc)
        else:
            self._pulled += len(chunk)
            if len(chunk) < self._size:
                self._no_more(None)
        self._begun = []
        if not chunk:
            return None
        self._chunks[self._schedule.pulled] = range(self._pulled - len(chunk), self._pulled)
        return (chunk,)

    def _item_to_pull(self) -> int:
        return self._pulled

    def _again(self, index: int) -> Any:
        self._sent_again += len(self._chunks[index])
        return super()._again(index)

    def _named(self, index: int) -> str:
        items = self._chunks[index]
        return f"items {items[0]} to {items[-1]}" if len(items) > 1 else f"item {items[0]}"

    # --- reading

    def __iter__(self) -> Iterator[R]:
        return chain.from_iterable(_runs(self))

    def __next__(self) -> R:
        for result in self._run:
            return result
        return super().__next__()

    def _step(self) -> int | None:
        if length_hint(self._unread):  # as by `async for`, or another reader in turn
            return self._place
        if self._place == len(self._values):
            self._values, self._errors, self._place = [], {}, 0
            chunk = super()._step()
            if chunk is None:
                return None
            self._open(chunk)
        elif self._pending.has_ready():  # ranks go on while a chunk is read
            self._take()
            self._send_items()
        return self._place

    def _open(self, chunk: int) -> None:
        result, error = self._outcomes.pop(chunk)
        self._kept.pop(chunk, None)
        items = self._chunks.pop(chunk)
        self._opened += len(items)
        self._first, self._place = items.start, 0
        if error is not None:
            self._values, self._errors = [None] * len(items), dict.fromkeys(range(len(items)), error)
        else:
            self._values = result.values
            self._errors = {place: self._error(items[place], result, place) for place in result.errors}

    def _error(self, index: int, result: ChunkResult, place: int) -> Exception:
        try:
            decode_answer((result.rank, ERROR, *result.errors[place]), self._target.label)
        except Exception as exc:
            exc.add_note(f"item {index} of {self._target.label}.map(), sent to rank {result.rank}")
            return exc
        raise AssertionError("an error's answer has no value")

    def _give(self, place: int) -> R:
        for result in self._run:
            return result
        error, value = self._errors.get(place), self._values[place]
        now = monotonic()
        length = run_length(self._length, now - self._began)
        unread, run, end = self._next_run(place + 1, length)
        # No calls from here on: a handler of signals may raise behind one, and the result were lost.
        self._length, self._began = length, now
        self._unread, self._run, self._place = unread, run, end
        if error is None and not self._indexed:
            return value  # type: ignore[no-any-return]
        self._failed += error is not None
        return self._given(self._first + place, value, error)

    def _next_run(self, place: int, most: int) -> tuple[Iterator[Any], Iterator[R], int]:
        """The results from there on, up to the next error; the same as readers get them; and where they end."""
        end = min(place + most, len(self._values))
        if self._errors:
            end = next((at for at in range(place, end) if at in self._errors), end)
        unread = iter(self._values[place:end])
        if not self._indexed:
            return unread, unread, end
        indices = range(self._first + place, self._first + end)
        return unread, cast("Iterator[R]", zip(indices, unread, strict=False)), end

    def close(self) -> None:
        super().close()
        self._chunks.clear()
        rest = len(list(self._unread))  # so that a loop that has the run gets no more
        self._opened -= rest + len(self._values) - self._place
        self._values, self._errors, self._place = [], {}, 0


def _runs(results: ChunkedResults[R]) -> Iterator[Iterable[R]]:
    """Gives what a loop reads, one behind the other: the run, or, when nothing is left of it, one step of Python."""
    step = _Step(results)
    while not results._closed:
        yield results._run if length_hint(results._unread) else step


class _Step(Iterator[R]):
    """The results that are not in a run. One that raises is not the end of the loop's iterator, which asks it again."""

    def __init__(self, results: ChunkedResults[R]) -> None:
        self._results = results

    def __next__(self) -> R:
        if length_hint(self._results._unread):
            raise StopIteration
        return next(self._results)
