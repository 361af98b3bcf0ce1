"""Circles of waits, found by messages between processes that each know only their own. No threads, no time but the test's."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.failures import deadlock as module
from monarch._mesh.failures.deadlock import Blocked, Detector, EndWait, SendProbe

AFTER = 1.0


class World:
    """Actors on processes, each held up by at most one wait for the message it handles (any number for concurrent ones)."""

    def __init__(self, **homes: str) -> None:
        """Actor -> its process."""
        self.homes = homes
        self.now = 0.0
        self.waiting: dict[int, Blocked] = {}
        # (actor, number of the message) -> waits, where not the usual
        self.blocking: dict[tuple[str, int], list[int]] = {}
        self.broken: list[tuple[str, list[str]]] = []
        self.sent = self.made = 0
        self.detectors = {home: Detector(home, lambda wait: f"{wait.who} waits") for home in set(homes.values())}

    def wait(self, who: str, *targets: str, since: float = 0.0) -> int:
        """Actor `who` waits for one message to each of `targets`; the number of the wait is the message's as well."""
        self.made += 1
        number = self.made
        for key in dict.fromkeys(targets):
            assert key in self.homes
        self.waiting[number] = Blocked(number, who, since, " ".join(targets), number, [self.homes[t] for t in targets])
        return number

    def waits(self, text: str) -> None:
        """`a b 0.1 | b a 0.0`: a waits for b since 0.1, b for a since 0.0."""
        for words in map(str.split, text.split(" | ")):
            self.wait(*words[:-1], since=float(words[-1]))

    def end(self, number: int) -> None:
        del self.waiting[number]

    def _blockers(self, home: str, key: str, port: int) -> Iterable[Blocked]:
        """Returns those of the actors of `home` among those that the message went to."""
        for actor in key.split():
            if self.homes[actor] != home:
                continue
            special = self.blocking.get((actor, port))
            for number, wait in list(self.waiting.items()):
                if wait.who == actor and (special is None or number in special):
                    yield wait

    def _of(self, home: str) -> dict[int, Blocked]:
        return {number: wait for number, wait in self.waiting.items() if self.homes[wait.who] == home}

    def sweep(self, *homes: str) -> list[SendProbe]:
        found: list[SendProbe] = []
        for home in homes or sorted(self.detectors):
            own = self._of(home)
            found += self.detectors[home].sweep([(n, w.since) for n, w in own.items()], own.get, self.now, AFTER)
        self.sent += len(found)
        return found

    def deliver(
        self, sends: list[SendProbe], chance: random.Random | None = None, steps: int = 100_000
    ) -> list[SendProbe]:
        """Until nothing is under way (or `steps` messages were delivered; the rest is returned)."""
        waiting = list(sends)
        while waiting and steps:
            steps -= 1
            send = waiting.pop(chance.randrange(len(waiting)) if chance else 0)
            probe = send.probe
            blockers = self._blockers(send.address, probe.key, probe.port)
            for effect in self.detectors[send.address].probed(probe, blockers, self.now, AFTER):
                if isinstance(effect, EndWait):
                    self.broken.append((self.waiting[effect.number].who, effect.path))
                else:
                    self.sent += 1
                    waiting.append(effect)
        return waiting

    def look(self, now: float) -> list[str]:
        """Every process looks once, all messages arrive; who was broken."""
        self.now = now
        before = len(self.broken)
        self.deliver(self.sweep())
        return [who for who, _ in self.broken[before:]]


# --- circles


def test_an_actor_that_waits_for_itself() -> None:
    world = World(a="p")
    world.wait("a", "a")
    assert world.look(1.0) == ["a"]
    assert world.broken == [("a", ["a waits"])]


@pytest.mark.parametrize("homes", [{"a": "p", "b": "p"}, {"a": "p", "b": "q"}])
def test_two_actors_and_the_younger_wait_is_given_up(homes: dict[str, str]) -> None:
    world = World(**homes)
    world.waits("a b 0.0 | b a 0.5")
    assert world.look(1.2) == []  # the older wait has asked; the younger one has not stood long enough
    assert world.look(1.5) == ["b"]
    assert world.broken == [("b", ["b waits", "a waits"])]


def test_three_processes_and_the_path_begins_with_the_victim() -> None:
    world = World(a="p", b="q", c="r")
    world.waits("a b 0.2 | b c 0.1 | c a 0.0")
    assert world.look(2.0) == ["a"]
    assert world.broken[0][1] == ["a waits", "b waits", "c waits"]


