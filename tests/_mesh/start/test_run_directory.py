"""Tests of who has a run's folder, and when it is removed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from monarch._linux import private_files
from monarch._mesh.start import run_directory
from monarch._mesh.start.run_directory import Found, RunDirectory, RunMaker, judge, make_directory
from monarch.config import configured

USER = f"monarch-{os.getuid()}"
root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else for a while")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    with configured(runtime_dir=str(tmp_path)):
        yield tmp_path


def abandon(directory: RunDirectory) -> None:
    """Leaves a run as when all processes of a run are killed: its maker's pid is another process's now."""
    os.close(directory.lock)
    note(directory, started=1)


def note(directory: RunDirectory, **changes: Any) -> None:
    """Changes what the maker of a folder has noted."""
    file = Path(directory.path, "maker")
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(made(directory), **changes)))


def made(directory: RunDirectory) -> RunMaker:
    return msgspec.json.decode(Path(directory.path, "maker").read_bytes(), type=RunMaker)


def test_a_folder_is_private_and_removed_with_that_of_the_user(base: Path) -> None:
    directory = make_directory()
    assert Path(directory.path).parent == base / USER
    for path in (Path(directory.path), base / USER):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (Path(directory.path) / "pid").read_text() == str(os.getpid())
    directory.remove()
    directory.remove()
    assert list(base.iterdir()) == []


def test_the_next_run_removes_what_dead_runs_have_left(base: Path) -> None:
    dead, alive = make_directory(), make_directory()
    abandon(dead)
    new = make_directory()
    assert {path.name for path in (base / USER).iterdir()} == {Path(alive.path).name, Path(new.path).name}
    alive.remove()
    new.remove()


@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_elsewhere_goes_with_the_run(base: Path, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    """Also those above it that are private and empty then; not what another has put there in its place."""
    directory = make_directory()
    monkeypatch.setenv("MONARCH_RUN", directory.path)
    away, kept = base / "away", base / "kept"
    for name in (away / "one" / "deep", away / "two", kept / "x", base / "never"):
        run_directory.remove_with_run(str(name))
        name.mkdir(parents=True)
        (name / "stdout.txt").write_text("secret")
    for private in (away, away / "one"):
        private.chmod(0o700)
    (kept / "letter").write_text("dear")
    (base / "never").rename(base / "elsewhere")
    (base / "never").symlink_to("elsewhere")
    if killed:
        abandon(directory)
        make_directory().remove()
    else:
        directory.remove()
    assert sorted(path.name for path in base.iterdir()) == ["elsewhere", "kept", "never"]
    assert [path.name for path in kept.iterdir()] == ["letter"] and (base / "elsewhere" / "stdout.txt").exists()


def test_a_run_lives_as_long_as_anybody_holds_its_lock(base: Path) -> None:
    directory = make_directory()
    agent = subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=[directory.lock], stdin=subprocess.PIPE)
    abandon(directory)
    make_directory().remove()
    assert os.path.exists(directory.path)
    agent.communicate(b"\n")
    make_directory().remove()
    assert not os.path.exists(directory.path)


def test_a_free_lock_is_not_all_that_is_asked(base: Path) -> None:
    directory = make_directory()
    maker = made(directory)
    elsewhere = msgspec.structs.replace(maker, namespace="another's")
    other_lock = msgspec.structs.replace(maker, lock=(maker.lock[0] + 1, maker.lock[1]))
    later = maker.started + 1
    assert judge(maker, maker, maker.started) == Found.LIVES
    assert judge(maker, other_lock, maker.started) == Found.LIVES
    assert judge(maker, maker, later) == judge(maker, maker, None) == Found.DEAD
    assert judge(maker, elsewhere, maker.started) == Found.DEAD, "its lock is the word of a process that is not seen"
    assert judge(maker, other_lock, None) == judge(maker, other_lock, later) == Found.COPY
    assert judge(msgspec.structs.replace(maker, boot="before"), other_lock, maker.started) == Found.OTHER_BOOT
    directory.remove()


def test_a_run_whose_lock_was_lost_stays_while_its_maker_lives(base: Path) -> None:
    directory = make_directory()
    os.close(directory.lock)
    make_directory().remove()
    assert os.path.exists(directory.path)
    (Path(directory.path) / "lock").unlink()
    hours_ago = time.time() - 2 * 3600
    os.utime(directory.path, (hours_ago, hours_ago))
    make_directory().remove()
    assert os.path.exists(directory.path)
    RunDirectory(directory.path, -1).remove()


@pytest.mark.parametrize("copied", [True, False])
def test_a_copy_of_a_folder_ends_nobody(base: Path, monkeypatch: pytest.MonkeyPatch, copied: bool) -> None:
    """Ends nobody, as in an image of /tmp that is laid over it, with the processes in sight: the run may live on at
    the original."""
    directory = make_directory()
    monkeypatch.setenv("MONARCH_RUN", directory.path)
    (base / "away").mkdir(0o700)
    run_directory.remove_with_run(str(base / "away"))
    abandon(directory)
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            if copied:
                shutil.move(directory.path, base / "original")
                shutil.copytree(base / "original", directory.path, symlinks=True)
            make_directory().remove()
            assert not os.path.exists(directory.path)
            assert (base / "away").exists() is copied
            if copied:
                assert process.poll() is None
                process.kill()
            assert process.wait(60) == -signal.SIGKILL
        finally:
            process.kill()


def test_the_pid_says_nothing(base: Path) -> None:
    """Another process namespace has its own."""
    directory = make_directory()
    (Path(directory.path) / "pid").write_text("4194304")
    make_directory().remove()
    assert os.path.exists(directory.path)
    directory.remove()


def test_a_folder_whose_making_was_broken_off_goes_after_an_hour(base: Path) -> None:
    directory = make_directory()
    empty = base / USER / "empty"
    empty.mkdir()
    make_directory().remove()
    assert empty.exists()
    hours_ago = time.time() - 2 * 3600
    os.utime(empty, (hours_ago, hours_ago))
    make_directory().remove()
    assert not empty.exists()
    directory.remove()


def test_a_full_disk_leaves_nothing(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(private_files, "write", full)
    with pytest.raises(RuntimeError, match=r"No space left on device .*/pid"):
        make_directory()
    assert list(base.iterdir()) == []


def test_a_file_system_without_locks_will_do_and_nothing_is_swept_there(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*args: Any) -> Any:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    one, two = make_directory(), make_directory()
    assert os.path.exists(one.path)
    one.remove()
    two.remove()


def test_a_folder_that_was_swept_before_it_was_locked_is_made_again(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, swept = run_directory._take, []

    def late(lock: int) -> bool:
        if not swept:
            swept.append(os.path.dirname(os.readlink(f"/proc/self/fd/{lock}")))
            run_directory.remove_directory(swept[0])
        return take(lock)

    monkeypatch.setattr(run_directory, "_take", late)
    directory = make_directory()
    assert swept and directory.path != swept[0] and os.path.exists(directory.path)
    directory.remove()


# --- the name of the user's folder is taken


@root
def test_a_folder_of_somebody_else_is_left_alone_and_another_is_made(base: Path) -> None:
    squatted = base / USER
    squatted.mkdir(0o755)
    os.chown(squatted, 65534, 65534)
    directory, another = make_directory(), make_directory()
    assert list(squatted.iterdir()) == [] and squatted.stat().st_mode & 0o777 == 0o755
    parent = Path(directory.path).parent
    assert parent.name.startswith(f"{USER}-") and parent.stat().st_mode & 0o777 == 0o700
    assert Path(another.path).parent == parent, "runs find each other's"
    directory.remove()
    another.remove()
    assert list(base.iterdir()) == [squatted]


def test_a_link_is_not_followed(base: Path) -> None:
    (base / "elsewhere").mkdir()
    (base / USER).symlink_to(base / "elsewhere")
    directory = make_directory()
    assert list((base / "elsewhere").iterdir()) == []
    directory.remove()


# --- errors name the path


def test_a_base_that_is_missing(tmp_path: Path) -> None:
    with configured(runtime_dir=str(tmp_path / "no")), pytest.raises(RuntimeError, match="No such directory") as caught:
        make_directory()
    assert str(tmp_path / "no") in str(caught.value) and "MONARCH_RUNTIME_DIR" in str(caught.value)


def test_a_base_that_is_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(base)
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fsdecode(base))
    with pytest.raises(RuntimeError, match=r"caf\\udce9.*is not UTF-8"):
        make_directory()


@root
def test_the_sessions_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`su` keeps XDG_RUNTIME_DIR: who owns it could exchange what another makes there."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run_directory.base_directory() == str(tmp_path)
    os.chown(tmp_path, 65534, 65534)
    assert run_directory.base_directory() == tempfile.gettempdir()


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_base_in_which_others_could_exchange_the_folder(base: Path, mode: int) -> None:
    base.chmod(mode)
    with pytest.raises(RuntimeError, match=rf"mode {mode:04o}\) and is not sticky.*MONARCH_RUNTIME_DIR"):
        make_directory()
    assert os.listdir(base) == []


def test_a_folder_that_was_made_again_meanwhile_is_not_a_dead_runs(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper's folder keeps its name: after its lock was opened another run removed it, and a new helper made it."""
    folder = base / "sidecar-1"
    folder.mkdir()
    (folder / "lock").touch()
    take = fcntl.flock

    def again(lock: int, how: int) -> None:
        (folder / "lock").rename(folder / "away")
        (folder / "lock").touch()
        take(lock, how)

    monkeypatch.setattr(fcntl, "flock", again)
    assert run_directory._lock_of_dead(str(folder)) is None
