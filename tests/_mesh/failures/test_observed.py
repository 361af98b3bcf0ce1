"""Tests of which failures a call of their owner tells: every order of failing, observing and dropping, without a clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.failures.ledger import MeshFailure, Notify
from monarch._mesh.failures.observed import TOGETHER, Effect, Handled, Observed, OwnersCall, UnretrievedFailure
from monarch._wire.message import Failure


def failure(mesh: str, *ranks: int) -> MeshFailure:
    return MeshFailure(Failure("it ended", mesh, mesh, list(ranks)))


@dataclass
class World:
    """Plays steps, and says for each failure what became of it: "told", "fault", or nothing yet."""

    observed: Observed = field(default_factory=Observed)
    now: float = 0.0
    calls: dict[str, OwnersCall] = field(default_factory=dict)
    held: list[UnretrievedFailure] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)

    def play(self, steps: str) -> str:
        for step in steps.split(" | "):
            self.step(*step.split())
        return ", ".join(sorted(self.outcome)) or "nothing yet"

    def step(self, verb: str, *words: str) -> None:
        if verb in ("waits", "raises"):  # NAME MESH RANKS [FAILED], e.g. raises x m 012 0
            name, mesh, ranks = words[:3]
            failed = words[3] if verb == "raises" else ""
            owner = "actor" if name.startswith("actor") else "root"
            self.calls[name] = OwnersCall(owner, mesh, map(int, ranks), map(int, failed))
            self.observed.entrust(self.calls[name])
        elif verb == "gets":  # a call that waited has failed: NAME FAILED
            self.calls[words[0]].failed = self.calls[words[0]].failed.union(map(int, words[1]))
        elif verb in ("sees", "drops"):
            self.take(self.observed.over(self.calls[words[0]], verb == "sees", self.now))
        elif verb == "fails":  # one event: MESH RANKS [MESH RANKS]
            pairs = zip(words[::2], words[1::2], strict=True)
            failures = [failure(mesh, *map(int, ranks)) for mesh, ranks in pairs]
            self.take(self.observed.failed("root", failures, self.now))
        elif verb == "moment":
            for held in list(self.held):
                self.take(self.observed.lapse(held))
        elif verb == "later":
            self.now += TOGETHER + 1
        elif verb == "restarts":
            self.observed.restarted(words[0], int(words[1]))
        elif verb == "stops":
            self.outcome += ["logged"] * len(self.observed.stopped(words[0]))
        elif verb == "exits":
            self.take(self.observed.give_up())
        else:
            raise AssertionError(verb)

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, UnretrievedFailure):
                self.held.append(effect)
            else:
                assert effect.owner == "root"
                self.outcome.append("told" if isinstance(effect, Handled) else "fault")


ROWS = [
    # steps, what becomes of the failures that happened
    ("fails m 0 | moment", "fault"),
    ("fails m 0", "nothing yet"),
    ("fails m 0 | exits", "fault"),
    # one call
    ("raises x m 0 0 | fails m 0 | sees x", "told"),
    ("raises x m 0 0 | sees x | fails m 0 | moment", "told"),
    ("raises x m 0 0 | sees x | later | fails m 0 | moment", "told"),  # `__cleanup__` runs before the owner has word
    ("raises x m 0 0 | fails m 0 | moment | drops x", "fault"),
    ("raises x m 0 0 | drops x | fails m 0 | moment", "fault"),
    ("raises x m 0 0 | fails m 0 | moment", "nothing yet"),
    ("raises x m 0 0 | fails m 0 | later | later | sees x", "told"),  # awaited later
    ("raises x m 0 0 | fails m 0 | exits", "fault"),
    ("raises x m 0 0 | fails m 0 | exits | drops x", "fault"),
    ("raises x m 0 0 | fails m 0 | stops m", "logged"),
    ("raises x m 0 0 | fails m 0 | stops m | drops x", "logged"),
    # made after the failure, within a moment and not
    ("fails m 0 | raises x m 0 0 | moment | sees x", "told"),
    ("fails m 0 | raises x m 0 0 | sees x | moment", "told"),
    ("fails m 0 | raises x m 0 0 | moment | drops x", "fault"),
    ("fails m 0 | moment | raises x m 0 0 | sees x", "fault"),
    # still waiting when its owner has word
    ("waits x m 0 | fails m 0 | moment | gets x 0 | sees x", "told"),
    ("waits x m 0 | fails m 0 | moment | sees x", "fault"),  # it ended otherwise: a value, its time limit
    ("waits x m 0 | fails m 0 | moment | drops x", "fault"),
    # several calls
    ("raises x m 0 0 | raises y m 0 0 | fails m 0 | drops x | sees y", "told"),
    ("raises x m 0 0 | raises y m 0 0 | fails m 0 | sees x | drops y", "told"),
    ("raises x m 0 0 | raises y m 0 0 | fails m 0 | drops x", "nothing yet"),
    ("raises x m 0 0 | raises y m 0 0 | fails m 0 | drops x | drops y", "fault"),
    ("raises x m 0 0 | fails m 0 | raises y m 0 0 | sees y | drops x", "told"),
    # other ranks, meshes, owners
    ("raises x m 1 1 | sees x | fails m 0 | moment", "fault"),
    ("raises x n 0 0 | sees x | fails m 0 | moment", "fault"),
    ("raises actor m 0 0 | fails m 0 | moment", "fault"),
    ("raises actor m 0 0 | fails m 0 | moment | sees actor", "fault"),
    # a call on many ranks: its neighbours in death are told with it, for a while
    ("raises x m 012 0 | fails m 0 | fails m 1 | sees x", "told, told"),
    ("raises x m 012 0 | fails m 0 | sees x | fails m 1 | fails m 2 | moment", "told, told, told"),
    ("raises x m 012 0 | fails m 0 | sees x | later | fails m 1 | moment", "fault, told"),
    ("raises x m 02 0 | fails m 0 | sees x | fails m 1 | moment", "fault, told"),  # rank 1 had answered
    ("raises x m 012 0 | fails m 0 | fails m 1 | moment | drops x", "fault, fault"),
    # one process, several meshes
    ("raises x m 0 0 | fails m 0 n 0 | sees x", "told, told"),
    ("raises x m 0 0 | sees x | fails m 0 n 0 | moment", "told, told"),
    ("raises x n 0 0 | fails m 0 n 0 | moment | drops x", "fault, fault"),
    ("raises x m 0 0 | raises y n 0 0 | fails m 0 n 0 | drops x | sees y", "told, told"),
    ("fails m 0 n 0 | moment", "fault, fault"),
    ("raises x m 0 0 | fails m 0 n 0 | stops m | drops x", "fault, logged"),
    # after a restart it is another actor
    ("raises x m 0 0 | sees x | fails m 0 | restarts m 0 | fails m 0 | moment", "fault, told"),
    ("raises x m 0 0 | sees x | fails m 0 | restarts m 0 | raises y m 0 0 | sees y | fails m 0", "told, told"),
]


@pytest.mark.parametrize(("steps", "outcome"), ROWS)
def test_what_becomes_of_a_failure(steps: str, outcome: str) -> None:
    assert World().play(steps) == outcome


def test_without_a_moments_grace_it_is_a_fault_at_once() -> None:
    assert World(Observed(grace=False)).play("fails m 0") == "fault"
    assert World(Observed(grace=False)).play("raises x m 0 0 | fails m 0 | sees x") == "told"


def test_every_order_of_what_may_happen_decides_once() -> None:
    """One failure and two calls of its rank. It is told when a call was seen that was there in time, else a fault."""
    steps = ["fails m 0", "moment", "raises x m 0 0", "raises y m 0 0"]
    for ends in itertools.product(["sees", "drops"], repeat=2):
        for order in itertools.permutations([*steps, f"{ends[0]} x", f"{ends[1]} y"]):
            place = {step: at for at, step in enumerate(order)}
            if place["fails m 0"] > place["moment"]:
                continue
            if any(
                place[f"raises {name} m 0 0"] > place[f"{end} {name}"] for end, name in zip(ends, "xy", strict=True)
            ):
                continue
            # A call can only fail before the word of the owner, or after it and within the moment, or tell nothing more.
            world = World()
            outcome = world.play(" | ".join(order))
            assert outcome in ("told", "fault"), (order, outcome)
            assert len(world.outcome) == 1, order
            if ends == ("drops", "drops"):
                assert outcome == "fault", order
            first_moment = place["moment"]
            told_early = any(
                end == "sees" and place[f"raises {name} m 0 0"] < first_moment
                for end, name in zip(ends, "xy", strict=True)
            )
            lost_before = [place[f"drops {name}"] for end, name in zip(ends, "xy", strict=True) if end == "drops"]
            if told_early and not lost_before:
                assert outcome == "told", order
            assert len(world.observed) == 0, order


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=12), st.randoms())
def test_nothing_is_kept_and_every_failure_has_one_outcome(calls: list[tuple[int, bool, bool]], rng: Any) -> None:
    world = World()
    todo: list[str] = [f"fails m {rank}" for rank in range(4)]
    for number, (rank, seen, _) in enumerate(calls):
        todo.append(f"raises c{number} m {rank} {rank} | {'sees' if seen else 'drops'} c{number}")
    rng.shuffle(todo)
    for step in todo:
        world.play(step)
    world.play("moment")
    assert len(world.outcome) == 4 and len(world.observed) == 0
    assert world.observed.stopped("m") == [] and world.observed._told == {}


def test_what_is_known_of_a_process_that_closes_is_dropped() -> None:
    world = World()
    world.play("raises x m 0 0 | fails m 0 | exits")
    assert len(world.observed) == 0
    assert not [effect for effect in world.observed.over(world.calls["x"], True, 0.0) if isinstance(effect, Notify)]
