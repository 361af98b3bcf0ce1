"""Buffers inside a cluster in memory, as users test their actors: one process, so every transfer is local."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import this_host
from monarch.rdma import paths
from monarch.testing import InProcessCluster
from tests.rdma.buffers import Owner, Reader, call


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
            number, buffer = call(owner.make, b"0123456789" * 1000)
            assert call(reader.path, buffer) == path
            assert call(reader.read_async, buffer, 10_000) == b"0123456789" * 1000
            assert call(reader.write, buffer, b"abc", {}) == b"abc"
            assert call(owner.bytes_of, number)[:5] == b"abc34"
            call(reader.drop, buffer)
