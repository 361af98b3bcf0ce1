"""Tests of who is told of what: every end of a rank, in every order, and what callers hear afterwards."""

from __future__ import annotations

import itertools
import pickle
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.failures import ledger as ledgers
from monarch._mesh.failures.ledger import Ledger, MeshFailure, MeshGone, Notify
from monarch._runtime.incarnations import first_in
from monarch._wire.message import Failure, ProcEnded


@dataclass
class Mesh:
    """Ranks 0 and 1 in process p0, 2 in p1, 3 in p2 unless said otherwise."""

    key: str = "k1"
    mesh_name: str = "workers"
    addresses: list[str] = field(default_factory=lambda: ["p0", "p0", "p1", "p2"])
    procs_stopped: bool = False

    def display(self, rank: int) -> str:
        return f"<root>.<Worker workers {{'gpus': {rank}/4}}>"


def failed(*ranks: int, mesh: str = "k1", incarnation: int = 0) -> Failure:
    return Failure("it raised", mesh, "workers", list(ranks), "event", incarnation=incarnation)


def stopped(*ranks: int, mesh: str = "k1", incarnation: int = 0) -> Failure:
    return Failure("it was stopped", mesh, "workers", list(ranks), "event", stopped=True, incarnation=incarnation)


def ended(
    address: str,
    code: int = -9,
    stopped: bool = False,
    detail: str = "",
    tail: tuple[str, ...] = (),
    incarnation: int = 0,
    replaced: bool = False,
    hostname: str = "",
) -> ProcEnded:
    return ProcEnded(address, 4711, code, stopped, list(tail), detail, incarnation, replaced, hostname)


@dataclass
class Restart:
    """Steps of a restart of mesh k1: `begin` its ranks are to be replaced, `done` they were, `given_up` they were not."""

    step: str
    ranks: tuple[int, ...]
    incarnation: int = 0


def begin(*ranks: int) -> Restart:
    return Restart("begin", ranks)


def done(*ranks: int, incarnation: int = 1) -> Restart:
    return Restart("done", ranks, incarnation)


def given_up(*ranks: int) -> Restart:
    return Restart("given up", ranks)


Event = Failure | ProcEnded | Restart | str


def ledger_with(*meshes: Mesh, owner: str = "client.0") -> Ledger:
    ledger = Ledger()
    for mesh in meshes or (Mesh(),):
        ledger.add(mesh, owner)
    return ledger


def feed(ledger: Ledger, *events: Event) -> list[tuple[str, list[int]]]:
    """Gives the events to the ledger (a text: the mesh is stopped, and why); who is told of which ranks."""
    told: list[Notify | MeshGone] = []
    for event in events:
        if isinstance(event, ProcEnded):
            told += ledger.process_ended(event)
        elif isinstance(event, Failure):
            told += ledger.actor_ended(event)
        elif isinstance(event, str):
            ledger.mesh_stopped("k1", event)
        elif event.step == "begin":
            ledger.restarting("k1", event.ranks)
        elif event.step == "given up":
            ledger.not_restarted("k1", event.ranks)
        else:
            for rank in event.ranks:
                ledger.restarted("k1", rank, event.incarnation)
    return [(one.owner, one.failure.crashed_ranks) for one in told if isinstance(one, Notify)]


# --- a scenario: what happens, which ranks the owner is told of, which cannot be called afterwards

