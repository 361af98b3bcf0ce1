"""Who is told of what: every end of a rank, in every order, and what callers hear afterwards."""

from __future__ import annotations

import itertools
import pickle
import socket
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh import supervision
from monarch._mesh.supervision import Gone, Ledger, MeshFailure, Notify
from monarch._wire.message import Failure, ProcEnded


@dataclass
class Mesh:
    """Ranks 0 and 1 in process p0, 2 in p1, 3 in p2 unless said otherwise."""

    key: str = "k1"
    mesh_name: str = "workers"
    addresses: list[str] = field(default_factory=lambda: ["p0", "p0", "p1", "p2"])

    def display(self, rank: int) -> str:
        return f"<root>.<Worker workers {{'gpus': {rank}/4}}>"


def failed(*ranks: int, mesh: str = "k1") -> Failure:
    return Failure("it raised", mesh, "workers", list(ranks), "event")


def stopped(*ranks: int, mesh: str = "k1") -> Failure:
    return Failure("it was stopped", mesh, "workers", list(ranks), "event", stopped=True)


def ended(
    address: str,
    code: int = -9,
    stopped: bool = False,
    detail: str = "",
    tail: tuple[str, ...] = (),
    incarnation: int = 0,
    replaced: bool = False,
) -> ProcEnded:
    return ProcEnded(address, 4711, code, stopped, list(tail), detail, incarnation, replaced)


def ledger_with(*meshes: Mesh, owner: str = "client.0") -> Ledger:
    ledger = Ledger()
    for mesh in meshes or (Mesh(),):
        ledger.add(mesh, owner)
    return ledger


def feed(ledger: Ledger, *events: Failure | ProcEnded | str) -> list[tuple[str, list[int]]]:
    """Gives the events to the ledger (a text: the mesh is stopped, and why); who is told of which ranks."""
    told: list[Notify | Gone] = []
    for event in events:
        if isinstance(event, ProcEnded):
            told += ledger.process_ended(event)
        elif isinstance(event, Failure):
            told += ledger.actor_ended(event)
        else:
            ledger.mesh_stopped("k1", event)
    return [(one.owner, one.failure.crashed_ranks) for one in told if isinstance(one, Notify)]


# --- a scenario: what happens, which ranks the owner is told of, which cannot be called afterwards

ALL = [0, 1, 2, 3]
SCENARIOS: dict[str, tuple[list[Failure | ProcEnded | str], list[list[int]], list[int]]] = {
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
    "an actor fails, the mesh is stopped, its process killed": (
        [failed(2), "enough", ended("p0")],
        [[2]],
        ALL,
    ),
    "a report of two ranks": ([failed(0, 1)], [[0, 1]], [0, 1]),
    "a report of no rank": ([failed()], [], []),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    events, told, dead = SCENARIOS[name]
    ledger = ledger_with()
    assert feed(ledger, *events) == [("client.0", ranks) for ranks in told]
    for rank in ALL:
        assert (ledger.check("k1", [rank]) is not None) is (rank in dead)


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


@given(events)
def test_a_rank_is_told_of_at_most_once_and_never_after_a_stop(
    happened: list[Failure | ProcEnded | str],
) -> None:
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
    for view, text in (
        ([2, 0], "it raised"),
        ([0, 2], "exited with non-zero code 7"),
        ([3], "stopped: enough"),
    ):
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
    assert ledger.statistics() == {"meshes": 1, "ended_ranks": 1}
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
    assert isinstance(effect, Gone) and repr(effect) == "Gone('client.0', 'k1')"
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
        (ended("p0", -11), "Killed(sig=11)"),
        (ended("p0", 7), "exited with non-zero code 7"),
        (ended("p0", 0), "exited cleanly"),
        (ended("p0", 1, detail="no such program"), "no such program"),
    ],
)
def test_how_a_process_ended(end: ProcEnded, text: str) -> None:
    assert supervision.describe_exit(end) == text


def test_the_report_of_a_lost_process_names_actor_rank_process_and_its_last_words() -> None:
    end = ended("unix:/h/m.0", -9, tail=tuple(f"line {n}" for n in range(30)))
    failure = supervision.process_failure(Mesh(), end, [0, 1])
    report = failure.report
    for part in (
        "{'gpus': 0/4}",
        "Killed(sig=9)",
        "rank 0, 1 of workers",
        f"pid 4711 on {socket.gethostname()}, at unix:/h/m.0",
        "line 29",
        "line 10",
    ):
        assert part in report
    assert "line 9\n" not in report
    assert report.startswith("The actor <root>.<Worker workers {'gpus': 0/4}> and all its descendants have failed:\n")
    assert (failure.mesh, failure.mesh_name, failure.ranks, failure.stopped) == (
        "k1",
        "workers",
        [0, 1],
        False,
    )
    simulated = supervision.process_failure(Mesh(), ended("inproc:n/m.0"), [0]).report
    assert "last lines" not in simulated and "pid 4711, at inproc:n/m.0" in simulated


def test_an_ordinary_end_is_not_called_a_failure() -> None:
    clean = supervision.process_failure(Mesh(), ended("p1", 0), [2])
    assert clean.stopped and supervision.EXIT_CLEAN in clean.report and "failed" not in clean.report
    asked = supervision.process_failure(Mesh(), ended("p1", -15, stopped=True), [2])
    assert asked.stopped and "stopped: the process was stopped" in asked.report


def test_the_report_of_an_actor_keeps_the_whole_cause() -> None:
    failure = supervision.actor_failure("<root>.<A a>", "Traceback\n  File x\nValueError: bad\n", "k1", "workers", 3)
    assert failure.report.splitlines()[1:] == ["    Traceback", "      File x", "    ValueError: bad"]
    assert failure.event == "Supervision event: actor <root>.<A a> failed: ValueError: bad"
    assert failure.ranks == [3]
    assert supervision.actor_failure("a", "", "k", "m", 0).event.endswith("failed: ")


def test_the_report_of_an_owner_contains_its_childs() -> None:
    child = MeshFailure(failed(2))
    plain = supervision.unhandled_child("<root>.<P p>", child, "k2", "parents", 0)
    assert plain.report == "it raised"
    assert "did not handle a supervision event from its child. event" in plain.event
    during = supervision.unhandled_child("<root>.<P p>", child, "k2", "parents", 0, handling="Traceback\nKeyError: 1\n")
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
