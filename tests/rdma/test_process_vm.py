"""Between two processes of a host: what a drop promises to whoever is in the middle, and what Yama is asked for."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._linux import procfs
from monarch.actor import Channel, endpoint, this_host
from monarch.actor.host_agent import agent_pid
from monarch.rdma import BufferDroppedError, OwnerEndedError, RDMABuffer
from monarch.rdma.backends import owner_view, process_vm
from monarch.rdma.buffer import _restore
from tests.rdma.buffers import Owner, call
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.procs
MIB = 1 << 20


@pytest.fixture
def hammerer(shared_procs: Any, readers: type) -> Any:
    class Hammerer(readers):  # type: ignore[misc]
        @endpoint
        def write_on(self, buffer: RDMABuffer, started: Any) -> int:
            """Writes ones until it is dropped."""
            ones, count = bytearray(b"\1" * buffer.size()), 0
            while True:
                try:
                    buffer.write_from(ones).get()
                except BufferDroppedError:
                    return count
                count += 1
                if count == 3:
                    started.send(None)

        @endpoint
        def read_on(self, buffer: RDMABuffer, started: Any) -> list[int]:
            """Reads until it is dropped; the bytes that successful reads saw."""
            seen: set[int] = set()
            into, count = bytearray(buffer.size()), 0
            while True:
                try:
                    buffer.read_into(into).get()
                except BufferDroppedError:
                    return sorted(seen)
                seen |= set(into)
                count += 1
                if count == 3:
                    started.send(None)

    mesh = shared_procs.slice(who=1).spawn("hammerer", Hammerer)
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


def test_nobody_writes_into_memory_whose_drop_is_done(hammerer: Any) -> None:
    for size in (100, 64 << 10, 12 * MIB) * 3:
        data = bytearray(size)
        buffer = RDMABuffer(data)
        port, receiver = Channel[None].open()
        writing = hammerer.write_on.call_one(buffer, port)
        receiver.recv().get(TIMEOUT)
        buffer.drop().get(TIMEOUT)
        data[:] = bytes(size)
        assert writing.get(TIMEOUT) >= 3
        assert data == bytes(size)


def test_a_read_that_succeeds_saw_the_buffer_and_not_what_came_after(hammerer: Any) -> None:
    for size in (100, 64 << 10, 2 * MIB) * 5:
        data = bytearray(b"\1" * size)
        buffer = RDMABuffer(data)
        port, receiver = Channel[None].open()
        reading = hammerer.read_on.call_one(buffer, port)
        receiver.recv().get(TIMEOUT)
        buffer.drop().get(TIMEOUT)
        data[:] = b"\2" * size
        assert reading.get(TIMEOUT) == [1]


def test_a_drop_while_the_kernel_copies_fails_the_read(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word was the token before the data, and no more after."""
    _, buffer = call(owner.make, b"data")
    real = owner_view.CALLS
    assert real is not None

    def read(*args: Any) -> int:
        done = real.small_read(*args)
        ctypes.memset(process_vm._scratch.words + 8, 0, 8)
        return int(done)

    monkeypatch.setattr(owner_view, "CALLS", SimpleNamespace(small_read=read, read=real.read))
    with pytest.raises(BufferDroppedError):
        buffer.read_into(bytearray(4)).get(TIMEOUT)


def test_two_writers_of_one_process_hold_one_lock(owner: Any) -> None:
    _, buffer = call(owner.make, b"data")
    handle = buffer._handle
    peer = owner_view.view_of_owner(handle)
    peer.enter(handle)
    peer.enter(handle)
    peer.leave(handle.slot)
    dropped = buffer.drop()
    with pytest.raises(BufferDroppedError):
        while True:  # until the drop has arrived
            buffer.read_into(bytearray(4)).get(TIMEOUT)
    assert "pending" in repr(dropped)
    peer.leave(handle.slot)
    dropped.get(TIMEOUT)


def test_a_pid_that_is_used_again_is_no_owner(owner: Any) -> None:
    """The handle of a process whose pid now belongs to another."""
    _, buffer = call(owner.make, b"data")
    handle = buffer._handle
    earlier = handle._replace(owner=handle.owner._replace(started=handle.owner.started - 1), token=handle.token ^ 1)
    stale = _restore(*earlier)
    for transfer in (lambda: stale.read_into(bytearray(4)), lambda: stale.write_from(b"more")):
        with pytest.raises(OwnerEndedError):
            transfer().get(TIMEOUT)
    with pytest.raises(BufferDroppedError):
        _restore(*handle._replace(token=handle.token ^ 1)).read_into(bytearray(4)).get(TIMEOUT)


