"""context() and its shorthands: who am I, where, and at whose request."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import pickle
import threading
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ProcMesh,
    bind_context,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    this_host,
)
from tests.support.tiers import first_of

pytestmark = pytest.mark.procs
TIMEOUT = 30


class Self(Actor):
    @endpoint
    async def facts(self) -> dict[str, Any]:
        instance = context().actor_instance
        return {
            "name": instance.name,
            "class_name": instance.class_name,
            "rank": dict(instance.rank),
            "message": dict(context().message_rank),
            "current": (current_rank().rank, current_size(), current_actor_name()),
            "id": str(instance.actor_id),
            "repr": repr(instance),
            "procs": instance.proc_mesh.extent,
            "proc": instance.proc.extent,
            "proc_id": instance.proc_id,
        }

    @endpoint
    async def creator(self) -> Any:
        return context().actor_instance.creator

    @endpoint
    async def actor_id(self) -> Any:
        return context().actor_instance.actor_id

    @endpoint
    async def meshes(self) -> Any:
        return context().actor_instance.proc_mesh, context().actor_instance.proc

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def in_a_task(self) -> list[dict[str, int]]:
        async def inner() -> dict[str, int]:
            await asyncio.sleep(0)
            return dict(current_rank())

        return list(await asyncio.gather(asyncio.create_task(inner()), inner()))

    @endpoint
    async def in_to_thread(self) -> dict[str, int]:
        return await asyncio.to_thread(lambda: dict(current_rank()))

    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def kid(self) -> tuple[str, Any]:
        kid = this_host().spawn_procs({"gpus": 2}).spawn("kid", Self)
        one = kid.slice(gpus=1)
        return (await one.facts.call_one())["repr"], await one.creator.call_one()


class Threads(Actor):
    @endpoint
    def in_a_bare_thread(self) -> str:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            error = pool.submit(context).exception(TIMEOUT)
        return f"{type(error).__name__}: {error}"

    @endpoint
    def in_a_thread_with_copied_context(self) -> dict[str, int]:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.copy_context().run, lambda: dict(current_rank())).result(TIMEOUT)

    @endpoint
    def in_a_thread_with_bound_context(self, other: Any) -> tuple[dict[str, int], str]:
        def work(text: str) -> tuple[dict[str, int], str]:
            return dict(current_rank()), other.echo.call_one(text).get(timeout=TIMEOUT)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(bind_context(work), "from a thread").result(TIMEOUT)


# --- the client


def test_the_client_is_root() -> None:
    here = context()
    assert here is context()
    assert here.actor_instance.name == "root" and here.actor_instance.class_name is None
    assert repr(here.actor_instance) == "<root>"
    assert here.actor_instance.creator is None


def test_the_client_has_no_coordinates() -> None:
    assert current_rank().rank == 0 and dict(current_rank()) == {} and current_size() == {}
    assert current_actor_name() == str(context().actor_instance.actor_id)


def test_threads_of_the_client_have_the_clients_context() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(context).result(TIMEOUT) is context()


def test_threads_of_the_client_may_call_actors(proc: ProcMesh) -> None:
    mesh = proc.spawn("self", Self)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(lambda n: mesh.echo.call_one(n).get(timeout=TIMEOUT), n) for n in range(20)]
        assert [wait.result(TIMEOUT) for wait in waits] == list(range(20))


# --- an actor


def test_an_actor_knows_its_name_class_and_place(procs2: ProcMesh) -> None:
    mesh = procs2.spawn("named", Self)
    facts = mesh.slice(gpus=1).facts.call_one().get(timeout=TIMEOUT)
    assert facts["name"] == "named" and facts["class_name"].endswith(".Self")
    assert facts["rank"] == {"gpus": 1} and facts["message"] == {}
    assert facts["current"] == (0, {}, facts["id"])
    assert facts["procs"] == procs2.extent and dict(facts["proc"]) == {}
    assert isinstance(facts["proc_id"], str) and facts["proc_id"]


def test_the_repr_of_an_instance_is_its_line_of_creators(procs2: ProcMesh, proc: ProcMesh) -> None:
    first, second = [f["repr"] for f in procs2.spawn("counter", Self).facts.call().get(timeout=TIMEOUT).values()]
    assert first.startswith("<root>.<") and first.endswith("Self counter{'gpus': 0/2}>")
    assert second.endswith("Self counter{'gpus': 1/2}>")
    assert proc.spawn("single", Self).facts.call_one().get(timeout=TIMEOUT)["repr"].endswith("Self single>")


def test_an_actor_knows_who_spawned_it(spawn_procs: Any) -> None:
    parent = spawn_procs({"gpus": 2}).spawn("parent", Self).slice(gpus=0)
    text, creator = parent.kid.call_one().get(timeout=TIMEOUT)
    assert text.startswith("<root>.<") and "Self parent{'gpus': 0/2}>.<" in text
    assert text.endswith("Self kid{'gpus': 1/2}>")
    assert creator.name == "parent" and dict(creator.rank) == {"gpus": 0}
    assert creator.class_name.endswith(".Self") and creator.creator.name == "root"
    assert creator.creator.creator is None


def test_ids_differ_between_actors_and_stay_the_same(procs2: ProcMesh) -> None:
    first, second = procs2.spawn("same", Self), procs2.spawn("same", Self)
    ids = [
        *first.actor_id.call().get(timeout=TIMEOUT).values(),
        *second.actor_id.call().get(timeout=TIMEOUT).values(),
    ]
    assert len(set(ids)) == 4 and len({str(i) for i in ids}) == 4
    again = first.actor_id.call().get(timeout=TIMEOUT).values()
    assert again == ids[:2] and hash(again[0]) == hash(ids[0])
    assert all(str(i).startswith("same") for i in ids)
    assert pickle.loads(pickle.dumps(ids[0])) == ids[0]


def test_an_id_is_read_back_from_its_text(proc: ProcMesh) -> None:
    found = proc.spawn("self", Self).actor_id.call_one().get(timeout=TIMEOUT)
    assert type(found).from_string(str(found)) == found
    assert found.label == "self" and found.is_root is False


def test_the_meshes_of_an_instance_work(procs2: ProcMesh) -> None:
    pids = procs2.spawn("self", Self).pid.call().get(timeout=TIMEOUT).values()
    procs, own = procs2.spawn("self", Self).slice(gpus=1).meshes.call_one().get(timeout=TIMEOUT)
    assert procs.spawn("self", Self).pid.call().get(timeout=TIMEOUT).values() == pids
    assert own.spawn("self", Self).pid.call_one().get(timeout=TIMEOUT) == pids[1]


# --- tasks and threads inside an actor


def test_tasks_inherit_the_context(procs2: ProcMesh) -> None:
    found = procs2.spawn("self", Self).in_a_task.call().get(timeout=TIMEOUT).values()
    assert found == [[{"gpus": n}] * 2 for n in range(2)]


def test_asyncio_to_thread_inherits_the_context(procs2: ProcMesh) -> None:
    found = procs2.spawn("self", Self).in_to_thread.call().get(timeout=TIMEOUT).values()
    assert found == [{"gpus": 0}, {"gpus": 1}]


def test_a_bare_thread_of_an_actor_is_told_how_to_get_a_context(proc: ProcMesh) -> None:
    said = proc.spawn("threads", Threads).in_a_bare_thread.call_one().get(timeout=TIMEOUT)
    assert said.startswith("RuntimeError")
    assert "copy_context" in said and "bind_context" in said


def test_a_thread_takes_the_context_along(procs2: ProcMesh) -> None:
    mesh = procs2.spawn("threads", Threads)
    assert mesh.in_a_thread_with_copied_context.call().get(timeout=TIMEOUT).values() == [
        {"gpus": 0},
        {"gpus": 1},
    ]
    other = procs2.slice(gpus=1).spawn("self", Self)
    found = mesh.slice(gpus=0).in_a_thread_with_bound_context.call_one(other).get(timeout=TIMEOUT)
    assert found == ({}, "from a thread")


def test_bind_context_works_in_the_client_too() -> None:
    result = []
    thread = threading.Thread(target=bind_context(lambda: result.append(context())))
    thread.start()
    thread.join(TIMEOUT)
    assert result == [context()]


# --- shutdown_context


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

        pids = this_host().spawn_procs({"gpus": 2}).spawn("a", A).pid.call().get(timeout=30).values()
        watched = [os.pidfd_open(pid) for pid in pids]
        assert shutdown_context().get(timeout=30) is None
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
