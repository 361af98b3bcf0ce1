"""Calls whose Future was dropped before they were answered: their errors are looked at, of so many and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch._runtime.replies import Gather, OneReply, Ports, Target
from monarch._runtime.unobserved_errors import UnobservedError
from monarch._wire.message import ERROR, VALUE, Failure

KEPT = 10_000


class World:
    """A port table, and an actor that calls; `dropped` are the errors that nobody has looked at."""

    def __init__(self) -> None:
        self.ports = Ports()
        self.dropped: list[Any] = []
        hooks = SimpleNamespace(call_raised=self._raised)
        self.caller: Any = SimpleNamespace(proc=SimpleNamespace(ports=self.ports, hooks=hooks))

    def _raised(self, entry: Any, raw: Any) -> UnobservedError:
        return UnobservedError(lambda seen: None if seen else self.dropped.append(raw))

    def call(self, ranks: int = 1) -> int:
        """Calls, and drops the Future at once; returns the port."""
        target = Target("a.fail", ["somewhere"] * ranks, lambda address, ended: Failure("it ended"))
        entry: Any = OneReply(target) if ranks == 1 else Gather(target, ranks, list)
        entry.caller = self.caller
        number = self.ports.add(entry)
        entry.abandon()
        return number


@pytest.fixture
def world() -> World:
    return World()


def test_an_error_that_comes_is_said_and_an_answer_is_not(world: World) -> None:
    world.ports.receive(world.call(), (0, ERROR, b"", ()))
    world.ports.receive(world.call(), (0, VALUE, b"", ()))
    assert len(world.dropped) == 1 and not world.ports._abandoned and not len(world.ports)


def test_of_a_call_on_many_ranks_the_first_error_is_kept_and_no_values(world: World) -> None:
    number = world.call(ranks=3)
    entry: Any = world.ports.get(number) or world.ports._abandoned[number]
    for rank, kind in enumerate((VALUE, ERROR, ERROR)):
        world.ports.receive(number, (rank, kind, b"large", ()))
    assert [answer[2] for answer in entry._answers] == [b"", b"", b""]
    del entry
    assert len(world.dropped) == 1 and not world.ports._abandoned


def test_no_more_than_ten_thousand_are_looked_at(world: World) -> None:
    numbers = [world.call() for _ in range(KEPT + 5)]
    assert len(world.ports._abandoned) == KEPT and not len(world.ports)
    assert not world.ports.receive(numbers[-1], (0, ERROR, b"", ()))
    for number in numbers:
        world.ports.receive(number, (0, ERROR, b"", ()))
    assert len(world.dropped) == KEPT and not world.ports._abandoned
    world.ports.receive(world.call(), (0, ERROR, b"", ()))  # there is room again
    assert len(world.dropped) == KEPT + 1


def test_the_end_of_their_process_ends_them(world: World) -> None:
    world.call()
    world.ports._forget_abandoned("somewhere")
    assert not world.ports._abandoned and world.dropped == []
