"""The folder of one run, where its sockets live: 0700, removed with the run.

<base>/monarch-<uid>/<id>/    agent, client, <mesh uid>.<rank>: sockets; pid: of its maker, for people; lock; maker;
                              outside/: links to folders elsewhere that are removed with it

Who made the folder and its host agent hold `lock` locked (flock) as long as they live: a folder whose lock is free is of
a dead run, and the next one removes it, with the processes of that run that are left. Process ids alone would not do:
containers share /tmp, and do not see each other's. Nor would the lock alone: an image of /tmp that is laid over it, or a copy
of it, has the folder of a run that lives, with a lock that nobody holds, and its processes may be seen from there. So `maker`
says which process made which lock file.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import time

import msgspec

from monarch._linux import locked_folder, private_files, procfs
from monarch._mesh.start.leftovers import RUN, kill_run
from monarch._wire.ids import new_id
from monarch.config import settings

_LOCK = "lock"
_OUTSIDE = "outside"
_MAKER = "maker"
_LARGEST_MAKER = 4096  # bytes
_UNFINISHED = 3600.0  # seconds until a folder without a lock counts as one whose making was broken off
_ATTEMPTS = 10


class RunMaker(msgspec.Struct, frozen=True):
    """The process that made a folder, and the lock file that it made in it."""

    pid: int
    started: int  # clock ticks after boot
    boot: str
    namespace: str  # of pids
    lock: tuple[int, int]  # device, inode


class Found(enum.Enum):
    """A folder whose lock is free."""

    LIVES = "its maker lives"
    COPY = "a copy of a folder, whose run may live"
    OTHER_BOOT = "of a machine that runs no more, or of another one"
    DEAD = "its run has ended"


def judge(maker: RunMaker, here: RunMaker, started: int | None) -> Found:
    """Returns what a folder is, by what its maker noted and what the one who asks would note about the lock that it found.
    `started`: when the process that has the maker's pid here was started, if there is one."""
    if maker.boot != here.boot:
        return Found.OTHER_BOOT
    if maker.namespace == here.namespace and maker.started == started:
        return Found.LIVES
    return Found.DEAD if maker.lock == here.lock else Found.COPY


class RunDirectory:
    """`lock` is the descriptor that keeps the folder ours; a host agent inherits it."""

    def __init__(self, path: str, lock: int) -> None:
        self.path = path
        self.lock = lock

    def remove(self) -> None:
        """Removes the folder and releases its lock. May be called again."""
        remove_directory(self.path)
        lock, self.lock = self.lock, -1
        if lock >= 0:
            try:
                os.close(lock)
            except OSError:  # a program that closes every descriptor has closed it
                pass


def make_directory() -> RunDirectory:
    """A fresh folder for a run, 0700, in one that only this user can enter. RuntimeError, which names the path, when there
    can be none."""
    base = base_directory()
    hint = "say where with MONARCH_RUNTIME_DIR or monarch.configure(runtime_dir=...)"
    try:
        base.encode()
    except UnicodeEncodeError:
        raise RuntimeError(f"monarch cannot make its runtime folder in {base!r}, which is not UTF-8; {hint}") from None
    try:
        if not os.path.isdir(base):
            raise FileNotFoundError(errno.ENOENT, "No such directory", base)
        for attempt in range(_ATTEMPTS):
            parent = _own_parent(base)
            _sweep(parent)
            try:
                return _make(parent)
            except FileNotFoundError:  # another run has just removed the user's folder, being the last one in it
                if attempt == _ATTEMPTS - 1:
                    raise
    except OSError as exc:
        raise RuntimeError(
            f"monarch cannot make its runtime folder in {base!r}: {exc.strerror} ({exc.filename or base}); {hint}"
        ) from exc
    raise AssertionError("unreachable")


def base_directory() -> str:
    """The folder in which those of all users are."""
    import tempfile  # slow to import; used when a client starts

    return settings.runtime_dir() or _session_directory() or tempfile.gettempdir()


def _session_directory() -> str:
    """Returns XDG_RUNTIME_DIR; "" when it is somebody else's, as it is after `su`."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        return folder if not folder or os.stat(folder).st_uid in (os.geteuid(), 0) else ""
    except PermissionError:
        return ""
    except OSError:  # which who makes a folder there is told
        return folder


def user_folder() -> str:
    """The folder in which this user's runs are, 0700; made when it is missing. OSError when there can be none."""
    return _own_parent(base_directory())


