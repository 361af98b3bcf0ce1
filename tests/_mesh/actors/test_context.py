"""context() in the tasks and threads of an actor. Who an actor is: tests/_mesh/failures/test_ledger_rows.py."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ProcMesh,
    bind_context,
    context,
    current_rank,
    endpoint,
)
from monarch.testing import InProcessCluster
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")


@pytest.fixture
def procs2(cluster: InProcessCluster) -> ProcMesh:
    return cluster.this_host().spawn_procs({"gpus": 2})


class Self(Actor):
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


class Threads(Actor):
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


def test_tasks_inherit_the_context(procs2: ProcMesh) -> None:
    found = procs2.spawn("self", Self).in_a_task.call().get(timeout=TIMEOUT).values()
    assert found == [[{"gpus": n}] * 2 for n in range(2)]


def test_asyncio_to_thread_inherits_the_context(procs2: ProcMesh) -> None:
    found = procs2.spawn("self", Self).in_to_thread.call().get(timeout=TIMEOUT).values()
    assert found == [{"gpus": 0}, {"gpus": 1}]


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
