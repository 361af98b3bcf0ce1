"""Casts over small trees in every order: each message, answer, timer and end of a host at any moment, each state once.

The agents are the real ones, and so is the order of each connection. What is left out: within a host nothing is under way, so
a receiver has what its agent delivers at once, and the agent its answers.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from monarch._wire.address import host_of
from tests._mesh.casts.cast_world import CastWorld, Receiver
from tests.support.schedules import Choices, Explored
from tests.support.tiers import first_of

GATHERED, UNANSWERED = 0.01, -1.0
_LOCK = type(threading.RLock())  # of a caller's numbers


class Story(NamedTuple):
    """`casts`: by their `gather`; `ends`, `parts`: how many hosts end, how many pairs of hosts cannot reach each other any
    more."""

    hosts: int
    width: int
    casts: tuple[float, ...]
    ends: int = 0
    parts: int = 0


class SmallTree(CastWorld):
    """One receiver on each host but the root's, and all that can happen next."""

    def __init__(self, story: Story) -> None:
        super().__init__(0, story.hosts, story.width, roots=1, views=1)
        self.to_cast, self.to_end, self.to_part = list(story.casts), story.ends, story.parts
        self.addresses = [f"{host}/m.{rank}" for rank, host in enumerate(self.hosts[1:])]
        self.receivers = {address: Receiver(rank, address) for rank, address in enumerate(self.addresses)}
        [self.caller] = self.callers.values()
        self.caller.plans[1] = list(range(len(self.addresses)))
        self.register(self.caller, 1)
        self.settle()

    def moves(self) -> Iterator[Callable[[], None]]:
        for path in sorted(path for path, queue in self.queues.items() if queue):
            yield partial(self.carry, path)
        for receiver in self.receivers.values():
            for at in range(len(receiver.unanswered) if receiver.alive else 0):
                yield partial(self.answer, receiver, at)
        for host, timers in self.timers.items():
            for key in sorted(timers):
                if key[0] != "orphans":
                    yield partial(self.fire, host, key)
        if self.to_cast:
            yield lambda: self.cast(self.caller, 1, self.to_cast.pop(0), b"arguments")
        for host in self.mortal() if self.to_end else ():
            for lost in self.losses([(host, other) for other in self.hosts if self.queues.get((host, other))]):
                yield partial(self.lose, host, lost)
        for one, other in itertools.combinations(self.mortal() if self.to_part else (), 2):
            for lost in self.losses([(one, other), (other, one)]):
                yield partial(self.sunder, one, other, lost)

    def losses(self, paths: list[tuple[str, str]]) -> Iterator[dict[tuple[str, str], int]]:
        """Counts, for each of these, how many of the last messages do not arrive."""
        counts = [range(len(self.queues.get(path, ())) + 1) for path in paths]
        return (dict(zip(paths, lost, strict=True)) for lost in itertools.product(*counts))

    def lose(self, host: str, lost: dict[tuple[str, str], int]) -> None:
        self.to_end -= 1
        self.end(host, lambda path: lost.get(path, 0))

    def sunder(self, one: str, other: str, lost: dict[tuple[str, str], int]) -> None:
        self.to_part -= 1
        self.separate(one, other, lost.__getitem__)

    def step(self) -> bool:
        """The first of the things that may happen; False when none may."""
        self.settle()
        move = next(self.moves(), None)
        if move is not None:
            move()
        return move is not None

    def settle(self) -> None:
        while inside := [path for path, queue in self.queues.items() if queue and _host(path[0]) == _host(path[1])]:
            for path in inside:
                self.carry(path)

    def fire(self, host: str, key: tuple[Any, ...]) -> None:
        del self.timers[host][key]
        self.carry_out(host, self.agents[host].fired(0.0, key))

    def __getstate__(self) -> dict[str, Any]:
        """Without the order in which queues were first used, and timers armed."""
        state = self.__dict__ | {"random": None}
        state["queues"] = {path: self.queues[path] for path in sorted(self.queues) if self.queues[path]}
        state["timers"] = {host: dict(sorted(timers.items())) for host, timers in self.timers.items()}
        return state


def _host(place: str) -> str:
    return host_of(place) or place


class StatePickler(pickle.Pickler):
    """Equal texts are the same text: how many copies there are is no part of a state."""

    def persistent_id(self, value: Any) -> Any:
        return sys.intern(value) if type(value) is str else None

    def reducer_override(self, value: Any) -> Any:
        return (threading.RLock, ()) if isinstance(value, _LOCK) else NotImplemented


def state_of(tree: SmallTree) -> bytes:
    file = io.BytesIO()
    StatePickler(file, pickle.HIGHEST_PROTOCOL).dump(tree)
    return hashlib.blake2b(file.getvalue()).digest()


def explore(story: Story) -> Explored:
    """Raises AssertionError where all has happened and a living receiver has missed a cast or had it twice, or its answer has
    not come or twice, or an agent keeps what nobody needs."""

    def run(choices: Choices) -> None:
        tree = SmallTree(story)
        while True:
            if not choices.repeats:
                choices.met(state_of(tree))
            moves = list(tree.moves())
            if not moves:
                break
            moves[choices.choose(len(moves))]()
            tree.settle()
        tree.check_that_all_is_served()
        tree.tidy()

    return Choices().explore(run)


STORIES = [
    Story(3, 1, (GATHERED,)),
    Story(3, 1, (UNANSWERED,), ends=1),
    Story(3, 1, (UNANSWERED,), parts=1),
    Story(3, 1, (GATHERED,), ends=1),
    Story(4, 1, (UNANSWERED,), parts=1),
    Story(3, 1, (UNANSWERED,), ends=2),
    Story(3, 1, (UNANSWERED, UNANSWERED), ends=1),
    Story(4, 2, (UNANSWERED,), ends=1),
]


@pytest.mark.parametrize("story", first_of([pytest.param(story, id=str(tuple(story))) for story in STORIES], 2, full=4))
def test_whatever_ends_when_every_living_receiver_has_every_cast_once_and_every_answer_comes(story: Story) -> None:
    print(f"{story}: {explore(story)}")
