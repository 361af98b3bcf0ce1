"""Tests of what InProcessCluster promises beside running actors (for that: tests/_mesh/actors/test_cluster_actors.py)."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest

import monarch.config
from monarch.actor import (
    Actor,
    BootstrapCommand,
    SpawnError,
    endpoint,
    get_or_spawn_controller,
    this_host,
    this_proc,
)
from monarch.testing import InProcessCluster, Local, UnsupervisedFailure, VirtualClock
from tests.support.actors import TIMEOUT, Gate, Script, Sync, fails, raising

pytestmark = pytest.mark.usefixtures("no_leaks")


FAIL = Local(raising(ValueError("on purpose")))


class Worker(Sync):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def test_the_ordinary_api_works_on_the_simulated_host() -> None:
    with InProcessCluster() as cluster:
        assert this_host() == cluster.this_host()
        worker = this_host().spawn_procs().spawn("worker", Worker)
        assert worker.pid.call_one().get(TIMEOUT) == os.getpid()


def test_plain_threads_of_the_test_are_the_client_as_well(cluster: InProcessCluster) -> None:
    answers: list[int] = []

    def work() -> None:
        worker = this_host().spawn_procs().spawn("worker", Worker)
        answers.append(worker.pid.call_one().get(TIMEOUT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TIMEOUT)
    assert answers == [os.getpid()]


def test_leaving_runs_every_cleanup() -> None:
    script = Script()
    with InProcessCluster():
        procs = this_host().spawn_procs({"gpus": 2})
        workers = procs.spawn("worker", Worker, Local(script))
        here = this_proc().spawn("here", Worker, Local(script))
        workers.pid.call().get(TIMEOUT)
        here.pid.call_one().get(TIMEOUT)
    assert script.rest() == ["init"] * 3 + [("cleanup", None)] * 3


def test_leaving_at_once_is_clean() -> None:
    for _ in range(20):
        with InProcessCluster():
            this_host().spawn_procs({"gpus": 2}).spawn("worker", Worker)


def test_clusters_are_nested_and_the_innermost_is_in_use() -> None:
    with InProcessCluster() as outer:
        outer_worker = this_host().spawn_procs().spawn("worker", Worker)
        with InProcessCluster() as inner:
            assert this_host() == inner.this_host()
            assert this_host() != outer.this_host()
            this_host().spawn_procs().spawn("worker", Worker).pid.call_one().get(TIMEOUT)
        assert this_host() == outer.this_host()
        assert outer_worker.pid.call_one().get(TIMEOUT) == os.getpid()


def test_controllers_belong_to_their_cluster() -> None:
    for _ in range(2):
        with InProcessCluster():
            first: Any = get_or_spawn_controller("one", Worker).get(TIMEOUT)
            again: Any = get_or_spawn_controller("one", Worker).get(TIMEOUT)
            assert first._mesh_name == again._mesh_name
            assert first.pid.call_one().get(TIMEOUT) == os.getpid()


class AsksForAController(Actor):
    @endpoint
    def ask(self) -> str:
        controller: Any = get_or_spawn_controller("one", Worker).get(TIMEOUT)
        controller.pid.call_one().get(TIMEOUT)
        return str(controller._mesh_name)


def test_an_actor_may_be_the_first_to_ask_for_a_controller(cluster: InProcessCluster) -> None:
    asking: Any = this_host().spawn_procs({"gpus": 3}).spawn("asking", AsksForAController)
    names = set(asking.ask.call().get(TIMEOUT).values())
    mine: Any = get_or_spawn_controller("one", Worker).get(TIMEOUT)
    assert names == {mine._mesh_name}


def test_a_cluster_is_entered_once() -> None:
    with InProcessCluster() as cluster, pytest.raises(RuntimeError, match="and this one is in use"):
        cluster.__enter__()
    with pytest.raises(RuntimeError, match="and this one is closed"), cluster:
        pass
    with pytest.raises(RuntimeError, match="inside its with block"):
        cluster.this_host()


def test_an_actor_cannot_enter_a_cluster(cluster: InProcessCluster) -> None:
    class Nester(Actor):
        @endpoint
        def nest(self) -> str:
            with pytest.raises(RuntimeError) as caught, InProcessCluster():
                pass
            return str(caught.value)

    nester = this_host().spawn_procs().spawn("nester", Nester)
    assert "cannot be entered by an actor" in nester.nest.call_one().get(TIMEOUT)


# --- What a test must not miss.


def test_a_failure_nobody_took_fails_the_test() -> None:
    with (
        pytest.raises(UnsupervisedFailure, match=r"1 failure\(s\) reached the root client") as caught,
        InProcessCluster() as cluster,
    ):
        worker = this_host().spawn_procs().spawn("worker", Worker)
        failed = cluster.expect("ActorEnded")
        worker.do.broadcast(FAIL)
        failed.wait()
    assert "on purpose" in str(caught.value)


def test_a_failure_that_was_taken_does_not() -> None:
    with InProcessCluster() as cluster:
        this_host().spawn_procs().spawn("worker", Worker).do.broadcast(FAIL)
        assert "on purpose" in cluster.next_failure().report()


def test_waiting_for_a_failure_that_does_not_come_is_an_error(cluster: InProcessCluster) -> None:
    with pytest.raises(AssertionError, match="no failure reached the root client within 0 s"):
        cluster.next_failure(timeout=0)


def test_an_exception_of_the_block_is_not_hidden_by_what_it_left() -> None:
    with pytest.raises(KeyError, match="mine"), InProcessCluster() as cluster:
        failed = cluster.expect("ActorEnded")
        this_host().spawn_procs().spawn("worker", Worker).do.broadcast(FAIL)
        failed.wait()
        raise KeyError("mine")


def test_an_actor_that_does_not_stop_is_named() -> None:
    gate = Gate()
    with pytest.raises(TimeoutError, match=r"\n  stuck, rank 1, in do\(\)$"), InProcessCluster(patience=0.2):
        workers = this_host().spawn_procs({"gpus": 2}).spawn("stuck", Worker)
        workers.pid.call().get(TIMEOUT)
        workers.slice(gpus=1).do.broadcast(Local(gate.stand))
        gate.reached()
    gate.open()


def test_an_error_inside_the_runtime_fails_the_test() -> None:
    with pytest.raises(RuntimeError, match=r"1 error\(s\) inside the runtime") as caught, InProcessCluster() as cluster:
        cluster._loop.call_soon(lambda: 1 // 0)
        cluster.settle()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# --- Processes.


def test_killing_what_is_not_alive_or_not_there_is_an_error(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    procs.initialized.get(TIMEOUT)
    with pytest.raises(ValueError, match="rank 2 is not one of the 2 ranks"):
        cluster.kill(procs, 2)
    cluster.kill(procs, 1)
    with pytest.raises(ValueError, match="no simulated process lives at"):
        cluster.kill(procs, 1)
    with pytest.raises(TypeError, match="expected a mesh"):
        cluster.kill("procs")  # type: ignore[arg-type]


def test_a_killed_thread_cannot_use_the_runtime_any_more(cluster: InProcessCluster) -> None:
    heard = Local[list[BaseException]]([])

    class Busy(Actor):
        @endpoint
        def work(self, gate: Local[Gate]) -> None:
            gate.value.stand()
            try:
                this_proc().spawn("late", Worker)
            except BaseException as exc:
                heard.value.append(exc)
                done.value.set()
                raise

    gate, done = Gate(), Local(threading.Event())
    busy = this_host().spawn_procs().spawn("busy", Busy)
    future = busy.work.call_one(Local(gate))
    gate.reached()
    cluster.kill(busy)
    fails(future)
    cluster.next_failure(handled=True)
    gate.open()
    assert done.value.wait(TIMEOUT)
    assert isinstance(heard.value[0], SystemExit)


def test_a_restarted_process_can_be_killed_again(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    workers = procs.spawn("worker", Worker)
    workers.pid.call().get(TIMEOUT)
    for _ in range(3):
        cluster.kill(procs, 1)
        assert "gpus" in cluster.next_failure().report()
        procs.restart(failed=True).get(TIMEOUT)
        workers.restart(gpus=1).get(TIMEOUT)
        assert workers.pid.call().get(TIMEOUT).size() == 2


def test_a_process_that_runs_is_restarted_in_order(cluster: InProcessCluster) -> None:
    script = Script()
    procs = this_host().spawn_procs()
    worker = procs.spawn("worker", Worker, Local(script))
    worker.pid.call_one().get(TIMEOUT)
    procs.restart().get(TIMEOUT)
    assert script.rest() == ["init", ("cleanup", None)]


def test_a_controller_is_found_from_a_restarted_process(cluster: InProcessCluster) -> None:
    class Asker(Actor):
        @endpoint
        async def ask(self) -> int:
            one: Any = await get_or_spawn_controller("one", Worker)
            return await one.pid.call_one()

    get_or_spawn_controller("one", Worker).get(TIMEOUT)
    procs = this_host().spawn_procs()
    asker = procs.spawn("asker", Asker)
    assert asker.ask.call_one().get(TIMEOUT) == os.getpid()
    procs.restart().get(TIMEOUT)
    asker.restart().get(TIMEOUT)
    assert asker.ask.call_one().get(TIMEOUT) == os.getpid()


# --- Stopped as a shell stops a job.


def suspicions(cluster: InProcessCluster, procs: Any) -> Any:
    """Returns what the client has been told of the first process of the mesh: why it is suspected, "" when it is not."""
    return cluster.proc.suspected.get(cluster.address_of(procs), "")


def test_a_stopped_process_is_suspected_and_goes_on_when_it_is_continued() -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        procs = this_host().spawn_procs()
        worker = procs.spawn("worker", Worker)
        worker.pid.call_one().get(TIMEOUT)
        told = cluster.expect("Suspected", target=cluster.address_of("client"))
        cluster.stop_process(procs)
        told.wait()
        assert suspicions(cluster, procs) == "stopped by signal 19 (SIGSTOP)"
        future = worker.pid.call_one()
        clock.advance(299.0)
        with pytest.raises(TimeoutError):
            future.get(0)
        told = cluster.expect("Suspected", target=cluster.address_of("client"))
        cluster.continue_process(procs)
        told.wait()
        assert suspicions(cluster, procs) == ""
        assert future.get(TIMEOUT) == os.getpid()
        clock.advance(3600.0)
        assert worker.pid.call_one().get(TIMEOUT) == os.getpid()


def test_a_process_that_stays_stopped_is_killed() -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster, monarch.config.configured(suspect_timeout="1m"):
        procs = this_host().spawn_procs({"gpus": 2})
        workers = procs.spawn("worker", Worker)
        workers.pid.call().get(TIMEOUT)
        cluster.stop_process(workers, 1)
        future = workers.slice(gpus=1).pid.call_one()
        clock.advance(60.0)
        fails(future, r"stopped by signal 19 \(SIGSTOP\) for 60 s and was killed")
        cluster.next_failure(handled=True)
        procs.restart(failed=True).get(TIMEOUT)
        workers.restart(gpus=1).get(TIMEOUT)
        assert workers.pid.call().get(TIMEOUT).size() == 2


def test_a_stopped_process_can_be_stopped_for_good() -> None:
    with (
        InProcessCluster(clock=(clock := VirtualClock())) as cluster,
        monarch.config.configured(process_exit_timeout="2s"),
    ):
        procs = this_host().spawn_procs()
        procs.spawn("worker", Worker).pid.call_one().get(TIMEOUT)
        cluster.stop_process(procs)
        stopped = procs.stop()
        with pytest.raises(TimeoutError):
            stopped.get(0)
        clock.advance(3.0)  # SIGTERM does not reach it, SIGKILL a second later does
        stopped.get(TIMEOUT)


def test_a_signal_to_a_stopped_process_waits_until_it_goes_on() -> None:
    with (
        InProcessCluster(clock=(clock := VirtualClock())) as cluster,
        monarch.config.configured(process_exit_timeout="2s"),
    ):
        procs = this_host().spawn_procs()
        procs.spawn("worker", Worker).pid.call_one().get(TIMEOUT)
        cluster.stop_process(procs)
        cluster.stop_process(procs)
        ended = cluster.expect("ProcEnded", target=cluster.address_of("client"))
        stopped = procs.stop()
        cluster.settle()
        clock.advance(2.5)
        cluster.continue_process(procs)
        ended.wait()
        stopped.get(TIMEOUT)


def test_a_silent_process_is_suspected_until_it_speaks() -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        procs = this_host().spawn_procs()
        procs.spawn("worker", Worker).pid.call_one().get(TIMEOUT)
        clock.advance(3600.0)
        assert suspicions(cluster, procs) == ""
        rule = cluster.network.hold(cluster.address_of(procs), cluster.address_of("agent"))
        clock.advance(15.0)
        cluster.settle()
        assert suspicions(cluster, procs).startswith("its I/O thread has not answered for 10 s")
        rule.end()
        cluster.settle()
        assert suspicions(cluster, procs) == ""


def test_a_process_that_its_agent_does_not_read_from_is_not_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        procs = this_host().spawn_procs()
        procs.spawn("worker", Worker).pid.call_one().get(TIMEOUT)
        (connection,) = cluster.agent.roster._by_connection
        cluster.network.hold(cluster.address_of(procs), cluster.address_of("agent"))
        with monkeypatch.context() as patch:
            patch.setattr(cluster.agent.routes, "held", lambda: [connection])
            clock.advance(30.0)
            cluster.settle()
            assert suspicions(cluster, procs) == ""
        clock.advance(15.0)
        cluster.settle()
        assert suspicions(cluster, procs).startswith("its I/O thread has not answered")


def test_stopping_what_is_not_alive_is_an_error(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    procs.initialized.get(TIMEOUT)
    with pytest.raises(ValueError, match="rank 2 is not one of the 2 ranks"):
        cluster.stop_process(procs, 2)
    cluster.continue_process(procs)  # they run
    cluster.kill(procs, 1)
    for method in (cluster.stop_process, cluster.continue_process):
        with pytest.raises(ValueError, match="no simulated process lives at"):
            method(procs, 1)


@pytest.mark.parametrize("how", ["command", "executable"])
def test_commands_and_other_interpreters_are_refused(cluster: InProcessCluster, how: str) -> None:
    if how == "command":
        command = BootstrapCommand(sys.executable, None, [], {})
        procs = this_host().spawn_procs(bootstrap_command=command)
    else:
        procs = this_host().with_python_executable(sys.executable).spawn_procs()
    fails(procs.initialized, "use real processes", error=SpawnError)


def test_a_bootstrap_function_that_raises_fails_its_mesh(cluster: InProcessCluster) -> None:
    def bootstrap() -> None:
        raise ValueError("not today")

    procs = this_host().spawn_procs(bootstrap=bootstrap)
    fails(procs.initialized, "not today", error=Exception)


def test_the_runtimes_timeouts_are_virtual() -> None:
    with InProcessCluster(clock=(clock := VirtualClock())) as cluster:
        worker = this_host().spawn_procs().spawn("worker", Worker)
        worker.pid.call_one().get(TIMEOUT)
        with cluster.network.hold(cluster.address_of(worker), cluster.address_of("client")):
            future = worker.pid.with_timeout(3600.0).call_one()
            clock.advance(3600.0)
            fails(future, "within 3600 s", error=TimeoutError)


# --- Looking in.


def test_addresses_for_rules(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    assert cluster.address_of("client").endswith("/client")
    assert cluster.address_of("agent").endswith("/agent")
    assert cluster.address_of(procs, 1) == cluster.address_of(procs.slice(gpus=1))
    with pytest.raises(ValueError, match="expected a mesh, 'client' or 'agent'"):
        cluster.address_of("server")


def test_expectations_name_a_message(cluster: InProcessCluster) -> None:
    with pytest.raises(ValueError, match="no message type is called 'Telegram'"):
        cluster.expect("Telegram")
    with pytest.raises(TimeoutError, match="no Pause was delivered within 0 s"):
        cluster.expect("Pause").wait(0)


def test_statistics_show_every_process(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    procs.spawn("worker", Worker).pid.call().get(TIMEOUT)
    statistics = cluster.statistics()
    assert statistics["network"]["rules"] == 0
    assert [statistics[cluster.address_of(procs, rank)]["actors"] for rank in (0, 1)] == [1, 1]
    assert statistics[cluster.address_of("client")]["ports"] == 0


def test_stopped_processes_leave_nothing_in_the_ledger_of_their_owner(cluster: InProcessCluster) -> None:
    """They may have ended before their agent hears that they were to."""
    for _ in range(60):
        procs = this_host().spawn_procs()
        procs.spawn("worker", Worker).pid.call_one().get(TIMEOUT)
        procs.stop().get(TIMEOUT)
    cluster.settle()
    owned = cluster.proc.mesh.owned
    assert (len(owned.ledger), owned.actors, cluster.root.owned) == (0, {}, {})
