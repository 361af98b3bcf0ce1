"""A watch over processes hears of their ends, whoever takes their places."""

from __future__ import annotations

import queue
import threading

import pytest

from monarch._mesh.process.process_watch import _ProcessWatch, watch_processes
from monarch.actor import Actor, RestartPolicy, endpoint, this_host
from monarch.testing import InProcessCluster, VirtualClock
from tests.support.patience import TIMEOUT


class Worker(Actor):
    @endpoint
    def work(self) -> None: ...


def test_the_end_of_whoever_lives_there_is_told_when_another_has_taken_its_place_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives, lived = _ProcessWatch._lives, threading.Semaphore(0)

    def noted(watch: _ProcessWatch, address: str, incarnation: int) -> None:
        lives(watch, address, incarnation)
        lived.release()

    monkeypatch.setattr(_ProcessWatch, "_lives", noted)
    told: queue.Queue[tuple[str, str, bool]] = queue.Queue()
    with InProcessCluster(clock=VirtualClock()) as cluster:
        procs = this_host().spawn_procs({"gpus": 2})
        with RestartPolicy():
            workers = procs.spawn("workers", Worker)
        workers.work.call().get(TIMEOUT)
        address = procs._addresses()[1]
        for _ in range(2):
            end = watch_processes({address: -1}, lambda *how: told.put(how))
            assert lived.acquire(timeout=TIMEOUT)
            cluster.kill(procs, 1)
            assert told.get(timeout=TIMEOUT)[0] == address
            workers.healthy().get(TIMEOUT)
            end()
    assert told.empty()
