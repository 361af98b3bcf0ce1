"""Decides whether a recording may be decoded: it holds pickles, so its writer says what runs."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from monarch.replay.events import RecordingError


def open_trusted(path: str | os.PathLike[str], trust: bool) -> BinaryIO:
    """The file, opened. RecordingError when it belongs to another user or others may write it, or its folder, and `trust` is
    False."""
    file = open(path, "rb")  # noqa: SIM115  it is the caller's
    try:
        why = "" if trust else suspicion(os.fspath(path), os.fstat(file.fileno()))
        if why:
            raise RecordingError(
                f"{os.fspath(path)} {why}. A recording holds pickles: replaying it runs whatever its writer wanted. If you "
                f"know where it comes from, say --trust (trust=True)"
            )
    except BaseException:
        file.close()
        raise
    return file


def suspicion(path: str, found: os.stat_result) -> str:
    """Returns why it may hold what others wrote; "" for a file that only this user can have written."""
    if not stat.S_ISREG(found.st_mode):
        return "is not an ordinary file"
    if found.st_uid != os.getuid():
        return "belongs to another user"
    if stat.S_IMODE(found.st_mode) & 0o022:
        return "can be written by others"
    folder = os.stat(os.path.dirname(os.path.abspath(path)))
    if folder.st_uid not in (os.getuid(), 0):
        return "lies in a folder of another user"
    if stat.S_IMODE(folder.st_mode) & 0o022 and not folder.st_mode & stat.S_ISVTX:
        return "lies in a folder in which others may write"
    return ""