@pytest.mark.parametrize(("scope", "asked"), [("0", False), ("1", True), ("2", False), ("3", False)])
def test_yama_is_asked_where_it_lets_only_ancestors_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str, asked: bool
) -> None:
    (tmp_path / "ptrace_scope").write_text(f"{scope}\n")
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(owner_view, "_YAMA", str(tmp_path / "ptrace_scope"))
    monkeypatch.setattr(owner_view, "_let", 0)
    prctl = lambda option, pid, *rest: calls.append((option, pid.value))  # noqa: E731
    monkeypatch.setattr(owner_view, "CALLS", SimpleNamespace(prctl=prctl))
    for _ in range(2):
        owner_view.let_peers_read()
    assert calls == ([(0x59616D61, os.getpid())] if asked else [])  # a client: nobody above it may look


class Watched(Owner):
    """An owner and a reader on a machine with Yama: the kernel's answers are those of `Yama`."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        owner_view._YAMA = os.path.join(folder, "ptrace_scope")
        owner_view.CALLS = Yama(folder)

    @endpoint
    def tracer(self) -> int:
        return owner_view._tracer()

    @endpoint
    def read(self, buffer: RDMABuffer) -> tuple[str, bytes]:
        into = bytearray(buffer.size())
        buffer.read_into(into).get()
        return buffer.path, bytes(into)


class Yama:
    """The calls of process_vm on a machine whose `ptrace_scope` is 1, as Documentation/admin-guide/LSM/Yama.rst has it.

    A process looks into another when it is one of that one's ancestors, or descends from the process that the other has
    named by PR_SET_PTRACER (or is it). What was named stands in a file for each process.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.real = owner_view._Calls()
        self.small_read, self.read = self._asked(self.real.small_read), self._asked(self.real.read)
        self.small_write, self.write = self._asked(self.real.small_write), self._asked(self.real.write)

    def prctl(self, option: int, pid: Any, *rest: int) -> int:
        assert option == 0x59616D61
        Path(self.folder, str(os.getpid())).write_text(str(pid.value))
        return 0

    def _asked(self, call: Any) -> Any:
        def copy(pid: int, *args: Any) -> int:
            if pid == os.getpid() or os.getpid() in line(pid) or self._named(pid) in line(os.getpid()):
                return int(call(pid, *args))
            ctypes.set_errno(errno.EPERM)
            return -1

        return copy

    def _named(self, pid: int) -> int:
        try:
            return int(Path(self.folder, str(pid)).read_text())
        except FileNotFoundError:
            return -1


def line(pid: int) -> list[int]:
    """A process and its ancestors."""
    found = procfs.stat(pid)
    return [] if found is None else [pid, *line(found.parent)]


@pytest.fixture
def yama(tmp_path: Path) -> str:
    (tmp_path / "ptrace_scope").write_text("1\n")
    return str(tmp_path)


def test_under_yama_the_processes_of_a_program_look_into_each_other(yama: str) -> None:
    host = this_host()
    forked, executed = host.spawn_procs(), host.with_python_executable(sys.executable).spawn_procs()
    meshes = [procs.spawn("watched", Watched, yama) for procs in (forked, executed)]
    for one, other in (meshes, meshes[::-1]):
        assert call(one.tracer) == os.getpid()  # the agent's parent: every process of the program here descends from it
        _, buffer = call(one.make, b"data")
        assert call(other.read, buffer) == ("process_vm", b"data")
    for procs in (forked, executed):
        procs.stop().get(TIMEOUT)


def test_whoever_started_the_client_is_not_to_look_into_it(shared_procs: Any) -> None:
    assert agent_pid() > 0
    assert owner_view._tracer() == os.getpid() == procfs.stat(agent_pid()).parent


def test_under_yama_a_process_that_has_named_nobody_is_not_looked_into(yama: str, owner: Any) -> None:
    """Shows what the stand-in is worth: it refuses as the kernel does."""
    _, buffer = call(owner.make, b"data")
    procs = this_host().spawn_procs()
    assert call(procs.spawn("watched", Watched, yama).read, buffer) == ("tcp", b"data")
    procs.stop().get(TIMEOUT)


def test_a_forked_child_does_not_have_its_parents_table() -> None:
    """Has none: what it had would be shared with the parent, at an address where a peer might look for its own buffers."""
    RDMABuffer(bytearray(b"data"))
    tables = [one for one in split_mappings(Path("/proc/self/smaps").read_text()) if "monarch-rdma" in one]
    assert tables
    assert all("dc" in one.rpartition("VmFlags:")[2].split() for one in tables)  # proc(5): do not copy area on fork


def split_mappings(text: str) -> list[str]:
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if "-" in line.split(" ")[0] and not line.split(" ")[0].endswith(":"):
            blocks.append([])
        blocks[-1].append(line)
    return ["\n".join(block) for block in blocks]