ALL = [0, 1, 2, 3]
NEXT = first_in(1)  # the incarnation of an actor in the process that took the place of the first
SCENARIOS: dict[str, tuple[list[Event], list[list[int]], list[int]]] = {
    "nothing": ([], [], []),
    "an actor fails": ([failed(2)], [[2]], [2]),
    "it is told twice": ([failed(2), failed(2)], [[2]], [2]),
    "two actors fail": ([failed(2), failed(0)], [[2], [0]], [0, 2]),
    "an actor stops by itself": ([stopped(2)], [], [2]),
    "it stops and is said to have failed": ([stopped(2), failed(2)], [], [2]),
    "a process is killed": ([ended("p1", -9)], [[2]], [2]),
    "a process of two ranks is killed": ([ended("p0", -11)], [[0, 1]], [0, 1]),
    "a process exits with a code": ([ended("p1", 7)], [[2]], [2]),
    "a process exits cleanly": ([ended("p1", 0)], [], [2]),
    "a process was stopped": ([ended("p1", 0, stopped=True)], [], [2]),
    "a process was stopped and killed for it": ([ended("p1", -9, stopped=True)], [], [2]),
    "a process was stopped and ended badly": ([ended("p1", 1, stopped=True)], [], [2]),
    "a process never ran": ([ended("p1", 0, detail="could not be started")], [[2]], [2]),
    "a process is told of twice": ([ended("p1"), ended("p1")], [[2]], [2]),
    "an unknown process": ([ended("p9")], [], []),
    "an unknown mesh": ([failed(2, mesh="k9")], [], []),
    "an actor fails, then its process": ([failed(2), ended("p1")], [[2]], [2]),
    "a process ends, then its actor is told of": ([ended("p1"), failed(2)], [[2]], [2]),
    "one of two actors fails, then their process": ([failed(1), ended("p0")], [[1], [0]], [0, 1]),
    "their process, then one of them": ([ended("p0"), failed(1)], [[0, 1]], [0, 1]),
    "an actor stops, then its process is killed": ([stopped(2), ended("p1")], [], [2]),
    "an actor fails, then its process is stopped": ([failed(2), ended("p1", stopped=True)], [[2]], [2]),
    "every process": ([ended("p2"), ended("p0"), ended("p1")], [[3], [0, 1], [2]], ALL),
    "the mesh is stopped": (["enough"], [], ALL),
    "stopped, then an actor fails": (["enough", failed(2)], [], ALL),
    "stopped, then a process is killed": (["enough", ended("p1")], [], ALL),
    "an actor fails, then the mesh is stopped": ([failed(2), "enough"], [[2]], ALL),
    "an actor fails, the mesh is stopped, its process killed": ([failed(2), "enough", ended("p0")], [[2]], ALL),
    "a report of two ranks": ([failed(0, 1)], [[0, 1]], [0, 1]),
    "a report of no rank": ([failed()], [], []),
    # --- restarts
    "an actor is restarted": ([failed(2), begin(2), done(2)], [[2]], []),
    "and fails again": ([failed(2), begin(2), done(2), failed(2, incarnation=1)], [[2], [2]], [2]),
    "and stops by itself": ([failed(2), begin(2), done(2), stopped(2, incarnation=1)], [[2]], [2]),
    "a living actor is restarted": ([begin(2), stopped(2), done(2)], [], []),
    "it fails before it was stopped": ([begin(2), failed(2), done(2)], [], []),
    "it fails and nobody takes its place": ([begin(2), failed(2), given_up(2)], [], [2]),
    "it lives on when nobody takes its place": ([begin(2), given_up(2)], [], []),
    "and fails later": ([begin(2), given_up(2), failed(2)], [[2]], [2]),
    "the one before it is told of late": ([failed(2), begin(2), done(2), failed(2)], [[2]], []),
    "the one before is told of late, then it fails": (
        [begin(2), done(2), failed(2), failed(2, incarnation=1)],
        [[2]],
        [2],
    ),
    "an ordinary end of the one before is told of late": ([begin(2), done(2), stopped(2)], [], []),
    "it is restarted twice": (
        [begin(2), done(2), failed(2, incarnation=1), begin(2), done(2, incarnation=2), failed(2, incarnation=1)],
        [[2]],
        [],
    ),
    "another rank fails meanwhile": ([begin(2), failed(3), done(2)], [[3]], [3]),
    "a report of two ranks, one of them restarting": ([begin(1), failed(0, 1)], [[0, 1]], [0, 1]),
    "a report of two ranks, both restarting": ([begin(0, 1), failed(0, 1)], [], [0, 1]),
    "two of four": ([failed(0), failed(2), begin(0, 2), done(0), done(2)], [[0], [2]], []),
    "one of two was restarted": ([failed(0), failed(2), begin(0, 2), done(0)], [[0], [2]], [2]),
    "its process ends meanwhile": ([begin(2), ended("p1")], [], [2]),
    "the process of two, one of them restarting": ([begin(0), ended("p0")], [[0, 1]], [0, 1]),
    "a process and its actor are restarted": ([ended("p1"), begin(2), done(2, incarnation=NEXT)], [[2]], []),
    "the end of the process before is told again": (
        [ended("p1"), begin(2), done(2, incarnation=NEXT), ended("p1"), ended("p1", 0, stopped=True)],
        [[2]],
        [],
    ),
    "an actor of the process before is told of": (
        [ended("p1"), begin(2), done(2, incarnation=NEXT), failed(2, incarnation=7)],
        [[2]],
        [],
    ),
    "the new process ends as well": (
        [ended("p1"), begin(2), done(2, incarnation=NEXT), ended("p1", incarnation=1)],
        [[2], [2]],
        [2],
    ),
    "the new process ends after its actor was restarted there": (
        [begin(2), done(2, incarnation=NEXT + 3), ended("p1", incarnation=1)],
        [[2]],
        [2],
    ),
    "a process is replaced": ([ended("p1", 0, stopped=True, replaced=True)], [], [2]),
    "a process is replaced, and one of its actors restarted": (
        [ended("p0", 0, stopped=True, replaced=True), begin(1), done(1, incarnation=NEXT), ended("p0", incarnation=1)],
        [[1]],
        [0, 1],
    ),
    "the mesh is stopped meanwhile": ([failed(2), begin(2), "enough", done(2)], [[2]], ALL),
    "the mesh is stopped, then a restart begins": (["enough", begin(2), failed(2)], [], ALL),
    "the mesh is stopped after a restart": ([begin(2), done(2), "enough", failed(2, incarnation=1)], [], ALL),
    "a restart is given up after the mesh was stopped": ([begin(2), "enough", given_up(2), failed(2)], [], ALL),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    events, told, dead = SCENARIOS[name]
    ledger = ledger_with()
    assert feed(ledger, *events) == [("client.0", ranks) for ranks in told]
    for rank in ALL:
        assert (ledger.check("k1", [rank]) is not None) is (rank in dead)


# --- restarts: what is said of them


def test_who_lives_is_said_when_a_restart_begins() -> None:
    ledger = ledger_with()
    feed(ledger, failed(2), ended("p2", 0))
    assert ledger.restarting("k1", [0, 2, 3]) == [0]
    assert ledger.ended_ranks("k1") == [2, 3]
    feed(ledger, stopped(0))
    assert ledger.restarting("k1", [0, 1]) == [1]
    assert [ledger.restarted("k1", rank, NEXT) for rank in (0, 2, 3)] == [True] * 3
    assert ledger.ended_ranks("k1") == [] and ledger.check("k1", ALL) is None
    assert not ledger.troubled


def test_a_mesh_that_is_not_here_or_is_being_stopped_is_not_restarted() -> None:
    ledger = ledger_with()
    assert ledger.restarting("k9", [0]) is None and ledger.ended_ranks("k9") == []
    assert not ledger.restarted("k9", 0, 1)
    feed(ledger, begin(0), "enough")
    assert ledger.restarting("k1", [1]) is None
    assert not ledger.restarted("k1", 0, 1)
    why = ledger.check("k1", [0])
    assert why is not None and "enough" in why.report
    ledger.not_restarted("k9", [0])


def test_callers_hear_why_a_rank_ended_until_it_is_restarted() -> None:
    ledger = ledger_with()
    feed(ledger, failed(2), begin(2))
    why = ledger.check("k1", [2])
    assert why is not None and why.report == "it raised"
    feed(ledger, done(2), ended("p2", 7))
    assert ledger.check("k1", [2]) is None and ledger.troubled == {"k1"}


def test_a_mesh_is_not_given_up_while_one_of_it_restarts() -> None:
    ledger = ledger_with(Mesh(addresses=["p0"]))
    assert ledger.process_ended(ended("p0", 0, stopped=True, replaced=True)) == []
    ledger = ledger_with(Mesh(addresses=["p0"]))
    feed(ledger, begin(0))
    assert ledger.process_ended(ended("p0", 0, stopped=True)) == []
    assert len(ledger) == 1


def test_of_the_runtimes_own_meshes_the_end_of_a_process_is_not_told() -> None:
    """The meshes of the program on it tell; but their actors' own failures are."""
    ledger = Ledger()
    ledger.add(Mesh(), "client.0", internal=True)
    assert feed(ledger, ended("p0"), failed(2)) == [("client.0", [2])]
    assert ledger.ended_ranks("k1") == [0, 1, 2]


def test_a_thousand_restarts_take_no_more_room_than_one() -> None:
    ledger = ledger_with()
    for number in range(1, 1001):
        feed(ledger, failed(2, incarnation=number - 1), begin(2), done(2, incarnation=number))
    entry = ledger._entries["k1"]
    assert (entry.ended, entry.incarnations, entry.restarting) == ({}, {2: 1000}, set())


def test_a_failure_its_policy_does_not_restart_any_more_says_so() -> None:
    failure = ledgers.escalated(MeshFailure(failed(2, 3)), "it failed too often")
    assert (failure.mesh_name, failure.crashed_ranks) == ("workers", [2, 3])
    assert failure.report() == "it raised\n    it failed too often"
    assert failure.event == "event (it failed too often)"


def test_a_message_for_the_one_before_says_that_it_was_not_handled() -> None:
    stale = ledgers.stale_failure("<root>.<W w>", "k1", "workers", 2)
    assert "<root>.<W w> was restarted after this message was sent" in stale.report
    assert "was not handled" in stale.report
    assert stale.stopped and stale.will_restart and stale.ranks == [2]
    overtaken = ledgers.stale_failure("<root>.<W w>", "k1", "workers", 2, overtaken=True)
    assert "<root>.<W w> was not handled: a connection broke" in overtaken.report


# --- for any events

events = st.lists(
    st.one_of(
        st.builds(failed, st.integers(0, 3)),
        st.builds(stopped, st.integers(0, 3)),
        st.builds(ended, st.sampled_from(["p0", "p1", "p2"]), st.sampled_from([-9, 0, 1]), st.booleans()),
        st.just("enough"),
    ),
    max_size=12,
)


class Model:
    """The world that a ledger hears of late, and in any order as far as different ranks and processes go."""

    def __init__(self) -> None:
        self.incarnations = dict.fromkeys(ALL, 0)
        self.processes = dict.fromkeys(Mesh().addresses, 0)
        self.alive = set(ALL)


steps = st.lists(st.tuples(st.sampled_from(["fail", "kill", "restart", "repeat"]), st.integers(0, 3)), max_size=40)


@given(steps)
def test_each_incarnation_that_failed_is_told_of_once(steps: list[tuple[str, int]]) -> None:
    """Actors fail, processes are killed, both are restarted, and every message about that may come again later."""
    model, ledger = Model(), ledger_with()
    addresses = Mesh().addresses
    told: list[tuple[int, int]] = []
    expected: list[tuple[int, int]] = []
    said: list[Failure | ProcEnded] = []

    def hear(event: Failure | ProcEnded) -> None:
        said.append(event)
        told.extend((rank, model.incarnations[rank]) for _, ranks in feed(ledger, event) for rank in ranks)

    for kind, rank in steps:
        address = addresses[rank]
        if kind == "fail" and rank in model.alive:
            model.alive.discard(rank)
            expected.append((rank, model.incarnations[rank]))
            hear(failed(rank, incarnation=model.incarnations[rank]))
        elif kind == "kill":
            there = [r for r in ALL if addresses[r] == address]
            expected += [(r, model.incarnations[r]) for r in there if r in model.alive]
            model.alive -= set(there)
            hear(ended(address, incarnation=model.processes[address]))
            model.processes[address] += 1
        elif kind == "restart":
            least = first_in(model.processes[address])
            feed(ledger, begin(rank))
            if rank in model.alive:
                hear(stopped(rank, incarnation=model.incarnations[rank]))
            model.incarnations[rank] = max(least, model.incarnations[rank] + 1)
            model.alive.add(rank)
            feed(ledger, done(rank, incarnation=model.incarnations[rank]))
        elif kind == "repeat" and said:
            hear(said[rank % len(said)])
        assert ledger.ended_ranks("k1") == sorted(set(ALL) - model.alive)
    assert sorted(told) == sorted(expected) and len(set(told)) == len(told)


@given(events)
def test_a_rank_is_told_of_at_most_once_and_never_after_a_stop(happened: list[Failure | ProcEnded | str]) -> None:
    ledger = ledger_with()
    told: list[int] = []
    for event in happened:
        was_stopped = ledger.check("k1", []) is not None
        new = [rank for _, ranks in feed(ledger, event) for rank in ranks]
        assert not (was_stopped and new)
        told += new
    assert len(told) == len(set(told))
    for rank in told:
        assert ledger.check("k1", [rank]) is not None


@given(st.permutations([failed(0), failed(2), ended("p0"), ended("p1"), ended("p2", 0)]))
def test_whatever_the_order_every_failed_rank_is_told_of_once(happened: list[Failure | ProcEnded]) -> None:
    told = feed(ledger_with(), *happened)
    assert sorted(rank for _, ranks in told for rank in ranks) == [0, 1, 2]


# --- views

VIEWS = [list(view) for size in range(1, 5) for view in itertools.combinations(ALL, size)]


@pytest.mark.parametrize("dead", VIEWS)
def test_views_without_a_failed_rank_are_healthy(dead: list[int]) -> None:
    ledger = ledger_with()
    for rank in dead:
        feed(ledger, failed(rank))
    for view in VIEWS:
        assert (ledger.check("k1", view) is None) is not bool(set(view) & set(dead))


def test_a_caller_hears_why_its_first_dead_rank_ended() -> None:
    ledger = ledger_with()
    feed(ledger, failed(2), ended("p0", 7), "enough")
    for view, text in (([2, 0], "it raised"), ([0, 2], "exited with non-zero code 7"), ([3], "stopped: enough")):
        why = ledger.check("k1", view)
        assert why is not None and text in why.report
    assert ledger.check("k9", [0]) is None


# --- several meshes


def test_a_process_is_shared_by_meshes_of_different_owners() -> None:
    ledger = Ledger()
    ledger.add(Mesh("k2", "other", ["p1", "p0"]), "parent.0")
    ledger.add(Mesh(), "client.0")
    ledger.add(Mesh("k3", "third", ["p2"]), "client.0")
    assert feed(ledger, ended("p0")) == [("client.0", [0, 1]), ("parent.0", [1])]
    assert ledger.check("k3", [0]) is None


def test_a_removed_mesh_is_forgotten_and_the_others_are_not() -> None:
    ledger = ledger_with(Mesh(), Mesh("k2", "other", ["p0"]))
    assert len(ledger) == 2
    assert ledger.remove("k1") == "client.0"
    assert ledger.remove("k1") == ""
    assert feed(ledger, failed(0), ended("p1")) == []
    assert feed(ledger, ended("p0")) == [("client.0", [0])]
    assert len(ledger) == 1 and ledger.ended_ranks("k2") == [0]
    assert ledger.remove("k2") == "client.0"
    assert (len(ledger), ledger._by_address) == (0, {})


def test_a_mesh_removed_after_its_processes_ended() -> None:
    ledger = ledger_with()
    feed(ledger, ended("p0"), ended("p1"), ended("p2"))
    ledger.remove("k1")
    assert (len(ledger), ledger._by_address) == (0, {})


@pytest.mark.parametrize(
    "order",
    [
        [ended("p0", 0, stopped=True), ended("p1", 0), ended("p2", -15, stopped=True)],
        ["enough", ended("p0", 0, stopped=True), ended("p1", 0), ended("p2", 0, stopped=True)],
        [stopped(3), ended("p2", 0), ended("p0", 0), ended("p1", 0, stopped=True)],
        [ended("p0", 0), ended("p1", 0), stopped(3), ended("p2", 0, stopped=True)],  # the last one tells nothing new
    ],
)
def test_a_mesh_whose_ranks_all_ended_in_order_is_given_up(order: list[Failure | ProcEnded | str]) -> None:
    ledger = ledger_with()
    feed(ledger, *order[:-1])
    assert len(ledger) == 1
    assert isinstance(order[-1], ProcEnded)
    (effect,) = ledger.process_ended(order[-1])
    assert isinstance(effect, MeshGone) and repr(effect) == "MeshGone('client.0', 'k1')"
    assert (len(ledger), ledger._by_address) == (0, {})


@pytest.mark.parametrize("last", [ended("p2", 0), ended("p2", 0, stopped=True, replaced=True)])
def test_a_mesh_whose_processes_may_come_back_is_remembered(last: ProcEnded) -> None:
    """Nobody stopped the processes for good: they can be restarted, and the mesh on them."""
    ledger = ledger_with()
    assert feed(ledger, ended("p0", 0, stopped=True), ended("p1", 0, stopped=True), last) == []
    assert len(ledger) == 1


def test_a_mesh_that_lost_a_rank_to_a_failure_is_remembered() -> None:
    ledger = ledger_with()
    feed(ledger, failed(0), ended("p0", 0), ended("p1", 0), ended("p2", 0))
    assert ledger.check("k1", [0]) is not None


def test_the_first_reason_to_stop_counts() -> None:
    ledger = ledger_with()
    feed(ledger, "first", "second")
    why = ledger.check("k1", [0])
    assert why is not None and "first" in why.report and why.stopped
    ledger.mesh_stopped("k9", "unknown meshes are no error")


# --- what people read


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ended("p0", -9), "Killed(sig=9)"),
        (ended("p0", 7), "exited with non-zero code 7"),
        (ended("p0", 0), "exited cleanly"),
        (ended("p0", 1, detail="no such program"), "no such program"),
    ],
)
def test_how_a_process_ended(end: ProcEnded, text: str) -> None:
    assert ledgers.describe_exit(end) == text


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTERM"])
def test_a_signal_that_says_something_is_named(name: str) -> None:
    number = signal.Signals[name].value
    assert ledgers.describe_exit(ended("p0", -number)).startswith(f"Killed(sig={number}), {name}: ")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_host_that_ends_while_its_processes_are_stopped_is_told_to_nobody(stopped: bool) -> None:
    """A job that is killed: its workers end before they have said how their processes did."""
    ledger = Ledger()
    ledger.add(Mesh(procs_stopped=stopped), "owner")
    assert len(ledger.process_ended(ended("p1"))) == 1  # it crashed
    lost = ProcEnded("p0", 0, 1, False, [], "the worker said goodbye")
    assert len(ledger.process_ended(lost)) == (0 if stopped else 1)
    assert ledger.check("k1", [0]) is not None


