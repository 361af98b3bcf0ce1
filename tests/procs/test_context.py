"""context() in real processes, and its end. In tasks and threads of an actor: tests/_mesh/actors/test_context.py."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

from monarch.actor import (
    ProcMesh,
    context,
    endpoint,
    this_host,
)
from tests.support.patience import TIMEOUT
from tests.support.process_actors import AsyncPid
from tests.support.tiers import first_of

pytestmark = pytest.mark.procs


class Self(AsyncPid):
    @endpoint
    async def shown(self) -> str:
        return repr(context().actor_instance)

    @endpoint
    async def creator(self) -> Any:
        return context().actor_instance.creator

    @endpoint
    async def meshes(self) -> Any:
        return context().actor_instance.proc_mesh, context().actor_instance.proc

    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def in_a_bare_thread(self) -> str:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            error = pool.submit(context).exception(TIMEOUT)
        return f"{type(error).__name__}: {error}"

    @endpoint
    async def kid(self) -> tuple[str, Any]:
        kid = this_host().spawn_procs({"gpus": 2}).spawn("kid", Self)
        one = kid.slice(gpus=1)
        return await one.shown.call_one(), await one.creator.call_one()


def test_threads_of_the_client_may_call_actors(proc: ProcMesh) -> None:
    mesh = proc.spawn("self", Self)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(lambda n: mesh.echo.call_one(n).get(timeout=TIMEOUT), n) for n in range(20)]
        assert [wait.result(TIMEOUT) for wait in waits] == list(range(20))
        assert pool.submit(context).result(TIMEOUT) is context()


def test_an_actor_knows_who_spawned_it(spawn_procs: Any) -> None:
    parent = spawn_procs({"gpus": 2}).spawn("parent", Self).slice(gpus=0)
    text, creator = parent.kid.call_one().get(timeout=TIMEOUT)
    assert text.startswith("<root>.<") and "Self parent{'gpus': 0/2}>.<" in text
    assert text.endswith("Self kid{'gpus': 1/2}>")
    assert creator.name == "parent" and dict(creator.rank) == {"gpus": 0}
    assert creator.class_name.endswith(".Self") and creator.creator.name == "root"
    assert creator.creator.creator is None


def test_the_meshes_of_an_instance_work(procs2: ProcMesh) -> None:
    pids = procs2.spawn("self", Self).pid.call().get(timeout=TIMEOUT).values()
    procs, own = procs2.spawn("self", Self).slice(gpus=1).meshes.call_one().get(timeout=TIMEOUT)
    assert procs.spawn("self", Self).pid.call().get(timeout=TIMEOUT).values() == pids
    assert own.spawn("self", Self).pid.call_one().get(timeout=TIMEOUT) == pids[1]


def test_a_bare_thread_of_an_actor_is_told_how_to_get_a_context(proc: ProcMesh) -> None:
    said = proc.spawn("self", Self).in_a_bare_thread.call_one().get(timeout=TIMEOUT)
    assert said.startswith("RuntimeError")
    assert "copy_context" in said and "bind_context" in said


def test_shutdown_context_without_a_client_makes_none(scripts: Any) -> None:
    scripts.run(
        """
        import threading
        from monarch.actor import shutdown_context

        before = threading.active_count()
        assert shutdown_context().get(timeout=10) is None
        assert threading.active_count() == before
        """
    )


def test_shutdown_context_ends_every_process_and_may_be_called_again(scripts: Any) -> None:
    scripts.run(
        """
        import os, select
        from monarch.actor import Actor, endpoint, shutdown_context, this_host

        class A(Actor):
            @endpoint
            def pid(self): return os.getpid()

        pids = this_host().spawn_procs({"gpus": 2}).spawn("a", A).pid.call().get(timeout=300).values()
        watched = [os.pidfd_open(pid) for pid in pids]
        assert shutdown_context().get(timeout=300) is None
        for fd in watched:
            assert select.select([fd], [], [], 2)[0], "a process outlived shutdown_context"
        assert shutdown_context().get(timeout=1) is None
        """
    )


@pytest.mark.parametrize("timeout", first_of(["-1", "float('nan')", "float('inf')", "2.0**64"]))
def test_the_host_timeout_of_shutdown_context_is_checked(scripts: Any, timeout: str) -> None:
    scripts.run(
        f"""
        from monarch.actor import context, shutdown_context
        context()
        try:
            shutdown_context(host_timeout={timeout})
        except ValueError:
            pass
        else:
            raise SystemExit("accepted")
        """
    )
