"""`healthy()` waits for every rank to have heard of every death, however late word of it comes, and to have left for it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

from monarch._mesh.agent.roster import HEARD_PATIENCE
from monarch._runtime.context import here
from monarch._wire.address import agent_of
from monarch.actor import ActorMesh, ProcMesh, RestartPolicy, endpoint, this_host
from monarch.actor.lowlevel import own_process, watch_processes
from monarch.testing import InProcessCluster, Local, VirtualClock
from monarch.testing.network import Rule
from tests.support.actors import TIMEOUT, Gate, Recorder

pytestmark = pytest.mark.usefixtures("no_leaks")
RANKS = 4


class Told:
    """Notes of what the ranks heard, (the rank, the address of a process that ended), and what lets them be healthy
    again."""

    def __init__(self) -> None:
        self.of: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.holds: list[Callable[[], None]] = []

    def of_death(self, ranks: set[int], address: str) -> None:
        """Waits until these ranks, and no others, have heard of the end of a process there."""
        assert {self.of.get(timeout=TIMEOUT) for _ in ranks} == {(rank, address) for rank in ranks}

    def leave(self) -> None:
        """The ranks have left what they were in."""
        while self.holds:
            self.holds.pop()()


class Member(Recorder):
    """Watches the others as a rank of a group does."""

    @endpoint
    def which(self) -> tuple[str, int]:
        return own_process()

    @endpoint
    def speak(self, to: ActorMesh[Member]) -> None:
        to.add.broadcast()

    @endpoint
    def enter(self, rank: int, others: dict[str, int], told: Local[Told]) -> None:
        residents: Any = (
            here().mesh.residents
        )  # on the I/O thread, which the processes of a cluster share, it is another's

        def ended(address: str, how: str, stopped: bool) -> None:
            told.value.holds.append(residents.hold_health(1e6))
            told.value.of.put((rank, address))

        watch_processes({address: at for address, at in others.items() if address != own_process()[0]}, ended)


class Group:
    """Four ranks that watch one another, restarted by a policy; word of what ends comes to rank 1 when it is let."""

    def __init__(self, cluster: InProcessCluster, clock: VirtualClock) -> None:
        self.cluster = cluster
        self.clock = clock
        self.told = Told()
        self.procs: ProcMesh = this_host().spawn_procs({"gpus": RANKS})
        with RestartPolicy(max_restarts=100):
            self.members: ActorMesh[Member] = self.procs.spawn("members", Member)
        self.addresses = self.procs._addresses()

    def enter(self) -> None:
        which = dict(self.members.which.call().get(TIMEOUT).values())
        for rank in range(RANKS):
            self.members.slice(gpus=rank).enter.call_one(rank, which, Local(self.told)).get(TIMEOUT)
        self.cluster.settle()

    def delayed(self) -> Rule:
        return self.cluster.network.hold(source=agent_of(self.addresses[1]), target=self.addresses[1])

    def die(self, rank: int, *hear: int) -> None:
        """Kills the process of a rank, of which the ranks that `hear` are told. Its agent does not wait for the others any
        longer."""
        replaced = self.cluster.expect("ProcReachable", target=self.addresses[0])
        self.cluster.kill(self.procs, rank)
        self.told.of_death(set(hear), self.addresses[rank])
        replaced.wait()
        self.cluster.settle()
        self.clock.advance(HEARD_PATIENCE)
        self.members.slice(gpus=rank).healthy().get(TIMEOUT)

    def asked(self, begin: Callable[[], Any]) -> Any:
        """Begins something in which rank 1 is asked whether it is healthy, and waits for that."""
        probe = self.cluster.expect("Probe", target=self.addresses[1])
        begun = begin()
        probe.wait()
        return begun

    def waits(self, waiting: Any) -> bool:
        for _ in range(2):  # a check ends in the turn after that of its last answer
            self.cluster.settle()
        return "pending" in repr(waiting)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def group(clock: VirtualClock) -> Any:
    with InProcessCluster(clock=clock) as cluster:
        group = Group(cluster, clock)
        group.enter()
        yield group


@pytest.mark.parametrize("of", ["all", "survivors"])
def test_a_rank_that_hears_late_of_a_death_is_waited_for(group: Group, of: str) -> None:
    with group.delayed():
        group.die(2, 0, 3)
        group.told.leave()
        mesh = group.members if of == "all" else group.members.slice(gpus=slice(0, 2))
        waiting = group.asked(mesh.healthy)
        assert group.waits(waiting)
        assert group.told.of.empty()
    group.told.of_death({1}, group.addresses[2])
    assert group.waits(waiting)  # it is in what cannot end well
    group.told.leave()
    waiting.get(TIMEOUT)


def test_of_one_that_was_restarted_twice_meanwhile(group: Group) -> None:
    with group.delayed():
        group.die(2, 0, 3)
        group.told.leave()
        waiting = group.asked(group.members.healthy)
        group.die(2)
        again = group.asked(group.members.healthy)
        assert group.waits(waiting)
        assert group.waits(again)
    group.told.of_death({1}, group.addresses[2])
    assert group.waits(waiting)
    group.told.leave()
    waiting.get(TIMEOUT)
    again.get(TIMEOUT)


def test_of_several_deaths_it_waits_for_word_of_each(group: Group) -> None:
    with group.delayed():
        group.die(2, 0, 3)
        group.die(3, 0)
        group.told.leave()
        waiting = group.asked(group.members.healthy)
        assert group.waits(waiting)
    heard = {group.told.of.get(timeout=TIMEOUT) for _ in range(2)}
    assert heard == {(1, group.addresses[2]), (1, group.addresses[3])}
    group.told.holds.pop()()
    assert group.waits(waiting)
    group.told.leave()
    waiting.get(TIMEOUT)


def test_a_rank_that_dies_while_it_is_asked(group: Group) -> None:
    with group.delayed():
        group.die(2, 0, 3)
        waiting = group.asked(group.members.healthy)
        group.die(1, 0, 3)
        group.told.leave()
    waiting.get(TIMEOUT)  # the one in its place knows of none that has died
    assert group.told.of.empty()


def test_a_rank_that_has_spoken_to_the_one_in_its_place_before_word_of_the_death_came(group: Group) -> None:
    with group.delayed():
        group.die(2, 0, 3)
        group.told.leave()
        spoken = group.cluster.expect("Welcome", target=group.addresses[1])
        group.members.slice(gpus=1).speak.broadcast(group.members.slice(gpus=2))
        spoken.wait()
        waiting = group.asked(group.members.healthy)
        assert group.waits(waiting)
    group.told.of_death({1}, group.addresses[2])
    assert group.waits(waiting)
    group.told.leave()
    waiting.get(TIMEOUT)


def test_the_others_do_not_wait_for_one_that_is_only_to_be_restarted(group: Group) -> None:
    gate = Gate()
    waiting = gate.hold(group.members.slice(gpus=2))
    restarted = group.procs.restart(gpus=2)  # its actor is in an endpoint yet
    group.members.slice(gpus=slice(0, 2)).healthy().get(TIMEOUT)
    gate.open()
    waiting.get(TIMEOUT)
    restarted.get(TIMEOUT)


def test_word_that_does_not_come_is_not_waited_for_for_ever(group: Group, clock: VirtualClock) -> None:
    with group.delayed():
        group.die(2, 0, 3)
        group.told.leave()
        waiting = group.asked(group.members.healthy)
        assert group.waits(waiting)
        clock.advance(10.0)
        waiting.get(TIMEOUT)
    group.told.of_death({1}, group.addresses[2])
    group.told.leave()
