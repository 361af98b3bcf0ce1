"""The file that keeps a job between runs of a program.

It is a pickle with the job's secret in it: who may write it can run code in every program that reads it, and who may
read it can run code on the job's hosts. So it has mode 0600, and one that others own or may write is refused.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle

from monarch.job import private_file

_MOST = 64 << 20  # bytes of a job; a larger file is none


class UnsafeJobFileError(PermissionError):
    """A job's file that somebody else could have written; it was not read."""


def encode(job: Any) -> bytes:
    """A job as bytes. Classes of the program itself travel with it, so that the command line can read it."""
    return cloudpickle.dumps(job)  # type: ignore[no-any-return]


def read(path: str | os.PathLike[str]) -> Any:
    """The job in this file. FileNotFoundError without one; UnsafeJobFileError when others own or may write it, which is
    checked on the file that is then read; ValueError when it is no job's file."""
    with open(path, "rb") as file:
        state = os.fstat(file.fileno())
        mode = stat.S_IMODE(state.st_mode)
        if state.st_uid not in (os.geteuid(), 0):
            raise UnsafeJobFileError(
                f"{os.fspath(path)} belongs to user {state.st_uid}, and reading a job's file runs what is in it: it was not "
                f"read. Use a folder of your own, or delete the file"
            )
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnsafeJobFileError(
                f"{os.fspath(path)} may be written by others (mode {mode:04o}), and reading a job's file runs what is in it: "
                f"it was not read. Delete it, or, if nobody has touched it, run: chmod 600 {os.fspath(path)}"
            )
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise ValueError(f"{os.fspath(path)} is not a job's file: it has more than {_MOST >> 20} MiB")
    try:
        return pickle.loads(content)
    except Exception as exc:
        raise ValueError(
            f"{os.fspath(path)} cannot be read as a job ({type(exc).__name__}: {exc}); it was written by another version of "
            f"this package or of the program, or is damaged. Delete it when the job has ended"
        ) from exc


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """The file, or the one that the link `path` leads to, as a whole or not at all; its folder is made when missing."""
    there = Path(os.path.realpath(path))
    make_folder(there.parent)
    private_file.write(there, content, replace=True)


def remove(path: str | os.PathLike[str]) -> None:
    """The file, not a link to it. Nothing if there is none."""
    Path(os.path.realpath(path)).unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """A folder for jobs' files, 0700 when it is made here. OSError with a way out when that cannot be."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise type(exc)(
            exc.errno,
            f"{exc.strerror}; the job's file cannot be kept there. Run in a folder that you may write, give "
            f"state(cached_path=...), or keep nothing with cached_path=None",
            str(folder),
        ) from None


@contextmanager
def locked(path: str | os.PathLike[str], waiting: Callable[[str], None]) -> Iterator[None]:
    """One program at a time looks for a job in this file or starts it. `waiting(who)` is called once when another does so
    just now; its end ends the wait."""
    there = Path(os.path.realpath(path))
    make_folder(there.parent)
    lock = os.open(there.with_name(f"{there.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(os.pread(lock, 100, 0).decode(errors="replace").strip() or "another program")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(lock)
