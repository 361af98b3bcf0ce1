"""Tests of what a process records of its calls, spans and metrics, in a cluster in memory."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._mesh.inspection.recording import _Logs
from monarch._runtime import log_tap
from monarch._runtime import recorder as recorders
from monarch._runtime.metrics import ATTRIBUTES, BOUNDS, LONGEST, SERIES, Metrics
from monarch._runtime.recorder import ACTOR, CALLED, HANDLED, LOG, SPAN, STATUS, TEXT, Recorder
from monarch._text import NAME_LIMIT
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


def lives(recorder: Recorder) -> dict[str, list[str]]:
    """Returns the statuses of each actor but the client's, by its mesh."""
    names = {event[1]: event[3] for event in events(recorder, ACTOR)}
    found: dict[str, list[str]] = {name: [] for name in names.values()}
    for event in events(recorder, STATUS):
        if event[1] in names:
            found[names[event[1]]].append(event[2])
    return found


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
    assert lives(recorder) == {"worker": ["Created", "Initializing", "Idle", "Stopping", "Stopped"]}


class Failing(Actor):
    def __init__(self, at_once: bool = False) -> None:
        if at_once:
            raise ValueError("at once")

    @endpoint
    def fail(self) -> None:
        raise ValueError("unheard")


class FailingAsync(Failing):
    @endpoint
    async def fail(self) -> None:
        raise ValueError("unheard")


@pytest.mark.parametrize("cls", [Failing, FailingAsync])
def test_an_actor_that_fails_stops_before_it_has_failed(recorder: Recorder, cls: type[Failing]) -> None:
    with InProcessCluster() as cluster:
        procs = this_host().spawn_procs({"gpus": 1})
        procs.spawn("failing", cls).fail.broadcast()
        cluster.next_failure()
        procs.spawn("unborn", cls, True).initialized.exception()
        cluster.next_failure()
    assert lives(recorder) == {
        "failing": ["Created", "Initializing", "Idle", "Stopping", "Failed"],
        "unborn": ["Created", "Initializing", "Stopping", "Failed"],
    }
    for status, reason in [event[2:4] for event in events(recorder, STATUS) if event[2] in ("Stopping", "Failed")]:
        assert "ValueError" in reason, status


def test_the_client_is_at_work_until_a_mesh_has_stopped(recorder: Recorder) -> None:
    with InProcessCluster():
        procs = this_host().spawn_procs({"gpus": 2})
        procs.spawn("workers", Worker).stop("that was all").get()
        told = [event[2:5] for event in events(recorder, STATUS) if event[1].startswith("client")]
        procs.spawn("internal", Internal).stop().get()
    assert told == [
        ("Processing", "stops workers: that was all", "Client"),
        ("Client", "workers has stopped", "Processing"),
    ]
    assert len([event for event in events(recorder, STATUS) if event[1].startswith("client")]) == 2


def test_a_call_tells_whom_it_was_sent_to(recorder: Recorder) -> None:
    def place(*labels: str, offset: int = 0, sizes: tuple[int, ...] = (), strides: tuple[int, ...] = ()) -> Any:
        return {"labels": [*labels], "slice": {"offset": offset, "sizes": [*sizes], "strides": [*strides]}}

    with InProcessCluster():
        workers = this_host().spawn_procs({"hosts": 1, "workers": 3}).spawn("workers", Worker)
        workers.work.call().get()
        workers.slice(workers=slice(1, 3)).work.broadcast()
        workers.slice(workers=2).work.call_one().get()
        workers.slice(hosts=0, workers=2).work.call_one().get()
        for _ in range(20):
            workers.work.choose().get()
    found = [tuple(json.loads(text) for text in event[1][6]) for event in events(recorder, CALLED)]
    assert found[:4] == [
        (place("hosts", "workers", sizes=(1, 3), strides=(3, 1)),) * 2,
        (
            place("hosts", "workers", offset=1, sizes=(1, 2), strides=(3, 1)),
            place("hosts", "workers", sizes=(1, 2), strides=(2, 1)),
        ),
        (place("hosts", offset=2, sizes=(1,), strides=(3,)), place("hosts", sizes=(1,), strides=(1,))),
        (place(offset=2), place()),
    ]
    assert len(found) == 24 and {shown["slice"]["offset"] for shown, _ in found[4:]} <= {0, 1, 2}
    assert all((shown["labels"], shape) == ([], place()) for shown, shape in found[4:])


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


