"""Tests of what finalizers and handlers of signals send in the midst of a send of their own thread. In memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, this_host, this_proc
from monarch.testing import InProcessCluster
from tests.support.interrupts import Steps
from tests.support.patience import TIMEOUT


class Notes(Actor):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    @endpoint
    def note(self, number: int) -> None:
        self.noted.append(number)

    @endpoint
    def read(self) -> list[int]:
        return self.noted


def sent_at_each_step(new: Callable[[], Any], every: int) -> int:
    """`note(1)` is sent and, at each `every`-th step of that, `note(2)` by the same thread, to the same. How many steps."""
    steps, step = Steps(), 0
    notes = new()
    while True:
        with steps.at(step, partial(notes.note.broadcast, 2)):
            notes.note.broadcast(1)
        for noted in notes.read.call().get(TIMEOUT).values():
            assert sorted(noted) == ([1, 2] if steps.came else [1]), step
        if not steps.came:
            return step
        notes.stop().get(TIMEOUT)
        step += every
        notes = new()


def test_to_an_actor_of_this_process() -> None:
    with InProcessCluster():
        assert sent_at_each_step(lambda: this_proc().spawn("notes", Notes), 1) > 100


@pytest.mark.parametrize("further", [0, 1])
def test_to_a_process_that_is_spoken_to_for_the_first_time(further: int) -> None:
    with InProcessCluster(hosts=further) as cluster:
        host = cluster.hosts.slice(hosts=0) if further else this_host()

        def new() -> Any:
            return host.spawn_procs({"gpus": 1}).spawn("notes", Notes)

        assert sent_at_each_step(new, 5) > 100
