"""Programs that run in other surroundings: pytest-xdist, and uvloop as the client's event loop."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import full

pytestmark = [pytest.mark.procs, full]
ROOT = Path(__file__).resolve().parents[2]

SUITE = """
import os
import pytest
from monarch.actor import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def square(self, x):
        print("squares", x)
        return x * x, os.getpid()


@pytest.fixture(scope="session")
def workers():
    return this_host().spawn_procs({"gpus": 2}).spawn("workers", Worker)


@pytest.mark.parametrize("x", range(8))
def test_square(workers, x):
    values = workers.square.call(x).get(300).values()
    assert [value for value, _pid in values] == [x * x] * 2
    assert len({pid for _value, pid in values}) == 2


def test_one_that_fails(workers):
    assert workers.square.call(3).get(300).values()[0][0] == 8
"""


@pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed")
def test_two_workers_of_xdist_have_a_cluster_each(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 8 passed" in done.stdout
    assert "assert 9 == 8" in done.stdout


UVLOOP = """
    import asyncio, os, uvloop
    from monarch.actor import Actor, UnhandledFaultError, as_completed, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def square(self, x):
            return x * x
        @endpoint
        async def slow(self):
            await asyncio.sleep(600)
        @endpoint
        def die(self):
            os._exit(3)

    async def main():
        procs = this_host().spawn_procs({"gpus": 2})
        workers = procs.spawn("workers", Worker)
        print(type(asyncio.get_running_loop()).__module__)
        print(sum(sum(values.values()) for values in await asyncio.gather(*(workers.square.call(x) for x in range(10)))))
        print([x async for x in workers.square.map(range(5))])
        print(len([future async for future in as_completed([workers.square.call(x) for x in range(5)])]))
        try:
            await asyncio.wait_for(workers.slow.call(), 0.1)
        except TimeoutError:
            print("timeout")
        procs.spawn("mortal", Worker).die.broadcast()
        await asyncio.sleep(60)

    try:
        uvloop.run(main())
    except UnhandledFaultError as fault:
        print("fault", "exited with non-zero code 3" in str(fault))
"""


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed")
def test_uvloop_as_the_clients_loop(scripts: Any) -> None:
    done = scripts.run(UVLOOP)
    assert done.stdout.splitlines() == ["uvloop", "570", "[0, 1, 4, 9, 16]", "5", "timeout", "fault True"]
