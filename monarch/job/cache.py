"""The file that keeps a job between runs of a program.

It is a pickle with the job's secret in it: who may write it can run code in every program that reads it, and who may
read it can run code on the job's hosts. So it has mode 0600, and one that others own or may write is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cloudpickle

from monarch._linux import private_files

_MOST = 64 << 20  # bytes of a job; a larger file is none
_MOST_TEXT = 1 << 20


class UnsafeJobFileError(PermissionError):
    """A job's file, or one that names a job, that somebody else could have written; it was not read."""


def encode(job: Any) -> bytes:
    """A job as bytes. Classes of the program itself travel with it, so that the command line can read it."""
    return cloudpickle.dumps(job)  # type: ignore[no-any-return]


def read(path: str | os.PathLike[str]) -> Any:
    """Reads the job in this file. FileNotFoundError without one; UnsafeJobFileError when others can have made it, or a
    link or folder on the way, checked as it is opened; ValueError when it is no job's file."""
    try:
        content = _trusted(path, _MOST, "and reading a job's file runs what is in it: it was not read", "600")
    except ValueError:
        raise ValueError(f"{os.fspath(path)} is not a job's file: it has more than {_MOST >> 20} MiB") from None
    try:
        return pickle.loads(content)
    except Exception as exc:
        raise ValueError(
            f"{os.fspath(path)} cannot be read as a job ({type(exc).__name__}: {exc}); it was written by another version of "
            f"this package or of the program, or is damaged. Delete it when the job has ended"
        ) from exc


def read_named(path: str | os.PathLike[str]) -> str:
    """Reads a file that names what to import, a project's or a context's; as `read`. The user's own group may write it."""
    try:
        return _trusted(
            path, _MOST_TEXT, "and what it names would be imported and run: it was not read", "go-w"
        ).decode()
    except ValueError as exc:
        raise ValueError(f"{os.fspath(path)} is not such a file: {exc}") from None


def _trusted(path: str | os.PathLike[str], most: int, why: str, mode: str) -> bytes:
    try:
        return private_files.read(path, most, own_group=mode != "600")
    except private_files.UntrustedFileError as exc:
        if not os.path.lexists(path):  # only the folder is somebody else's
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)) from None
        way_out = "Use a folder of your own, or delete the file"
        if exc.mode is not None:
            way_out = f"Delete it, or, if nobody has touched it, run: chmod {mode} {exc.path}"
        told = "" if exc.path == os.path.abspath(path) else f" (for {os.fspath(path)})"
        raise UnsafeJobFileError(f"{exc}{told}, {why}. {way_out}") from None


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes the file, or the one that the link `path` leads to, whole or not at all; its folder is made when missing."""
    private_files.write(_place(path), content, replace=True)


def remove(path: str | os.PathLike[str]) -> None:
    """Removes the file, not a link to it. Nothing if there is none."""
    with suppress(FileNotFoundError):
        os.unlink(private_files.resolve(path))


def make_folder(folder: Path) -> None:
    """Makes a folder for jobs' files, 0700. OSError with a way out when that cannot be."""
    _place(folder / "file")


def _place(path: str | os.PathLike[str]) -> str:
    """Returns where the file of that name, or the link that it is, leads to; the folder is made when missing."""
    try:
        return private_files.resolve(path, make=True)
    except private_files.UntrustedFileError as exc:
        raise UnsafeJobFileError(
            f"{exc}, who could put jobs of their own there: name another file for the job"
        ) from None
    except OSError as exc:
        raise type(exc)(
            exc.errno,
            f"{exc.strerror}; the job's file cannot be kept there. Run in a folder that you may write, give "
            f"state(cached_path=...), or keep nothing with cached_path=None",
            exc.filename,
        ) from None


@contextmanager
def locked(path: str | os.PathLike[str], waiting: Callable[[str], None]) -> Iterator[None]:
    """One program at a time looks for a job in this file or starts it. `waiting(who)` is called once when another does so
    just now; its end ends the wait."""
    lock = private_files.open_lock(f"{_place(path)}.lock")
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
