"""The garbage collector comes in the midst of whatever a thread does, also where that holds a lock. What it ends there takes
no lock and sends nothing: whoever waits for the same lock would wait for ever.
"""

from __future__ import annotations

import _thread
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import monarch
from monarch.actor import Actor, Channel, as_completed, endpoint
from monarch.testing import InProcessCluster
from tests.support.actors import TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks")


class Worker(Actor):
    @endpoint
    def echo(self, value: Any = None) -> Any:
        return value

    @endpoint
    def fail(self) -> None:
        raise ValueError("on purpose")


class Collector:
    """Comes whenever a lock was taken, and drops one thing."""

    def __init__(self) -> None:
        self.dropped: deque[Any] = deque()  # nothing else refers to these
        self.waited: list[str] = []
        self.ended = 0
        self._at_work = threading.local()

    def takes(self) -> None:
        """A lock is asked for, by one who waits for it."""
        if getattr(self._at_work, "now", False):
            self.waited.append("".join(traceback.format_stack(limit=12)))

    def come(self) -> None:
        if getattr(self._at_work, "now", False):
            return
        self._at_work.now = True
        try:
            del self.dropped[0]
            self.ended += 1
        except IndexError:
            pass
        finally:
            self._at_work.now = False


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Every lock that is made during the test is one at which it comes."""
    collector = Collector()

    class Watched:
        def __init__(self) -> None:
            self._lock = _thread.allocate_lock()
            self.locked = self._lock.locked
            self.release = self._lock.release

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if blocking:
                collector.takes()
            taken = self._lock.acquire(blocking, timeout)
            if taken:
                collector.come()
            return taken

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *exc: object) -> None:
            self.release()

        def _at_fork_reinit(self) -> None:
            self._lock = _thread.allocate_lock()

    monkeypatch.setattr(threading, "Lock", Watched)
    yield collector


def test_what_is_collected_takes_no_lock(collector: Collector) -> None:
    with (
        monarch.configured(tree_casts_from=2, tree_calls_from=2),
        InProcessCluster(hosts=2) as cluster,
    ):
        workers = cluster.hosts.spawn_procs({"gpus": 2}).spawn("worker", Worker)
        workers.echo.call().get(TIMEOUT)
        makers: list[Callable[[], Any]] = [
            lambda: workers.echo.stream(1),
            lambda: next(iter(workers.echo.stream(1))),
            lambda: workers.echo.call(1),
            workers.fail.call,
            lambda: workers.echo.map(range(5)),
            lambda: as_completed([workers.echo.call(1), workers.echo.call(2)]),
            lambda: Channel.open()[1],
            lambda: Channel.open()[1].ranked().recv(),
            lambda: workers.initialized,
        ]
        for _ in range(20):
            for make in makers:
                collector.dropped.append(make())
            workers.echo.call().get(TIMEOUT)
        for _ in range(1000):
            if not collector.dropped:
                break
            workers.echo.call().get(TIMEOUT)
        assert not collector.dropped
    assert collector.ended == 20 * len(makers)
    assert not collector.waited, f"{len(collector.waited)} times, first here:\n{collector.waited[0]}"