def test_the_report_of_a_lost_process_names_actor_rank_process_and_its_last_words() -> None:
    end = ended("unix:/h/m.0", -9, tail=tuple(f"line {n}" for n in range(30)), hostname="node3")
    failure = ledgers.process_failure(Mesh(), end, [0, 1])
    report = failure.report
    for part in (
        "{'gpus': 0/4}",
        "Killed(sig=9)",
        "rank 0, 1 of workers",
        "pid 4711 on node3, at unix:/h/m.0",
        "line 29",
        "line 0\n",
    ):
        assert part in report
    assert report.startswith("The actor <root>.<Worker workers {'gpus': 0/4}> and all its descendants have failed:\n")
    assert (failure.mesh, failure.mesh_name, failure.ranks, failure.stopped) == ("k1", "workers", [0, 1], False)
    simulated = ledgers.process_failure(Mesh(), ended("inproc:n/m.0"), [0]).report
    assert "last lines" not in simulated and "pid 4711, at inproc:n/m.0" in simulated
    never = ProcEnded("unix:/h/m.0", 0, 1, False, [], "was never started on this host", hostname="node3")
    where = "of workers, on node3, at unix:/h/m.0"
    assert where in ledgers.process_failure(Mesh(), never, [0]).report


def test_what_a_rank_wrote_makes_a_terminal_do_nothing() -> None:
    hostile = "\x1b[2J\x9b31m\u202e\x07"
    fit = "\\x1b[2J\\x9b31m\\u202e\\x07"
    end = ended("unix:/h/m.0", -9, tail=("a\tb", f"last{hostile}"), hostname=f"node{hostile}")
    process = ledgers.process_failure(Mesh(), end, [0])
    actor = ledgers.actor_failure(
        f"<root>.<A{hostile}>", f"Traceback\n  File x\nValueError: bad{hostile}\n", "k", "m", 3
    )
    assert process.report.endswith(f"stderr:\n      a\tb\n      last{fit}") and f"node{fit}" in process.event
    assert actor.report.splitlines()[1:] == ["    Traceback", "      File x", f"    ValueError: bad{fit}"]
    assert actor.event == f"Supervision event: actor <root>.<A{fit}> failed: ValueError: bad{fit}"
    other = ledgers.unhandled_child(f"B{hostile}", ledgers.MeshFailure(actor), "k", "m", 0, f"x{hostile}\ny")
    for text in (process.report, process.event, actor.report, ledgers.MeshFailure(other).report()):
        assert not set(text) & {"\x1b", "\x9b", "\u202e", "\x07"}
    assert len(ledgers.MeshFailure(other).report().splitlines()) == 7


