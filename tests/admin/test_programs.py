"""Tests of which programs of this user are found, and that others cannot add to them."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from monarch._linux import local_socket, private_files, procfs
from monarch._mesh.inspection import admin_messages
from monarch.admin import programs
from monarch.admin.programs import Program
from monarch.config import configured
from tests.support.users import STRANGER, as_stranger, needs_root

NAME = f"monarch-{os.getuid()}"


@pytest.fixture
def base() -> Iterator[Path]:
    """Makes a folder as /tmp is, with a short path: a socket's is bounded."""
    with tempfile.TemporaryDirectory(prefix="mp", dir="/tmp") as path:
        os.chmod(path, 0o1777)
        with configured(runtime_dir=path):
            yield Path(path)


@pytest.fixture
def one(base: Path) -> Iterator[Path]:
    """The run folder of a program: all that is looked at is its pid and that it listens."""
    folder = base / NAME / "run"
    folder.mkdir(mode=0o700, parents=True)
    folder.parent.chmod(0o700)
    private_files.write(folder / "pid", b"%d" % os.getpid())
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / admin_messages.NAME))
        door.listen(10)
        yield folder


def found() -> list[str]:
    return [program.folder for program in programs.running_programs()]


def test_a_helper_is_no_program_of_ones_own(base: Path, one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["python -m monarch.job.mounts.sidecar_program /tmp/j 5 0 0", "python sidecar_program.py"]
    assert find_spec(lines[0].split()[2]) is not None
    monkeypatch.setattr("monarch._linux.procfs.command_line", lambda pid: lines[0])
    assert found() == []
    monkeypatch.setattr("monarch._linux.procfs.command_line", lambda pid: lines[1])
    assert found() == [str(one)]


@needs_root
def test_a_stranger_adds_no_program_and_doubles_none(base: Path, one: Path) -> None:
    def plant() -> None:
        (base / f"{NAME}-00000000").symlink_to(base / NAME)
        (base / f"{NAME}-extra").symlink_to(base / NAME)
        his = base / f"{NAME}-11111111"
        his.mkdir(0o777)
        (his / "run").symlink_to(one)
        (his / "his").mkdir(0o777)
        (his / "his" / "pid").write_text(str(os.getpid()))

    as_stranger(plant)
    with socket.socket(socket.AF_UNIX) as door:  # takes everybody, and says nothing
        door.bind(str(base / f"{NAME}-11111111" / "his" / admin_messages.NAME))
        door.listen(10)
        assert found() == [str(one)]
        assert programs.choose(os.getpid()).folder == str(one)
        assert programs.program_at(str(base / f"{NAME}-11111111" / "his")) is None


def test_folders_of_like_names_are_not_ones_programs(base: Path, one: Path) -> None:
    (base / f"{NAME}-results").mkdir(0o700)
    (base / f"{NAME}-results" / "run").symlink_to(one)
    assert found() == [str(one)]


@needs_root
def test_none_is_looked_for_where_others_can_exchange_folders(base: Path, one: Path) -> None:
    base.chmod(0o777)
    assert found() == []
    base.chmod(0o1777)
    os.chown(base, STRANGER, STRANGER)
    assert found() == []


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has these programs run: (pid, in this folder, in another container)."""

    def run(*those: tuple[int, bool, bool]) -> None:
        made = [Program(f"/run/{pid}", pid, 0.0, "python a.py", contained) for pid, _, contained in those]
        folders = {pid: os.getcwd() if here else "/elsewhere" for pid, here, _ in those}
        monkeypatch.delenv("MONARCH_PROGRAM", raising=False)
        monkeypatch.setattr(programs, "running_programs", lambda: made)
        monkeypatch.setattr(procfs, "working_directory", folders.__getitem__)

    return run


@pytest.mark.parametrize(
    ("those", "chosen"),
    [
        ([(7, False, False)], 7),
        ([(7, False, False), (8, True, False)], 8),
        ([(7, False, False), (2, True, True)], 7),  # a container that shares /tmp
        ([(2, False, True)], 2),
        ([(2, False, True), (7, False, False), (8, True, False)], 8),
    ],
)
def test_the_program_that_is_meant(several: Any, those: list[tuple[int, bool, bool]], chosen: int) -> None:
    several(*those)
    assert programs.choose().pid == chosen


@pytest.mark.parametrize("here", [True, False])
def test_several_that_may_be_meant(several: Any, here: bool) -> None:
    several((7, here, False), (8, here, False))
    with pytest.raises(ValueError, match="2 programs run; say which with --pid"):
        programs.choose()
    assert programs.choose(8).pid == 8


def test_a_program_of_another_container_is_named(base: Path, one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not programs.running_programs()[0].contained
    monkeypatch.setattr(local_socket, "peer_of", lambda sock: (0, os.getuid()))  # as the kernel tells of them
    (program,) = programs.running_programs()
    assert program.contained and "a program of another container" in programs.listed([program])
