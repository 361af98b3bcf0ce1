"""Buffers inside a cluster in memory, as users test their actors: one process, so every transfer is local."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMABuffer, paths
from monarch.testing import InProcessCluster

TIMEOUT = 30


class Owner(Actor):
    @endpoint
    def make(self) -> RDMABuffer:
        self.data = bytearray(b"0123456789" * 1000)
        return RDMABuffer(self.data)


class Reader(Actor):
    @endpoint
    async def read(self, buffer: RDMABuffer) -> tuple[str, bytes]:
        into = bytearray(buffer.size())
        await buffer.read_into(into)
        await buffer.write_from(b"abc")
        path = buffer.path
        await buffer.drop()
        return path, bytes(into)


@pytest.mark.parametrize("path", ["local", "actor"])
@pytest.mark.filterwarnings("ignore::monarch.rdma.RDMATcpFallbackWarning")
def test_buffers_work_in_a_cluster_in_memory(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "actor":
        monkeypatch.setattr(paths, "BACKENDS", paths.BACKENDS)
        paths.allow("actor")
    for _ in range(2):  # a cluster after a cluster
        with InProcessCluster():
            procs: Any = this_host().spawn_procs(per_host={"who": 2})
            owner = procs.slice(who=0).spawn("owner", Owner)
            reader = procs.slice(who=1).spawn("reader", Reader)
            buffer = owner.make.call_one().get(TIMEOUT)
            assert reader.read.call_one(buffer).get(TIMEOUT) == (path, b"0123456789" * 1000)