def test_texts_that_wait_are_bounded_and_have_room_again_when_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "TEXTS", 100)
    recorder = Recorder()
    for _ in range(3):
        recorder.log("name", "INFO", "x" * 40)
    recorder.add((CALLED, "of no text"))
    assert (len(recorder.events), recorder.dropped, recorder.texts) == (3, 1, 88)
    first, second, _ = taken = recorder.take(9)
    assert (len(taken), recorder.texts) == (3, 0)
    recorder.put_back([first, second])
    assert recorder.texts == 88 and recorder.take(9) == [first, second] and recorder.texts == 0


class Rude:
    def __str__(self) -> str:
        raise ValueError("no")


class RudeError(ValueError):
    def __str__(self) -> str:
        raise KeyError("no")


class Phase(enum.StrEnum):
    FORWARD = "forward"


def test_a_span_never_fails_for_what_is_recorded_of_it(recorder: Recorder) -> None:
    with span(Phase.FORWARD), span("caf\udce9"), span("x" * 20_000):
        pass
    with pytest.raises(RudeError), span("fails"):
        raise RudeError
    *names, failed = events(recorder, SPAN)
    long, cafe, forward = (event[2] for event in names)
    assert (forward, type(forward), cafe, len(long)) == ("forward", str, "caf\\udce9", NAME_LIMIT)
    assert failed[9] == "RudeError: <RudeError whose str() raised KeyError>"


def test_logging_never_fails_for_what_is_recorded_of_it(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.recorder." + "n" * 2_000)
    logs = _Logs(recorder)
    log_tap.add(logs)
    caplog.set_level(logging.INFO, logger.name)
    monkeypatch_raise = logging.raiseExceptions
    logging.raiseExceptions = False  # what Python's own handlers make of the texts below is not asked here
    try:
        made = logging.makeLogRecord({"msg": "of another process"})
        for text in ("caf\udce9", "x" * 1_000_000, Rude(), RudeError()):
            with contextlib.suppress(ValueError, KeyError):  # of pytest's handler
                logger.info(text)
        with contextlib.suppress(ValueError, KeyError):
            logger.error("failed", exc_info=RudeError())
    finally:
        logging.raiseExceptions = monkeypatch_raise
        log_tap.remove(logs)
    assert made.msg == "of another process"
    recorded = events(recorder, LOG)
    texts = [event[3] for event in recorded]
    assert [texts[0], len(texts[1]), *texts[2:]] == [
        "caf\\udce9",
        TEXT,
        "<Rude whose str() raised ValueError>",
        "<RudeError whose str() raised KeyError>",
        "failed\nRudeError: <RudeError whose str() raised KeyError>",
    ]
    assert {len(event[1]) for event in recorded} == {NAME_LIMIT}


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


def test_measuring_never_fails_for_its_attributes() -> None:
    metrics = Metrics()
    metrics.set("level", "", 1.0, {"rude": Rude(), "caf\udce9": "y" * 10**6})
    metrics.set("many", "", 1.0, dict.fromkeys(range(1_000), 1))
    metrics.count("sum", "", 2**62, None, True)
    for _ in range(2):
        metrics.count("sum", "", 2**62, None, True)  # beyond what a column holds
    *_, sums, _, values = metrics.take()
    (_, _, ((cafe, long), rude), _), (_, _, many, _) = values
    assert (cafe, len(long), rude) == ("caf\\udce9", LONGEST, ("rude", "<Rude whose str() raised ValueError>"))
    assert len(many) == ATTRIBUTES
    assert (sums, metrics.dropped) == ([("sum", "", (), True, 2**62)], 2)


def test_threads_may_measure_at_once() -> None:
    metrics = Metrics()

    def add() -> None:
        for _ in range(1000):
            metrics.count("name", "", 1, None, True)

    together(*[add] * 4)
    assert metrics.take()[2][0][4] == 4000