def test_an_ordinary_end_is_not_called_a_failure() -> None:
    clean = ledgers.process_failure(Mesh(), ended("p1", 0), [2])
    assert clean.stopped and ledgers.EXIT_CLEAN in clean.report and "failed" not in clean.report
    asked = ledgers.process_failure(Mesh(), ended("p1", -15, stopped=True), [2])
    assert asked.stopped and "stopped: the process was stopped" in asked.report


def test_the_report_of_an_actor_keeps_the_whole_cause() -> None:
    failure = ledgers.actor_failure("<root>.<A a>", "Traceback\n  File x\nValueError: bad\n", "k1", "workers", 3)
    assert failure.report.splitlines()[1:] == ["    Traceback", "      File x", "    ValueError: bad"]
    assert failure.event == "Supervision event: actor <root>.<A a> failed: ValueError: bad"
    assert failure.ranks == [3]
    assert ledgers.actor_failure("a", "", "k", "m", 0).event.endswith("failed: ")


def test_the_report_of_an_owner_contains_its_childs() -> None:
    child = MeshFailure(failed(2))
    plain = ledgers.unhandled_child("<root>.<P p>", child, "k2", "parents", 0)
    assert plain.report == "it raised"
    assert "did not handle a supervision event from its child. event" in plain.event
    during = ledgers.unhandled_child("<root>.<P p>", child, "k2", "parents", 0, handling="Traceback\nKeyError: 1\n")
    assert "KeyError: 1\nThis error occurred while handling another failure:\n    it raised" in during.report


