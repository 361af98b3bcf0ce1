"""RestartPolicy (who is restarted when an actor fails, how often and how soon), and the pure bookkeeping behind it.

The strategies are those of Erlang's supervisors (Erlang/OTP Design Principles, "Supervisor Behaviour"): the children are the
ranks of all meshes spawned under one policy, in the order of their spawning, ranks ascending.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from monarch.config.units import parse_duration

ONE_FOR_ONE, ALL_FOR_ONE, REST_FOR_ONE = "one_for_one", "all_for_one", "rest_for_one"
_STRATEGIES = (ONE_FOR_ONE, ALL_FOR_ONE, REST_FOR_ONE)


class RestartPolicy:
    """Restarts the actors spawned in its `with` block when they fail, until they fail too often.

        with RestartPolicy(strategy="all_for_one", max_restarts=3, within="1m"):
            trainers = procs.spawn("trainers", Trainer, config)

    A failed actor, or one whose process died, is constructed again with its original arguments, in its old place: its
    process is started anew first when it is gone (and was spawned from the same process as the actor). Its
    `__restarted__(failure)` then runs before any message. Calls that were waiting for it raise SupervisionError, as do calls
    until it is back; later ones reach the new actor, through every handle and slice there is.

    `strategy`: "one_for_one" restarts what failed; "all_for_one" all actors of the meshes spawned in the block (those that
    live are stopped first, with their `__cleanup__`); "rest_for_one" the failed one and those after it: higher
    ranks of its mesh, and meshes spawned later in the block.

    More than `max_restarts` restarts within the time `within` (seconds, or text such as "1m") end it: the failure goes to the
    owner's `__supervise__`, or `unhandled_fault_hook`, as if there were no policy, and says so. The first restart waits
    `backoff`, each further one within that time twice as long as the one before, up to `max_backoff`.

    The same object may be used for several blocks; each counts for itself. ValueError for other strategies, a
    negative `max_restarts` and invalid durations; TypeError for a `max_restarts` that is not an integer.
    """

    def __init__(
        self,
        strategy: str = ONE_FOR_ONE,
        max_restarts: int = 3,
        within: float | str = "1m",
        backoff: float | str = 0.0,
        max_backoff: float | str = "30s",
    ) -> None:
        if strategy not in _STRATEGIES:
            raise ValueError(f"unknown strategy {strategy!r} (known: {', '.join(_STRATEGIES)})")
        self.strategy = strategy
        self.max_restarts = checked_count("max_restarts", max_restarts)
        self.within = checked_seconds("within", within)
        self.backoff = checked_seconds("backoff", backoff)
        self.max_backoff = checked_seconds("max_backoff", max_backoff)

    def __enter__(self) -> RestartPolicy:
        _blocks.set((*_blocks.get(), RestartGroup(self)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _blocks.set(_blocks.get()[:-1])

    def __repr__(self) -> str:
        return (
            f"RestartPolicy({self.strategy!r}, max_restarts={self.max_restarts}, within={self.within:g}, "
            f"backoff={self.backoff:g})"
        )


def checked_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 0:
        raise ValueError(f"{name} must be 0 or more, got {value}")
    return value


def checked_seconds(name: str, value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be a finite number of seconds, 0 or more, got {value!r}")
        return float(value)
    wrong = f"{name} must be seconds or a duration such as '1m', got {value!r}"
    if not isinstance(value, str):
        raise ValueError(wrong)
    try:
        return parse_duration(value)
    except ValueError as exc:
        raise ValueError(f"{wrong}: {exc}") from None


class Intensity:
    """A limit on how often something may be done within a time, and the pauses before it, each twice as long as the one
    before. Times are seconds of any one clock."""

    def __init__(self, most: int, within: float, backoff: float, max_backoff: float) -> None:
        self._most = most
        self._within = within
        self._backoff = backoff
        self._max_backoff = max_backoff
        self._done: deque[float] = deque(maxlen=most + 1)

    def next(self, now: float) -> float | None:
        """It is to be done again: after how many seconds, or None when it was too often."""
        done = self._done
        while done and done[0] <= now - self._within:
            done.popleft()
        if len(done) >= self._most:
            return None
        delay = min(self._backoff * 2.0 ** min(len(done), 60), self._max_backoff)
        done.append(now)
        return delay


Children = dict[str, list[int]]  # mesh key -> ranks


class RestartAttempt:
    """The actors to restart, and after how many seconds."""

    __slots__ = ("children", "delay")

    def __init__(self, children: Children, delay: float) -> None:
        self.children = children
        self.delay = delay

    def __repr__(self) -> str:
        return f"RestartAttempt({self.children!r}, {self.delay:g})"


class RestartGroup:
    """The children of one `with` block, and when they were restarted. Times are seconds of any one clock. Not thread-safe."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self._meshes: dict[str, int] = {}  # key -> ranks, in the order of spawning
        self._intensity = Intensity(policy.max_restarts, policy.within, policy.backoff, policy.max_backoff)

    def __len__(self) -> int:
        return sum(self._meshes.values())

    def add(self, key: str, count: int) -> None:
        """A mesh of `count` actors was spawned."""
        self._meshes[key] = count

    def remove(self, key: str) -> None:
        """Removes a mesh that was stopped."""
        self._meshes.pop(key, None)

    def failed(self, key: str, ranks: Iterable[int], now: float) -> RestartAttempt | None:
        """Actors have failed: what to restart, or None when that happened too often."""
        delay = self._intensity.next(now)
        return None if delay is None else RestartAttempt(self._affected(key, sorted(ranks)), delay)

    def _affected(self, key: str, ranks: list[int]) -> Children:
        if self.policy.strategy == ONE_FOR_ONE or key not in self._meshes:
            return {key: ranks}
        if self.policy.strategy == ALL_FOR_ONE:
            return {mesh: list(range(count)) for mesh, count in self._meshes.items()}
        order = list(self._meshes)
        later = order[order.index(key) + 1 :]
        return {key: list(range(ranks[0], self._meshes[key])), **{m: list(range(self._meshes[m])) for m in later}}


_blocks: contextvars.ContextVar[tuple[RestartGroup, ...]] = contextvars.ContextVar("monarch_restart_groups", default=())


def active() -> RestartGroup | None:
    """The group of the innermost `with RestartPolicy(...)` block around the running code."""
    blocks = _blocks.get()
    return blocks[-1] if blocks else None
