"""Files of the output of ranks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from monarch._linux import private_files
from monarch._mesh.output import rank_files
from monarch._mesh.output.rank_files import RankFile, RankFiles, folder_of, path_of
from tests.support.patience import TIMEOUT


def test_a_file_and_the_one_before(tmp_path: Path) -> None:
    path = path_of(str(tmp_path), "my mesh/x", "u1", 3)
    assert path == str(tmp_path / "my_mesh_x-u1" / "3.log")
    files = RankFiles(pytest.fail)
    file = RankFile(path, 10)
    for number in range(5):
        files.write(file, f"line {number}\n".encode())
    assert files.flush(TIMEOUT)
    assert Path(path).read_text() == "line 4\n"
    assert Path(f"{path}.1").read_text() == "line 3\n"
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(Path(path).parent).st_mode & 0o777 == 0o700
    files.close(file)
    files.write(file, b"x")  # of a process that was restarted
    assert files.flush(TIMEOUT)
    assert Path(path).read_text() == "line 4\nx"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    said: list[str] = []
    files = RankFiles(said.append)
    (tmp_path / "mesh-u").mkdir()
    (tmp_path / "mesh-u" / "0.log").symlink_to(tmp_path / "elsewhere")
    files.write(RankFile(path_of(str(tmp_path), "mesh", "u", 0), 100), b"x")
    assert files.flush(TIMEOUT)
    assert len(said) == 1
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_said_once_and_what_is_missing_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    files = RankFiles(said.append)
    full = RankFile(str(tmp_path / "full.log"), 1 << 20)
    opened = private_files.open_log
    monkeypatch.setattr(
        private_files,
        "open_log",
        lambda path: os.open("/dev/full", os.O_WRONLY) if path.endswith("full.log") else opened(path),
    )
    other = RankFile(str(tmp_path / "0.log"), 1 << 20)
    monkeypatch.setattr(rank_files, "AGAIN", 0.0)
    files.write(full, b"first")
    files.write(full, b"second")
    files.write(other, b"goes on")
    assert files.flush(TIMEOUT)
    assert (tmp_path / "0.log").read_text() == "goes on"
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert "log_dir" in said[0]
    assert full.lost == 11
    full.path = str(tmp_path / "1.log")
    files.write(full, b"again")
    assert files.flush(TIMEOUT)
    assert (
        (tmp_path / "1.log")
        .read_text()
        .endswith("[11 bytes of output are missing here: the disk was too slow, or full]\nagain")
    )


def test_what_waits_for_a_slow_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun = threading.Event(), threading.Event()
    write = RankFile.write

    def slow(self: RankFile, data: bytes) -> None:
        begun.set()
        assert release.wait(TIMEOUT)
        write(self, data)

    monkeypatch.setattr(RankFile, "write", slow)
    monkeypatch.setattr(rank_files, "WAITING", 10)
    files = RankFiles(pytest.fail)
    file = RankFile(str(tmp_path / "0.log"), 1 << 20)
    files.write(file, b"a")
    assert begun.wait(TIMEOUT)
    files.write(file, b"b" * 10)
    files.write(file, b"c" * 10)
    assert file.dropped == 10
    assert not files.flush(0.0)
    release.set()
    assert files.flush(TIMEOUT)
    assert (tmp_path / "0.log").read_text() == "a" + "b" * 10


def test_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert folder_of("") == str(tmp_path / "monarch" / "logs")
    assert folder_of("~/x") == os.path.expanduser("~/x")
