"""A child that is stopped: killed after a while, unless it goes on. The clock is the test's."""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from monarch.job.commands import stopped_child
from monarch.job.commands.stopped_child import wait_unless_stopped
from tests.support.patience import TIMEOUT

timers: queue.SimpleQueue[HeldTimer] = queue.SimpleQueue()


class HeldTimer:
    """A timer that goes off when the test says so."""

    def __init__(self, limit: float, function: Callable[[int], None], given: tuple[int]) -> None:
        self.limit = limit
        self.go_off = lambda: function(*given)
        self.cancelled = threading.Event()
        self.cancel = self.cancelled.set

    def start(self) -> None:
        timers.put(self)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setattr(stopped_child.threading, "Timer", HeldTimer)
    # In a process group of its own: the kernel discards SIGTSTP in an orphaned one, as that of `nohup make test &` may be.
    with subprocess.Popen(["sleep", "1000"], process_group=0) as started:
        yield started
        started.kill()


def test_one_that_is_stopped_is_killed_and_one_that_goes_on_is_not(child: subprocess.Popen[bytes]) -> None:
    told: list[int] = []
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wait_unless_stopped, child, 7.0, told.append)
        child.send_signal(signal.SIGSTOP)
        timer = timers.get(timeout=TIMEOUT)
        assert timer.limit == 7.0
        child.send_signal(signal.SIGCONT)
        assert timer.cancelled.wait(TIMEOUT) and not waiting.done()
        child.send_signal(signal.SIGTSTP)
        timers.get(timeout=TIMEOUT).go_off()
        assert waiting.result(TIMEOUT) == signal.SIGTSTP
    assert child.returncode == -signal.SIGKILL
    assert told == [signal.SIGSTOP, signal.SIGTSTP]


@pytest.mark.parametrize("limit", [0.0, 7.0])
def test_one_that_ends_has_not_been_killed_for_it(child: subprocess.Popen[bytes], limit: float) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wait_unless_stopped, child, limit, lambda number: None)
        child.send_signal(signal.SIGSTOP)
        if limit:
            timer = timers.get(timeout=TIMEOUT)
        child.kill()
        assert waiting.result(TIMEOUT) == 0 and child.returncode == -signal.SIGKILL
        assert not limit or timer.cancelled.is_set()
    assert timers.empty()
