"""What a process records of its calls, spans and metrics, in a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._runtime import recorder as recorders
from monarch._runtime.metrics import BOUNDS, SERIES, Metrics
from monarch._runtime.recorder import CALLED, HANDLED, SPAN, STATUS, Recorder
from monarch.actor import Actor, SupervisionError, concurrent_endpoint, endpoint, get_meter, span, this_host
from monarch.testing import InProcessCluster
from tests.support.threads import together


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    made = Recorder()
    monkeypatch.setattr(recorders, "active", made)
    yield made


class Worker(Actor):
    @endpoint
    def work(self) -> int:
        with span("part"), span("smaller part"):
            return 1

    @endpoint
    def fail(self) -> None:
        raise ValueError("no")

    @endpoint(instrument=False)
    def bare(self) -> None:
        pass

    @endpoint
    async def later(self) -> int:
        return 1


class Overlapping(Actor):
    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    @concurrent_endpoint
    async def wait(self) -> None:
        await self.may_end.wait()

    @concurrent_endpoint
    async def release(self) -> None:
        self.may_end.set()


class Internal(Worker):
    _is_system_actor = True


def events(recorder: Recorder, kind: int) -> list[tuple[Any, ...]]:
    return [event for event in recorder.events if event[0] == kind]


def test_a_call_is_one_event_at_each_end(recorder: Recorder) -> None:
    with InProcessCluster():
        actors = this_host().spawn_procs({"gpus": 2}).spawn("workers", Worker)
        actors.work.call().get()
        actors.bare.call().get()
        actors.later.call().get()
    called = events(recorder, CALLED)
    sent: list[Any] = [event[1] for event in called]
    assert [(*each[2:5], event[5]) for each, event in zip(sent, called, strict=True)] == [
        ("workers", "work", 0, False),
        ("workers", "bare", 0, False),
        ("workers", "later", 0, False),
    ]
    assert '"sizes":[2]' in sent[0][6][0]
    handled = events(recorder, HANDLED)
    assert sorted((event[2].method, event[7], event[8]) for event in handled) == [
        *[("bare", False, False)] * 2,
        *[("later", False, True)] * 2,
        *[("work", False, True)] * 2,
    ]
    for event in handled:
        arrived, started, ended = event[4:7]
        assert 0 < arrived <= started <= ended


def test_a_concurrent_endpoint_is_noted_once_at_its_end(recorder: Recorder) -> None:
    with InProcessCluster():
        actor = this_host().spawn_procs({"gpus": 1}).spawn("overlapping", Overlapping)
        waits = actor.wait.call_one()
        actor.release.call_one().get()
        waits.get()
    handled = {event[2].method: event for event in events(recorder, HANDLED)}
    assert sorted(handled) == ["release", "wait"] and len(events(recorder, HANDLED)) == 2
    assert handled["wait"][6] >= handled["release"][5]  # it ended after the other had begun


def test_spans_know_what_they_are_part_of(recorder: Recorder) -> None:
    with InProcessCluster():
        actor = this_host().spawn_procs({"gpus": 1}).spawn("worker", Worker)
        with span("outer"):
            actor.work.call_one().get()
    spans = {event[2]: event for event in events(recorder, SPAN)}
    (call,) = events(recorder, CALLED)
    assert call[1][8] == spans["outer"][1]  # the call is part of the span around it
    assert spans["smaller part"][5] == spans["part"][1]
    assert spans["part"][4].method == "work"
    assert spans["part"][3].endswith(".0")  # rank 0


def test_errors_and_failures_are_told_apart(recorder: Recorder) -> None:
    with InProcessCluster():
        actor = this_host().spawn_procs({"gpus": 1}).spawn("worker", Worker)
        with pytest.raises(Exception, match="no"):
            actor.fail.call_one().get()
        actor.stop().get()
        with pytest.raises(SupervisionError):
            actor.work.call_one().get()
    assert next((event[1][3], event[5]) for event in events(recorder, CALLED)) == ("fail", True)
    assert [event[7] for event in events(recorder, HANDLED)] == [False]  # the endpoint ran
    statuses = [event[2] for event in events(recorder, STATUS)]
    assert statuses == ["Created", "Initializing", "Idle", "Stopping", "Stopped"]


def test_the_runtimes_own_actors_are_left_out_unless_asked_for(recorder: Recorder) -> None:
    def run() -> int:
        recorder.events.clear()
        with InProcessCluster():
            this_host().spawn_procs({"gpus": 1}).spawn("internal", Internal).work.call().get()
        return sum(len(events(recorder, kind)) for kind in (CALLED, HANDLED, STATUS))

    assert run() == 0
    recorder.include_system = True
    assert run() > 0


def test_beyond_its_limit_it_drops_and_counts() -> None:
    recorder = Recorder(limit=3)
    for number in range(5):
        recorder.add((SPAN, number))
    assert (len(recorder.events), recorder.dropped) == (3, 2)
    assert recorder.take(2) == [(SPAN, 0), (SPAN, 1)]
    assert recorder.take(9) == [(SPAN, 2)]


def test_nothing_is_recorded_while_nobody_listens() -> None:
    assert recorders.active is None
    with span("nothing"):
        get_meter().create_gauge("level").set(1)


# --- metrics


def test_metrics_are_summed_until_they_are_taken(recorder: Recorder) -> None:
    meter = get_meter()
    jobs, level, time = meter.create_counter("jobs"), meter.create_gauge("level", "%"), meter.create_histogram("time")
    jobs.add(2, {"kind": 1})
    jobs.add(3.9, {"kind": "1"})
    jobs.add(1)
    meter.create_up_down_counter("open").add(-2)
    level.set(1)
    level.set(2)
    time.record(3)
    time.record(30_000)
    since, now, sums, distributions, values = recorder.metrics.take()
    assert since <= now
    assert sums == [("jobs", "", (("kind", "1"),), True, 5), ("jobs", "", (), True, 1), ("open", "", (), False, -2)]
    assert values == [("level", "%", (), 2.0)]
    (found,) = distributions
    assert found[:7] == ("time", "", (), 2, 30_003.0, 3.0, 30_000.0)
    assert found[7] == [0, 1, *[0] * (len(BOUNDS) - 2), 1]
    assert recorder.metrics.take()[2:] == ([], [], [])


def test_metrics_are_bounded() -> None:
    metrics = Metrics()
    for number in range(SERIES + 5):
        metrics.count("name", "", 1, {"number": number}, True)
    metrics.count("name", "", 1, {"number": 0}, True)
    metrics.observe("other", "", 1.0, None)
    _, _, sums, distributions, _ = metrics.take()
    assert (len(sums), len(distributions), metrics.dropped) == (SERIES, 0, 6)


def test_threads_may_measure_at_once() -> None:
    metrics = Metrics()

    def add() -> None:
        for _ in range(1000):
            metrics.count("name", "", 1, None, True)

    together(*[add] * 4)
    assert metrics.take()[2][0][4] == 4000
