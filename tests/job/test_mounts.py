"""Mounts of jobs, and the sidecar that holds them. Hosts are real processes; mirrors need nothing of the system."""

from __future__ import annotations

import logging
import os
import signal
import socket
import stat
import sys
import threading
import venv
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._linux.local_socket import peer_of
from monarch.actor import Actor, endpoint
from monarch.config import configured
from monarch.job import LocalJob, ProcessJob, job_load
from monarch.job.mounts import sidecar, sidecar_program
from monarch.job.mounts.orders import MountOrder, executables, gathered_mount, orders, remote_mount
from monarch.job.mounts.sidecar import Sidecar, folder_of
from monarch.job.mounts.sidecar_messages import (
    CloseMounts,
    EndSidecar,
    OpenMounts,
    Reply,
    Request,
    SidecarDone,
    receive,
    send,
)
from monarch.job.mounts.sidecar_program import SidecarProgram
from monarch.job.names import LOGGER
from tests.support.faults import Faults
from tests.support.hosts import ROOT
from tests.support.mounts import contents, make_source
from tests.support.patience import TIMEOUT
from tests.support.processes import Watch, kill
from tests.support.scripts import Scripts
from tests.support.tiers import full

pytestmark = pytest.mark.usefixtures("folder")

# --- what is to be mounted


