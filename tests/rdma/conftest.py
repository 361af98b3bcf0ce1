"""Two real processes, an owner of buffers and one that reads and writes them, and every path between them."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import monarch.actor
from monarch.actor import Actor, HostMesh, ProcMesh, endpoint, this_host
from monarch.rdma import RDMAAction, RDMABuffer
from tests.procs.test_hosts import Hosts

TIMEOUT = 30


class Owner(Actor):
    """Keeps bytearrays by number and registers them."""

    def __init__(self) -> None:
        self.data: dict[int, bytearray] = {}

    @endpoint
    def make(self, data: bytes) -> tuple[int, RDMABuffer]:
        number = len(self.data)
        self.data[number] = bytearray(data)
        return number, RDMABuffer(self.data[number])

    @endpoint
    def make_read_only(self, data: bytes) -> RDMABuffer:
        return RDMABuffer(data)

    @endpoint
    def bytes_of(self, number: int) -> bytes:
        return bytes(self.data[number])

    @endpoint
    def set(self, number: int, data: bytes) -> None:
        self.data[number][:] = data

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def registered(self) -> int:
        from monarch.rdma.registry import registry

        return len(registry())


class Reader(Actor):
    """Reads and writes others' buffers; what goes wrong comes back as (type, text)."""

    @endpoint
    def use(self, path: str) -> None:
        """From here on no path but this one, or every one."""
        from monarch.rdma import paths

        monarch.configure(rdma_max_chunk_size_mb=1 if path == "actor" else 64)  # several chunks, in tests as well
        every = (paths.Local(), paths.ProcessVm(), paths.ThroughActors())
        paths.BACKENDS = tuple(backend for backend in every if path in ("", backend.name))

    @endpoint
    def path(self, buffer: RDMABuffer) -> str:
        return buffer.path

    @endpoint
    def read(self, buffer: RDMABuffer, room: int, options: dict[str, Any]) -> Any:
        into = bytearray(b"." * room)
        return outcome(lambda: buffer.read_into(into, **options).get(), into)

    @endpoint
    async def read_async(self, buffer: RDMABuffer, room: int) -> bytes:
        into = bytearray(b"." * room)
        await buffer.read_into(into)
        return bytes(into)

    @endpoint
    def write(self, buffer: RDMABuffer, data: bytes, options: dict[str, Any]) -> Any:
        return outcome(lambda: buffer.write_from(data, **options).get(), data)

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get()

    @endpoint
    def forget(self, buffer: RDMABuffer) -> None:
        """Drops it and does not look."""
        buffer.drop()

    @endpoint
    def act(self, reads: list[tuple[RDMABuffer, int]], writes: list[tuple[RDMABuffer, bytes]], times: int = 1) -> Any:
        into = [bytearray(room) for _, room in reads]
        action = RDMAAction()
        for (buffer, _), one in zip(reads, into, strict=True):
            action.read_remote(one, buffer)
        for buffer, data in writes:
            action.write_remote(buffer, data)
        for _ in range(times):
            failed = outcome(lambda: action.submit().get(), b"")
            if failed:
                return failed
        return [bytes(one) for one in into]

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def outcome(do: Any, data: Any) -> Any:
    try:
        do()
    except Exception as exc:
        return type(exc).__name__, str(exc)
    return bytes(data)


@pytest.fixture(scope="session", autouse=True)
def _no_fault_reaches_pytest() -> Iterator[None]:
    """Tests here kill processes; the default hook would interrupt pytest itself."""
    before = monarch.actor.unhandled_fault_hook
    monarch.actor.unhandled_fault_hook = lambda failure: None
    yield
    monarch.actor.unhandled_fault_hook = before


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

    @contextmanager
    def hold(pid: int) -> Iterator[None]:
        os.kill(pid, signal.SIGSTOP)
        try:
            deadline = time.monotonic() + TIMEOUT
            while not all(state == "T" for state in thread_states(pid)):  # the kernel tells nobody but the parent
                assert time.monotonic() < deadline
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    return hold


def thread_states(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]


@contextmanager
def hosts_in(cwd: Path) -> Iterator[Hosts]:
    """Workers as hosts of this machine, their sockets in a folder with a short name."""
    folder = Path(tempfile.mkdtemp(prefix="mnr"))
    hosts = Hosts(folder, cwd)
    try:
        yield hosts
    finally:
        hosts.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[HostMesh]:
    """Two hosts on this machine."""
    with hosts_in(tmp_path) as hosts:
        mesh = hosts.attach(hosts.start_tcp(), hosts.start_tcp())
        yield mesh
        mesh.shutdown().get(TIMEOUT)
