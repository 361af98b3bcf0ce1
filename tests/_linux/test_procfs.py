"""Tests of what the kernel shows of processes and memory."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._linux import procfs

_PR_SET_NAME = 15
REST = b"S 1 2 3 0 -1 4194304 1 0 0 0 250 150 0 0 20 0 7 0 98765 1 11 0"


@given(st.binary(max_size=20).filter(lambda name: b"\0" not in name))
def test_a_name_may_hold_anything(name: bytes) -> None:
    found = procfs.parse_stat(b"17 (%s) %s\n" % (name, REST))
    ticks = os.sysconf("SC_CLK_TCK")
    assert os.fsencode(found.name) == name
    assert found[:1] + found[2:] == (
        17, "S", 1, 2, 3, 400 / ticks, 7, 98765, 11 * os.sysconf("SC_PAGE_SIZE"),
    )  # fmt: skip


@pytest.mark.parametrize(("state", "alive"), [("R", True), ("S", True), ("T", True), ("Z", False), ("X", False)])
def test_what_was_not_waited_for_has_ended(state: str, alive: bool) -> None:
    assert procfs.parse_stat(b"17 (a) " + state.encode() + REST[1:]).alive is alive


def test_this_process() -> None:
    found = procfs.stat(os.getpid())
    assert found is not None
    assert (found.pid, found.parent, found.group, found.session) == (
        os.getpid(),
        os.getppid(),
        os.getpgid(0),
        os.getsid(0),
    )
    assert found.alive and found.resident > 1 << 20 and found.threads >= 1
    assert procfs.start_of(os.getpid()) == found.started
    assert os.getpid() in procfs.pids()
    assert sys.executable.rpartition("/")[2][:6] in procfs.command_line(os.getpid())
    assert f"PATH={os.environ['PATH']}".encode() in procfs.environment(os.getpid())


def test_a_process_with_an_odd_name_and_its_end() -> None:
    inside, outside = socket.socketpair()
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b") Z 0 (\xff", 0, 0, 0)
        inside.send(b".")
        inside.recv(1)
        os._exit(0)
    try:
        outside.recv(1)
        found = procfs.stat(pid)
        assert found is not None and os.fsencode(found.name) == b") Z 0 (\xff"
        assert found.parent == os.getpid() and pid in procfs.children_of("self") and found.alive
        outside.send(b".")
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        zombie = procfs.stat(pid)
        assert zombie is not None and zombie.state == "Z" and zombie.started == found.started
        assert procfs.start_of(pid) is None and procfs.command_line(pid) == ""
    finally:
        inside.close()
        outside.close()
        os.waitpid(pid, 0)
    assert procfs.stat(pid) is None and procfs.start_of(pid) is None
    assert procfs.command_line(pid) == "" and procfs.environment(pid) == [] and procfs.children_of(pid) == []


def test_threads() -> None:
    go = threading.Event()
    children: list[subprocess.Popen[bytes]] = []

    def work() -> None:
        children.append(subprocess.Popen(["sleep", "1000"]))
        go.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while not children:
            os.sched_yield()
        assert procfs.thread_state(os.getpid(), thread.native_id or 0) in ("S", "R")
        assert children[0].pid in procfs.children_of(os.getpid())  # of whichever thread
    finally:
        go.set()
        thread.join()
        children[0].kill()
        children[0].wait()
    assert procfs.thread_state(os.getpid(), 1 << 22) == ""


@pytest.mark.parametrize(("flags", "exits"), [(b"4194304", False), (b"4194308", True)])
def test_a_thread_exits_before_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: bytes, exits: bool
) -> None:
    (tmp_path / "17" / "task" / "18").mkdir(parents=True)
    rest = REST.replace(b"4194304", flags)
    (tmp_path / "17" / "task" / "18" / "stat").write_bytes(b"18 (a) 4 4) %s\n" % rest)
    monkeypatch.setattr(procfs, "_PROC", str(tmp_path))
    assert procfs.thread_exits(17, 18) is exits
    assert procfs.thread_exits(17, 19)


def test_a_thread_that_cannot_be_seen_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    assert not procfs.thread_exits(os.getpid(), threading.get_native_id())
    monkeypatch.setattr("builtins.open", full)
    assert not procfs.thread_exits(os.getpid(), threading.get_native_id())


def test_the_machine() -> None:
    total, available = procfs.memory()
    assert total >= available > 1 << 20
    assert len(procfs.boot_id()) == 36
    assert procfs.namespace("pid") != procfs.namespace("mnt")
    assert procfs.namespace("pid").startswith(procfs.boot_id())


def test_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(procfs, "_PROC", str(tmp_path / "none"))
    assert procfs.memory() == (0, 0) and procfs.pids() == [] and procfs.stat(1) is None
    with pytest.raises(OSError):
        procfs.boot_id()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable:    40 kB\nHugePages_Total: 3\n", (102400, 40960)),
        ("MemTotal: 100 kB\nMemFree: 10 kB\n", (102400, 10240)),  # a kernel before 3.14
        ("MemFree: 10 kB\n", (0, 0)),
    ],
)
def test_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, found: tuple[int, int]) -> None:
    (tmp_path / "meminfo").write_text(text)
    monkeypatch.setattr(procfs, "_PROC", str(tmp_path))
    assert procfs.memory() == found
