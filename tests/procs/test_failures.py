"""Tests of what goes wrong, and who is told what: errors of endpoints, deaths of actors and of processes."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

import pytest

from monarch.actor import (
    Channel,
    MeshFailure,
    Port,
    ProcMesh,
    SupervisionError,
    endpoint,
)
from tests.support.patience import GRACE, TIMEOUT
from tests.support.process_actors import AsyncPid
from tests.support.tiers import full

pytestmark = pytest.mark.procs


class Frail(AsyncPid):
    @endpoint
    async def alive(self) -> str:
        return "alive"

    @endpoint
    async def fail(self, text: str = "as asked") -> None:
        raise ValueError(text)

    @endpoint
    async def hold(self, port: Port[Any]) -> None:
        opened, receiver = Channel[Any].open()
        port.send(opened)
        await receiver.recv()

    @endpoint
    async def spin(self, port: Port[Any]) -> None:
        """Never gives the thread back."""
        port.send(None)
        while True:
            pass

    @endpoint
    async def exit(self, code: int) -> None:
        os._exit(code)

    @endpoint
    async def crash(self) -> None:
        ctypes.string_at(0)


@pytest.fixture
def frail(procs2: ProcMesh) -> Any:
    return procs2.spawn("frail", Frail)


# --- an actor fails


def test_a_broadcast_to_a_failing_endpoint_reaches_the_hook_once(frail: Any, faults: Any) -> None:
    frail.slice(gpus=1).fail.broadcast("nobody asked")
    failure = faults.next()
    assert isinstance(failure, MeshFailure)
    assert failure.mesh_name == frail._name.get(timeout=TIMEOUT)
    assert "crashed_ranks=[1]" in str(failure) and str(failure).startswith("MeshFailure(mesh_name=")
    report = failure.report()
    assert "nobody asked" in report and "Frail frail{'gpus': 1/2}" in report
    assert "and all its descendants have failed:" in report
    assert "actor explicitly aborted due to:" in report
    frail.slice(gpus=0).alive.call_one().get(timeout=TIMEOUT)
    assert faults.rest() == []


# --- a process dies


def test_kill_9_ends_the_waiting_call_at_once_and_names_what_happened(own: Any, faults: Any) -> None:
    mesh = own.spawn("frail", Frail)
    pid = mesh.pid.call().get(timeout=TIMEOUT).get(1)
    port, receiver = Channel[Any].open()
    future = mesh.slice(gpus=1).hold.call_one(port)
    whole = mesh.hold.call(port)
    receiver.recv().get(timeout=TIMEOUT)
    os.kill(pid, signal.SIGKILL)
    for call in (future, whole):
        with pytest.raises(SupervisionError) as caught:
            call.get(timeout=GRACE)
        text = str(caught.value)
        assert "frail" in text and "hold()" in text
        assert "{'gpus': 1/2}" in text
        assert "Killed(sig=9)" in text and str(pid) in text
    assert "Killed(sig=9)" in faults.next(handled=True).report()


def test_a_busy_process_is_noticed_as_fast(own: Any, faults: Any) -> None:
    mesh = own.spawn("frail", Frail).slice(gpus=0)
    pid = mesh.pid.call_one().get(timeout=TIMEOUT)
    port, receiver = Channel[Any].open()
    future = mesh.spin.call_one(port)
    receiver.recv().get(timeout=TIMEOUT)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        future.get(timeout=GRACE)
    faults.next(handled=True)


def test_an_exit_code_is_named(own: Any, faults: Any) -> None:
    mesh = own.spawn("frail", Frail)
    mesh.initialized.get(TIMEOUT)
    with pytest.raises(SupervisionError, match="exited with non-zero code 7"):
        mesh.slice(gpus=0).exit.call_one(7).get(timeout=GRACE)
    assert "exited with non-zero code 7" in faults.next(handled=True).report()


def test_an_exit_with_0_is_an_end_and_no_failure(own: Any, faults: Any) -> None:
    mesh = own.spawn("frail", Frail)
    mesh.initialized.get(TIMEOUT)
    with pytest.raises(SupervisionError, match="stopped: process exited cleanly"):
        mesh.slice(gpus=0).exit.call_one(0).get(timeout=GRACE)
    with pytest.raises(SupervisionError):
        mesh.alive.call().get(timeout=GRACE)
    assert mesh.slice(gpus=1).alive.call_one().get(timeout=TIMEOUT) == "alive"
    assert faults.rest() == []


def test_a_crash_names_the_signal(own: Any, faults: Any) -> None:
    with pytest.raises(SupervisionError, match="sig=11"):
        own.spawn("frail", Frail).slice(gpus=0).crash.call_one().get(timeout=GRACE)
    faults.next(handled=True)


def test_the_report_has_the_last_lines_the_process_wrote(scripts: Any) -> None:
    scripts.run(
        """
        import os, sys
        import monarch.actor
        from monarch.actor import Actor, SupervisionError, endpoint, this_host

        monarch.actor.unhandled_fault_hook = lambda failure: None

        class A(Actor):
            @endpoint
            def end(self):
                print("the last words", file=sys.stderr, flush=True)
                os._exit(3)

        try:
            this_host().spawn_procs().spawn("a", A).end.call_one().get(timeout=300)
        except SupervisionError as exc:
            assert "the last words" in str(exc), str(exc)
        else:
            raise SystemExit("no error")
        """
    )


# --- nobody supervises


def test_a_hook_that_returns_keeps_the_program_going(scripts: Any) -> None:
    scripts.run(
        """
        import queue
        import monarch.actor
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def fail(self): raise ValueError("looked after")
            @endpoint
            def alive(self): return True

        seen = queue.Queue()
        monarch.actor.unhandled_fault_hook = seen.put
        procs = this_host().spawn_procs()
        procs.spawn("a", A).fail.broadcast()
        assert "looked after" in seen.get(timeout=300).report()
        assert procs.spawn("b", A).alive.call_one().get(timeout=300)
        """
    )


# --- the fork server


@full
def test_processes_are_started_without_the_fork_server_when_it_is_killed(scripts: Any) -> None:
    scripts.run(
        """
        import os, signal
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def parent(self): return os.getpid(), os.getppid()

        before = this_host().spawn_procs({"gpus": 2}).spawn("a", A)
        found = before.parent.call().get(timeout=300).values()
        agent = found[0][1]
        with open(f"/proc/{agent}/task/{agent}/children") as file:
            children = {int(pid) for pid in file.read().split()}
        (zygote,) = children - {pid for pid, _ in found}
        os.kill(zygote, signal.SIGKILL)
        while os.path.exists(f"/proc/{zygote}"):  # until the agent has reaped it
            before.parent.call().get(timeout=300)
        after = this_host().spawn_procs({"gpus": 2}).spawn("a", A)
        assert len(after.parent.call().get(timeout=300).values()) == 2
        assert [pid for pid, _ in before.parent.call().get(timeout=300).values()] == [pid for pid, _ in found]
        """
    )