def test_each_mount_is_ordered_for_each_of_its_meshes(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    source = str(tmp_path)
    brought = remote_mount(source, "/there", ["a"], "bin/python", "mirror")
    shared = remote_mount(source, None, None, None, "auto")
    logs = gathered_mount("/logs", f"{source}/logs", None, "fuse")
    found = orders([brought, shared], [logs], ["a", "b"])
    assert found == [
        MountOrder("remote", "a", source, "/there", "mirror"),
        MountOrder("remote", "a", source, source, "auto"),
        MountOrder("remote", "b", source, source, "auto"),
        MountOrder("gather", "a", f"{source}/logs/a", "/logs", "fuse"),
        MountOrder("gather", "b", f"{source}/logs/b", "/logs", "fuse"),
    ]
    assert orders([], [logs], ["a"]) == [MountOrder("gather", "a", f"{source}/logs", "/logs", "fuse")]
    assert executables([brought, shared], ["a", "b"]) == {"a": "/there/bin/python"}
    with pytest.raises(ValueError, match="a mount is for mesh 'a', and the job's meshes are b"):
        orders([brought], [], ["b"])
    with pytest.raises(ValueError, match=r"two mounts of mesh 'a' would be at /there: give each a place of its own"):
        orders([brought, brought], [], ["a"])


def test_what_cannot_be_mounted_is_told_when_it_is_declared(tmp_path: Path) -> None:
    (tmp_path / "python").touch()
    job = LocalJob()
    with pytest.raises(ValueError, match=r"python_exe '.venv/bin/python' does not exist in .*or None"):
        job.remote_mount(str(tmp_path))
    with pytest.raises(ValueError, match="does not lie in"):
        job.remote_mount(str(tmp_path), python_exe=sys.executable)
    with pytest.raises(ValueError, match=r"\$SUBDIR in mntpoint gives each its own"):
        job.remote_mount(str(tmp_path), "/mnt/$SUBDIR", python_exe="python")
    with pytest.raises(ValueError, match="mntpoint 'relative' is not absolute"):
        job.remote_mount(str(tmp_path), "relative", python_exe=None)
    with pytest.raises(ValueError, match="mode 'nfs' is none of"):
        job.gather_mount("/logs", str(tmp_path), mode="nfs")
    with pytest.raises(TypeError, match="a sequence of names"):
        job.gather_mount("/logs", str(tmp_path), "hosts")


# --- what a program and a sidecar say


def test_messages_cross() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        order = MountOrder("gather", "a", "/here", "/there", "auto")
        send(ours, OpenMounts([order]))
        assert receive(theirs, Request) == OpenMounts([order])
        send(theirs, SidecarDone(["careful"]))
        send(theirs, SidecarDone([]))
        assert receive(ours, SidecarDone) == SidecarDone(["careful"])
        with pytest.raises(ValueError):
            receive(ours, CloseMounts)


# --- when a sidecar ends


class Allocation:
    """An allocation as a job looks to its sidecar."""

    def __init__(self, running: bool) -> None:
        self._running = running

    def _is_running(self) -> bool:
        return self._running


@pytest.mark.parametrize(("running", "lease"), [(False, "4h"), (True, "1ms")])
def test_a_sidecar_ends_with_the_allocation_and_when_nobody_has_used_it_for_the_lease(
    running: bool, lease: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_program, "_LOOK", 0.01)
    with socket.socket(socket.AF_UNIX) as listening, configured(job_lease=lease):
        listening.bind("")  # a name that the kernel chooses
        listening.listen()
        server = threading.Thread(target=SidecarProgram("", Allocation(running)).serve, args=(listening,), daemon=True)
        server.start()
        server.join(TIMEOUT)
        assert not server.is_alive()
        listening.shutdown(socket.SHUT_RDWR)  # whoever accepts ends as well


def test_a_sidecar_stays_while_a_program_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    allocation = Allocation(True)

    def look() -> bool:
        looked.set()
        return True

    monkeypatch.setattr(allocation, "_is_running", look)
    monkeypatch.setattr(sidecar_program, "_LOOK", 0.01)
    with socket.socket(socket.AF_UNIX) as listening, configured(job_lease="1ms"):
        listening.bind("")
        listening.listen()
        program = SidecarProgram("", allocation)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(listening.getsockname())
            threading.Thread(target=program.talk, args=(listening.accept()[0],), daemon=True).start()
            send(connection, CloseMounts())
            assert receive(connection, Reply) == SidecarDone([])  # it is counted from now on
            server = threading.Thread(target=program.serve, args=(listening,), daemon=True)
            server.start()
            assert looked.wait(TIMEOUT)
            send(connection, CloseMounts())
            assert receive(connection, Reply) == SidecarDone([])
            assert server.is_alive()
            send(connection, EndSidecar())
        server.join(TIMEOUT)
        assert not server.is_alive()
        listening.shutdown(socket.SHUT_RDWR)


# --- jobs


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


@pytest.fixture
def job() -> Iterator[ProcessJob]:
    job = ProcessJob({"trainers": 2})
    yield job
    job.kill()


def declare(job: Any, source: Path, tmp_path: Path) -> Any:
    """Returns what hosts get of the source, and its way back."""
    job.remote_mount(str(source), str(tmp_path / "hosts" / "$SUBDIR"), python_exe=None, mode="mirror")
    job.gather_mount(str(tmp_path / "hosts" / "$SUBDIR" / "pkg"), str(tmp_path / "back"), mode="mirror")
    return job


def sidecar_pid(job: Any) -> int:
    """Returns the pid of the one that runs."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{folder_of(job)}/socket")
        return peer_of(connection)[0]


@pytest.mark.procs
def test_a_job_has_its_mounts_from_state_to_kill(job: ProcessJob, source: Path, tmp_path: Path) -> None:
    declare(job, source, tmp_path).state()
    hosts, back = tmp_path / "hosts", tmp_path / "back"
    for rank in range(2):
        assert contents(hosts / f"hosts_{rank}") == contents(source)
        assert (back / f"hosts_{rank}" / "module.py").read_text() == "x = 1\n"
    home = Path(folder_of(job))
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "log").stat().st_mode) == 0o600
    first = sidecar_pid(job)

    (source / "pkg" / "module.py").write_text("x = 22\n")
    job.state()
    job_load().state()  # as the next program does
    assert (hosts / "hosts_1" / "pkg" / "module.py").read_text() == "x = 22\n"
    assert (back / "hosts_1" / "module.py").read_text() == "x = 22\n"
    assert sidecar_pid(job) == first

    watch = Watch([first])
    job.kill()
    assert watch.survivors(TIMEOUT) == {}
    assert list(hosts.iterdir()) == []
    assert (back / "hosts_1" / "module.py").read_text() == "x = 22\n"
    assert not home.exists()


@pytest.mark.procs
@full
def test_a_sidecar_that_was_killed_is_started_again(job: ProcessJob, source: Path, tmp_path: Path) -> None:
    declare(job, source, tmp_path).state()
    first = sidecar_pid(job)
    watch = Watch([first])
    os.kill(first, signal.SIGKILL)
    assert watch.survivors(TIMEOUT) == {}
    (source / "run").unlink()
    job.state()
    assert sidecar_pid(job) != first
    assert contents(tmp_path / "hosts" / "hosts_1") == contents(source)


@pytest.mark.procs
@full
def test_kill_takes_away_the_files_that_a_sidecar_has_left(job: ProcessJob, source: Path, tmp_path: Path) -> None:
    declare(job, source, tmp_path).state()
    watch = Watch([sidecar_pid(job)])
    os.kill(sidecar_pid(job), signal.SIGKILL)
    assert watch.survivors(TIMEOUT) == {}
    assert (tmp_path / "hosts" / "hosts_0" / "run").exists()
    job.kill()
    assert list((tmp_path / "hosts").iterdir()) == []


@pytest.mark.procs
@full
@pytest.mark.parametrize("telemetry", [False, True], ids=["", "with-telemetry"])
def test_a_stuck_sidecar_is_killed_and_keeps_no_hosts(
    job: ProcessJob,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    telemetry: bool,
) -> None:
    if telemetry:
        job.enable_telemetry()
    declare(job, source, tmp_path).state()
    stuck = sidecar_pid(job)
    hosts = [session.pid for session in job._workers.values()]
    watch = Watch([stuck, *hosts])
    os.kill(stuck, signal.SIGSTOP)
    monkeypatch.setattr(sidecar, "_SIGN", 0.5)
    with pytest.raises(RuntimeError, match=f"process {stuck} gives no sign of life .stopped. `kill -CONT {stuck}`"):
        job.state()
    logging.getLogger(LOGGER).addHandler(caplog.handler)
    job.kill()
    logging.getLogger(LOGGER).removeHandler(caplog.handler)
    assert watch.survivors(TIMEOUT) == {} and not job.active
    assert f"process {stuck} is killed" in caplog.text
    assert list((tmp_path / "hosts").iterdir()) == []  # by another one


@pytest.mark.procs
@full
def test_a_job_that_has_lost_a_host_can_be_killed(
    job: ProcessJob, source: Path, tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERACTOR_MESH_ATTACH_CONFIG_TIMEOUT", "10s")  # of the sidecar
    declare(job, source, tmp_path).state()
    kill(job._workers["trainers_1"].pid)
    job.kill()
    assert not job.active
    assert [host.name for host in (tmp_path / "hosts").iterdir()] == ["hosts_1"]  # nobody is there to clear it
    faults.settle()


@pytest.mark.procs
@full
def test_a_mount_that_cannot_be_is_told_in_the_sidecars_words(job: ProcessJob, source: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    job.remote_mount(str(source), str(tmp_path / "taken"), python_exe=None, mode="mirror")
    with pytest.raises(
        RuntimeError, match=r"job sidecar failed to open the mounts:\nValueError: cannot mirror .*/taken"
    ):
        job.state()
    assert job.active


@pytest.mark.procs
@full
def test_a_job_without_mounts_has_no_sidecar(job: ProcessJob) -> None:
    job.state()
    assert not os.path.exists(folder_of(job))
    Sidecar(job).end(job)


PROGRAM = """
    import sys
    from monarch.job import ProcessJob

    source, there, back = sys.argv[1:]
    job = ProcessJob({"trainers": 1})
    job.remote_mount(source, there, python_exe=None, mode="mirror").gather_mount(there, back, mode="mirror")
    job.state()
    print(job.apply_id)
"""


@pytest.mark.procs
@full
def test_the_sidecar_outlives_the_program_and_the_next_one_finds_it(
    source: Path, tmp_path: Path, scripts: Scripts
) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    runs = [scripts.run(PROGRAM, str(source), str(there), str(back)) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    job = job_load()
    try:
        assert contents(there) == contents(source)
        watch = Watch([sidecar_pid(job)])
    finally:
        job.kill()
    assert watch.survivors(TIMEOUT) == {}
    assert not there.exists()


class Interpreter(Actor):
    @endpoint
    def path(self) -> str:
        return sys.executable


@pytest.mark.procs
@full
def test_processes_of_a_mesh_run_the_interpreter_that_its_mount_brings(job: ProcessJob, tmp_path: Path) -> None:
    source = tmp_path / "source"
    venv.create(source / ".venv", symlinks=True)
    (packages,) = (source / ".venv" / "lib").glob("python*/site-packages")
    (packages / "ours.pth").write_text("\n".join(path for path in [str(ROOT), *sys.path] if path))
    job.remote_mount(source, str(tmp_path / "there"), mode="mirror")
    procs = job.state().trainers.slice(hosts=0).spawn_procs()
    actor: Any = procs.spawn("interpreter", Interpreter)
    assert actor.path.call_one().get(TIMEOUT) == str(tmp_path / "there" / ".venv" / "bin" / "python")
    procs.stop().get(TIMEOUT)


@pytest.mark.procs
def test_the_program_holds_the_mounts_of_a_job_that_ends_with_it(source: Path, tmp_path: Path) -> None:
    job = LocalJob().remote_mount(str(source), str(tmp_path / "there"), python_exe=None, mode="mirror")
    job.state(cached_path=None)
    assert contents(tmp_path / "there") == contents(source)
    (source / "run").unlink()
    job.state(cached_path=None)
    assert contents(tmp_path / "there") == contents(source)
    assert not os.path.exists(folder_of(job))
    job.kill()
    assert not (tmp_path / "there").exists()


def test_a_sidecar_that_ends_as_it_is_asked_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It takes connections until its very last moment. Only what wants one there is asked of another."""
    answers: list[SidecarDone | None] = []
    started: list[str] = []

    class Helper:
        def __init__(self, folder: str) -> None:
            pass

        def connect(self, timeout: float) -> socket.socket:
            if not answers:
                raise ConnectionRefusedError
            near, far = socket.socketpair()
            answer = answers.pop(0)
            if answer is not None:
                send(far, answer)
                kept.append(far)
            else:
                far.close()
            return near

        def start(self, program: str, *args: Any, **options: Any) -> None:
            started.append(program)
            answers.append(SidecarDone([]))

        def said(self) -> str:
            return "nothing"

    kept: list[socket.socket] = []
    monkeypatch.setattr(sidecar, "Companion", Helper)
    monkeypatch.setattr(sidecar, "folder_of", lambda job: str(tmp_path))
    job: Any = SimpleNamespace(dumps=lambda: b"")
    one = Sidecar(job)
    answers.append(None)
    one.start_observer(job)
    assert started == ["monarch.job.mounts.sidecar_program"]
    other = Sidecar(job)
    answers.append(None)
    with pytest.raises(sidecar.SidecarLost, match="it has ended"):
        other._ask(job, "close the mounts", CloseMounts(), 1.0)
    assert len(started) == 1
    for far in kept:
        far.close()
