"""Folders for traces: of this user alone, below /tmp, where others may have been first."""

from __future__ import annotations

import os
import stat


def private(path: str) -> str:
    """The folder, made if need be. PermissionError when it, or the one it lies in, is another user's or others may write in
    it (the sticky /tmp itself may)."""
    path = os.path.abspath(path)
    parent = os.path.dirname(path)
    for folder in (parent, path):
        if not os.path.isdir(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
        if found.st_uid not in (os.getuid(), 0) or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
            raise PermissionError(f"others own {folder}, or may write in it: name a folder of yours for traces")
    return path
