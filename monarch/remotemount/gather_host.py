"""The actor that shows a directory of its host, one on each."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
import time
from collections.abc import Sequence

from monarch.actor import Actor, current_rank, endpoint
from monarch.actor.file_sync import LARGE, OTHER, Manifest, RefusedPath, Rules, parts, scan
from monarch.remotemount.mount_point import point_of
from monarch.remotemount.settled import FileStamp, HostErrno, SettledFile, is_recent, read_settled, stamp_of

LARGEST_READ = 32 << 20
_GATHERED = Rules(frozenset())
_READ_ONLY = ~0o222
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE = 1 << 20
_LARGEST_WHOLE = 2 * LARGE  # of a file that has grown since the client was told of it


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
    def read_whole(self, paths: Sequence[str]) -> list[SettledFile | HostErrno]:
        """Reads small files, each in one state of it; EAGAIN for one that is changing, or no small one any more."""
        return read_settled(paths, self._look, time.sleep, time.time_ns)

    @endpoint
    def stamp(self, path: str) -> tuple[FileStamp, bool] | HostErrno:
        """Returns in which state a file is, and whether it may be written to again without being in another."""
        try:
            found = stamp_of(os.lstat(self._at(path)))
            return found, is_recent(found, time.time_ns())
        except OSError as exc:
            return HostErrno(exc.errno or errno.EIO)

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
        fd = self._open(path)
        try:
            return _read_at(fd, offset, size)
        finally:
            os.close(fd)

    def _look(self, path: str) -> tuple[FileStamp, bytes, FileStamp]:
        """Reads a whole file. Its stamp afterwards is that of the path, where another file may be by then."""
        fd = self._open(path)
        try:
            before = stamp_of(os.fstat(fd))
            if before.size > _LARGEST_WHOLE:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return before, _read_at(fd, 0, before.size), stamp_of(os.lstat(self._at(path)))
        finally:
            os.close(fd)

    def _open(self, path: str) -> int:
        fd = os.open(self._at(path), _OPEN)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return fd


def _read_at(fd: int, offset: int, size: int) -> bytes:
    pieces = []
    while size and (data := os.pread(fd, size, offset)):
        pieces.append(data)
        offset, size = offset + len(data), size - len(data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


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
