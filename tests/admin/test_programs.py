"""Tests of which programs of this user are found, and that others cannot add to them."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch._linux import private_files
from monarch._mesh.inspection import admin_socket
from monarch.admin import programs
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
        door.bind(str(folder / admin_socket.NAME))
        door.listen(10)
        yield folder


def found() -> list[str]:
    return [program.folder for program in programs.running_programs()]


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
        door.bind(str(base / f"{NAME}-11111111" / "his" / admin_socket.NAME))
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
