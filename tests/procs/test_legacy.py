"""Older forms of the API, which programs written for earlier releases still use."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from monarch.actor import Actor, Extent, ProcMesh, current_rank, endpoint, local_proc_mesh, proc_mesh
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytestmark = pytest.mark.procs


class Old(Actor):
    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.at_start = dict(os.environ)

    @endpoint
    async def get(self) -> int:
        return self.start + current_rank().rank

    @endpoint
    async def env(self, name: str) -> str | None:
        return self.at_start.get(name)

    @endpoint
    async def pid(self) -> int:
        return os.getpid()


def test_await_proc_mesh_and_await_spawn() -> None:
    async def main() -> None:
        procs = await proc_mesh(gpus=2)
        actor = await procs.spawn("old", Old, 10)
        assert (await actor.get.call()).values() == [10, 11]
        await procs.stop()

    asyncio.run(main())


def test_the_dimensions_are_hosts_and_gpus() -> None:
    procs = proc_mesh(gpus=2, hosts=1)
    assert procs.extent == Extent(["hosts", "gpus"], [1, 2])
    assert isinstance(procs, ProcMesh)
    procs.stop().get(timeout=TIMEOUT)


def test_several_hosts_are_processes_on_this_one() -> None:
    procs = proc_mesh(gpus=1, hosts=2)
    pids = procs.spawn("old", Old).pid.call().get(timeout=TIMEOUT)
    assert pids.extent.sizes == [2, 1] and len({*pids.values(), os.getpid()}) == 3
    procs.stop().get(timeout=TIMEOUT)


def test_awaiting_gives_the_mesh_itself(procs2: ProcMesh) -> None:
    async def main() -> None:
        assert await procs2 is procs2
        actor = procs2.spawn("old", Old)
        assert await actor is actor

    asyncio.run(main())


def test_env_reaches_the_processes_before_anything_runs_there() -> None:
    async def main() -> None:
        procs = await proc_mesh(gpus=2, env={"OLD_STYLE": "yes"})
        actor = await procs.spawn("old", Old)
        assert (await actor.env.call("OLD_STYLE")).values() == ["yes", "yes"]
        await procs.stop()

    asyncio.run(main())
    assert "OLD_STYLE" not in os.environ


@full
def test_env_is_there_when_modules_are_first_imported(scripts: Any) -> None:
    (scripts.folder / "reads_env.py").write_text("import os\nSEEN = os.environ.get('EARLY')\n")
    scripts.run(
        """
        import asyncio
        from monarch.actor import Actor, endpoint, proc_mesh

        class A(Actor):
            @endpoint
            async def seen(self):
                import reads_env
                return reads_env.SEEN

        async def main():
            procs = await proc_mesh(gpus=1, env={"EARLY": "enough"})
            actor = await procs.spawn("a", A)
            assert (await actor.seen.call()).values() == ["enough"]

        asyncio.run(main())
        """
    )


def test_setup_runs_in_every_process_first() -> None:
    def setup() -> None:
        os.environ["SET_UP"] = "yes"

    procs = proc_mesh(gpus=2, setup=setup)
    assert procs.spawn("old", Old).env.call("SET_UP").get(timeout=TIMEOUT).values() == ["yes", "yes"]
    procs.stop().get(timeout=TIMEOUT)


def test_local_proc_mesh_has_the_same_form() -> None:
    async def main() -> None:
        procs = await local_proc_mesh(gpus=2)
        actor = await procs.spawn("old", Old)
        assert (await actor.get.call()).values() == [0, 1]
        assert "gpus" in procs.extent.labels
        await procs.stop()

    asyncio.run(main())


@pytest.mark.parametrize("make", [proc_mesh, local_proc_mesh])
def test_the_arguments_go_by_name(make: Any) -> None:
    with pytest.raises(TypeError):
        make(2)


def test_an_actor_with_an_endpoint_called_get_keeps_it(proc: ProcMesh) -> None:
    async def main() -> int:
        actor = await proc.spawn("old", Old, 5)
        return await actor.get.call_one()

    assert asyncio.run(main()) == 5
