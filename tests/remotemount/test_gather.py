"""Directories of hosts, pulled to the client and read through actors. Hosts are processes of this machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import HostMesh, this_host
from monarch.gather_mount import GatherMount, gather_mount
from monarch.remotemount import fuse_process
from tests.support.faults import Faults
from tests.support.hosts import Hosts, Worker
from tests.support.mounts import make_source
from tests.support.processes import kill
from tests.support.resources import open_files
from tests.support.tiers import full

pytestmark = pytest.mark.procs


@pytest.fixture
def workers(hosts: Hosts) -> list[Worker]:
    return [hosts.start() for _ in range(2)]


@pytest.fixture
def mesh(hosts: Hosts, workers: list[Worker]) -> Iterator[HostMesh]:
    mesh = hosts.attach(*workers)
    yield mesh
    mesh.shutdown().get(300)


@pytest.fixture
def remote(tmp_path: Path) -> list[Path]:
    """Returns what two hosts have."""
    return [make_source(tmp_path / "remote" / f"hosts_{rank}") for rank in range(2)]


def gathered(mesh: HostMesh, tmp_path: Path, mode: str = "mirror") -> GatherMount:
    return gather_mount(mesh, str(tmp_path / "remote" / "$SUBDIR"), str(tmp_path / "local"), mode)


def same(here: Path, there: Path) -> None:
    """All that is there is here, with its times, and nobody may write it."""
    for path in there.rglob("*"):
        copy = here / path.relative_to(there)
        if path.is_symlink():
            assert os.readlink(copy) == os.readlink(path)
        elif path.is_dir():
            assert copy.is_dir()
        else:
            assert copy.read_bytes() == path.read_bytes()
            assert copy.stat().st_mtime_ns == path.stat().st_mtime_ns
            assert copy.stat().st_mode & 0o777 == path.stat().st_mode & 0o555


def test_a_mirror_has_what_hosts_had_at_the_last_refresh_and_stays_when_it_is_closed(
    mesh: HostMesh, remote: list[Path], tmp_path: Path
) -> None:
    local = tmp_path / "local"
    before = open_files()
    mount = gathered(mesh, tmp_path)
    assert mount.mode == "mirror"
    for rank in range(2):
        same(local / f"hosts_{rank}", remote[rank])

    untouched = (local / "hosts_0" / "run").stat().st_ino
    with (remote[0] / "large").open("ab") as log:
        log.write(b"a log that grows")
    (remote[0] / "pkg" / "module.py").write_text("x = 22\n")
    (remote[1] / "none").unlink()
    (remote[1] / "empty").rmdir()
    (local / "hosts_1" / "mine").write_text("no host has it")
    mount.refresh()
    for rank in range(2):
        same(local / f"hosts_{rank}", remote[rank])
    assert (local / "hosts_0" / "run").stat().st_ino == untouched
    assert not (local / "hosts_1" / "none").exists() and not (local / "hosts_1" / "empty").exists()
    assert (local / "hosts_1" / "mine").exists()

    (remote[1] / "run").write_text("the last word")
    mount.close()
    mount.close()
    assert (local / "hosts_1" / "run").read_text() == "the last word"
    with pytest.raises(RuntimeError, match=r"the gather mount at .* is closed"):
        mount.refresh()
    assert open_files() <= before + 2  # connections to the hosts, which stay


@full
def test_a_path_that_cannot_be_here_holds_up_no_other_and_is_named_once(
    mesh: HostMesh, remote: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deep = remote[0] / "d"
    deep.mkdir()
    at = os.open(deep, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=at)
        deeper = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    (tmp_path / "local" / "hosts_0" / "zz").mkdir(parents=True)
    (tmp_path / "local" / "hosts_0" / "zz" / "mine").write_text("in the way of a file")
    (remote[0] / "zz").write_text("zz")
    with caplog.at_level(logging.WARNING, "monarch"), gathered(mesh, tmp_path) as mount:
        assert (tmp_path / "local" / "hosts_0" / "run").read_text() == "#!/bin/sh\n"
        (remote[0] / "run").write_text("new")
        mount.refresh()
        assert (tmp_path / "local" / "hosts_0" / "run").read_text() == "new"
        assert (tmp_path / "local" / "hosts_0" / "zz" / "mine").exists()
    said = [record.getMessage() for record in caplog.records if "cannot be here" in record.getMessage()]
    assert len(said) == 1 and "2 path(s) cannot be here" in said[0] and "256 deep" in said[0] and "'zz'" in said[0]


@full
def test_a_file_is_read_where_it_is_without_copying_it(mesh: HostMesh, remote: list[Path], tmp_path: Path) -> None:
    with gathered(mesh, tmp_path) as mount:
        wanted = os.urandom(3 << 20)
        (remote[1] / "new").write_bytes(wanted)
        with mount.open("hosts_1/new") as file:
            assert file.read(10) == wanted[:10]
            file.seek(-5, os.SEEK_END)
            assert file.read() == wanted[-5:]
            with (remote[1] / "new").open("ab") as log:
                log.write(b"more")
            assert file.read() == b"more"
        assert not (tmp_path / "local" / "hosts_1" / "new").exists()
        for path, error in (("hosts_7/x", FileNotFoundError), ("hosts_0/x", FileNotFoundError), ("hosts_0", OSError)):
            with pytest.raises(error):
                mount.open(path)
        with pytest.raises(OSError, match="Invalid argument"):
            mount.open("hosts_0/../hosts_1/run")


@full
def test_a_lost_host_leaves_what_was_pulled_of_it_and_the_others_go_on(
    workers: list[Worker],
    mesh: HostMesh,
    remote: list[Path],
    tmp_path: Path,
    faults: Faults,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mount = gathered(mesh, tmp_path)
    kill(workers[1].agent)
    (remote[0] / "run").write_text("new")
    (remote[1] / "run").write_text("never seen")
    with caplog.at_level(logging.WARNING, "monarch"):
        mount.refresh()
    assert "hosts_1 could not be read" in caplog.text
    assert (tmp_path / "local" / "hosts_0" / "run").read_text() == "new"
    assert (tmp_path / "local" / "hosts_1" / "run").read_text() == "#!/bin/sh\n"
    mount.close(deadline=time.monotonic())
    faults.settle()


@full
def test_without_dimensions_there_is_no_folder_of_the_host_and_it_may_come_later(tmp_path: Path) -> None:
    there, local = tmp_path / "there", tmp_path / "local"
    with gather_mount(this_host(), str(there), str(local), "mirror") as mount:
        assert [path.name for path in local.iterdir()] == [".monarch-gather"]
        there.mkdir()
        (there / "log").write_text("first")
        mount.refresh()
        assert (local / "log").read_text() == "first"
        with mount.open("log") as file:
            assert file.read() == b"first"


@full
def test_without_fuse_auto_mirrors_and_says_why_and_fuse_raises(
    mesh: HostMesh,
    remote: list[Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fuse_process, "obstacle", lambda: "there is no fusermount3: install the system's package fuse3")
    with caplog.at_level(logging.WARNING, "monarch"), gathered(mesh, tmp_path, "auto") as mount:
        assert mount.mode == "mirror"
        same(tmp_path / "local" / "hosts_0", remote[0])
    assert sum("FUSE cannot be used (there is no fusermount3" in record.message for record in caplog.records) == 1
    with pytest.raises(RuntimeError, match=r"with FUSE: there is no fusermount3.*mode='mirror' needs nothing"):
        gathered(mesh, tmp_path, "fuse")


def test_bad_input_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"remote_mount_point 'logs' is not absolute"):
        gather_mount(this_host(), "logs", str(tmp_path))
    with pytest.raises(ValueError, match=r"mode 'nfs' is none of auto, fuse, mirror"):
        gather_mount(this_host(), "/logs", str(tmp_path), "nfs")
