"""Tests that what a stranger puts under the names that the package uses is not read, followed or written, and holds
nothing up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch._devices.memory import ipc_count
from monarch._linux import private_files
from monarch._linux.private_files import UntrustedFileError
from monarch._mesh.output.rank_files import RankFile
from monarch._mesh.workspace.confined_folder import ConfinedFolder
from monarch._mesh.workspace.receiver import Problem, Receiver, _problem_of
from monarch._wire.transport import tls
from monarch.remotemount.gather_pull import _note
from monarch.trace.flame import Flame
from tests.support.users import STRANGER, as_stranger, needs_root


@pytest.fixture
def mine(open_folder: Path) -> Path:
    file = open_folder / "mine"
    file.write_bytes(b"mine")
    return file


@needs_root
def test_what_ranks_write_goes_through_no_link_of_a_stranger(shared: Path, mine: Path) -> None:
    (shared.parent / "logs").mkdir()
    as_stranger(lambda: (shared / "logs").symlink_to(shared.parent / "logs"))
    with pytest.raises(UntrustedFileError, match=f"logs is a link of user {STRANGER}"):
        RankFile(str(shared / "logs" / "mesh" / "0.log"), 100).write(b"said")
    as_stranger((shared / "mesh").mkdir)
    with pytest.raises(UntrustedFileError, match=f"mesh belongs to user {STRANGER}"):
        RankFile(str(shared / "mesh" / "0.log"), 100).write(b"said")
    assert os.listdir(shared.parent / "logs") == []


@needs_root
def test_the_note_of_a_mirror_is_written_through_no_link(shared: Path, mine: Path) -> None:
    def plant() -> None:
        for name in (".monarch-sync.note", ".monarch-gather"):
            (shared / name).symlink_to(mine)

    as_stranger(plant)
    tree = ConfinedFolder(str(shared), "")
    with pytest.raises(Exception, match="is a link"):
        _note(tree, {"a"})
    tree.close()
    assert mine.read_bytes() == b"mine"


@needs_root
def test_a_workspace_is_not_written_into_a_strangers_folder(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_stranger(lambda: (shared / "work").mkdir(0o777))
    receiver = object.__new__(Receiver)
    receiver.host, receiver.path, receiver.at, receiver.run = "h", str(shared / "work"), "", "run"
    with pytest.raises(UntrustedFileError) as caught:
        receiver.take_lock()
    problem = _problem_of(receiver, caught.value)
    assert isinstance(problem, Problem)
    assert problem.what == (
        f"{shared}/work belongs to user {STRANGER}: name a directory that nobody but the user of the workers can exchange"
    )
    assert os.listdir(shared / "work") == []


@needs_root
def test_certificates_of_a_stranger_let_nobody_in(open_folder: Path) -> None:
    ca = open_folder / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----")
    os.chown(ca, STRANGER, STRANGER)
    with pytest.raises(ValueError, match=f"ca: cannot read .*ca.pem belongs to user {STRANGER}"):
        tls.context(str(ca), "c", "k", server=True)


@needs_root
def test_counts_of_shared_memory_that_a_stranger_has_put_there(shared: Path) -> None:
    """A FIFO would be waited for, and a count of his would let memory be used again."""

    def plant() -> None:
        os.mkfifo(shared / "torch_1_1")
        (shared / "torch_1_2").write_bytes(bytes(64 + 80_000))

    as_stranger(plant)
    assert [ipc_count(name, 0, str(shared)) for name in (b"torch_1_1", b"torch_1_2", b"torch_1_3")] == [-1, -1, 0]


# --- files that people name to write to


def flame(path: Path) -> None:
    Flame({}).write(path)


def output(path: Path) -> None:
    private_files.write_output(path, b"new")


@needs_root
@pytest.mark.parametrize("write", [flame, output])
def test_where_everybody_may_write_nothing_of_a_stranger_is_written(
    shared: Path, mine: Path, write: Callable[[Path], None]
) -> None:
    def plant() -> None:
        (shared / "link").symlink_to(mine)
        (shared / "folder").symlink_to(mine.parent)
        (shared / "file").touch(0o666)
        (shared / "file").chmod(0o666)
        os.mkfifo(shared / "fifo", 0o666)

    as_stranger(plant)
    os.link(mine, shared / "second")
    for name, why in (
        ("link", "link is a link of"), ("folder/mine", "folder is a link of"), ("second", "second has a second name"),
    ):  # fmt: skip
        with pytest.raises(UntrustedFileError, match=why):
            write(shared / name)
    for name in ("file", "fifo"):  # by the kernel (fs.protected_regular), or by us
        with pytest.raises(OSError, match=f"{name}"):
            write(shared / name)
    assert mine.read_bytes() == b"mine" and (shared / "file").read_bytes() == b""


@needs_root
def test_elsewhere_people_write_where_they_like(shared: Path, mine: Path) -> None:
    private_files.write_output(shared / "new", b"new")
    (shared / "own_link").symlink_to(mine)
    private_files.write_output(shared / "own_link", b"newer")
    assert mine.read_bytes() == b"newer" and mine.stat().st_mode & 0o777 == 0o644
    his = shared.parent / "his"
    his.mkdir()
    os.chown(his, STRANGER, STRANGER)
    private_files.write_output(his / "there", b"new")
    assert (his / "there").read_bytes() == b"new"
    (his / "folder").symlink_to(shared)
    os.lchown(his / "folder", STRANGER, STRANGER)
    private_files.write_output(his / "folder" / "new", b"through his folder")
    assert (shared / "new").read_bytes() == b"through his folder"
    (his / "file").symlink_to(mine)
    os.lchown(his / "file", STRANGER, STRANGER)
    os.link(mine, his / "second")
    for name, why in (("file", "is a link of user"), ("second", "has a second name")):
        with pytest.raises(UntrustedFileError, match=why):
            private_files.write_output(his / name, b"over what is mine")
    assert mine.read_bytes() == b"newer"
    with pytest.raises(FileNotFoundError):
        private_files.write_output(shared / "no" / "such", b"")


def test_standard_output_is_a_file_that_can_be_named() -> None:
    program = "from monarch._linux import private_files; private_files.write_output('/dev/stdout', b'said')"
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout == b"said"