def test_waits_of_the_same_moment_are_told_apart_by_name() -> None:
    world = World(a="p", b="q", c="r")
    for who, target in ("a", "b"), ("b", "c"), ("c", "a"):
        world.wait(who, target)
    assert world.look(1.0) == ["c"]


def test_a_call_to_many_ranks_needs_them_all() -> None:
    """One rank that waits for the caller is enough, whatever the others do."""
    world = World(a="p", b="q", c="r", d="r")
    world.waits("a b c d 0.0 | c a 0.3")
    assert world.look(2.0) == ["c"]


def test_an_actor_that_waits_for_a_circle_is_not_of_it() -> None:
    world = World(a="p", b="q", outside="r", client="s")
    world.waits("a b 0.0 | b a 0.1 | outside a 0.2 | client outside 0.3")
    assert world.look(2.0) == ["b"]
    assert world.broken[0][1] == ["b waits", "a waits"]


def test_two_circles_are_two() -> None:
    world = World(a="p", b="q", c="p", d="q")
    world.waits("a b 0.0 | b a 0.1 | c d 0.2 | d c 0.3")
    assert sorted(world.look(2.0)) == ["b", "d"]


def test_two_circles_through_one_wait_that_is_the_youngest_of_both() -> None:
    world = World(a="p", b="q", c="r")
    world.waits("a b c 0.9 | b a 0.0 | c a 0.1")
    assert world.look(2.0) == ["a"]  # once, though it was found twice


# --- no circles


def test_a_chain_is_no_circle() -> None:
    world = World(a="p", b="q", c="r")
    world.waits("a b 0.0 | b c 0.0")
    for now in range(1, 200):
        assert world.look(now) == []


def test_a_wait_that_may_end_by_itself_is_not_given_in_and_closes_no_circle() -> None:
    world = World(a="p", b="q")
    world.wait("a", "b")  # and b waits for a with a time limit
    assert world.look(5.0) == []


def test_a_concurrent_endpoint_blocks_only_those_who_wait_for_that_message() -> None:
    world = World(a="p", b="q")
    asked = world.wait("a", "b", since=0.0)
    other = world.wait("b", "a", since=0.1)  # of another message that b handles beside
    world.blocking["b", asked] = []
    assert world.look(2.0) == []
    world.blocking["b", asked] = [other]
    assert world.look(4.0) == ["b"]


def test_a_circle_that_has_not_stood_long_enough_everywhere() -> None:
    """Clocks of different hosts need not agree: each process looks at its own."""
    world = World(a="p", b="q")
    world.wait("a", "b", since=0.0)
    world.wait("b", "a", since=-50.0)  # the older by its number, though it began later: its host has just booted
    world.now = 1.0
    sends = world.sweep("p")
    (send,) = sends
    (blocked,) = world._blockers(send.address, send.probe.key, send.probe.port)
    assert world.detectors["q"].probed(send.probe, [blocked], -49.5, AFTER) == []
    assert len(world.detectors["q"].probed(send.probe, [blocked], -49.0, AFTER)) == 1


# --- stale news


def test_a_wait_that_ended_while_it_was_asked_about() -> None:
    world = World(a="p", b="q")
    world.wait("a", "b", since=0.0)
    young = world.wait("b", "a", since=0.1)
    world.now = 2.0
    under_way = world.sweep()
    world.end(young)
    assert world.deliver(under_way) == [] and world.broken == []


@pytest.mark.parametrize("steps", range(4))
def test_a_wait_that_ends_before_it_was_asked_twice_is_no_part_of_a_circle(steps: int) -> None:
    world = World(a="p", b="q", c="r")
    world.wait("a", "b", since=0.2)
    middle = world.wait("b", "c", since=0.1)
    world.wait("c", "a", since=0.0)
    world.now = 2.0
    under_way = world.deliver(world.sweep("p"), steps=steps)  # three steps to go round, the fourth asks it again
    world.end(middle)
    world.deliver(under_way)
    assert world.broken == []


def test_a_new_wait_of_the_same_actor_is_not_the_old_one() -> None:
    world = World(a="p", b="q")
    old = world.wait("a", "b", since=0.5)
    world.wait("b", "a", since=0.0)
    world.now = 2.0
    under_way = world.deliver(world.sweep("p"), steps=1)
    world.end(old)
    world.wait("a", "b", since=1.9)
    world.deliver(under_way)
    assert world.broken == []
    assert world.look(3.0) == ["a"]


