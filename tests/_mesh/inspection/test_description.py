"""Tests of what processes and host agents tell of themselves, on an in-process cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from monarch._mesh.inspection import survey
from monarch._mesh.inspection.description import ActorFacts, ProcessFacts, SettingFacts, TreeRequest
from monarch._mesh.inspection.host_description import HostFacts
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._runtime.flight_recorder import KEPT, TEXT, FlightRecorder
from monarch.actor import Actor, ActorAddr, ActorError, ActorMesh, concurrent_endpoint, context, endpoint, this_host
from monarch.config import configured
from monarch.testing import InProcessCluster, Local
from tests.support.actors import Gate
from tests.support.patience import TIMEOUT
from tests.support.threads import together


class Worker(Actor):
    @endpoint
    def name(self) -> str:
        return str(context().actor_instance.actor_id)

    @endpoint
    def hold(self, gate: Local[Gate]) -> None:
        gate.value.stand()

    @endpoint
    def wait_for(self, other: Any, gate: Local[Gate]) -> None:
        other.hold.call(gate).get(TIMEOUT)

    @endpoint
    def fail(self) -> None:
        raise ValueError("on purpose")


class Looped(Actor):
    @concurrent_endpoint
    async def hold(self, gate: Local[Gate]) -> None:
        await asyncio.to_thread(gate.value.stand)


def asked(ask: TreeRequest | None = None, **options: Any) -> SurveyAnswers:
    argument = b"" if ask is None else msgspec.msgpack.encode(ask)
    return survey.ask("tree", argument, timeout=TIMEOUT, **options).get(TIMEOUT)


def processes(ask: TreeRequest | None = None) -> dict[str, ProcessFacts]:
    """By name, such as workers-0<uid>."""
    found = [msgspec.msgpack.decode(body, type=ProcessFacts) for body in asked(ask).replies.values()]
    return {facts.id: facts for facts in found}


def actor(name: str, ask: TreeRequest | None = None) -> ActorFacts:
    every = [one for facts in processes(ask).values() for one in (*facts.actors, *facts.stopped)]
    (found,) = [one for one in every if one.name == name]
    return found


def until(name: str, true: Callable[[ActorFacts], bool]) -> ActorFacts:
    """Counts are made after the answer is sent: asks until it is so."""
    end = time.monotonic() + TIMEOUT
    while not true(facts := actor(name)):
        assert time.monotonic() < end, facts
    return facts


def spawned(name: str = "worker") -> ActorMesh[Worker]:
    mesh = this_host().spawn_procs(name="workers").spawn(name, Worker)
    mesh.name.call_one().get(TIMEOUT)
    return mesh


def test_an_actor_that_is_idle(cluster: InProcessCluster) -> None:
    worker = spawned()
    facts = until("worker", lambda facts: facts.processed == 1)
    assert facts.id == worker.name.call_one().get(TIMEOUT)
    assert (facts.status, facts.endpoint, facts.queue) == ("idle", "name", 0)
    assert facts.cls.endswith("Worker") and not facts.system
    assert facts.busy >= 0 and facts.peak <= 1
    assert facts.failure is None and facts.handlers == []


def test_a_name_with_angle_brackets_has_an_identifier_that_can_be_read(cluster: InProcessCluster) -> None:
    name = "<b>x</b>"
    worker = this_host().spawn_procs(name=name).spawn(name, Worker)
    there = ActorAddr.from_string(worker.name.call_one().get(TIMEOUT))
    facts = actor(name)
    assert facts.id == str(there) and facts.name == name
    assert (there.label, there.proc_label) == ("(b)x(/b)", "(b)x(/b)-0")


def test_the_client_is_an_actor_of_its_own_process(cluster: InProcessCluster) -> None:
    facts = processes()["client"]
    assert [(one.name, one.status) for one in facts.actors] == [("root", "client")]
    assert facts.command and facts.user
    assert facts.rss > 0 and facts.vm > facts.rss


def test_who_owns_an_actor(cluster: InProcessCluster) -> None:
    spawned()
    root = processes()["client"].actors[0]
    facts = actor("worker")
    assert (facts.owner, facts.owner_proc) == (root.unique, processes()["client"].address)


def test_an_endpoint_that_runs_and_messages_that_wait(gate: Gate) -> None:
    worker = spawned()
    held = worker.hold.call_one(Local(gate))
    gate.reached()
    waiting = [worker.name.call_one() for _ in range(5)]
    facts = until("worker", lambda facts: facts.queue == 5)
    assert (facts.status, facts.handling) == ("processing", 1)
    assert facts.detail.startswith("hold for ") and facts.detail.endswith("ms")
    assert [handler.endpoint for handler in facts.handlers] == ["hold"]
    gate.open()
    for future in (held, *waiting):
        future.get(TIMEOUT)
    facts = actor("worker")
    assert facts.peak == 5 and facts.status == "idle" and facts.queue == 0


def test_concurrent_endpoints_are_counted_by_name(cluster: InProcessCluster) -> None:
    looped = this_host().spawn_procs().spawn("looped", Looped)
    gates = [Gate() for _ in range(3)]
    held = [looped.hold.call_one(Local(gate)) for gate in gates]
    for gate in gates:
        gate.reached()
    facts = actor("looped")
    assert [(handler.endpoint, handler.count) for handler in facts.handlers] == [("hold", 3)]
    assert facts.handling == 3
    for gate in gates:
        gate.open()
    for future in held:
        future.get(TIMEOUT)


def test_whom_an_actor_waits_for(gate: Gate) -> None:
    procs = this_host().spawn_procs()
    first, second = procs.spawn("first", Worker), procs.spawn("second", Worker)
    call = first.wait_for.call_one(second, Local(gate))
    gate.reached()
    (wait,) = actor("first").waits
    assert (wait.target, wait.unanswered) == ("second.hold", 1)
    assert actor("second").waits == []
    gate.open()
    call.get(TIMEOUT)


def test_a_stopped_actor_stays_for_a_while(cluster: InProcessCluster) -> None:
    worker = spawned()
    worker.stop("done with it").get(TIMEOUT)
    facts = actor("worker")
    assert (facts.status, facts.processed) == ("stopped", 1)
    assert "done with it" in facts.detail
    assert facts.ended > 0


def test_few_stopped_actors_are_kept() -> None:
    with configured(terminated_snapshot_retention=3), InProcessCluster():
        procs = this_host().spawn_procs(name="workers")
        for number in range(5):
            mesh = procs.spawn(f"worker{number}", Worker)
            mesh.name.call_one().get(TIMEOUT)
            mesh.stop().get(TIMEOUT)
        (facts,) = [one for name, one in processes().items() if name != "client"]
        assert facts.retention == 3
        assert [one.name for one in facts.stopped] == ["worker2", "worker3", "worker4"]


def test_a_failed_actor_says_why(cluster: InProcessCluster) -> None:
    worker = spawned()
    worker.fail.broadcast()
    cluster.next_failure(TIMEOUT)
    facts = actor("worker")
    assert facts.status == "failed" and facts.detail == "ValueError: on purpose"
    assert facts.failure is not None and facts.failure.cause is None
    assert "ValueError: on purpose" in facts.failure.report


class Boss(Actor):
    @endpoint
    def begin(self, procs: Any) -> None:
        self.helper = procs.spawn("helper", Worker)
        self.helper.fail.broadcast()


def test_an_owner_that_fails_names_the_first_cause(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs(name="workers")
    procs.spawn("boss", Boss).begin.call_one(procs).get(TIMEOUT)
    cluster.next_failure(TIMEOUT)
    failure, helper = actor("boss").failure, actor("helper")
    assert failure is not None and failure.cause is not None
    key, rank, process, name = failure.cause
    assert (key, rank, name) == (helper.key, 0, "helper")
    assert process in {facts.address for facts in processes().values()}


def test_events_of_an_actor_when_they_are_asked_for(cluster: InProcessCluster) -> None:
    worker = spawned()
    with pytest.raises(ActorError):
        worker.fail.call_one().get(TIMEOUT)
    assert actor("worker").events == []
    facts = actor("worker", TreeRequest(actor("worker").key))
    assert [(event.name, event.level) for event in facts.events] == [
        ("created", "INFO"),
        ("ready", "INFO"),
        ("raised", "ERROR"),
    ]
    assert facts.events[-1].text == "fail: ValueError"


def test_a_host_agent_tells_of_its_processes(cluster: InProcessCluster) -> None:
    spawned()
    (body,) = [body for address, body in asked(agents=True).replies.items() if address.endswith("/agent")]
    facts = msgspec.msgpack.decode(body, type=HostFacts)
    assert [(row.mesh, row.rank, row.state) for row in facts.running] == [("workers", 0, "running")]
    assert facts.ended == []
    assert facts.total > facts.available > 0


def test_a_host_agent_remembers_how_processes_ended(cluster: InProcessCluster) -> None:
    worker = spawned()
    cluster.kill(worker)
    cluster.next_failure(TIMEOUT)
    (body,) = [body for address, body in asked(agents=True).replies.items() if address.endswith("/agent")]
    (ended,) = msgspec.msgpack.decode(body, type=HostFacts).ended
    assert (ended.mesh, ended.rank, ended.code, ended.stopped) == ("workers", 0, -9, False)


def test_settings_and_where_they_come_from(cluster: InProcessCluster) -> None:
    with configured(cleanup_timeout="9s"):
        answers = survey.ask("config", timeout=TIMEOUT).get(TIMEOUT)
        rows = msgspec.msgpack.decode(next(iter(answers.replies.values())), type=list[SettingFacts])
    assert [row.name for row in rows] == sorted(row.name for row in rows)
    by_name = {row.name: row for row in rows}
    changed, same = by_name["cleanup_timeout"], by_name["stop_actor_timeout"]
    assert (changed.value, changed.default, changed.origin) == ("9s", "3s", "runtime")
    assert (same.value == same.default, same.origin) == (True, "default")


# --- the ring of events


def test_the_flight_recorder_is_a_ring() -> None:
    recorder = FlightRecorder()
    for number in range(KEPT + 10):
        recorder.note("event", "a" if number % 2 else "b", "x" * (TEXT + 1))
    events = recorder.events()
    assert [event.seq for event in events] == list(range(11, KEPT + 11))
    assert {len(event.text) for event in events} == {TEXT}
    assert {event.actor for event in recorder.events("a")} == {"a"}
    assert recorder.events("c") == []


def test_many_threads_may_note_and_read() -> None:
    recorder = FlightRecorder()

    def note() -> None:
        for _ in range(2_000):
            recorder.note("event")
            recorder.events("x")

    together(*[note] * 4)
    assert recorder.events()[-1].seq >= KEPT
