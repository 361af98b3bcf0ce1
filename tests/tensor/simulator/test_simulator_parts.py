"""The parts of a simulation that are plain functions of numbers: communication, estimates, memory, clocks, graphs."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch.simulator import RuntimeEstimator, Task, TimingType, by_communication
from monarch.simulator import communication as links
from monarch.tensor import metadata
from monarch.tensor.simulator import machine as machines
from monarch.tensor.simulator.ir import IRGraph
from monarch.tensor.simulator.machine import AllocationLedger, SimulatedMachine, Team
from monarch.tensor.simulator.task import SimulatedCommand, TaskKind, Use
from monarch.tensor.simulator.trace_file import device_name, memory_view

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


# --- communication --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_of_one_rank_or_of_nothing_takes_no_time(name: str) -> None:
    assert links.collective_time(name, (1024,), torch.float32, 1) == 0
    assert links.collective_time(name, (), torch.float32, 8) == 0
    assert links.collective_time(name, (3, 0), torch.float32, 8) == 0


@given(st.sampled_from(COLLECTIVES), st.integers(1, 1 << 34), st.integers(0, 1 << 34), st.integers(2, 4096))
def test_more_bytes_never_take_less_time(name: str, size: int, more: int, ranks: int) -> None:
    times = [links.collective_time(name, (n,), torch.uint8, ranks) for n in (size, size + more)]
    assert 0 < times[0] <= times[1]
    assert 0 < links.send_time(size) <= links.send_time(size + more)


def test_large_messages_follow_the_bandwidth_and_small_ones_the_hops() -> None:
    gigabyte = (1_000_000_000,)
    assert links.collective_time("all_reduce", gigabyte, torch.uint8, 8) == pytest.approx(2e9 * 7 / 8 / 900)
    assert links.collective_time("reduce_scatter", gigabyte, torch.uint8, 8) == pytest.approx(1e9 * 7 / 8 / 900)
    assert links.collective_time("all_reduce", (1,), torch.uint8, 8) == 4 * 2_000
    assert links.collective_time("all_gather", (1,), torch.uint8, 8) == 7 * 2_000
    assert links.send_time(9e9) == pytest.approx(2_000 + 1e7)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_links_between_nodes_are_slower_and_only_all_to_all_contends(name: str) -> None:
    def share(ranks: int) -> float:
        """Bytes in a nanosecond, by what each rank sends."""
        sent = (2 if name == "all_reduce" else 1) * 1e12 * (ranks - 1) / ranks
        return sent / links.collective_time(name, (10**12,), torch.uint8, ranks)

    contention = 0.5 if name == "all_to_all" else 1.0
    assert share(8) == pytest.approx(900 * contention)
    assert share(9) == pytest.approx(50 * contention)
    assert links.send_time(1e9, same_node=False) > links.send_time(1e9)


def test_what_is_not_known_has_a_default() -> None:
    assert links.collective_time("gossip", (64,), torch.float32, 4) == links.collective_time(
        "all_reduce", (64,), torch.float32, 4
    )
    assert links.nbytes((3, 4), "a dtype") == 48
    assert links.nbytes((3, 4), torch.float64) == 96


# --- estimates ------------------------------------------------------------------------------------------------


def test_estimates_have_defaults_and_can_be_set() -> None:
    estimator = RuntimeEstimator()
    call = Task(TaskKind.CALL, "aten.mm", meta="slow")
    assert [estimator.get_runtime(kind, call) for kind in TimingType] == [10_000, 100_000, 100_000, 500, 500]
    assert estimator.get_runtime(TimingType.SEND_TENSOR, Task(TaskKind.SEND, "SendTensor", local=True)) == 1_000
    estimator.set_custom_timing(
        {TimingType.CALL_FUNCTION: lambda task: 7.4 if task.meta == "slow" else 1, TimingType.REDUCE: 3}
    )
    assert [estimator.get_runtime(kind, call) for kind in TimingType] == [7, 3, 100_000, 500, 500]
    assert RuntimeEstimator().get_runtime(TimingType.REDUCE, call) == 100_000


@pytest.mark.parametrize(
    ("timings", "error"),
    [
        ({TimingType.REDUCE: -1}, ValueError),
        ({TimingType.REDUCE: "long"}, TypeError),
        ({TimingType.REDUCE: True}, TypeError),
        ({TimingType.REDUCE: float("nan")}, ValueError),
        ({"lunch": 1}, ValueError),
    ],
)
def test_a_timing_that_makes_no_sense_is_refused(timings: Any, error: type[Exception]) -> None:
    estimator = RuntimeEstimator()
    with pytest.raises(error):
        estimator.set_custom_timing({TimingType.CALL_FUNCTION: 1, **timings})
    assert estimator.get_runtime(TimingType.CALL_FUNCTION, Task(TaskKind.CALL, "f")) == 10_000  # none of it was taken


def test_what_a_timing_function_gives_is_checked_too() -> None:
    estimator = RuntimeEstimator()
    estimator.set_custom_timing({TimingType.CALL_FUNCTION: lambda task: -3})
    with pytest.raises(ValueError, match="CALL_FUNCTION is -3"):
        estimator.get_runtime(TimingType.CALL_FUNCTION, Task(TaskKind.CALL, "f"))


def test_estimates_by_the_communication_model() -> None:
    estimator = RuntimeEstimator()
    estimator.set_custom_timing(by_communication())
    meta = metadata.contiguous((1000, 1000), torch.float32, "cpu")
    reduce = Task(TaskKind.REDUCE, "all_reduce", (meta, meta), peers=16)
    assert estimator.get_runtime(TimingType.REDUCE, reduce) == round(2 * links.all_reduce_time(4e6, 16))
    far = Task(TaskKind.SEND, "SendTensor", (meta,), same_node=False)
    assert estimator.get_runtime(TimingType.SEND_TENSOR, far) == round(links.send_time(4e6, same_node=False))


# --- memory ---------------------------------------------------------------------------------------------------


@st.composite
def lives(draw: Any) -> list[tuple[int, int, int]]:
    """Buffers as (allocated, freed or -1, bytes)."""
    made = []
    for _ in range(draw(st.integers(0, 12))):
        begin = draw(st.integers(0, 20))
        made.append((begin, draw(st.one_of(st.just(-1), st.integers(begin, 25))), draw(st.integers(1, 100))))
    return made


def there(buffers: list[tuple[int, int, int]], time: int) -> int:
    """Bytes just after `time`."""
    return sum(size for begin, end, size in buffers if begin <= time and not 0 <= end <= time)


@given(lives())
def test_the_peak_is_the_most_there_is_at_any_time(buffers: list[tuple[int, int, int]]) -> None:
    ledger = AllocationLedger()
    for number, (begin, _, size) in enumerate(buffers):
        ledger.add(begin, number, size)
    for number, (_, end, _) in enumerate(buffers):
        if end >= 0:
            ledger.free(end, number)
            ledger.free(end, number)  # not counted twice
    assert ledger.peak() == max((there(buffers, time) for time in range(26)), default=0)
    assert all(there(buffers, time) == total for time, total in ledger.timeline())
    left = there(buffers, 25)
    copy = ledger.copy()
    ledger.turn()
    assert (ledger.peak(), ledger.timeline(), sum(ledger.live.values())) == (left, [], left)
    assert copy.peak() == max((there(buffers, time) for time in range(26)), default=0)  # its own from then on


def test_many_changes_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "CHANGES", 10)
    ledger = AllocationLedger()
    ledger.add(0, -1, 5)
    for number in range(100):
        ledger.add(number, number, 7 if number == 3 else 1)
        ledger.free(number + 1, number)
    assert len(ledger.changes) <= 10
    assert (ledger.peak(), sum(ledger.live.values())) == (12, 5)


def test_a_memory_view_is_what_torch_draws() -> None:
    from torch.cuda import _memory_viz

    ledger = AllocationLedger()
    ledger.add(1_000, 1, 100, 1)
    ledger.add(2_000, 2, 600, 2)
    ledger.add(2_500, 1, 50, 3)  # it grew
    ledger.free(3_000, 1, 4)
    device: Any = SimpleNamespace(ledger=ledger)
    view = memory_view([device], lambda order: [{"filename": "a.py", "line": order, "name": "f"}])
    actions = [(entry["action"], entry["size"], entry["time_us"]) for entry in view["device_traces"][0]]
    freed = [
        ("free_requested", 100, 3),
        ("free_completed", 100, 3),
        ("free_requested", 50, 3),
        ("free_completed", 50, 3),
    ]
    assert actions == [("alloc", 100, 1), ("alloc", 600, 2), ("alloc", 50, 2), *freed]
    drawn = _memory_viz.trace(view)
    assert "7 entries" in drawn and drawn.count("# free completed") == 2
    assert _memory_viz.trace_plot(view)


# --- clocks ---------------------------------------------------------------------------------------------------


def spans(machine: SimulatedMachine, at: int = 0) -> list[tuple[int, int, str]]:
    return [(span.start, span.start + span.duration, span.name) for span in machine.devices[at].spans]


def test_a_stream_does_one_thing_after_the_other_and_not_before_it_was_told() -> None:
    machine = SimulatedMachine(2)
    team = Team(range(2))
    machine.launch(500)
    assert machine.run(team, 0, 1_000, "a", "CallFunction", 1) == 500
    assert machine.run(team, 0, 1_000, "b", "CallFunction", 2) == 1_500
    machine.run(team, 1, 100, "c", "CallFunction", 3)
    assert spans(machine) == [(500, 1_500, "a"), (1_500, 2_500, "b"), (500, 600, "c")]
    assert machine.turn() == (2_500, 0)
    machine.run(team, 1, 100, "d", "CallFunction", 4)
    assert spans(machine, 1) == [(2_500, 2_600, "d")]


def test_a_stream_waits_for_an_event_of_another() -> None:
    machine = SimulatedMachine(1)
    team = Team([0])
    machine.run(team, 0, 1_000, "a", "CallFunction", 1)
    machine.post(team, 0, 7)
    machine.run(team, 0, 1_000, "later", "CallFunction", 2)
    assert machine.wait(team, 1, 7, 500, {0: "main"}.__getitem__, 3) == 1_000
    assert spans(machine)[2:] == [(0, 1_000, "waiting for main"), (1_000, 1_500, "wait event")]
    assert not machine.devices[0].events


def test_a_collective_begins_when_the_last_rank_is_there() -> None:
    machine = SimulatedMachine(4)
    machine.run(Team([1]), 0, 900, "late", "CallFunction", 1)
    machine.collect(Team(range(4)), [[0, 1], [2, 3]], 0, 100, "all_reduce", "Reduce", 2)
    assert spans(machine, 0) == [(0, 900, "waiting for other ranks"), (900, 1_000, "all_reduce")]
    assert spans(machine, 1) == [(0, 900, "late"), (900, 1_000, "all_reduce")]
    assert spans(machine, 2) == spans(machine, 3) == [(0, 100, "all_reduce")]


def test_a_receiver_has_it_when_the_sender_does_and_not_before() -> None:
    machine = SimulatedMachine(3)
    machine.run(Team([0]), 0, 400, "a", "CallFunction", 1)
    machine.send(Team([0, 1]), 0, "move", {0: 100, 1: 10}, "SendTensor", "SendTensor", 2)
    machine.receive(Team([2, 1]), 0, "move", {2: 0, 1: 1}, "RecvTensor", "RecvTensor", 2)
    assert spans(machine, 0)[1:] == [(400, 500, "SendTensor")]
    assert spans(machine, 1) == [(0, 10, "SendTensor")]  # from itself: nothing to receive
    assert spans(machine, 2) == [(0, 400, "waiting for other ranks"), (400, 500, "RecvTensor")]


@st.composite
def histories(draw: Any) -> list[tuple[Any, ...]]:
    """Returns what eight ranks do: work, collectives, moves, events between two streams."""
    ranks = st.sets(st.integers(0, 7), min_size=1).map(sorted)
    streams, times = st.integers(0, 1), st.integers(0, 50)
    step = st.one_of(
        st.tuples(st.just("run"), ranks, streams, times),
        st.tuples(st.just("collect"), st.sampled_from([1, 2, 4, 8]), streams, times),
        st.tuples(st.just("move"), st.permutations(range(8)), streams, times),
        st.tuples(st.just("event"), ranks, streams, times),
        st.tuples(st.just("launch"), times),
        st.tuples(st.just("add"), ranks, streams, times),
    )
    return draw(st.lists(step, max_size=12))


def play(history: list[tuple[Any, ...]], grouped: bool) -> SimulatedMachine:
    machine = SimulatedMachine(8, grouped)
    for number, (what, *rest) in enumerate(history):
        if what == "launch":
            machine.launch(rest[0])
            continue
        who, stream, time = rest
        if what == "run":
            machine.run(Team(who), stream, time, "run", "CallFunction", number)
        elif what == "collect":
            members = [list(range(first, first + who)) for first in range(0, 8, who)]
            machine.collect(Team(range(8)), members, stream, time, "reduce", "Reduce", number)
        elif what == "move":
            machine.send(Team(range(8)), stream, number, dict.fromkeys(who[:4], time), "send", "SendTensor", number)
            machine.receive(Team(who[4:]), 0, number, dict(zip(who[4:], who[:4], strict=True)), "get", "Recv", number)
        elif what == "event":
            machine.post(Team(who), stream, number)
            machine.wait(Team(who), 1 - stream, number, time, str, number)
        else:
            for device in machine.cover(Team(who)):
                device.ledger.add(device.clock(stream), number, time + 1)
    return machine


@given(histories())
def test_ranks_in_groups_do_what_they_do_by_themselves(history: list[tuple[Any, ...]]) -> None:
    single, grouped = play(history, False), play(history, True)
    assert sorted(rank for device in grouped.devices for rank in device.ranks) == list(range(8))
    for device in grouped.devices:
        for rank in device.ranks:
            alone = single.device_of(rank)
            assert (device.spans, device.clocks, device.ledger.timeline()) == (
                alone.spans, alone.clocks, alone.ledger.timeline(),
            )  # fmt: skip
    assert single.turn() == grouped.turn()


@given(histories())
def test_spans_of_a_stream_do_not_overlap(history: list[tuple[Any, ...]]) -> None:
    for device in play(history, True).devices:
        for stream in (0, 1):
            own = [span for span in device.spans if span.stream == stream]
            assert all(one.start + one.duration <= other.start for one, other in itertools.pairwise(own))


def test_spans_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "SPANS", 3)
    machine = SimulatedMachine(1)
    for number in range(5):
        machine.run(Team([0]), 0, 10, "run", "CallFunction", number)
    assert (len(machine.devices[0].spans), machine.dropped, machine.turn()) == (3, 2, (50, 0))


def test_the_names_of_devices() -> None:
    assert device_name([3], False) == "Device 3"
    assert device_name([0, 1], True) == "Device 0 [0-1]"
    assert device_name([0, 2, 3, 4, 7], True) == "Device 0 [0,2-4,7]"


# --- graphs ---------------------------------------------------------------------------------------------------


def command(
    order: int, kind: TaskKind = TaskKind.CALL, reads: tuple[int, ...] = (), makes: tuple[int, ...] = (), **facts: Any
) -> SimulatedCommand:
    meta = metadata.contiguous((3, 3), torch.float32, "cpu")
    made = SimulatedCommand(
        order, order, kind, facts.pop("name", "aten.mm"), facts.pop("stream", "main"), facts.pop("ranks", (0, 1))
    )
    made.inputs = [Use(buffer, buffer, meta) for buffer in reads]
    made.outputs = [Use(buffer, buffer, meta) for buffer in makes]
    made.writes, made.freed = facts.pop("writes", ()), facts.pop("freed", ())
    made.duration = facts.pop("duration", 10)
    made.facts = facts
    return made


def graph(*commands: SimulatedCommand) -> IRGraph:
    made = IRGraph()
    for one in commands:
        made.add(one)
    return made


def test_edges_say_what_has_to_come_first() -> None:
    made = graph(
        command(1, makes=(1,)),
        command(2, reads=(1,), stream="other"),
        command(3, reads=(1,), writes=(1,), stream="third"),
        command(4, TaskKind.DELETE, reads=(1,), freed=(1,)),
        command(5, makes=(2,), ranks=(1, 2)),
    )
    assert made.edges == [(0, 1, "data"), (0, 2, "data"), (1, 2, "order"), (2, 3, "order"), (0, 4, "stream")]
    assert made.schedule() == [(0, 10), (10, 20), (20, 30), (30, 40), (10, 20)]


def test_keys_count_what_is_the_same_and_take_times() -> None:
    reduce = command(3, TaskKind.REDUCE, reads=(1,), name="reduce_scatter", peers=4)
    made = graph(
        command(1, makes=(1,), name="aten.randn"),
        command(2, reads=(1, 1), makes=(2,)),
        reduce,
        command(4, reads=(1, 2)),
    )
    assert made.command_types() == {
        "CallFunction:aten.randn:unknown": 1,
        "CallFunction:aten.mm:unknown": 2,
        "Reduce:reduce_scatter:unknown:4": 1,
    }
    assert "Reduce:reduce_scatter:(3x3):4" in made.command_types(shapes=True)
    assert made.import_timing({"CallFunction:aten.mm:(3x3),(3x3)": 70.2, "CallFunction:aten.mm:unknown": 1}) == 2
    assert [node.duration for node in made.nodes] == [10, 70, 10, 70]
    with pytest.raises(ValueError, match=r"no command .*: CallFunction:aten\.nm"):
        made.import_timing({"CallFunction:aten.nm:unknown": 1})
    with pytest.raises(ValueError, match="0 or more nanoseconds"):
        made.import_timing({"CallFunction:aten.mm:unknown": -1})


def test_a_file_of_command_types_is_one_of_timings(tmp_path: Any) -> None:
    made = graph(command(1, makes=(1,)), command(2, reads=(1,)))
    made.export_command_types(tmp_path / "types.json", shapes=True)
    assert made.import_timing(tmp_path / "types.json") == 2
    assert [node.duration for node in made.nodes] == [1, 1]  # the counts
    made.export_dag_json(tmp_path / "dag.json")
    made.export_dag_json_timed(tmp_path / "timed.json")
    plain, timed = (json.loads((tmp_path / name).read_text()) for name in ("dag.json", "timed.json"))
    assert plain["edges"] == timed["edges"] == [{"source": 0, "target": 1, "type": "data"}]
    assert "end" not in plain["nodes"][1] and timed["nodes"][1]["end"] == 2
