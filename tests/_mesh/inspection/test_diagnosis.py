"""Tests of what is found to be wrong, of what processes have answered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from monarch._mesh.failures.activity import RunningHandler, WaitEdge
from monarch._mesh.inspection.collectives import GroupState
from monarch._mesh.inspection.diagnosis import Diagnosis, Evidence, Finding, ProgramSample, diagnose, mesh_in
from monarch._mesh.inspection.host_usage import HostUsage, ProcessUsage
from monarch._mesh.inspection.small_answers import FailureNote
from monarch._mesh.inspection.stack_records import HOW_SIGNAL, ProcessStacks, StackFrame, ThreadStack
from monarch._mesh.inspection.stacks_of_program import Stacks
from monarch._mesh.inspection.wait_graph import WaitGraph
from tests.support.hostile import NAME, fit

GB = 1 << 30
STEP = [
    StackFrame("/srv/train.py", 88, "step"),
    StackFrame("/x/site-packages/torch/distributed/c10d.py", 3252, "all_reduce"),
]
LOAD = [StackFrame("/srv/data.py", 31, "load")]


def address(rank: int) -> str:
    return f"unix:/run/x/uid.{rank}"


def process(rank: int, frames: list[StackFrame], seconds: float = 41.0, **more: Any) -> ProcessStacks:
    state = more.pop("state", "S")
    idle = not frames
    stack = ThreadStack(
        "t", 7, frames, "trainers", "key", rank, "" if idle else "train", seconds, idle=idle, state=state
    )
    return ProcessStacks(address(rank), "node1", 100 + rank, "workers", rank, [stack], **more)


def group(
    rank: int, begun: int, operation: str = "all_reduce", running: bool | None = None, size: int = 4
) -> GroupState:
    running = begun == 118 if running is None else running
    return GroupState("h:1", "0", "dp", list(range(size)), rank, begun, operation, [1024], running)


def usage(rank: int, letter: str = "S", resident: int = GB, restarts: int = 0) -> ProcessUsage:
    return ProcessUsage(address(rank), 100 + rank, "workers", rank, "running", "", letter, resident, 3.0, 4, restarts)


def host(*processes: ProcessUsage, available: int = 50 * GB) -> HostUsage:
    return HostUsage("unix:/run/x", "node1", 1, 100 * GB, available, 1.0, list(processes))


def found(
    processes: list[ProcessStacks],
    *,
    before: list[ProcessStacks] | None = None,
    groups: list[GroupState] = [],  # noqa: B006
    groups_before: list[GroupState] | None = None,
    by_address: dict[str, list[GroupState]] | None = None,
    silent: dict[str, str] | None = None,
    waits: WaitGraph | None = None,
    hosts: list[HostUsage] | None = None,
    unreachable: dict[str, str] | None = None,
    failures: list[FailureNote] | None = None,
) -> Diagnosis:
    if before is None:  # nothing has moved for a second
        before = [
            msgspec.structs.replace(p, threads=[msgspec.structs.replace(s, seconds=s.seconds - 1) for s in p.threads])
            for p in processes
        ]
    told = _by_address(groups) if by_address is None else by_address
    first = ProgramSample(Stacks(before, {}), told if groups_before is None else _by_address(groups_before))
    second = ProgramSample(Stacks(processes, silent or {}), told)
    if hosts is None:
        hosts = [host(*(usage(p.rank) for p in processes))]
    nothing = WaitGraph([], [], {})
    return diagnose(Evidence(first, second, 1.0, waits or nothing, hosts, unreachable or {}, failures or []))


def _by_address(groups: list[GroupState]) -> dict[str, list[GroupState]]:
    return {address(state.rank): [state] for state in groups}


# --- programs that are well


@pytest.mark.parametrize("frames", [[], STEP, LOAD])
def test_ranks_that_are_all_at_one_place(frames: list[StackFrame]) -> None:
    assert found([process(rank, frames) for rank in range(8)]).findings == []


def test_what_moves_is_at_work() -> None:
    now = [process(rank, STEP) for rank in range(7)] + [process(7, LOAD)]
    before = [*now[:7], process(7, [StackFrame("/srv/data.py", 12, "load")])]
    assert found(now, before=before).findings == []


def test_a_call_that_has_just_begun_is_no_straggler() -> None:
    assert found([*(process(rank, []) for rank in range(7)), process(7, LOAD, seconds=1.2)]).findings == []


def test_a_new_call_at_the_same_line_is_at_work() -> None:
    now = [*(process(rank, []) for rank in range(7)), process(7, LOAD, seconds=6.0)]
    before = [*now[:7], process(7, LOAD, seconds=90.0)]
    assert found(now, before=before).findings == []


def test_a_group_that_goes_on() -> None:
    processes = [process(rank, STEP) for rank in range(3)] + [process(3, LOAD)]
    groups = [group(rank, 118) for rank in range(3)] + [group(3, 117)]
    before = [group(rank, 90) for rank in range(4)]
    assert all(
        finding.kind != "collective" for finding in found(processes, groups=groups, groups_before=before).findings
    )


def test_a_collective_that_has_ended_waits_for_nobody() -> None:
    processes = [process(rank, STEP) for rank in range(4)]
    groups = [group(rank, 118, running=False) for rank in range(3)] + [group(3, 117, running=False)]
    assert found(processes, groups=groups).findings == []


def test_an_empty_program() -> None:
    diagnosis = found([])
    assert str(diagnosis) == "nothing is wrong that can be seen from outside (0 processes looked at)"


# --- collectives


def test_the_rank_that_has_not_entered_a_collective() -> None:
    processes = [process(rank, STEP) for rank in range(3)] + [process(3, LOAD)]
    groups = [group(rank, 118) for rank in range(3)] + [group(3, 117, "broadcast")]
    (finding,) = found(processes, groups=groups).findings
    assert finding.title == (
        "ranks 0-2 wait in all_reduce #118 of group dp; rank 3 has not entered it (at data.py:31 in load(), for 41.0 s)"
    )
    assert "ranks 0-2: at train.py:88 in step(), in all_reduce(), for 41.0 s" in finding.evidence
    assert "rank 3 has begun 117 collectives of that group, the last broadcast" in finding.evidence
    assert (finding.kind, finding.mesh, finding.ranks) == ("collective", "workers", [3])
    assert "monarch stacks 3 --locals" in finding.advice


def test_a_rank_of_which_nothing_is_known_has_not_entered_it_either() -> None:
    processes = [process(rank, STEP) for rank in range(3)]
    hosts = [host(*(usage(rank) for rank in range(4)))]
    (finding,) = found(processes, groups=[group(rank, 118) for rank in range(3)], hosts=hosts).findings
    assert "rank 3 has not entered it (rank 3: no answer)" in finding.title


# --- groups of which a rank has died: rank 2 of four, in the midst of backward()

BACKWARD = [
    StackFrame("/srv/train.py", 88, "step"),
    StackFrame("/x/site-packages/torch/autograd/graph.py", 829, "backward"),
]
WAITS = "rank 0 waits in the group that died with it"


def after_a_death(
    first: dict[int, list[StackFrame]], told: list[GroupState], restarts: int | None = 1, **more: Any
) -> list[Finding]:
    """`first`: where the ranks are that are not idle. `restarts` None: rank 2 was not restarted."""
    living = [rank for rank in range(4) if rank != 2 or restarts is not None]
    processes = [process(rank, first.get(rank, [])) for rank in living]
    usages = [usage(rank, restarts=restarts or 0 if rank == 2 else 0) for rank in living]
    groups = {address(rank): [state for state in told if state.rank == rank] for rank in living}
    return found(processes, by_address=groups, hosts=[host(*usages)], **more).findings


@pytest.mark.parametrize("begun", [28, 0])  # torch numbers nothing of what DDP begins with gloo
def test_a_rank_that_waits_in_a_group_whose_rank_was_restarted(begun: int) -> None:
    old = [group(rank, begun, running=True) for rank in (0, 1, 3)]
    (finding,) = after_a_death({0: BACKWARD}, old)
    assert finding.title == f"rank 2 was restarted; {WAITS}"
    at, left = finding.evidence
    assert at == "rank 0: at train.py:88 in step(), in backward(), for 41.0 s" and left.startswith("ranks 1, 3: idle")
    assert (finding.kind, finding.mesh, finding.ranks) == ("collective", "workers", [0])
    assert "restart rank 0 (procs.restart(...)), then setup_torch_distributed(procs)" in finding.advice


def test_the_others_are_in_a_new_group_already() -> None:
    old = [group(0, 28, running=True)]
    new = [GroupState("h:2", "0", "dp", [0, 1, 2, 3], rank, 0) for rank in (1, 2, 3)]
    (finding,) = after_a_death({0: BACKWARD}, [*old, *new])
    assert finding.title == f"rank 2 was restarted; {WAITS}"
    assert finding.evidence == ["rank 0: at train.py:88 in step(), in backward(), for 41.0 s"]


def test_a_rank_that_has_ended_and_was_not_restarted() -> None:
    (finding,) = after_a_death({0: STEP}, [group(rank, 28, running=True) for rank in (0, 1, 3)], None)
    assert finding.title == f"rank 2 has ended; {WAITS}"


def test_nobody_waits_in_a_group_that_has_died() -> None:
    assert after_a_death({}, [group(rank, 28, running=True) for rank in (0, 1, 3)]) == []


def test_what_moves_in_a_group_that_has_died_is_on_its_way_out() -> None:
    before = [process(rank, STEP[1:] if rank == 0 else []) for rank in range(4)]
    assert after_a_death({0: STEP}, [group(0, 28, running=True)], before=before) == []


def test_a_rank_that_was_restarted_before_the_group_was_made_is_in_it() -> None:
    states = [group(rank, 28, running=True) for rank in range(4)]
    assert after_a_death(dict.fromkeys(range(4), STEP), states) == []


def test_a_rank_that_has_told_nothing_of_its_groups_need_not_have_been_restarted() -> None:
    states = {address(rank): [group(rank, 118)] for rank in (0, 1, 3)}
    hosts = [host(*(usage(rank, restarts=int(rank == 2)) for rank in range(4)))]
    (finding,) = found([process(rank, STEP) for rank in range(4)], by_address=states, hosts=hosts).findings
    assert "rank 2 has not entered it (rank 2: no answer)" in finding.title


def test_ranks_that_a_collective_has_failed_do_not_wait_in_it() -> None:
    groups = [group(rank, 118, running=True) for rank in range(3)] + [group(3, 117)]
    processes = [process(0, STEP), process(1, []), process(2, []), process(3, LOAD)]
    (finding,) = [each for each in found(processes, groups=groups).findings if each.kind == "collective"]
    assert finding.title.startswith("rank 0 waits in all_reduce #118 of group dp; rank 3 has not entered it")


def test_different_collectives_at_the_same_time() -> None:
    processes = [process(rank, STEP) for rank in range(4)]
    groups = [group(rank, 118) for rank in range(3)] + [group(3, 118, "broadcast")]
    (finding,) = found(processes, groups=groups).findings
    assert (
        finding.title
        == "the ranks of group dp are in different collectives #118: ranks 0-2 in all_reduce, rank 3 in broadcast"
    )


def test_without_a_recorder_the_stacks_say_who_is_inside() -> None:
    bare = [GroupState("h:1", "0", "dp", [0, 1], rank, 118 - rank, "", [], None) for rank in range(2)]
    (finding,) = found([process(0, STEP), process(1, LOAD)], groups=bare).findings
    assert finding.title.startswith(
        "rank 0 waits in collective #118 of group dp; rank 1 has not entered it (at data.py:31"
    )
    assert found([process(0, LOAD), process(1, LOAD)], groups=bare).findings == []


# --- stragglers


def test_a_rank_that_is_not_where_the_others_are() -> None:
    (finding,) = found([*(process(rank, STEP) for rank in range(63)), process(63, LOAD)]).findings
    assert (
        finding.title == "rank 63 of trainers is not where the others are: rank 63 at data.py:31 in load() for 41.0 s"
    )
    assert finding.evidence[0] == "63 of 64 ranks: at train.py:88 in step(), in all_reduce()"
    assert (finding.kind, finding.ranks) == ("straggler", [63])


def test_all_others_have_returned() -> None:
    (finding,) = found([*(process(rank, []) for rank in range(3)), process(3, LOAD)]).findings
    assert finding.evidence[0] == "3 of 4 ranks: idle"


def test_one_that_has_nothing_to_do_is_no_straggler() -> None:
    assert found([*(process(rank, STEP) for rank in range(7)), process(7, [])]).findings == []


def test_of_two_ranks_none_is_late() -> None:
    assert found([process(0, STEP), process(1, LOAD)]).findings == []


# --- processes and hosts


def test_a_stopped_process() -> None:
    stopped = "it is stopped (SIGSTOP or Ctrl-Z); `kill -CONT` lets it run again"
    hosts = [host(usage(0), usage(1, letter="T"))]
    (finding,) = found([process(0, STEP)], silent={address(1): stopped}, hosts=hosts).findings
    assert finding.title == "rank 1 of workers is stopped (SIGSTOP or Ctrl-Z)"
    assert finding.advice == "`kill -CONT 101` on node1 lets it run again"


def test_a_process_whose_interpreter_is_held() -> None:
    wedged = process(1, LOAD, how=HOW_SIGNAL, why="did not answer within 2 s")
    (finding,) = found([process(0, []), wedged]).findings
    assert finding.title == (
        "rank 1 of workers does not answer: native code holds its interpreter lock, at data.py:31 in load()"
    )
    assert "monarch stacks 1 --native" in finding.advice


def test_a_process_of_which_nothing_can_be_had() -> None:
    hosts = [host(usage(0), usage(1, letter="D"))]
    (finding,) = found([process(0, [])], silent={address(1): "it wrote nothing"}, hosts=hosts).findings
    assert finding.kind == "silent"
    assert "waits in the kernel for a device" in finding.evidence[0]


def test_a_thread_in_the_kernel() -> None:
    (finding,) = found([process(0, LOAD, state="D")]).findings
    assert finding.kind == "device"
    assert "at data.py:31 in load()" in finding.title


def test_little_memory() -> None:
    hosts = [host(usage(0, resident=60 * GB), usage(1), available=GB)]
    (finding,) = found([process(0, []), process(1, [])], hosts=hosts).findings
    assert finding.title == "host node1 has 1.0 GiB of its 100.0 GiB of memory left"
    assert finding.evidence[0] == "rank 0 of workers (pid 100) has 60.0 GiB"


def test_what_has_failed_and_hosts_that_are_gone() -> None:
    diagnosis = found(
        [], failures=[FailureNote("trainers", [2], "killed\n\nby signal 9")], unreachable={"tcp://n2/agent": "?"}
    )
    assert [finding.kind for finding in diagnosis.findings] == ["failed", "unreachable"]
    assert diagnosis.findings[0].evidence == ["killed", "by signal 9"]
    assert "2 things are wrong" in str(diagnosis)


# --- who waits


def edge(who: str, rank: int, target: str, ranks: list[int], doing: str = "ask", seconds: float = 30.0) -> WaitEdge:
    return WaitEdge(
        who, rank, "node1", 1, address(rank), doing, target, ranks, len(ranks), seconds, True, "/a.py", 1, "f"
    )


def test_a_circle_of_waits_with_limits() -> None:
    a, b = "<root>.<app.Plain a{'gpus': 0/2}>", "<root>.<app.Plain b>"
    edges = [edge(a, 0, "b.ask", [0]), edge(b, 0, "a.ask", [0]), edge("<root>", 0, "a.ask", [0], "")]
    (finding,) = found([], waits=WaitGraph(edges, [], {})).findings
    assert finding.title == "2 actors wait for each other: a[0] -> b[0] -> a[0]"
    assert found([], waits=WaitGraph(edges[1:], [], {})).findings == []


def async_ranks(*ranks: int, is_async: bool = True) -> WaitGraph:
    who = "<root>.<app.T trainers{'gpus': %d/4}>"
    running = [
        RunningHandler(who % rank, rank, "n", 1, address(rank), "train", 41.0, "/d.py", 3, "g", 2, is_async)
        for rank in ranks
    ]
    return WaitGraph([], running, {})


def test_an_async_endpoint_that_sleeps_without_an_await_is_named() -> None:
    (finding,) = found([process(0, LOAD), process(1, LOAD)], waits=async_ranks(0, 1)).findings
    assert (finding.kind, finding.ranks) == ("blocking", [0, 1])
    assert finding.title == (
        "ranks 0-1 of trainers sleep in an async endpoint, train() at data.py:31 in load(), for 41.0 s, without an await: "
        "nothing else of the actor runs until that returns. Await something there (asyncio.sleep() for time.sleep(), "
        "asyncio.to_thread() for what blocks), or make it a plain def"
    )
    assert finding.evidence == ["no move in 1.0 s, and the thread sleeps", "2 messages wait behind it"]


@pytest.mark.parametrize(
    ("ranks", "waits"),
    [
        ([process(0, LOAD)], async_ranks(0, is_async=False)),
        ([process(0, LOAD, seconds=4.0)], async_ranks(0)),
        ([process(0, LOAD, state="R")], async_ranks(0)),
        ([process(0, STEP)], async_ranks(0)),  # others come to the collective, or that is another finding
    ],
)
def test_what_may_take_its_time_blocks_nothing(ranks: list[ProcessStacks], waits: WaitGraph) -> None:
    assert found(ranks, waits=waits).findings == []


def test_who_waits_and_where_those_are() -> None:
    handler = RunningHandler(
        "<root>.<app.T trainers{'gpus': 3/4}>", 3, "n", 1, address(3), "train", 41.0, "/d.py", 3, "g", 2
    )
    waits = WaitGraph([edge("<root>", 0, "trainers.train", [3], "")], [handler], {})
    notes = found([*(process(rank, []) for rank in range(3)), process(3, LOAD)], waits=waits).notes
    assert notes == [
        "the endpoint that has run longest: trainers.train() of rank 3 for 41.0 s, at d.py:3 in g, 2 messages wait behind it",
        "the program has waited for trainers.train() for 30.0 s: rank 3 at data.py:31 in load()",
    ]


@pytest.mark.parametrize(
    ("who", "mesh"),
    [("<root>.<a.b.C t{'gpus': 0/6}>", "t"), ("<root>.<C my-mesh>", "my-mesh"), ("<root>", "<root>"), ("odd", "odd")],
)
def test_the_mesh_in_an_actors_name(who: str, mesh: str) -> None:
    assert mesh_in(who) == mesh


def test_pages_are_bounded() -> None:
    failures = [FailureNote(f"m{n}", [0], "\n".join("x" * 50 for _ in range(100))) for n in range(50)]
    assert len(str(found([], failures=failures)).splitlines()) < 200


def test_names_of_the_program_add_no_line() -> None:
    def shown(name: str) -> str:
        return str(Diagnosis([Finding("failed", name, [name, name], name)], [name], 1))

    assert fit(shown(NAME))
    assert len(shown(NAME).splitlines()) == len(shown("name").splitlines())
