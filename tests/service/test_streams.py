"""Streams of services in memory: their readers, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    ProcMesh,
    SupervisionError,
    endpoint,
    this_host,
    this_proc,
)
from monarch.service import (
    ReplicaLostError,
    Service,
    serve,
)
from monarch.service.stream import ServiceStream
from monarch.testing import InProcessCluster, Local
from tests.service.model import Model, new_event
from tests.support.patience import TIMEOUT


@pytest.mark.parametrize("mode", ["for", "async for"])
def test_streams(cluster: InProcessCluster, mode: str) -> None:
    with serve(this_host(), Model) as service:
        made: Local[list[int]] = Local([])
        if mode == "for":
            assert list(service.count.stream(50, made)) == list(range(0, 100, 2))
        else:

            async def read() -> list[int]:
                return [value async for value in service.acount.stream(50)]

            assert asyncio.run(read()) == list(range(0, 100, 2))
        with pytest.raises(ActorError, match="three"):
            list(service.acount.stream(3))


def test_a_stream_waits_for_its_reader_and_ends_with_it(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model) as service:
        made: Local[list[int]] = Local([])
        stream = service.options(window=4).count.stream(1_000_000, made)
        assert [next(stream) for _ in range(10)] == list(range(0, 20, 2))
        cluster.settle()
        assert len(made.value) <= 10 + 4
        assert "open, 10 values taken" in repr(stream)
        stream.close()
        assert service.times.route(1).get() == 2  # the replica is free again
        assert made.value[-1] == -1 and len(made.value) <= 10 + 4 + 1
        assert list(stream) == []

        made.value.clear()
        service.options(window=4).count.stream(1_000_000, made)  # dropped before it has begun
        assert service.times.route(1).get() == 2
        assert len(made.value) <= 5


async def wait_in_vain(stream: ServiceStream) -> None:
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


def test_to_wait_for_a_value_may_be_given_up_and_begun_again(cluster: InProcessCluster) -> None:
    entered, gate = new_event(), new_event()
    with serve(this_host(), Model) as service:
        kept = service.wait.route(entered, gate)
        entered.value.wait()

        async def read() -> int:
            stream = service.acount.stream(50)
            for _ in range(2):
                await wait_in_vain(stream)
            gate.value.set()
            return int(await anext(stream))

        assert asyncio.run(read()) == 0
        assert kept.get() == 2


def test_a_reader_that_leaves_while_it_waits_for_the_beginning_tells_the_replica(
    cluster: InProcessCluster, recwarn: pytest.WarningsRecorder
) -> None:
    port, receiver = Channel[Any].open()
    credits, told = Channel[int].open()

    async def read() -> None:
        stream = ServiceStream(receiver, 4, lambda replied: replied, lambda: None)
        await wait_in_vain(stream)
        stream.close()
        port.send(("begin", credits))
        cluster.settle()

    asyncio.run(read())
    assert told.recv().get(TIMEOUT) == -1
    assert not [each for each in recwarn if "event loop" in str(each.message)]


def test_a_stream_ends_with_the_readers_process(cluster: InProcessCluster) -> None:
    class Reader(Actor):
        @endpoint
        async def read(self, service: Service, made: Local[list[int]], port: Port[ProcMesh]) -> None:
            async with service.count.stream(1_000_000, made) as stream:
                await anext(stream)
                port.send(this_proc())
                await asyncio.Event().wait()

    with serve(this_host(), Model) as service:
        reader = this_host().spawn_procs().spawn("reader", Reader)
        port, receiver = Channel[ProcMesh].open()
        made: Local[list[int]] = Local([])
        reading = reader.read.call_one(service, made, port)
        cluster.kill(receiver.recv().get())
        assert isinstance(reading.exception(), SupervisionError)
        assert service.times.route(1).get() == 2


def test_a_stream_of_a_dead_replica_raises(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model, backoff=0) as service:
        where = service.where.route().get()
        stream = service.options(window=2).count.stream(1_000_000, Local([]))
        next(stream)
        cluster.kill(where)
        with pytest.raises(ReplicaLostError, match=r"model.count\(\) ran at replica 0, which died: [^@]*$"):
            list(stream)
        assert service.times.route(1).get() == 2
