"""The choice of the process that gets a task. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Waiting(NamedTuple, Generic[T]):
    task: T
    owners: Collection[str]  # addresses of processes that have an argument of it


class TaskSchedule(Generic[T]):
    """The tasks of one mesh: which process each runs in, and which wait until one is free, in their order.

    A process gets one at a time, so nothing waits in it behind a long one while another is idle. One that has ended gets
    none as long as another has not: when all have, tasks go to those, for their cause, or because they were started again.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._running = [0] * len(addresses)
        self._ended: set[int] = set()
        self._tried: set[int] = set()  # of these, those that have a task since
        self._waiting: deque[_Waiting[T]] = deque()

    @property
    def has_ended(self) -> bool:
        """True if all processes have."""
        return len(self._ended) == len(self._addresses)

    def running(self) -> list[int]:
        """Returns the ranks that have a task."""
        return [rank for rank, count in enumerate(self._running) if count]

    def begin(self, owners: Collection[str]) -> int | None:
        """Returns the rank that runs a task from now on; None if it has to wait."""
        return None if self._waiting else self._take(owners)

    def wait(self, task: T, owners: Collection[str], first: bool = False) -> None:
        """It waits, behind the others or before them."""
        (self._waiting.appendleft if first else self._waiting.append)(_Waiting(task, owners))

    def next(self) -> tuple[int, T] | None:
        """Returns the task that runs from now on, and where; None if none can."""
        rank = self._take(self._waiting[0].owners) if self._waiting else None
        return None if rank is None else (rank, self._waiting.popleft().task)

    def finished(self, rank: int, lives: bool) -> None:
        """A task has ended there, or its process has."""
        self._running[rank] -= 1
        if not lives:
            self._ended.add(rank)
        elif rank in self._tried:  # else it may have ended after that task
            self._ended.discard(rank)
        self._tried.discard(rank)

    def ended(self, address: str) -> None:
        """The process has ended; what runs there is told on its own."""
        self._ended.update(rank for rank, known in enumerate(self._addresses) if known == address)

    def _take(self, owners: Collection[str]) -> int | None:
        ranks: Collection[int] = [rank for rank in range(len(self._running)) if rank not in self._ended]
        free = [rank for rank in ranks or range(len(self._running)) if not self._running[rank]]
        if not free:
            return None
        rank = next((rank for rank in free if self._addresses[rank] in owners), free[0])
        self._running[rank] += 1
        if rank in self._ended:
            self._tried.add(rank)
        return rank
