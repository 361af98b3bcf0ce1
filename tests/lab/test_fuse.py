"""Mounts through the kernel's FUSE, on hosts which are processes of this machine."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._linux.local_socket import peer_of
from monarch.actor import Actor, HostMesh, current_rank, endpoint
from monarch.gather_mount import GatherMount, gather_mount
from monarch.job import ProcessJob, job_load
from monarch.job.mounts.sidecar import folder_of
from monarch.remotemount import fuse_process
from monarch.remotemount.file_tree import BLOCK
from monarch.remotemount.fuse_program import AHEAD
from monarch.remotemount.remotemount import MountHandler, remotemount
from tests.support.faults import Faults
from tests.support.hosts import LOOP, Hosts, Worker
from tests.support.mounts import clear, contents, make_source, mounts_below, wait_until_nothing_is_mounted
from tests.support.patience import TIMEOUT
from tests.support.processes import descendants
from tests.support.resources import open_files
from tests.support.scripts import Scripts

pytestmark = [
    pytest.mark.lab,
    pytest.mark.procs,
    pytest.mark.skipif(bool(fuse_process.obstacle()), reason=f"FUSE: {fuse_process.obstacle()}"),
]


@pytest.fixture(autouse=True)
def _cleared(tmp_path: Path) -> Iterator[None]:
    """A mount that a test leaves would keep pytest from removing its folder."""
    yield
    clear(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


@pytest.fixture
def workers(hosts: Hosts) -> list[Worker]:
    return [hosts.start() for _ in range(2)]


@pytest.fixture
def mesh(hosts: Hosts, workers: list[Worker], tmp_path: Path) -> Iterator[HostMesh]:
    mesh = hosts.attach(*workers)
    yield mesh
    mesh.shutdown().get(TIMEOUT)
    wait_until_nothing_is_mounted(tmp_path)


@pytest.fixture
def points(tmp_path: Path) -> list[Path]:
    return [tmp_path / "hosts" / f"hosts_{rank}" / "code" for rank in range(2)]


def handler(mesh: HostMesh, source: Path, tmp_path: Path, mode: str = "fuse") -> MountHandler:
    return remotemount(mesh, str(source), str(tmp_path / "hosts" / "$SUBDIR" / "code"), mode)


def kill_host(worker: Worker) -> None:
    """Its host agent, and the processes that the agent has started. The worker itself ends then, and cleans up."""
    session = os.getsid(worker.agent)
    for pid in [pid for pid in descendants(worker.pid) if _session_of(pid) == session]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


# --- remote mounts


def test_hosts_see_what_the_client_has_and_after_a_refresh_what_it_has_then(
    mesh: HostMesh, source: Path, tmp_path: Path, points: list[Path]
) -> None:
    before = open_files()
    mount = handler(mesh, source, tmp_path, "auto").open()
    assert mount.mode == "fuse"
    for point in points:
        assert contents(point) == contents(source)
        assert not (point / ".monarch").exists()
    with pytest.raises(OSError, match="Read-only file system"):
        (points[0] / "new").write_text("x")

    opened = (points[1] / "pkg" / "module.py").open()
    assert opened.read() == "x = 1\n"
    folder_time = (points[0] / "pkg").stat().st_mtime_ns
    (source / "pkg" / "module.py").write_text("x = 22\n")
    (source / "pkg" / "other.py").write_text("y = 1\n")
    (source / "none").unlink()
    (source / "empty").rmdir()
    (source / "empty").write_text("a file now")
    mount.refresh()
    for point in points:
        assert contents(point) == contents(source)
    with opened:
        opened.seek(0)
        assert opened.read() == "x = 22\n"
    assert (points[0] / "pkg").stat().st_mtime_ns > folder_time  # Python looks for modules there again
    mount.refresh()
    mount.close()
    assert mounts_below(tmp_path) == []
    assert not any(point.exists() for point in points)
    assert open_files() <= before + 2  # connections to the hosts, which stay


def test_a_file_that_changed_is_an_error_until_the_next_refresh_and_never_mixed(
    mesh: HostMesh, source: Path, tmp_path: Path, points: list[Path]
) -> None:
    large = source / "large"
    os.truncate(large, (AHEAD + 2) * BLOCK)
    with handler(mesh, source, tmp_path) as mount:
        with (points[0] / "large").open("rb", buffering=0) as file:
            first = file.read(10)
            assert first == large.read_bytes()[:10]
            with large.open("r+b") as changing:
                changing.write(os.urandom(10))
            far = (AHEAD + 1) * BLOCK  # not on its way
            for point in points:
                with (
                    (point / "large").open("rb", buffering=0) as again,
                    pytest.raises(OSError, match="Input/output error"),
                ):
                    os.pread(again.fileno(), 10, far)
        assert (points[1] / "pkg" / "module.py").read_text() == "x = 1\n"
        mount.refresh()
        assert (points[0] / "large").read_bytes() == (points[1] / "large").read_bytes() == large.read_bytes()


def test_a_mount_in_use_is_not_closed_and_can_be_closed_later(
    mesh: HostMesh, source: Path, tmp_path: Path, points: list[Path]
) -> None:
    mount = handler(mesh, source, tmp_path).open()
    with (points[0] / "run").open():
        with pytest.raises(RuntimeError, match=rf"failed to unmount {source}: {points[0]}: busy: .*close it again"):
            mount.close()
        assert mounts_below(tmp_path) == [str(points[0])]
        assert mount.mode == "fuse"
        mount.refresh()
    mount.close()
    assert mounts_below(tmp_path) == []


def test_a_mount_whose_process_is_dead_is_replaced(
    mesh: HostMesh, source: Path, tmp_path: Path, points: list[Path]
) -> None:
    points[0].mkdir(parents=True)
    _make_stale(points[0])
    with handler(mesh, source, tmp_path):
        assert contents(points[0]) == contents(source)


def _make_stale(point: Path) -> None:
    """A mount whose server was killed, and whose helper too."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    try:
        libc = ctypes.CDLL(None)
        options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
        if libc.mount(b"dead", os.fsencode(point), b"fuse", 0, options):
            pytest.skip("mounting by hand needs root")
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="Transport endpoint is not connected"):
        os.stat(point)