def test_a_mesh_failure_is_what_supervise_gets() -> None:
    failure = MeshFailure(failed(2, 3))
    assert (failure.mesh_name, failure.mesh, failure.crashed_ranks) == ("workers", "workers", [2, 3])
    assert (failure.report(), failure.event) == ("it raised", "event")
    assert str(failure) == "MeshFailure(mesh_name=workers, crashed_ranks=[2, 3], event=event)" == repr(failure)
    unknown = MeshFailure(Failure("lost"))
    assert (unknown.mesh_name, unknown.crashed_ranks, unknown.event) == ("<none>", [], "lost")
    with pytest.raises(TypeError, match=r"send its report\(\)"):
        pickle.dumps(failure)


# --- two meshes on the same processes, and their owners

HAPPENED = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["fails", "stops"]), st.sampled_from(["m1", "m2"]), st.integers(0, 2)),
        st.tuples(st.just("dies"), st.sampled_from(["p0", "p1", "p2"]), st.sampled_from([-9, 0, 3])),
        st.tuples(st.just("is stopped"), st.sampled_from(["m1", "m2"]), st.just(0)),
    ),
    max_size=10,
)


@given(HAPPENED)
def test_the_first_end_of_a_rank_is_what_counts(happened: list[tuple[str, str, int]]) -> None:
    """Its owner is told if that end was a failure and the mesh was not stopped before; a caller hears of that end."""
    ledger = Ledger()
    for key in ("m1", "m2"):
        ledger.add(Mesh(key, key, ["p0", "p1", "p2"]), f"owner of {key}")
    first: dict[tuple[str, int], str] = {}
    expected: list[tuple[str, int]] = []
    whole: set[str] = set()
    told: list[tuple[str, int]] = []
    for kind, subject, number in happened:
        if kind == "is stopped":
            ledger.mesh_stopped(subject, "enough")
            whole.add(subject)
            continue
        effects: list[Notify | MeshGone] = []
        if kind == "dies":
            ends = {(key, int(subject[1])): ledgers.describe_exit(ended(subject, number)) for key in ("m1", "m2")}
            effects += ledger.process_ended(ended(subject, number))
        else:
            ends = {(subject, number): f"{subject}[{number}] {kind}"}
            report = ends[subject, number]
            effects += ledger.actor_ended(Failure(report, subject, subject, [number], stopped=kind == "stops"))
        for rank, text in ends.items():
            if rank not in first:
                first[rank] = text
                if rank[0] not in whole and (kind == "fails" or (kind == "dies" and number != 0)):
                    expected.append(rank)
        for effect in effects:
            assert isinstance(effect, Notify) and effect.owner == f"owner of {effect.failure.mesh_name}"
            told += [(effect.failure.mesh_name, rank) for rank in effect.failure.crashed_ranks]
    assert sorted(told) == sorted(expected)
    for key, rank in itertools.product(("m1", "m2"), range(3)):
        why = ledger.check(key, [rank])
        if (key, rank) in first:
            assert why is not None and first[key, rank] in why.report
        else:
            assert (why is not None) is (key in whole)


def test_when_everything_is_stopped_no_failure_is_told() -> None:
    ledger = ledger_with(Mesh(), Mesh("k2"))
    ledger.all_stopped("the program ends")
    assert feed(ledger, failed(0), ended("p1")) == []
    failure = ledger.check("k2", [0])
    assert failure is not None and failure.stopped and "the program ends" in failure.report


class Counting(list[str]):
    """Addresses that count how often somebody walks over all of them."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()


def test_a_large_mesh_whose_processes_end_one_by_one_is_not_searched_for_each() -> None:
    addresses = Counting(f"p{rank}" for rank in range(1000))
    ledger = ledger_with(Mesh(addresses=addresses))
    walks = addresses.walks
    told = [ledger.process_ended(ended(f"p{rank}")) for rank in range(1000)]
    assert [len(effects) for effects in told] == [1] * 1000
    assert addresses.walks <= walks + 1
