"""Two real processes, an owner of buffers and one that reads and writes them, and every path between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import HostMesh, ProcMesh, this_host
from tests.rdma.buffers import Owner, Reader
from tests.rdma.ibverbs_sides import gone, loop, make, sides, tls
from tests.support.faults import Faults
from tests.support.hosts import hosts_in
from tests.support.patience import TIMEOUT
from tests.support.processes import stopped

__all__ = ["gone", "loop", "make", "sides", "tls"]  # fixtures for tests of RDMA devices


@pytest.fixture(autouse=True)
def _deaths_are_expected(faults: Faults) -> Iterator[None]:
    """Tests here kill processes, and look elsewhere for what comes of that: it comes before the next test begins."""
    yield
    faults.settle()


@pytest.fixture(scope="session")
def shared_procs() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs(per_host={"who": 2}, name="rdma")
    yield procs
    procs.stop().get(timeout=TIMEOUT)


@pytest.fixture
def owner(shared_procs: ProcMesh) -> Iterator[Any]:
    mesh = shared_procs.slice(who=0).spawn("owner", Owner)
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def reader(shared_procs: ProcMesh) -> Iterator[Any]:
    mesh = shared_procs.slice(who=1).spawn("reader", Reader)
    yield mesh
    mesh.use.call_one("").get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def neighbour(shared_procs: ProcMesh) -> Iterator[Any]:
    """A reader in the owner's process."""
    mesh = shared_procs.slice(who=0).spawn("neighbour", Reader)
    yield mesh
    mesh.use.call_one("").get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def fresh() -> Iterator[Any]:
    """`fresh(Class)`: an actor of the class in a process of its own, which a test may kill."""
    meshes = []

    def spawn(cls: type) -> Any:
        procs = this_host().spawn_procs(name="fresh")
        meshes.append(procs)
        return procs.spawn(cls.__name__, cls)

    yield spawn
    for procs in meshes:
        procs.stop().get(timeout=TIMEOUT)


@pytest.fixture
def owners() -> type:
    return Owner


@pytest.fixture
def readers() -> type:
    return Reader


@pytest.fixture
def held() -> Any:
    """`with held(pid):` the process is stopped by SIGSTOP, all its threads."""
    return stopped


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostMesh]:
    """Two hosts on this machine, which speak TCP."""
    with hosts_in(tmp_path_factory.mktemp("hosts")) as hosts:
        mesh = hosts.attach(hosts.start_tcp(), hosts.start_tcp())
        yield mesh
        mesh.shutdown().get(TIMEOUT)


@pytest.fixture
def two(two_hosts: HostMesh) -> Iterator[ProcMesh]:
    """A process of the test's own, which it may kill, on each of two hosts."""
    procs = two_hosts.spawn_procs()
    yield procs
    procs.stop().get(TIMEOUT)