def test_the_same_question_twice_is_answered_once() -> None:
    world = World(a="p", b="q")
    world.waits("a b 0.0 | b a 0.1")
    world.now = 2.0
    sends = world.sweep("q")
    world.deliver([*sends, *sends])
    assert [who for who, _ in world.broken] == ["b"]


def test_a_lost_question_is_asked_again_later_and_less_and_less_often() -> None:
    world = World(a="p", b="q")
    world.waits("b a 0.0 | a b 0.0")
    asked = []
    for tenth in range(0, 3000):
        world.now = tenth / 10
        if world.sweep("q"):
            asked.append(world.now)
    assert asked == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 124.0, 184.0, 244.0]
    assert world.look(400.0) == ["b"]


def test_a_wait_with_a_way_out_that_loses_it_is_found_then() -> None:
    detector = Detector("p", lambda wait: "a waits")
    wait = Blocked(1, "a", 0.0, "a", 1, ["p"])
    assert detector.sweep([(1, 0.0)], lambda number: None, 1.0, AFTER) == []
    assert detector.sweep([(1, 0.0)], lambda number: wait, 1.5, AFTER) == []
    (send,) = detector.sweep([(1, 0.0)], lambda number: wait, 2.0, AFTER)
    (again,) = detector.probed(send.probe, [wait], 2.0, AFTER)
    assert isinstance(again, SendProbe) and again.probe.again
    assert detector.probed(again.probe, [wait], 2.0, AFTER) == [EndWait(1, ["a waits"])]


# --- bounds


def test_few_waits_ask_at_once_and_the_others_later() -> None:
    world = World(a="p", b="q")
    for _ in range(module._AT_ONCE + 5):
        world.wait("a", "b")
    world.now = 1.0
    assert len(world.sweep("p")) == module._AT_ONCE
    assert len(world.sweep("p")) == 5
    assert world.sweep("p") == []


def test_what_has_ended_is_forgotten() -> None:
    world = World(a="p", b="q")
    number = world.wait("a", "b")
    world.look(1.0)
    assert world.detectors["p"]._asked
    world.end(number)
    world.look(2.0)
    assert not world.detectors["p"]._asked


def test_circles_longer_than_the_bound_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS", 3)
    for length, found in (3, 1), (4, 0):
        names = [f"a{i}" for i in range(length)]
        world = World(**dict.fromkeys(names, "p"))
        for i, name in enumerate(names):
            world.wait(name, names[(i + 1) % length])
        assert len(world.look(1.0)) == found


def test_remembers_a_bounded_number_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 10)
    world = World(a="p", b="q")
    world.waits("a b 0.1 | b a 0.0")
    for now in range(1, 1000):
        world.look(now)
        assert all(len(detector._seen) <= 10 for detector in world.detectors.values())


# --- any graph


def youngest_of_circles(waits: dict[int, Blocked], homes: dict[str, str]) -> set[int]:
    """Waits that lie on a circle of which they are the youngest, found with the whole graph at hand."""

    def age(wait: Blocked) -> tuple[float, str, str, int]:
        return wait.since, wait.who, homes[wait.who], wait.number

    found = set()
    for number, first in waits.items():
        reached, front = set(), [first]
        while front:
            targets = set(front.pop().key.split())
            for other in waits.values():
                if other.who in targets and other.number not in reached and age(other) <= age(first):
                    reached.add(other.number)
                    front.append(other)
        if number in reached:
            found.add(number)
    return found


NAMES = "abcdefgh"


@given(
    homes=st.lists(st.sampled_from("pqr"), min_size=len(NAMES), max_size=len(NAMES)),
    waits=st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
            st.sampled_from([0.0, 0.1, 0.2, 0.3]),
        ),
        max_size=12,
    ),
    seed=st.integers(0, 1000),
)
def test_exactly_the_youngest_waits_of_circles_are_given_up(
    homes: list[str], waits: list[tuple[str, list[str], float]], seed: int
) -> None:
    """In any graph of waits, also of several of one actor, with messages delivered in any order."""
    world = World(**dict(zip(NAMES, homes, strict=True)))
    numbers = {world.wait(who, *targets, since=since): who for who, targets, since in waits}
    world.now = 1.3
    world.deliver(world.sweep(), random.Random(seed))
    expected = youngest_of_circles(world.waiting, world.homes)
    assert sorted(who for who, _ in world.broken) == sorted(numbers[number] for number in expected)
    assert world.sent <= 2 * len(waits) * (len(waits) + 1) * 3  # each passes each question on once, both times round
