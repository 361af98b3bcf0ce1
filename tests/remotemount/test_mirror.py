"""A directory of the client as real files on hosts, which are processes of this machine."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch._errors import WorkspaceError
from monarch.actor import HostMesh
from monarch.actor.file_sync import Manifest
from monarch.remotemount import mirror
from monarch.remotemount.mount_point import MARKER
from monarch.remotemount.remotemount import MountHandler, remotemount
from tests.support.hosts import Hosts
from tests.support.mounts import contents, make_source
from tests.support.resources import left_open, open_kinds
from tests.support.tiers import full
from tests.support.watched import record_watched

pytestmark = pytest.mark.procs
NO_FUSE = {"PATH": "/nonexistent"}  # of a worker: it finds no fusermount3


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


@pytest.fixture
def mesh(hosts: Hosts) -> Iterator[HostMesh]:
    """Two hosts that cannot mount with FUSE."""
    workers = [hosts.start(env=NO_FUSE) for _ in range(2)]
    mesh = hosts.attach(*workers)
    yield mesh
    mesh.shutdown().get(300)


@pytest.fixture
def copies(tmp_path: Path) -> list[Path]:
    """Returns where the hosts get the source."""
    return [tmp_path / "hosts" / f"hosts_{rank}" / "code" for rank in range(2)]


def handler(mesh: HostMesh, source: Path, tmp_path: Path, mode: str = "mirror") -> MountHandler:
    return remotemount(mesh, str(source), str(tmp_path / "hosts" / "$SUBDIR" / "code"), mode)


def test_hosts_have_what_the_client_has_until_it_is_closed(
    mesh: HostMesh, source: Path, tmp_path: Path, copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = record_watched(monkeypatch, mirror)
    mount = handler(mesh, source, tmp_path)
    assert mount.mode is None
    mount.open()
    ((title, far),) = watched
    assert title == f"remote mount of {source}"
    done, total = far()
    assert done == total == sum(entry.size for entry in mirror.manifest_of(str(source)).values())
    assert (mount.mode, mount.sourcepath) == ("mirror", str(source))
    for copy in copies:
        assert contents(copy) == contents(source)
        assert copy.stat().st_mode & 0o777 == 0o700

    untouched = (copies[0] / "large").stat().st_ino
    opened = (copies[0] / "pkg" / "module.py").open()
    (source / "pkg" / "module.py").write_text("x = 22\n")
    (source / "none").unlink()
    (source / "empty").rmdir()
    (source / "empty").write_text("a file now")
    (copies[0] / "output").write_text("written by a program there")
    (copies[0] / "pkg" / "output").write_text("and this")
    mount.refresh()
    assert (copies[0] / "large").stat().st_ino == untouched
    with opened:
        assert opened.read() == "x = 1\n"  # never mixed: the new one is another file
    (copies[0] / "output").unlink()
    assert (copies[0] / "pkg" / "output").read_text() == "and this"
    (copies[0] / "pkg" / "output").unlink()
    for copy in copies:
        assert contents(copy) == contents(source)

    before = open_kinds()
    mount.open()  # a refresh
    assert not left_open(before)
    mount.close()
    assert not any(copy.exists() for copy in copies)
    mount.close()
    with pytest.raises(RuntimeError, match=r"the mount at .* is not open"):
        mount.refresh()


@full
def test_what_others_wrote_into_a_mirror_outlives_it(
    mesh: HostMesh, source: Path, tmp_path: Path, copies: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    mount = handler(mesh, source, tmp_path).open()
    (copies[1] / "pkg" / "checkpoint").write_text("dear")
    with caplog.at_level(logging.WARNING, "monarch"):
        mount.close()
    assert not copies[0].exists()
    assert [*contents(copies[1])] == ["pkg", "pkg/checkpoint"]
    assert f"{copies[1]} on" in caplog.text and "others have written files there" in caplog.text


@full
def test_a_directory_with_other_files_is_refused_and_nothing_is_touched(
    mesh: HostMesh, source: Path, tmp_path: Path, copies: list[Path]
) -> None:
    copies[1].mkdir(parents=True)
    (copies[1] / "run").write_text("somebody's")
    with pytest.raises(ValueError, match=rf"cannot mirror {source}: {copies[1]} on .* has files in it that no mount"):
        handler(mesh, source, tmp_path).open()
    assert [*contents(copies[1])] == ["run"]
    assert not copies[0].exists()


@full
def test_the_clients_own_directory_is_left_as_it_is(mesh: HostMesh, source: Path) -> None:
    """Leaves it as on a file system that all hosts share."""
    before = {path: path.lstat().st_mtime_ns for path in source.rglob("*")}
    mount = remotemount(mesh, str(source), mode="mirror").open()
    (source / "new").write_text("x")
    mount.refresh()
    mount.close()
    (source / "new").unlink()
    assert {path: path.lstat().st_mtime_ns for path in source.rglob("*")} == before


@full
def test_a_place_inside_the_source_is_refused(mesh: HostMesh, source: Path) -> None:
    with pytest.raises(ValueError, match="lies inside the source"):
        remotemount(mesh, str(source), str(source / "pkg" / "inside"), "mirror").open()
    with pytest.raises(ValueError, match="contains the source"):
        remotemount(mesh, str(source), str(source.parent), "mirror").open()


@full
def test_without_fuse_auto_mirrors_and_says_why_and_fuse_raises(
    mesh: HostMesh, source: Path, tmp_path: Path, copies: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "monarch"):
        mount = handler(mesh, source, tmp_path, "auto").open()
    assert mount.mode == "mirror"
    assert contents(copies[1]) == contents(source)
    assert sum("FUSE cannot be used" in record.message for record in caplog.records) == 1
    mount.close()
    with pytest.raises(RuntimeError, match=r"with FUSE: .*; mode='mirror' needs nothing of the kind"):
        handler(mesh, source, tmp_path, "fuse").open()


@full
def test_a_file_that_is_written_all_the_time_stays_as_it_was_and_the_others_come(
    mesh: HostMesh,
    source: Path,
    tmp_path: Path,
    copies: list[Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mount = handler(mesh, source, tmp_path).open()
    before = {name: (source / name).read_bytes() for name in ("large", "run")}
    scan = mirror.manifest_of

    def scan_and_write(path: str) -> Manifest:
        """Writes files of the same size, right after each scan."""
        found = scan(path)
        for name, content in before.items():
            status = (source / name).stat()
            (source / name).write_bytes(os.urandom(len(content)))
            os.utime(source / name, ns=(status.st_mtime_ns + 1, status.st_mtime_ns + 1))
        return found

    monkeypatch.setattr(mirror, "manifest_of", scan_and_write)
    os.utime(source / "large", ns=(1, 1))
    os.utime(source / "run", ns=(1, 1))
    (source / "none").write_text("something")
    with caplog.at_level(logging.WARNING, "monarch"):
        mount.refresh()
    assert "2 file(s) are written to all the time" in caplog.text and "large, run" in caplog.text
    for copy in copies:
        assert {name: (copy / name).read_bytes() for name in before} == before
        assert (copy / "none").read_text() == "something"
    monkeypatch.undo()
    mount.refresh()
    assert contents(copies[0]) == contents(source)
    mount.close()


@full
def test_another_source_replaces_the_files_of_the_first(
    mesh: HostMesh, source: Path, tmp_path: Path, copies: list[Path]
) -> None:
    other = tmp_path / "other"
    (other / "pkg").mkdir(parents=True)
    (other / "pkg" / "only").write_text("this")
    mount = handler(mesh, source, tmp_path).open()
    mount.refresh(str(other))
    assert contents(copies[0]) == contents(copies[1]) == contents(other)
    mount.close()


@full
def test_a_later_mount_goes_on_from_what_an_earlier_one_left(
    mesh: HostMesh, source: Path, tmp_path: Path, copies: list[Path]
) -> None:
    """Goes on as after a client that was killed."""
    handler(mesh, source, tmp_path).open()
    kept = (copies[0] / "large").stat().st_ino
    (source / "run").unlink()
    with handler(mesh, source, tmp_path):
        assert (copies[0] / MARKER).exists()
        assert (copies[0] / "large").stat().st_ino == kept
        assert contents(copies[0]) == contents(source)
    assert not copies[0].exists()


@full
def test_it_works_inside_a_running_event_loop(mesh: HostMesh, source: Path, tmp_path: Path, copies: list[Path]) -> None:
    async def program() -> None:
        with handler(mesh, source, tmp_path):
            assert contents(copies[0]) == contents(source)

    asyncio.run(program())


@full
def test_bad_input_is_told_before_anything_starts(mesh: HostMesh, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mntpoint 'relative' is not absolute"):
        remotemount(mesh, str(source), "relative")
    with pytest.raises(ValueError, match=r"mode 'nfs' is none of auto, fuse, mirror"):
        remotemount(mesh, str(source), mode="nfs")
    with pytest.raises(FileNotFoundError, match=r"the source .*nowhere of a remote mount does not exist"):
        remotemount(mesh, str(tmp_path / "nowhere"), "/mnt").open()
    with pytest.raises(NotADirectoryError, match="name the one that holds it"):
        remotemount(mesh, str(source / "run"), "/mnt").open()


@full
def test_a_place_that_cannot_be_written_is_named_with_its_host(mesh: HostMesh, source: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"on .*: /proc/here"):
        remotemount(mesh, str(source), "/proc/here/code", "mirror").open()