def test_a_machine_with_several_hosts_has_one_mount_at_one_place(mesh: HostMesh, source: Path, tmp_path: Path) -> None:
    point = tmp_path / "shared"
    with remotemount(mesh, str(source), str(point), "fuse"):
        assert mounts_below(tmp_path) == [str(point)]
        assert contents(point) == contents(source)
        with remotemount(mesh, str(source), str(point), "fuse"):  # another program's would be the same
            assert mounts_below(tmp_path) == [str(point)]
        assert contents(point) == contents(source)


MAY_NOT_MOUNT = """
import ctypes
ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_ADMIN: as in most containers
"""


def test_a_host_that_has_fuse_and_may_not_mount_gets_real_files(
    hosts: Hosts, source: Path, tmp_path: Path, points: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    mesh = hosts.attach(hosts.start(), hosts.start(source=MAY_NOT_MOUNT + LOOP))
    with caplog.at_level(logging.WARNING, "monarch"), handler(mesh, source, tmp_path, "auto") as mount:
        assert mount.mode == "mirror"
        assert mounts_below(tmp_path) == []
        for point in points:
            assert contents(point) == contents(source)
    assert "Operation not permitted" in caplog.text and "real files" in caplog.text
    mesh.shutdown().get(TIMEOUT)


def test_the_clients_own_directory_is_not_mounted_over(mesh: HostMesh, source: Path, tmp_path: Path) -> None:
    with remotemount(mesh, str(source), mode="fuse"):
        assert mounts_below(tmp_path) == []
        assert (source / "run").read_text() == "#!/bin/sh\n"


class Importer(Actor):
    @endpoint
    def run(self, root: str) -> int:
        import importlib
        import sys

        sys.path.insert(0, root.replace("$SUBDIR", f"hosts_{current_rank()['hosts']}"))
        return int(importlib.import_module("pkg.module").x)


def test_processes_of_the_hosts_import_from_a_mount(mesh: HostMesh, source: Path, tmp_path: Path) -> None:
    with handler(mesh, source, tmp_path) as mount:
        procs = mesh.spawn_procs({"gpus": 2})
        actors: Any = procs.spawn("importer", Importer)
        assert set(actors.run.call(mount.mntpoint).get(TIMEOUT).values()) == {1}
        procs.stop().get(TIMEOUT)  # they have what they imported open, perhaps


PROGRAM = """
    import sys
    from monarch.actor import attach_to_workers
    from monarch.remotemount.remotemount import remotemount
    from monarch.gather_mount import gather_mount

    source, point, local, *workers = sys.argv[1:]
    mesh = attach_to_workers(workers=workers, ca="trust_all_connections")
    mount = remotemount(mesh, source, point, "fuse").open()
    view = gather_mount(mesh, source, local, "fuse")
    print("mounted", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_mount_is_left_of_a_client_that_ends(
    hosts: Hosts, workers: list[Worker], source: Path, tmp_path: Path, scripts: Scripts, how: signal.Signals
) -> None:
    point, local = tmp_path / "m" / "$SUBDIR", tmp_path / "local"
    program = scripts.start(PROGRAM, str(source), str(point), str(local), *(worker.address for worker in workers))
    assert program.stdout is not None
    assert program.stdout.readline() == "mounted\n"
    assert len(mounts_below(tmp_path)) == 3
    program.send_signal(how)
    program.wait(TIMEOUT)
    wait_until_nothing_is_mounted(tmp_path)


def test_no_mount_is_left_of_a_host_that_is_killed(
    hosts: Hosts,
    workers: list[Worker],
    mesh: HostMesh,
    source: Path,
    tmp_path: Path,
    points: list[Path],
    faults: Faults,
) -> None:
    mount = handler(mesh, source, tmp_path).open()
    kill_host(workers[1])
    wait_until_nothing_is_mounted(points[1].parent)
    (source / "run").write_text("for the other host")
    mount.refresh()
    assert (points[0] / "run").read_text() == "for the other host"
    mount.close()


# --- gather mounts


@pytest.fixture
def remote(tmp_path: Path) -> list[Path]:
    """Returns what two hosts have."""
    return [make_source(tmp_path / "remote" / f"hosts_{rank}") for rank in range(2)]


def gathered(mesh: HostMesh, tmp_path: Path, mode: str = "fuse") -> GatherMount:
    return gather_mount(mesh, str(tmp_path / "remote" / "$SUBDIR"), str(tmp_path / "local"), mode)


def test_the_client_sees_a_directory_of_each_host_as_it_is(mesh: HostMesh, remote: list[Path], tmp_path: Path) -> None:
    local = tmp_path / "local"
    with gathered(mesh, tmp_path, "auto") as mount:
        assert mount.mode == "fuse"
        assert sorted(os.listdir(local)) == ["hosts_0", "hosts_1"]
        for rank, there in enumerate(remote):
            here = local / f"hosts_{rank}"
            assert (here / "large").read_bytes() == (there / "large").read_bytes()
            assert os.readlink(here / "link") == "pkg/module.py"
            assert (here / "link").read_text() == "x = 1\n"
            assert (here / "run").stat().st_mode & 0o777 == 0o550
            assert (here / "na\udcffme").exists()
        with pytest.raises(OSError, match="Read-only"):
            (local / "hosts_1" / "new").write_text("x")
        with pytest.raises(RuntimeError, match="already mounted; unmount it before creating a new GatherMount"):
            gathered(mesh, tmp_path)
        with mount.open("hosts_1/run") as file:
            assert file.read() == b"#!/bin/sh\n"
    assert mounts_below(tmp_path) == []


def test_a_log_that_grows_is_seen_growing(mesh: HostMesh, remote: list[Path], tmp_path: Path) -> None:
    with gathered(mesh, tmp_path), (tmp_path / "local" / "hosts_0" / "run").open("rb", buffering=0) as log:
        assert log.read() == b"#!/bin/sh\n"
        with (remote[0] / "run").open("a") as file:
            file.write("more\n")
        read = b""
        while not read:  # at most as long as the kernel keeps attributes
            read = log.read()
        assert read == b"more\n"


def test_a_gather_mount_in_use_can_be_closed_later(mesh: HostMesh, remote: list[Path], tmp_path: Path) -> None:
    mount = gathered(mesh, tmp_path)
    with (
        (tmp_path / "local" / "hosts_0" / "run").open(),
        pytest.raises(RuntimeError, match=r"failed to unmount .*busy"),
    ):
        mount.close()
    mount.close()
    mount.close()


def test_a_host_that_is_lost_is_an_error_of_its_files_alone(
    workers: list[Worker], mesh: HostMesh, remote: list[Path], tmp_path: Path, faults: Faults
) -> None:
    local = tmp_path / "local"
    with gathered(mesh, tmp_path):
        kill_host(workers[1])
        with pytest.raises(OSError, match="Input/output error"):
            (local / "hosts_1" / "run").read_bytes()
        assert (local / "hosts_0" / "run").read_text() == "#!/bin/sh\n"


def test_many_readers_at_once(mesh: HostMesh, source: Path, tmp_path: Path, points: list[Path]) -> None:
    wanted = (source / "large").read_bytes()
    results: list[bool] = []
    with handler(mesh, source, tmp_path):
        readers = [
            threading.Thread(target=lambda at=point: results.append((at / "large").read_bytes() == wanted))
            for point in points * 8
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(TIMEOUT)
    assert results == [True] * 16


# --- mounts of a job


def test_a_jobs_mounts_outlive_the_program_and_kill_takes_them_away(
    source: Path, tmp_path: Path, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = """
        import sys
        from monarch.job import ProcessJob

        source, there, back = sys.argv[1:]
        job = ProcessJob({"trainers": 1, "others": 1})
        job.remote_mount(source, there, ["trainers"], python_exe=None, mode="fuse")
        job.gather_mount(source, back, mode="fuse").state()
    """
    there, back = tmp_path / "there", tmp_path / "back"
    scripts.run(program, str(source), str(there), str(back))
    assert sorted(mounts_below(tmp_path)) == [str(back / "others"), str(back / "trainers"), str(there)]
    assert contents(there) == contents(source)
    assert (back / "trainers" / "hosts_0" / "run").read_text() == "#!/bin/sh\n"
    job = job_load()
    with (there / "run").open():
        with pytest.raises(RuntimeError, match=r"job sidecar failed to close the mounts:\n.*busy"):
            job.kill()
        assert job.active
        assert mounts_below(tmp_path) == [str(there)]
    job.kill()
    assert not job.active
    assert mounts_below(tmp_path) == []
    assert not there.exists()


def test_no_mount_is_left_of_a_sidecar_that_is_killed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "there"
    job = ProcessJob({"trainers": 1}).remote_mount(source, str(there), python_exe=None, mode="fuse")
    try:
        job.state()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{folder_of(job)}/socket")
            os.kill(peer_of(connection)[0], signal.SIGKILL)
        wait_until_nothing_is_mounted(tmp_path)
        job.state()
        assert contents(there) == contents(source)
    finally:
        job.kill()
    assert mounts_below(tmp_path) == []
