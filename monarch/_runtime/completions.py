"""Several results awaited at once: sources, and Futures, in the order in which they become ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch._runtime.event_loops import running_loop, warn_blocking
from monarch._runtime.future import Future, Note, Source, check_timeout

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Completions:
    """Sources by key, in the order in which they become ready. One thread or task at a time takes and waits.

    Adding, taking and waiting cost the same however many there are.
    """

    __slots__ = ("_members", "_ready", "_turn")

    def __init__(self) -> None:
        self._members: dict[Hashable, _Member] = {}
        self._ready: deque[Hashable] = deque()
        self._turn: Source | None = None  # what the waiting thread or task waits for: the next one

    def __len__(self) -> int:
        """Returns how many were not taken yet."""
        return len(self._members)

    def has_ready(self) -> bool:
        """Returns whether there may be one to take. Costs next to nothing."""
        return bool(self._ready)

    def add(self, key: Hashable, source: Source) -> None:
        member = self._members[key] = _Member(self, key, source)
        source.start()
        source.on_ready(member)

    def take(self) -> Hashable | None:
        """The key of the next one that is ready; None when none is."""
        while self._ready:
            key = self._ready[0]
            member = self._members.get(key)
            ready = member is not None and member.source.ready  # else it was told of twice, or discarded
            del self._ready[
                0
            ]  # no calls from here on: a handler of signals may raise behind one, and the key were lost
            if ready:
                del self._members[key]
                return key
        return None

    def discard_all(self) -> None:
        members, self._members = self._members, {}
        self._ready.clear()
        for member in members.values():
            member.source.discard(member)

    def wait(self, timeout: float | None) -> bool:
        """Blocks this thread until one is ready that was not taken; False after `timeout` seconds."""
        turn = self._turn = Source()
        try:
            return bool(self._ready) or turn.wait(timeout)
        finally:
            self._turn = None

    def wait_async(self, loop: asyncio.AbstractEventLoop) -> Generator[Any, None, None]:
        """Suspends the awaiting task until one is ready that was not taken."""
        turn = self._turn = Source()
        try:
            if not self._ready:
                yield from turn.wait_async(loop)
        finally:
            self._turn = None

    async def wait_in(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> bool:
        """The same with a limit in seconds; False when it is over."""
        if timeout is None:
            await _Awaitable(self, loop)
            return True
        import asyncio

        try:
            async with asyncio.timeout(timeout):
                await _Awaitable(self, loop)
        except TimeoutError:
            return bool(self._ready)
        return True


class _Awaitable:
    def __init__(self, completions: Completions, loop: asyncio.AbstractEventLoop) -> None:
        self._completions = completions
        self._loop = loop

    def __await__(self) -> Generator[Any, None, None]:
        return self._completions.wait_async(self._loop)


class _Member:
    """The source that one of several wakes."""

    __slots__ = ("_key", "_owner", "source")

    def __init__(self, owner: Completions, key: Hashable, source: Source) -> None:
        self._owner = owner
        self._key = key
        self.source = source

    def __call__(self) -> None:
        owner = self._owner
        owner._ready.append(self._key)
        turn = owner._turn  # read after the line above: a thread that waits looks the other way round
        if turn is not None:
            turn.set_ready()

    def noted(self) -> list[tuple[Callable[[], Any], Note, bool]]:
        """Notes who waits for it, as `Source.noted` says: not for it alone, as long as another may come first."""
        turn, alone = self._owner._turn, len(self._owner._members) == 1
        return [] if turn is None else [(waker, note, alone) for waker, note, _alone in turn.noted()]


class Completed(Generic[T]):
    """The Futures of `as_completed`: an iterator and an async iterator."""

    def __init__(self, futures: Iterable[Future[T]], timeout: float | None) -> None:
        given = list(dict.fromkeys(futures))
        for future in given:
            if not isinstance(future, Future):
                raise TypeError(f"as_completed takes Futures of this runtime (what call() returns), got {future!r}")
        self._count = len(given)
        self._timeout = None if timeout is None else check_timeout(timeout)
        self._deadline = None if self._timeout is None else monotonic() + self._timeout
        self._futures: dict[Hashable, Future[T]] = {}
        self._done: deque[Future[T]] = deque()
        self._pending = Completions()
        for number, future in enumerate(given):
            source = future._source
            if source is None:  # it was observed before
                self._done.append(future)
            else:
                self._futures[number] = future
                self._pending.add(number, source)

    def __iter__(self) -> Completed[T]:
        return self

    def __aiter__(self) -> Completed[T]:
        return self

    def __next__(self) -> Future[T]:
        while (future := self._next()) is None:
            if not self._futures:
                raise StopIteration
            if running_loop() is not None:
                warn_blocking("as_completed() was iterated", "Use `async for` here")
            if not self._pending.wait(self._left()):
                raise self._too_late()
        return future

    async def __anext__(self) -> Future[T]:
        while (future := self._next()) is None:
            if not self._futures:
                raise StopAsyncIteration
            loop = running_loop()
            assert loop is not None
            if not await self._pending.wait_in(loop, self._left()):
                raise self._too_late()
        return future

    def _next(self) -> Future[T] | None:
        if self._done:
            future = self._done[0]
            del self._done[0]
            return future
        key = self._pending.take()
        if key is None:
            return None
        future = self._futures[key]
        del self._futures[key]
        return future

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - monotonic())

    def _too_late(self) -> TimeoutError:
        missing = next((source.awaited() for future in self._futures.values() if (source := future._source)), "")
        return TimeoutError(
            f"{len(self._futures)} of {self._count} Futures have no result after {self._timeout:g} s{missing}; the "
            f"operations go on"
        )

    def __del__(self) -> None:
        try:
            self._pending.discard_all()
        except AttributeError:  # never made: its constructor raised
            return


def as_completed(futures: Iterable[Future[T]], timeout: float | None = None) -> Completed[T]:
    """Gives Futures in the order in which they complete: `for future in as_completed(calls): future.get()`, or `async for`.

    Each is given once, also if it is there several times or has failed; observing it does not block then. `timeout`, in
    seconds from this call: TimeoutError when the next one is not there by then; what is under way goes on. All begin at
    once, those of `returns_future` on threads of their own. TypeError for anything but a Future.
    """
    return Completed(futures, timeout)
