"""The end of other processes is heard of: once, also when it has come before, and by nobody in a forked child."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._linux.procfs import start_of
from monarch.rdma import deaths as module
from monarch.rdma.buffer_handle import Owner, this_host
from monarch.rdma.deaths import Deaths
from tests.support.patience import TIMEOUT


class Program:
    """A process that waits for the end of its input."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-ISc", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        started = start_of(self.process.pid)
        assert started is not None
        self.owner = Owner(this_host(), self.process.pid, started, 0, "here")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    both = [Program(), Program()]
    yield both
    for one in both:
        one.end()


class Heard:
    def __init__(self) -> None:
        self.of: list[Owner] = []
        self._more = threading.Semaphore(0)

    def __call__(self, process: Owner) -> None:
        self.of.append(process)
        self._more.release()

    def wait(self) -> Owner:
        assert self._more.acquire(timeout=TIMEOUT)
        return self.of[-1]


def test_an_end_is_heard_of_once_by_each_who_asked(programs: list[Program]) -> None:
    deaths, one, other = Deaths(), Heard(), Heard()
    for heard in (one, one, other):
        deaths.watch(programs[0].owner, heard)
    deaths.watch(programs[1].owner, one)
    assert len(deaths) == 2
    programs[0].end()
    assert one.wait() == other.wait() == programs[0].owner
    programs[1].end()
    assert one.wait() == programs[1].owner
    assert len(one.of) == 2
    assert len(other.of) == 1
    deaths.watch(programs[1].owner, other)  # it has ended already; the thread may have, too
    assert other.of[-1] == programs[1].owner
    assert len(deaths) == 0


def test_a_pid_that_is_used_again_fools_nobody(programs: list[Program]) -> None:
    heard = Heard()
    before = programs[0].owner._replace(started=programs[0].owner.started - 1)
    Deaths().watch(before, heard)
    assert heard.of == [before]


def test_what_fails_keeps_nobody_else_from_hearing(programs: list[Program], caplog: pytest.LogCaptureFixture) -> None:
    deaths, heard = Deaths(), Heard()

    def fails(process: Owner) -> None:
        raise RuntimeError("out of order")

    deaths.watch(programs[0].owner, fails)
    deaths.watch(programs[0].owner, heard)
    with caplog.at_level(logging.ERROR, "monarch"):
        programs[0].end()
        heard.wait()
    assert "out of order" in caplog.text


def test_where_a_process_cannot_be_watched_nothing_is_raised(
    programs: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()

    def no_thread(*args: Any) -> None:
        raise RuntimeError("can't start new thread")

    def no_file(pid: int) -> int:
        raise OSError(24, "Too many open files")

    for name, place, fails in (("start_thread", module, no_thread), ("pidfd_open", os, no_file)):
        with monkeypatch.context() as broken:
            broken.setattr(place, name, fails)
            deaths = Deaths()
            deaths.watch(programs[0].owner, heard)
            assert len(deaths) == 0
    monkeypatch.setattr(module, "WATCHED", 0)
    Deaths().watch(programs[0].owner, heard)
    assert heard.of == []
