"""The core behaviour of actors on an in-process cluster: ring 2, no processes, no real time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from typing import Any, ClassVar

import pytest

import monarch
from monarch.actor import (
    Actor,
    ActorError,
    BackpressureTimeout,
    Channel,
    Port,
    concurrent_endpoint,
    context,
    endpoint,
    this_host,
    this_proc,
)
from monarch.testing import InProcessCluster, Local, VirtualClock
from tests.support.actors import TIMEOUT, Gate, Recorder, Script, Sync, SyncOwner, fails, own, values

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")


class AsyncRecorder(Recorder):
    @endpoint
    async def wait_async(self, entered: Local[threading.Event]) -> None:
        entered.value.set()
        await asyncio.Event().wait()

    @concurrent_endpoint
    async def park(self, entered: Local[threading.Event]) -> None:
        entered.value.set()
        await asyncio.Event().wait()


@pytest.fixture(params=[Recorder, AsyncRecorder])
def recorder(request: pytest.FixtureRequest) -> type[Recorder]:
    """An actor on a plain thread, and one with an event loop."""
    return request.param  # type: ignore[no-any-return]


# --- Calls.


def test_call_gathers_every_rank_in_order(recorder: type[Recorder]) -> None:
    actors = this_host().spawn_procs({"gpus": 4}).spawn("a", recorder)
    assert values(actors, "rank") == [0, 1, 2, 3]


def test_a_slice_is_called_alone_and_ranks_are_those_of_the_slice(recorder: type[Recorder]) -> None:
    actors = this_host().spawn_procs({"hosts": 2, "gpus": 2}).spawn("a", recorder)
    column = actors.slice(gpus=1)
    assert values(column, "rank") == [0, 1]
    column.add.call("x").get(TIMEOUT)
    assert values(actors, "all") == [[], ["x"], [], ["x"]]


def test_messages_of_one_sender_keep_their_order_over_all_adverbs(recorder: type[Recorder]) -> None:
    actors = this_host().spawn_procs({"gpus": 2}).spawn("a", recorder)
    actors.add.broadcast(0)
    actors.slice(gpus=1).add.broadcast(1)
    actors.add.call(2)
    actors.slice(gpus=0).add.call_one(3)
    actors.add.broadcast(4)
    assert values(actors, "all") == [[0, 2, 3, 4], [0, 1, 2, 4]]


def test_arguments_arrive_as_copies() -> None:
    actor = this_host().spawn_procs().spawn("a", Recorder)
    mine = ["before"]
    sent = actor.add.call_one(mine)
    mine.append("after")
    sent.get(TIMEOUT)
    assert actor.all.call_one().get(TIMEOUT) == [["before"]]


def test_an_exception_reaches_the_caller_and_the_actor_goes_on(recorder: type[Recorder]) -> None:
    actor = this_host().spawn_procs().spawn("a", recorder)
    with pytest.raises(ActorError, match="no good") as caught:
        actor.fail.call_one("no good").get(TIMEOUT)
    assert isinstance(caught.value.exception, ValueError)
    assert actor.add.call_one(1).get(TIMEOUT) == 1


def test_an_exception_nobody_waits_for_is_a_failure_of_its_actor(
    cluster: InProcessCluster, recorder: type[Recorder]
) -> None:
    actors = this_host().spawn_procs({"gpus": 2}).spawn("a", recorder)
    actors.slice(gpus=1).fail.broadcast("unheard")
    failure = cluster.next_failure()
    assert failure.crashed_ranks == [1]
    assert "unheard" in failure.report()
    assert actors.slice(gpus=0).add.call_one(1).get(TIMEOUT) == 1
    fails(actors.slice(gpus=1).add.call_one(1), "unheard")


class Talker(Actor):
    @endpoint
    async def ask(self, other: Recorder, value: Any) -> int:
        return await other.add.call_one(value)

    @endpoint
    async def tell(self, port: Port[Any]) -> None:
        port.send(context().actor_instance.name)


def test_actors_call_each_other_and_send_to_ports() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    recorder = procs.slice(gpus=0).spawn("recorder", Recorder)
    talker = procs.slice(gpus=1).spawn("talker", Talker)
    assert talker.ask.call_one(recorder, "hello").get(TIMEOUT) == 1
    assert recorder.all.call_one().get(TIMEOUT) == ["hello"]
    port, receiver = Channel[str].open()
    talker.tell.broadcast(port)
    assert receiver.recv().get(TIMEOUT) == "talker"


def test_actors_live_in_the_client_as_well() -> None:
    actor = this_proc().spawn("a", Recorder)
    assert actor.add.call_one(1).get(TIMEOUT) == 1


def test_a_bootstrap_function_runs_in_each_process_before_its_actors() -> None:
    order = Local[list[str]]([])

    class Second(Actor):
        def __init__(self, order: Local[list[str]]) -> None:
            order.value.append("actor")

    procs = this_host().spawn_procs({"gpus": 2}, bootstrap=lambda: order.value.append("bootstrap"))
    actors = procs.spawn("second", Second, order)
    procs.initialized.get(TIMEOUT)
    actors.stop().get(TIMEOUT)
    assert sorted(order.value) == ["actor", "actor", "bootstrap", "bootstrap"]
    assert order.value[0] == "bootstrap"


# --- Ends.


def test_stopping_processes_runs_the_cleanup_of_their_actors() -> None:
    script = Script()
    procs = this_host().spawn_procs({"gpus": 3})
    procs.spawn("a", Sync, Local(script)).ping.call().get(TIMEOUT)
    assert script.rest() == ["init"] * 3
    procs.stop().get(TIMEOUT)
    assert script.rest() == [("cleanup", None)] * 3


def test_a_killed_process_runs_no_cleanup(cluster: InProcessCluster) -> None:
    script = Script()
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("a", Sync, Local(script))
    actors.ping.call().get(TIMEOUT)
    cluster.kill(procs, 1)
    assert cluster.next_failure().crashed_ranks == [1]
    actors.stop().get(TIMEOUT)
    assert script.rest() == ["init", "init", ("cleanup", None)]


@pytest.mark.parametrize("adverb", ["call", "call_one"])
def test_who_waits_for_a_killed_process_is_told(
    cluster: InProcessCluster, recorder: type[Recorder], adverb: str, gate: Gate
) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("a", recorder)
    held = gate.hold(actors.slice(gpus=1))
    waiting = actors.add.call(1) if adverb == "call" else actors.slice(gpus=1).add.call_one(1)
    cluster.kill(procs.slice(gpus=1))
    for future in (held, waiting):
        fails(future, r"Killed\(sig=9\)")
    assert cluster.next_failure(handled=True).crashed_ranks == [1]


def test_the_exit_status_of_a_killed_process_can_be_chosen(cluster: InProcessCluster) -> None:
    actor = this_host().spawn_procs().spawn("a", Recorder)
    actor.rank.call_one().get(TIMEOUT)
    cluster.kill(actor, code=7)
    assert "exited with non-zero code 7" in cluster.next_failure().report()


class Waiter(Actor):
    """Waits in the runtime, in a process that is killed meanwhile."""

    @endpoint
    def wait(self, other: Recorder, entered: Local[threading.Event], ended: Local[threading.Event]) -> None:
        future = other.add.call_one(1)
        entered.value.set()
        try:
            future.get()
        except Exception:
            return
        finally:
            ended.value.set()


def test_a_thread_that_waits_in_a_killed_process_ends(cluster: InProcessCluster, gate: Gate) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    other = procs.slice(gpus=0).spawn("other", Recorder)
    waiter = procs.slice(gpus=1).spawn("waiter", Waiter)
    gate.hold(other)
    entered, ended = Local(threading.Event()), Local(threading.Event())
    waiter.wait.call_one(other, entered, ended)
    assert entered.value.wait(TIMEOUT)
    cluster.kill(procs, 1)
    assert ended.value.wait(TIMEOUT)
    cluster.next_failure()


@pytest.mark.parametrize("method", ["wait_async", "park"])
def test_a_task_that_waits_in_a_killed_process_ends(cluster: InProcessCluster, method: str) -> None:
    actor = this_host().spawn_procs().spawn("a", AsyncRecorder)
    entered = Local(threading.Event())
    future = getattr(actor, method).call_one(entered)
    assert entered.value.wait(TIMEOUT)
    cluster.kill(actor)  # no_leaks sees to it that its thread ends
    fails(future)
    cluster.next_failure(handled=True)


# --- Supervision.


def test_an_owner_that_handles_a_failure_lives_on(cluster: InProcessCluster) -> None:
    owner = this_host().spawn_procs().spawn("owner", SyncOwner, Local(script := Script()))
    child = own(owner)
    assert script.next() == "init"
    cluster.kill(child, 1)
    assert "Killed(sig=9)" in script.next_supervised().report()
    assert owner.ping.call_one().get(TIMEOUT)


def test_an_owner_that_does_not_handle_a_failure_fails_with_it(cluster: InProcessCluster) -> None:
    script = Script(supervise=lambda actor, failure: False)
    child = own(this_host().spawn_procs().spawn("owner", SyncOwner, Local(script)))
    cluster.kill(child, 0)
    failure = cluster.next_failure()
    assert failure.mesh_name.startswith("owner")
    assert "did not handle a supervision event" in failure.event


def test_processes_end_with_the_process_that_owns_them(cluster: InProcessCluster, gate: Gate) -> None:
    owner = this_host().spawn_procs().spawn("owner", SyncOwner)
    child = own(owner)
    gate.hold(child.slice(gpus=0))  # so that it cannot end before it was asked
    cluster.kill(owner)
    cluster.next_failure()
    cluster.settle()
    fails(child.slice(gpus=0).ping.call_one(), "stopped")


# --- Time.


def test_with_timeout_ends_a_call_at_its_time_and_not_before(gate: Gate) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as inner:
        actors = this_host().spawn_procs({"gpus": 2}).spawn("a", Recorder)
        gate.hold(actors.slice(gpus=1))
        answered = inner.expect("Answer", source=inner.address_of(actors, 0))
        future = actors.add.with_timeout(5.0).call(1)
        answered.wait()
        clock.advance(4.999)
        with pytest.raises(TimeoutError, match="the operation goes on"):
            future.get(0)
        clock.advance(0.001)
        fails(future, r"a\.add\(\) got no answer within 5 s from rank\(s\) 1", error=TimeoutError)
        gate.open()


# --- Pressure.


def test_a_full_mailbox_holds_its_senders_back_until_it_has_room(cluster: InProcessCluster, gate: Gate) -> None:
    with monarch.configured(mailbox_messages=4):
        actor = this_host().spawn_procs().spawn("a", Recorder)
        actor.rank.call_one().get(TIMEOUT)
    gate.hold(actor)
    paused = cluster.expect("Pause", target=cluster.address_of("client"))
    for number in range(5):
        actor.add.broadcast(number)
    paused.wait()
    with (
        monarch.configured(message_delivery_timeout="0s"),
        pytest.raises(BackpressureTimeout, match="mailbox_messages"),
    ):
        actor.add.broadcast("too much")
    gate.open()
    actor.add.broadcast(5)
    assert actor.all.call_one().get(TIMEOUT) == [0, 1, 2, 3, 4, 5]


def test_a_connection_nobody_reads_holds_its_senders_back() -> None:
    with monarch.configured(outgoing_queue_bytes=1000), InProcessCluster() as cluster:
        actor = this_host().spawn_procs().spawn("a", Recorder)
        actor.rank.call_one().get(TIMEOUT)
        with cluster.network.hold(target=cluster.address_of(actor)):
            actor.add.broadcast(b"x" * 2000)
            refused = pytest.raises(BackpressureTimeout, match="1000 bytes")
            with monarch.configured(message_delivery_timeout="0s"), refused:
                actor.add.broadcast("too much")
        assert actor.add.call_one("last").get(TIMEOUT) == 2


# --- The network.


def test_what_was_held_arrives_in_order_after_the_release(cluster: InProcessCluster, recorder: type[Recorder]) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("a", recorder)
    actors.rank.call().get(TIMEOUT)
    with cluster.network.hold(target=cluster.address_of(procs, 1)):
        for number in range(20):
            actors.add.broadcast(number)
        assert actors.slice(gpus=0).all.call_one().get(TIMEOUT) == list(range(20))
        late = actors.slice(gpus=1).all.call_one()
        cluster.settle()
        with pytest.raises(TimeoutError):
            late.get(0)
    assert late.get(TIMEOUT) == list(range(20))


def test_delays_are_in_virtual_time_and_keep_the_order() -> None:
    with InProcessCluster(clock=(clock := VirtualClock()), seed=7) as cluster:
        actor = this_host().spawn_procs().spawn("a", Recorder)
        actor.rank.call_one().get(TIMEOUT)
        with cluster.network.delay(1.0, 2.0, target=cluster.address_of(actor)):
            for number in range(10):
                actor.add.broadcast(number)
            answer = actor.all.call_one()
            clock.advance(0.999)
            cluster.settle()
            with pytest.raises(TimeoutError):
                answer.get(0)
            clock.advance(1.001)
            assert answer.get(TIMEOUT) == list(range(10))


def test_a_cut_connection_is_dialled_anew(cluster: InProcessCluster) -> None:
    actor = this_host().spawn_procs().spawn("a", Recorder)
    assert actor.add.call_one(1).get(TIMEOUT) == 1
    assert cluster.network.cut(cluster.address_of("client"), cluster.address_of(actor)) == 1
    assert actor.add.call_one(2).get(TIMEOUT) == 2


class Orphan(Actor):
    def __init__(self, ended: Port[str]) -> None:
        self.ended = ended

    @endpoint
    def ready(self) -> None:
        return None

    def __cleanup__(self, exc: Exception | None) -> None:
        self.ended.send(f"{context().actor_instance.name}: {exc}")


class Parent(Actor):
    """Spawns a child on processes that are not its own."""

    @endpoint
    def beget(self, procs: Any, ended: Port[str]) -> Any:
        child = procs.spawn("child", Orphan, ended)
        child.ready.call().get(TIMEOUT)
        return child


def test_actors_end_with_the_process_of_their_owner(cluster: InProcessCluster) -> None:
    theirs, others = this_host().spawn_procs(), this_host().spawn_procs({"gpus": 2})
    port, receiver = Channel[str].open()
    parent: Any = theirs.spawn("parent", Parent)
    child = parent.beget.call_one(others, port).get(TIMEOUT)
    cluster.kill(theirs)
    assert [receiver.recv().get(TIMEOUT) for _ in range(2)] == ["child: None", "child: None"]
    cluster.next_failure()  # the parent's
    fails(child.ready.call(), "the process of its owner has ended")


class Argument:
    """An argument whose end is seen."""

    alive: ClassVar[list[weakref.ref[Argument]]] = []

    def __setstate__(self, state: Any) -> None:
        Argument.alive.append(weakref.ref(self))

    def __getstate__(self) -> int:
        return 1


class Refuses(Actor):
    @endpoint
    def plain(self, argument: Argument) -> None:
        raise ValueError("on purpose")

    @concurrent_endpoint
    async def beside(self, argument: Argument) -> None:
        raise ValueError("on purpose")

    @endpoint
    async def later(self, argument: Argument) -> None:
        raise ValueError("on purpose")

    @endpoint
    def nothing(self) -> None:
        return


@pytest.mark.parametrize("name", ["plain", "later", "beside"])
def test_the_arguments_of_an_endpoint_that_raised_are_freed_without_the_collector(
    name: str,
) -> None:
    refuses = this_host().spawn_procs().spawn("refuses", Refuses)
    Argument.alive.clear()
    gc.disable()
    try:
        with contextlib.suppress(ActorError):
            getattr(refuses, name).call_one(Argument()).get(TIMEOUT)
        refuses.nothing.call_one().get(TIMEOUT)
        assert [ref() for ref in Argument.alive] == [None]
    finally:
        gc.enable()
