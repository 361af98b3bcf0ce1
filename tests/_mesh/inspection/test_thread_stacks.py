"""What a process tells of its threads and tasks, on an in-process cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from monarch._mesh.agent.liveness import Liveness
from monarch._mesh.inspection import survey
from monarch._mesh.inspection.thread_stacks import TEXT, VARIABLES, variables
from monarch.actor import Actor, ActorMesh, Stacks, endpoint, this_host
from monarch.testing import InProcessCluster, Local
from tests.support.actors import TIMEOUT, Gate

pytestmark = pytest.mark.usefixtures("no_leaks")


class Plain(Actor):
    """Blocks its thread."""

    @endpoint
    def hold(self, fn: Local[Callable[[], Any]]) -> Any:
        return fn.value()

    @endpoint
    def nothing(self) -> None:
        return None


class Looped(Actor):
    """Awaits."""

    @endpoint
    async def hold(self, fn: Local[Callable[[], Any]]) -> Any:
        return await fn.value()

    @endpoint
    async def look(self, mesh: ActorMesh[Any]) -> Stacks:
        return await mesh.stacks()


def spawn(cls: type, count: int = 1) -> Any:
    mesh = this_host().spawn_procs({"gpus": count}, name="workers").spawn("held", cls)
    mesh.initialized.get(TIMEOUT)
    return mesh


def stacks_with(mesh: Any, function: str, **how: Any) -> Stacks:
    """The stacks, once one of them is in that function."""
    while True:
        found: Stacks = mesh.stacks(**how).get(TIMEOUT)
        if any(f.function.endswith(function) for stacks in found.ranks.values() for s in stacks for f in s.frames):
            return found


def test_a_blocked_endpoint_and_an_idle_one(cluster: InProcessCluster, gate: Gate) -> None:
    def wait_here() -> None:
        gate.opened.wait(TIMEOUT)

    mesh = spawn(Plain, 2)
    held = mesh.slice(gpus=1).hold.call_one(Local(wait_here))
    found = stacks_with(mesh, "wait_here")
    ((idle,), (stuck,)) = found.ranks.values()
    assert (idle.idle, idle.frames, idle.actor, idle.endpoint) == (True, [], "held", "")
    assert (stuck.idle, stuck.endpoint, stuck.rank, stuck.actor) == (False, "hold", 1, "held")
    assert [frame.function.rpartition(".")[2] for frame in stuck.frames] == ["hold", "wait_here"]
    assert "rank 1 at test_thread_stacks.py" in str(found)
    gate.open()
    held.get(TIMEOUT)


def test_a_suspended_endpoint_shows_where_it_awaits_and_what_it_has_begun(cluster: InProcessCluster) -> None:
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def aside(gate: asyncio.Event) -> None:
        await gate.wait()

    async def wait_here() -> None:
        gate = asyncio.Event()
        task = asyncio.create_task(aside(gate), name="aside")
        await asyncio.sleep(0)
        loops.append((asyncio.get_running_loop(), gate))
        await gate.wait()
        await task

    mesh = spawn(Looped)
    held = mesh.hold.call_one(Local(wait_here))
    while not loops:
        mesh.stacks().get(TIMEOUT)
    found = stacks_with(mesh, "aside")
    (stacks,) = found.ranks.values()
    by_endpoint = {stack.endpoint: stack for stack in stacks}
    assert [f.function.rpartition(".")[2] for f in by_endpoint["hold"].frames] == ["hold", "wait_here"]
    assert by_endpoint["hold"].task
    assert by_endpoint[""].task == "aside"
    loop, gate = loops[0]
    loop.call_soon_threadsafe(gate.set)
    held.get(TIMEOUT)


def test_an_actor_may_look_at_others(cluster: InProcessCluster, gate: Gate) -> None:
    def wait_here() -> None:
        gate.opened.wait(TIMEOUT)

    plain, looped = spawn(Plain), spawn(Looped)
    held = plain.hold.call_one(Local(wait_here))
    stacks_with(plain, "wait_here")
    assert "wait_here()" in str(looped.look.call_one(plain).get(TIMEOUT))
    gate.open()
    held.get(TIMEOUT)


def test_variables_are_text_and_secrets_are_not_shown(cluster: InProcessCluster, gate: Gate) -> None:
    class Rude:
        def __repr__(self) -> str:
            raise ValueError("no")

    def wait_here() -> None:
        text, api_token, rude = "x" * 10_000, "hunter2", Rude()
        gate.opened.wait(TIMEOUT)
        del text, api_token, rude

    mesh = spawn(Plain)
    held = mesh.hold.call_one(Local(wait_here))
    found = stacks_with(mesh, "wait_here", locals=True)
    shown = found.processes[0].threads[0].frames[-1].locals
    assert len(shown["text"]) <= TEXT
    assert "hunter2" not in str(shown)
    assert shown["rude"].startswith("<Rude instance at")
    assert "text = 'xxx" in str(found)
    gate.open()
    held.get(TIMEOUT)


def test_all_threads_shows_the_runtime(cluster: InProcessCluster) -> None:
    mesh = spawn(Plain)
    mesh.nothing.call_one().get(TIMEOUT)
    (stack,) = mesh.stacks(all_threads=True).get(TIMEOUT).only(lambda process, stack: stack.actor == "held").ranks[0]
    assert any(frame.file.endswith("driver.py") for frame in stack.frames)


def test_a_process_that_is_not_there(cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 1}, name="workers")
    procs.initialized.get(TIMEOUT)
    procs.stop().get(TIMEOUT)
    found = procs.stacks(timeout=0.2).get(TIMEOUT)
    assert found.processes == []
    assert len(found.silent) == 1


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_a_timeout_that_is_none(cluster: InProcessCluster, timeout: float) -> None:
    with pytest.raises(ValueError, match="invalid timeout"):
        spawn(Plain).stacks(timeout=timeout)


def test_an_answer_that_nobody_asks_for_is_refused(cluster: InProcessCluster) -> None:
    spawn(Plain)
    answers = survey.ask("stacks", b"\xc1").get(TIMEOUT)
    assert answers.replies == {}
    assert all("DecodeError" in why for why in answers.silent.values())


def test_variables_of_arrays_are_not_looked_into() -> None:
    class Tensor:
        shape, dtype, device = (3, 5), "float32", "cuda:0"

        def __repr__(self) -> str:
            raise AssertionError("what is in it may be on a device")

    def framed(tensor: object) -> Any:
        import sys

        return sys._getframe()

    assert variables(framed(Tensor()))["tensor"] == "<Tensor (3, 5) float32 cuda:0>"


def test_of_many_variables_some_are_shown() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "def f():\n" + "".join(f" v{n} = {n}\n" for n in range(200)) + " import sys\n return sys._getframe()", namespace
    )
    assert len(variables(namespace["f"]())) == VARIABLES


def test_a_stopped_process_is_known_by_how_its_suspicion_begins() -> None:
    """`survey` does not wait for it."""
    life = Liveness(10.0, 10.0)
    life.stopped(19)
    assert life.suspicion.startswith(survey.STOPPED)
