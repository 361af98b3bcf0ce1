"""NIXL between two real hosts, where it is installed; what is without it everywhere."""

from __future__ import annotations

import importlib.util
import os
import signal
from typing import Any

import pytest

from monarch.actor import Actor, HostMesh, endpoint
from monarch.config import configure
from monarch.rdma import RDMABuffer
from monarch.rdma.backends.nixl import nixl_agent
from monarch.rdma.backends.nixl.nixl_agent import NoAgentError
from tests.rdma.buffers import call
from tests.support.processes import kill

TIMEOUT = 30
MIB = 1 << 20


def installed() -> bool:
    return any(importlib.util.find_spec(name.partition(".")[0]) for name in nixl_agent.MODULES)


needs_nixl = pytest.mark.skipif(not installed(), reason="NIXL is not installed")


def test_it_is_off_unless_a_setting_allows_it() -> None:
    with pytest.raises(NoAgentError, match="rdma_nixl is off"):
        nixl_agent.agent()


def test_without_the_package_the_text_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_agent, "MODULES", ("monarch_has_no_such_module._api",))
    with pytest.raises(NoAgentError, match="rdma-nixl"):
        nixl_agent._module()


class Side(Actor):
    """Owns buffers, and reads and writes those of others."""

    def __init__(self) -> None:
        self.data: list[bytearray] = []

    @endpoint
    def use(self, nixl: bool) -> None:
        """Processes of a test are on one machine: only what leads to others is used."""
        from monarch.rdma import paths

        configure(rdma_nixl=nixl)
        paths.BACKENDS = tuple(one for one in paths.BACKENDS if one.name in ("nixl", "tcp", "actor"))

    @endpoint
    def make(self, data: bytes) -> RDMABuffer:
        self.data.append(bytearray(data))
        return RDMABuffer(self.data[-1])

    @endpoint
    def bytes_of(self, number: int) -> bytes:
        return bytes(self.data[number])

    @endpoint
    def path(self, buffer: RDMABuffer) -> str:
        return buffer.path

    @endpoint
    def read(self, buffer: RDMABuffer, offset: int = 0, timeout: float = TIMEOUT) -> Any:
        into = bytearray(buffer.size() - offset)
        try:
            buffer.read_into(into, offset=offset, timeout=timeout).get()
        except Exception as exc:
            return type(exc).__name__
        return bytes(into)

    @endpoint
    def write(self, buffer: RDMABuffer, data: bytes, offset: int = 0) -> Any:
        try:
            buffer.write_from(data, offset=offset, timeout=TIMEOUT).get()
        except Exception as exc:
            return type(exc).__name__
        return None

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get()

    @endpoint
    def failed(self) -> int:
        """Owners with whom NIXL has failed."""
        from monarch.rdma.backends.nixl import backend as nixl

        return len(nixl.unreachable)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def sides(two: HostMesh) -> tuple[Any, Any]:
    procs = two.spawn_procs()
    owner = procs.slice(hosts=0).spawn("owner", Side)
    other = procs.slice(hosts=1).spawn("other", Side)
    call(owner.use, True)
    call(other.use, True)
    return owner, other


@needs_nixl
@pytest.mark.procs
def test_between_hosts(two: HostMesh) -> None:
    owner, other = sides(two)
    data = os.urandom(5 * MIB + 1)
    buffer = call(owner.make, data)
    assert call(other.path, buffer) == "nixl"
    assert call(other.read, buffer) == data
    assert call(other.read, buffer, 4 * MIB + 3) == data[4 * MIB + 3 :]
    assert call(other.write, buffer, b"new", 7) is None
    assert call(owner.bytes_of, 0) == data[:7] + b"new" + data[10:]
    second = call(owner.make, b"another buffer")
    assert call(other.read, second) == b"another buffer"
    assert call(other.failed) == 0


@needs_nixl
@pytest.mark.procs
def test_a_dropped_buffer_is_not_read_and_its_successor_is(two: HostMesh) -> None:
    owner, other = sides(two)
    for number in range(5):
        data = os.urandom(MIB)  # most likely where the last one was
        buffer = call(owner.make, data)
        assert call(other.read, buffer) == data
        call(other.drop, buffer)
        assert call(other.read, buffer) == "BufferDroppedError"
        assert call(other.write, buffer, b"late") == "BufferDroppedError"
        assert call(owner.bytes_of, number) == data
    assert call(other.failed) == 0


@needs_nixl
@pytest.mark.procs
def test_an_owner_without_it_is_reached_over_streams(two: HostMesh) -> None:
    owner, other = sides(two)
    call(owner.use, False)
    data = os.urandom(MIB)
    buffer = call(owner.make, data)
    assert call(other.path, buffer) == "nixl"  # who asks cannot know yet
    assert call(other.read, buffer) == data
    assert call(other.failed) == 1
    assert call(other.write, buffer, b"new") is None
    assert call(owner.bytes_of, 0)[:3] == b"new"


@needs_nixl
@pytest.mark.procs
def test_an_owner_that_ends_is_told_of(two: HostMesh) -> None:
    owner, other = sides(two)
    buffer = call(owner.make, b"data")
    assert call(other.read, buffer) == b"data"
    kill(call(owner.pid))
    assert call(other.read, buffer) == "OwnerEndedError"
    assert call(other.write, buffer, b"more") == "OwnerEndedError"


@needs_nixl
@pytest.mark.procs
def test_an_owner_that_is_stopped_is_waited_for_until_the_timeout(two: HostMesh) -> None:
    owner, other = sides(two)
    buffer = call(owner.make, bytes(8 * MIB))
    assert call(other.read, buffer) == bytes(8 * MIB)
    pid = call(owner.pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert call(other.read, buffer, 0, 0.2) == "RDMATimeoutError"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert call(other.read, buffer) == bytes(8 * MIB)
