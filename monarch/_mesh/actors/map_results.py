"""`Endpoint.map`: sends items to ranks as they become free, and gives the results. What to do is decided by `map_schedule`.

Everything happens in the thread or task that iterates: items are pulled and encoded, and results decoded, there. Nothing of
it runs on the I/O thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from monarch._errors import ActorError, SupervisionError
from monarch._mesh.actors.map_schedule import MapSchedule
from monarch._runtime.completions import Completions
from monarch._runtime.context import here, root_of
from monarch._runtime.event_loops import running_loop, warn_blocking
from monarch._runtime.future import Slot
from monarch._runtime.log_thread import log
from monarch._runtime.progress import AwaitedProgress
from monarch._runtime.remote_errors import Raw, decode_failure
from monarch._runtime.replies import OneReply, Target
from monarch._wire.message import FAILED, Failure, Probe
from monarch._wire.peer import PeerEnded

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

R = TypeVar("R")

logger = logging.getLogger("monarch")

_UNREAD = "nobody read the results of %s.map(): only its first %d items were sent. Iterate over what it returns"

# What is waited for, with the item's index or the rank: an item's answer, that of a probe, the time of the next probe.
_ITEM, _PROBE, _TIME = range(3)


class MapProgress(NamedTuple):
    """The progress of a map, in items: taken from the iterable, under way to or in an actor, with a result or an error,
    with an error, given to the program; and how often items were sent again."""

    pulled: int
    in_flight: int
    done: int
    failed: int
    given: int
    sent_again: int


class _Reply(OneReply):
    """The answer of one actor, or of its process. `failure`: why there is none."""

    __slots__ = ("failure",)

    def __init__(self, target: Target, rank: int) -> None:
        super().__init__(target, rank)
        self.failure: Failure | None = None

    def receive(self, raw: Raw) -> None:
        if raw[1] == FAILED:
            self.fail(decode_failure(raw[2]))
        else:
            super().receive(raw)

    def fail(self, failure: Failure) -> None:
        self.failure = failure
        super().fail(failure)


class MapResults(Generic[R]):
    """The results of `Endpoint.map`: an iterator and an async iterator, for one reader at a time.

    A result that is an error is raised when its turn comes; the next one can be asked for all the same. An error of the
    iterable of items is raised after the results of the items before it. When no rank is left, and none comes back,
    SupervisionError says at which item, and the iteration ends. Every error has a note that names item, endpoint and rank.
    `close()`, leaving a `with` block and dropping the iterator end it; `progress` counts.
    """

    def __init__(
        self,
        target: Target,
        send: Callable[[OneReply, Any, int], None],
        items: Iterable[Any],
        schedule: MapSchedule,
        retry_on: tuple[type[BaseException], ...],
        return_exceptions: bool,
    ) -> None:
        self._closed = True  # until it is made
        self._proc: Proc = here()
        self._target = target
        self._send = send
        self._items: Iterator[Any] = iter(items)
        self._schedule = schedule
        self._retry_on = retry_on
        self._return_exceptions = return_exceptions
        self._indexed = False
        self._read = False  # whether a result was ever asked for
        self._busy = False
        self._pending = Completions()
        self._replies: dict[int, _Reply] = {}  # of items in flight
        self._probes: dict[int, _Reply] = {}
        self._rank_of: dict[int, int] = {}
        self._kept: dict[int, Any] = {}  # items that may have to be sent again
        self._outcomes: dict[int, tuple[Any, Exception | None]] = {}  # not given yet, or to be sent again
        self._items_error: Exception | None = None
        self._last_death: Exception | None = None
        self._shown: AwaitedProgress | None = None
        if root_of(self._proc) is not None:  # in the program that people look at, not in its actors
            self._shown = AwaitedProgress(f"{target.label}.map()", items)
        self._closed = False
        self._send_items()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<MapResults of {self._target.label}: {self.progress}{state}>"

    @property
    def progress(self) -> MapProgress:
        """Returns how far the map has come. Answers count when the iterator has seen them."""
        schedule = self._schedule
        return MapProgress(
            schedule.pulled, schedule.in_flight, schedule.done, schedule.failed, schedule.given, schedule.sent_again
        )

    def indexed(self) -> MapResults[tuple[int, R]]:
        """Gives from here on (index of the item, result) in place of results."""
        self._indexed = True
        return cast("MapResults[tuple[int, R]]", self)

    # --- iteration

    def __iter__(self) -> Iterator[R]:
        return self

    def __aiter__(self) -> MapResults[R]:
        return self

    def __next__(self) -> R:
        self._enter()
        try:
            while (index := self._step()) is None:
                if self._closed:
                    self._end()
                    raise StopIteration
                if running_loop() is not None:
                    warn_blocking(f"the results of {self._target.label}.map() were iterated", "Use `async for` here")
                self._pending.wait(self._tell())
            return self._give(index)
        finally:
            self._told()
            self._busy = False

    async def __anext__(self) -> R:
        self._enter()
        try:
            while (index := self._step()) is None:
                if self._closed:
                    self._end()
                    raise StopAsyncIteration
                loop = running_loop()
                assert loop is not None
                self._tell()
                await self._pending.wait_in(loop, None)
            return self._give(index)
        finally:
            self._told()
            self._busy = False

    def _tell(self) -> float | None:
        """Shows how far it is. Returns after how many seconds of the wait to do so again; None: never."""
        return None if self._shown is None else self._shown.waits(self.progress.done)

    def _end(self) -> None:
        if self._shown is not None:
            self._shown.end(self.progress.done)
            self._shown = None

    def _told(self) -> None:
        if self._shown is not None:
            self._shown.goes_on()

    def _enter(self) -> None:
        if self._busy:
            raise RuntimeError(f"the results of {self._target.label}.map() are being read by another thread or task")
        self._busy = self._read = True

    def _step(self) -> int | None:
        """Takes what has come and sends what there is room for. The item whose result is next; None when there is none yet,
        or no more: it is closed then."""
        if self._closed:
            return None
        if self._proc.closed is not None:
            self.close()
            raise self._proc.closed
        self._take()
        self._send_items()
        schedule = self._schedule
        if schedule.stuck:
            schedule.give_up()
        index = schedule.next_given()
        if index is None and schedule.stuck and not schedule.exhausted and self._pull() is not None:
            self.close()
            raise self._nobody_left() from self._last_death
        if index is None and schedule.over:
            self.close()
            if self._items_error is not None:
                raise self._items_error
        return index

    def _give(self, index: int) -> R:
        value, error = self._outcomes.pop(index)
        self._kept.pop(index, None)
        return self._given(index, value, error)

    def _given(self, index: int, value: Any, error: Exception | None) -> R:
        if error is not None:
            if not self._return_exceptions:
                raise error
            value = error
        return (index, value) if self._indexed else value  # type: ignore[return-value]

    def _nobody_left(self) -> SupervisionError:
        first = self._named(self._schedule.pulled)
        return SupervisionError(
            f"no rank is left for {first} of {self._target.label}.map(), and none is being restarted: neither it nor those "
            f"after it were run. Restart ranks (RestartPolicy, procs.restart) and map the rest",
            self._target.label,
        )

    # --- sending

    def _send_items(self) -> None:
        schedule, target = self._schedule, self._target
        while (assigned := schedule.assign()) is not None:
            index, rank, fresh = assigned
            if fresh:
                pulled = self._pull()
                if pulled is None:
                    return
                (item,) = pulled
            else:
                item = self._again(index)
            reply = _Reply(target, rank)
            self._rank_of[index] = rank
            try:
                self._send(reply, item, rank)
            except Exception as exc:
                if self._proc.closed is not None:
                    self.close()
                    raise
                self._fail(index, exc)
                schedule.unsendable(index)
                continue
            schedule.sent(assigned)
            self._replies[index] = reply
            if schedule.may_be_sent_again(index):
                self._kept[index] = item
            self._pending.add((_ITEM, index), reply)

    def _pull(self) -> tuple[Any] | None:
        """The next item; None when there is none."""
        try:
            return (next(self._items),)
        except StopIteration:
            self._no_more(None)
        except Exception as exc:
            self._no_more(exc)
        return None

    def _no_more(self, error: Exception | None) -> None:
        """Notes that the iterable has ended, perhaps with an error."""
        self._schedule.exhausted = True
        if error is not None:
            self._items_error = error
            error.add_note(
                f"raised by the iterable of {self._target.label}.map(), in place of item {self._item_to_pull()}"
            )

    # `ChunkedResults` has its own of these.

    def _item_to_pull(self) -> int:
        """Returns the index of the next item of the iterable."""
        return self._schedule.pulled

    def _again(self, index: int) -> Any:
        """Returns what is sent once more."""
        return self._kept[index]

    def _named(self, index: int) -> str:
        return f"item {index}"

    # --- receiving

    def _take(self) -> None:
        while (key := self._pending.take()) is not None:
            kind, number = cast("tuple[int, int]", key)
            if kind == _ITEM:
                self._answered(number)
            elif kind == _PROBE:
                self._probed(number, self._probes.pop(number).failure is None)
            else:
                self._probe(number)

    def _answered(self, index: int) -> None:
        schedule, reply = self._schedule, self._replies[index]
        try:
            value = reply.value()
        except Exception as exc:
            del self._replies[index]
            self._fail(index, exc)
            failure = reply.failure
            if failure is not None or isinstance(exc, SupervisionError):
                self._last_death = exc
                lost = failure is not None and failure.stopped and not failure.will_restart
                _again, rank = schedule.died(index, self._proc.loop.now(), lost)
                if rank is not None:
                    self._probe(rank)
            elif self._may_try_again(exc):
                schedule.raised(index)
            else:
                schedule.answered(index, failed=True)
        except BaseException:  # as by Ctrl-C while it was decoded: the next reader decodes it again
            self._pending.add((_ITEM, index), reply)
            raise
        else:
            del self._replies[index], self._rank_of[index]
            self._outcomes[index] = value, None
            schedule.answered(index)

    def _may_try_again(self, exc: Exception) -> bool:
        cause = exc.exception if isinstance(exc, ActorError) else None
        return isinstance(exc, self._retry_on) or isinstance(cause, self._retry_on)

    def _fail(self, index: int, exc: Exception) -> None:
        rank, tries = self._target.ranks[self._rank_of.pop(index)], self._schedule.tries(index)
        times = f", the last of {tries} times that it was sent" if tries > 1 else ""
        exc.add_note(f"{self._named(index)} of {self._target.label}.map(), sent to rank {rank}{times}")
        self._outcomes[index] = None, exc

    # --- ranks that died

    def _probe(self, rank: int) -> None:
        """Asks whether an actor is there again."""
        proc, target = self._proc, self._target
        reply = self._probes[rank] = _Reply(target, rank)
        number = proc.ports.add(reply)
        try:
            proc.post(target.addresses[rank], Probe(target.key, number, rank, True))
        except PeerEnded as exc:
            reply.fail(target.failure_of(target.addresses[rank], exc.why))
        self._pending.add((_PROBE, rank), reply)

    def _probed(self, rank: int, alive: bool) -> None:
        proc = self._proc
        key, in_mesh = self._target.key, self._target.ranks[rank]
        coming_back = None if alive else proc.mesh.is_coming_back(key, in_mesh)
        seconds = self._schedule.probed(rank, alive, proc.loop.now(), coming_back)
        if seconds:
            slot = Slot()
            proc.loop.call_later(seconds, slot.set)
            self._pending.add((_TIME, rank), slot)

    # --- the end

    def close(self) -> None:
        """Nothing is sent any more, the next result is StopIteration, and nothing stays behind here. What runs in actors goes
        on; its answers are dropped. Leaving a `with` block and dropping the iterator close it as well."""
        if self._closed:
            return
        self._closed = True
        self._items = iter(())
        self._pending.discard_all()
        for reply in (*self._replies.values(), *self._probes.values()):
            reply.close()
        for left in (self._replies, self._probes, self._outcomes, self._kept):
            left.clear()

    def __enter__(self) -> MapResults[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            if not (self._read or self._schedule.exhausted):
                # From whatever the collector interrupts: logging takes locks, and its thread may have to be started.
                warn = partial(log, logger, logging.WARNING, _UNREAD, self._target.label, self._schedule.pulled)
                self._proc.loop.call_soon(warn)
            self.close()
