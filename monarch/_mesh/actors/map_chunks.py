"""Chunks of `Endpoint.map`: several items that go to a rank in one message, and their results, which come back in one.

`Chunked` runs them, in the actor; `ChunkedResults` gives them, at the caller. Loaded by programs that use them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
        for item in items:
            try:
                args, _ = ((item,), None) if fetching is None else fetching.values((item,), {})
                result.values.append(fn(*args))
            except Exception as exc:
                self._failed(result, exc)
        return result

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


class ChunkedResults(MapResults[R]):
    """The results of `Endpoint.map` with chunks, to its reader the same as without. To `MapResults` a chunk is an item."""

    def __init__(self, size: int, *made_of: Any) -> None:
        self._size = size
        self._pulled = self._items_given = self._failed = self._sent_again = 0  # items; failed: of those given
        self._chunks: dict[int, range] = {}  # the items of those that were not given
        self._begun: list[Any] = []  # a chunk that is being pulled; Ctrl-C may come meanwhile
        self._left: deque[tuple[int, Any, Exception | None]] = deque()  # of the chunk whose turn it is
        super().__init__(*made_of)

    @property
    def progress(self) -> MapProgress:
        done, failed = self._items_given + len(self._left), self._failed
        failed += sum(error is not None for _, _, error in self._left)
        for chunk, items in self._chunks.items():
            if self._schedule.is_done(chunk):
                result, error = self._outcomes[chunk]
                done += len(items)
                failed += len(items) if error is not None else len(result.errors)
        in_flight = sum(len(self._chunks[chunk]) for chunk in self._replies)
        return MapProgress(self._pulled, in_flight, done, failed, self._items_given, self._sent_again)

    def _pull(self) -> tuple[Any] | None:
        chunk = self._begun
        try:
            for item in islice(self._items, self._size - len(chunk)):
                chunk.append(item)
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

    def __next__(self) -> R:
        if not self._left or self._busy or self._pending.has_ready():
            return super().__next__()
        return self._give(0)  # most items are small

    def _step(self) -> int | None:
        if not self._left:
            chunk = super()._step()
            if chunk is None:
                return None
            self._open(chunk)
        elif self._pending.has_ready():  # ranks go on while a chunk is read
            self._take()
            self._send_items()
        return self._left[0][0]

    def _open(self, chunk: int) -> None:
        result, error = self._outcomes.pop(chunk)
        self._kept.pop(chunk, None)
        items = self._chunks.pop(chunk)
        if error is not None:
            self._left.extend((index, None, error) for index in items)
        elif not result.errors:
            self._left.extend(zip(items, result.values, repeat(None)))
        else:
            for place, index in enumerate(items):
                failed = self._error(index, result, place) if place in result.errors else None
                self._left.append((index, result.values[place], failed))

    def _error(self, index: int, result: ChunkResult, place: int) -> Exception:
        try:
            decode_answer((result.rank, ERROR, *result.errors[place]), self._target.label)
        except Exception as exc:
            exc.add_note(f"item {index} of {self._target.label}.map(), sent to rank {result.rank}")
            return exc
        raise AssertionError("an error's answer has no value")

    def _give(self, _index: int) -> R:
        index, value, error = self._left.popleft()
        self._items_given += 1
        if error is None and not self._indexed:
            return value  # type: ignore[no-any-return]
        self._failed += error is not None
        return self._given(index, value, error)

    def close(self) -> None:
        super().close()
        self._left.clear()
        self._chunks.clear()