def user_folders() -> list[str]:
    """Returns those that `user_folder` has made. None is made; OSError where there can be none."""
    return private_files.user_folders(base_directory(), f"monarch-{os.getuid()}")


def _own_parent(base: str) -> str:
    """Returns this user's folder in `base`."""
    return private_files.user_folder(base, f"monarch-{os.getuid()}")


def _make(parent: str) -> RunDirectory:
    path = os.path.join(parent, new_id())
    os.mkdir(path, 0o700)
    lock = -1
    try:
        lock = private_files.open_lock(os.path.join(path, _LOCK))
        if not _take(lock) or not os.path.exists(os.path.join(path, _LOCK)):  # swept before it was locked
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        private_files.write(os.path.join(path, "pid"), b"%d" % os.getpid())
        if (maker := _maker(lock)) is not None:
            private_files.write(os.path.join(path, _MAKER), msgspec.json.encode(maker))
    except BaseException:
        RunDirectory(path, lock).remove()
        raise
    return RunDirectory(path, lock)


def _take(lock: int) -> bool:
    """Takes the lock. True if it is ours now. True as well on file systems that have no locks; there nothing is swept."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        return exc.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _sweep(parent: str) -> None:
    """Removes the folders of runs that are dead, and what is left of these runs."""
    try:
        names = os.listdir(parent)
    except FileNotFoundError:
        return
    for name in names:
        path = os.path.join(parent, name)
        lock = _lock_of_dead(path)
        if lock is None:
            continue
        match _judged(path, lock):
            case Found.LIVES:
                if lock >= 0:
                    os.close(lock)
                continue
            case Found.COPY:  # what it links to outside is the original's
                locked_folder.remove(path)
            case Found.DEAD:
                kill_run(path)
        RunDirectory(path, lock).remove()


def _judged(path: str, lock: int) -> Found:
    """Judges a folder whose lock is free, or is missing (-1). One without a note had no processes yet."""
    try:
        maker = msgspec.json.decode(
            private_files.read(os.path.join(path, _MAKER), _LARGEST_MAKER, root=False), type=RunMaker
        )
        here = _maker(lock)
    except (OSError, msgspec.MsgspecError):
        return Found.OTHER_BOOT
    return Found.OTHER_BOOT if here is None else judge(maker, here, procfs.start_of(maker.pid))


def _maker(lock: int) -> RunMaker | None:
    """Returns what this process notes about a lock file of its own; None where there is no /proc, in which nobody could look
    for processes either."""
    try:
        file = os.fstat(lock) if lock >= 0 else None
        identity = (0, 0) if file is None else (file.st_dev, file.st_ino)
        return RunMaker(
            os.getpid(), procfs.start_of(os.getpid()) or 0, procfs.boot_id(), procfs.namespace("pid"), identity
        )
    except OSError:
        return None


def _lock_of_dead(path: str) -> int | None:
    """The lock of a dead run's folder, held by us from now on; -1 when it has none. None: it may be alive."""
    try:
        lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1 if _age(path) > _UNFINISHED else None
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(os.path.join(path, _LOCK))):
            return lock
    except OSError:
        pass
    os.close(lock)  # another has removed the folder, and a helper's may be there again
    return None


def _age(path: str) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return 0.0


def remove_with_run(folder: str) -> None:
    """Has `folder`, an absolute path, removed with the run of this process, which a host agent has started, or with what is
    left of it. It need not be there yet."""
    outside = os.path.join(os.environ[RUN], _OUTSIDE)
    os.makedirs(outside, 0o700, exist_ok=True)
    os.symlink(folder, os.path.join(outside, new_id()))


def remove_directory(directory: str) -> None:
    """Removes a run's folder and those that go with it, and the user's folder when this was the last run in it."""
    outside = os.path.join(directory, _OUTSIDE)
    if os.path.isdir(outside):
        for entry in os.scandir(outside):
            _remove_outside(os.readlink(entry.path))
    locked_folder.remove(directory)
    try:
        os.rmdir(os.path.dirname(directory))
    except OSError:  # others run
        pass


def _remove_outside(folder: str) -> None:
    """Removes the folder, and those of this user alone above it that are empty then."""
    import shutil

    try:
        private_files.resolve(os.path.join(folder, "x"))  # a stranger may have made another one in its place
        shutil.rmtree(folder, ignore_errors=True)
        while private_files.is_private(folder := os.path.dirname(folder)):
            os.rmdir(folder)
    except OSError:  # it is gone, or in use
        pass
