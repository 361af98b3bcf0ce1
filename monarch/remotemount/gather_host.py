"""The actor that shows a directory of its host, one on each."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
from collections.abc import Sequence
from typing import NamedTuple

from monarch.actor import Actor, current_rank, endpoint
from monarch.actor.file_sync import OTHER, Manifest, RefusedPath, Rules, parts, scan
from monarch.remotemount.mount_point import point_of

LARGEST_READ = 32 << 20
_GATHERED = Rules(frozenset())
_READ_ONLY = ~0o222
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE = 1 << 20


class HostErrno(NamedTuple):
    """The errno that the host met."""

    error: int


class GatherHost(Actor):
    """Reads below `template`, and nothing beside it: links are told of, never followed."""

    _is_system_actor = True

    def __init__(self, template: str) -> None:
        self._root = point_of(template, current_rank())

    @endpoint
    def name(self) -> str:
        return socket.gethostname()

    @endpoint
    def attributes(self, path: str) -> dict[str, int] | HostErrno:
        """Returns attributes as lstat has them. The directory itself is there, and empty, before anybody has made it."""
        try:
            return _attributes(os.lstat(self._at(path)))
        except FileNotFoundError:
            if not path:
                return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2}
            return HostErrno(errno.ENOENT)
        except OSError as exc:
            return HostErrno(exc.errno or errno.EIO)

    @endpoint
    def names(self, path: str) -> list[tuple[bytes, dict[str, int]]] | HostErrno:
        """Returns what is in a folder."""
        found = []
        try:
            with os.scandir(self._at(path)) as entries:
                for entry in entries:
                    try:
                        found.append((os.fsencode(entry.name), _attributes(entry.stat(follow_symlinks=False))))
                    except FileNotFoundError:
                        continue
        except FileNotFoundError:
            return HostErrno(errno.ENOENT) if path else []
        except OSError as exc:
            return HostErrno(exc.errno or errno.EIO)
        return found

    @endpoint
    def target(self, path: str) -> bytes | HostErrno:
        try:
            return os.readlink(os.fsencode(self._at(path)))
        except OSError as exc:
            return HostErrno(exc.errno or errno.EIO)

    @endpoint
    def read(self, path: str, offset: int, size: int) -> bytes | HostErrno:
        """Fewer bytes where the file ends."""
        try:
            return self._read(path, offset, min(size, LARGEST_READ))
        except OSError as exc:
            return HostErrno(exc.errno or errno.EIO)

    @endpoint
    def read_whole(self, files: Sequence[tuple[str, int]]) -> list[bytes | HostErrno]:
        """Reads small files. Each is given by path and size."""
        found: list[bytes | HostErrno] = []
        for path, size in files:
            try:
                found.append(self._read(path, 0, size))
            except OSError as exc:
                found.append(HostErrno(exc.errno or errno.EIO))
        return found

    @endpoint
    def digest(self, path: str, start: int, size: int) -> bytes | HostErrno:
        """Returns the digest of `size` bytes from `start` on."""
        state = hashlib.blake2b(digest_size=16)
        try:
            for offset in range(start, start + size, _PIECE):
                state.update(self._read(path, offset, min(_PIECE, start + size - offset)))
        except OSError as exc:
            return HostErrno(exc.errno or errno.EIO)
        return state.digest()

    @endpoint
    def manifest(self) -> Manifest | HostErrno:
        """Describes everything there as it is to be at the client: nobody may write it."""
        try:
            found = scan(self._root, _GATHERED)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            return HostErrno(exc.errno or errno.EIO)
        return {
            path: entry._replace(mode=entry.mode & _READ_ONLY | (0o700 if entry.kind == "folder" else 0o400))
            for path, entry in found.items()
            if entry.kind != OTHER
        }

    def _at(self, path: str) -> str:
        try:
            return os.path.join(self._root, *parts(path)) if path else self._root
        except RefusedPath:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None

    def _read(self, path: str, offset: int, size: int) -> bytes:
        fd = os.open(self._at(path), _OPEN)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            pieces = []
            while size and (data := os.pread(fd, size, offset)):
                pieces.append(data)
                offset, size = offset + len(data), size - len(data)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            os.close(fd)


def _attributes(status: os.stat_result) -> dict[str, int]:
    return {
        "st_mode": status.st_mode & ~0o222 if not stat.S_ISLNK(status.st_mode) else status.st_mode,
        "st_nlink": status.st_nlink,
        "st_size": status.st_size,
        "st_blocks": status.st_blocks,
        "st_mtime": status.st_mtime_ns,
        "st_ctime": status.st_ctime_ns,
        "st_atime": status.st_atime_ns,
    }
