"""A directory of every host, in one directory of the client: `monarch.gather_mount`."""

from __future__ import annotations

import errno
import io
import logging
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from monarch._linux import private_files
from monarch._linux.maker import Maker
from monarch.actor import Actor, HostMesh, Point, SupervisionError, bind_context, endpoint, this_proc
from monarch.actor.lowlevel import WatchedProgress
from monarch.remotemount import fuse_process
from monarch.remotemount.fuse_messages import FuseReply, FuseRequest, Message
from monarch.remotemount.gather_host import GatherHost
from monarch.remotemount.gather_pull import Pull
from monarch.remotemount.mount_point import check_asked, subdirectory
from monarch.remotemount.settled import HostErrno

logger = logging.getLogger("monarch")

_READY = 120.0  # seconds for a host to start a process
_ANSWER = 60.0  # and to answer
_AT_ONCE = 8  # questions of a mount that are under way; hosts that are pulled from
_CLOSE = 20.0  # seconds to unmount
_ATTEMPTS = 3
_BUFFER = 1 << 20  # of a file that is open through an actor


class GatherOwner(Actor):
    """Owns the processes on the hosts, so that a host that is lost ends no program: reads of its files fail."""

    _is_system_actor = True
    _procs: Any = None

    @endpoint
    def start(self, hosts: HostMesh, template: str) -> Any:
        self._procs = hosts.spawn_procs(name="gather_mount")
        self._procs.initialized.get(_READY)
        return self._procs.spawn("gather", GatherHost, template)

    @endpoint
    def end(self) -> None:
        procs, self._procs = self._procs, None
        if procs is not None:
            procs.stop().get(_READY)

    def __supervise__(self, failure: Any) -> bool:
        logger.warning("a host of a gather mount is lost, its files cannot be read any more: %s", failure)
        return True


class RemoteTrees:
    """The directories of all hosts as one: `hosts_0/train.log`. In a mesh without dimensions there is one, without a name."""

    def __init__(self, actors: Any) -> None:
        extent = actors.extent
        points = [Point(rank, extent) for rank in range(len(actors))]
        self.hosts: dict[str, Any] = {subdirectory(point): actors.slice(**point) for point in points}

    def locate(self, path: str) -> tuple[Any, str]:
        """The host, and the path there. OSError ENOENT."""
        path = path.strip("/")
        if "" in self.hosts:
            return self.hosts[""], path
        name, _, rest = path.partition("/")
        if name not in self.hosts:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.hosts[name], rest

    def ask(self, what: str, path: str, offset: int = 0, size: int = 0) -> Any:
        """See GatherMountView. OSError as the host met it; EIO for one that is lost."""
        if not path.strip("/") and "" not in self.hosts:
            return self._top(what)
        host, rest = self.locate(path)
        if what not in ("attributes", "names", "target", "read"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return answer_of(host, what, rest, *([offset, size] if what == "read" else []))

    def _top(self, what: str) -> Any:
        folder = {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2}
        match what:
            case "attributes":
                return folder
            case "names":
                return [(os.fsencode(name), folder) for name in self.hosts]
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))


def answer_of(host: Any, name: str, *args: Any) -> Any:
    """Returns what the actor of one host says. OSError."""
    try:
        found = getattr(host, name).call_one(*args).get(_ANSWER)
    except (SupervisionError, TimeoutError) as exc:
        raise OSError(errno.EIO, f"the host does not answer: {exc}") from exc
    if isinstance(found, HostErrno):
        raise OSError(found.error, os.strerror(found.error))
    return found


class GatherMount:
    """`remote_mount_point` of each host below `local_mount_point`, read-only: see `gather_mount`. A context manager."""

    def __init__(
        self, host_mesh: HostMesh, remote_mount_point: str, local_mount_point: str, mode: str = "auto"
    ) -> None:
        self.remote_mount_point = os.fspath(remote_mount_point)
        self.local_mount_point = os.path.abspath(os.path.expanduser(os.fspath(local_mount_point)))
        if not os.path.isabs(self.remote_mount_point):
            raise ValueError(f"remote_mount_point {self.remote_mount_point!r} is not absolute")
        check_asked("gather_mount", host_mesh, mode)
        fuse_process.clear_stale(self.local_mount_point)
        if fuse_process.mounted_at(self.local_mount_point) is not None:
            raise RuntimeError(
                f"{self.local_mount_point} is already mounted; unmount it before creating a new GatherMount"
            )
        self._process: fuse_process.FuseProcess | None = None
        self._closed = False
        self._maker = Maker()
        self._named: set[tuple[str, str]] = set()  # hosts and paths that a warning has named
        self._owner: Any = this_proc().spawn("gather_mount", GatherOwner)
        self._threads = ThreadPoolExecutor(_AT_ONCE, "monarch-gather")
        try:
            self._trees = RemoteTrees(self._owner.start.call_one(host_mesh, self.remote_mount_point).get(_READY))
            self.mode = "fuse" if mode != "mirror" and self._mount(mode) else "mirror"
            if self.mode == "mirror":
                self.refresh()
        except BaseException:
            self._end()
            raise

    def _mount(self, mode: str) -> bool:
        why = fuse_process.obstacle()
        if not why:
            self._process = fuse_process.FuseProcess(self.local_mount_point, "gather", "monarch-gather", self._asked)
            try:
                self._process.mounted()
                return True
            except fuse_process.MountFailed as exc:
                self._process = None
                why = str(exc)
        if mode == "fuse":
            raise RuntimeError(
                f"cannot mount {self.local_mount_point} with FUSE: {why}; mode='mirror' needs nothing of the kind"
            )
        logger.warning(
            "gather mount at %s: FUSE cannot be used (%s), so the files are copied there at each refresh(); mode='mirror' "
            "does so without this line",
            self.local_mount_point,
            why,
        )
        return False

    def refresh(self) -> None:
        """Mirror: pulls what changed on the hosts, as rsync does; what an earlier refresh brought and is gone there goes here
        as well. Hosts that do not answer keep what is here, with a warning. FUSE: nothing to do."""
        self._check_maker()
        if self._closed:
            raise RuntimeError(f"the gather mount at {self.local_mount_point} is closed")
        if self.mode == "mirror":
            self._pull()

    def _pull(self) -> None:
        private_files.make_folder(self.local_mount_point, mine=False, closed=False)
        pulls = [
            Pull(host, self.local_mount_point, name, answer_of, self._named) for name, host in self._trees.hosts.items()
        ]
        run = bind_context(lambda pull: pull.run())

        def brought() -> tuple[int, int]:
            return sum(pull.brought for pull in pulls), sum(pull.total for pull in pulls)

        with WatchedProgress(f"gather mount at {self.local_mount_point}", brought, of_bytes=True):
            for why in self._threads.map(run, pulls):
                if why:
                    logger.warning("gather mount at %s: %s", self.local_mount_point, why)

    def open(self, path: str) -> BinaryIO:
        """A file of a host, as in `hosts_0/train.log`, read there while it is read here. OSError as open has it."""
        self._check_maker()
        host, rest = self._trees.locate(path)
        attributes = answer_of(host, "attributes", rest)
        if not stat.S_ISREG(attributes["st_mode"]):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raw = RemoteFile(lambda offset, size: answer_of(host, "read", rest, offset, size), attributes["st_size"])
        return io.BufferedReader(raw, _BUFFER)

    def close(self, *, deadline: float | None = None) -> None:
        """FUSE: unmounts. Mirror: pulls once more, and leaves the files. Nothing when it is closed.

        `deadline`, as of time.monotonic(), else in 20 s: until then a mount that is in use is tried three times; then
        RuntimeError, and it stays, to be closed again.
        """
        self._check_maker()
        if self._closed:
            return
        if deadline is None:
            deadline = time.monotonic() + _CLOSE
        if self._process is not None:
            busy = self._unmount(self._process, deadline)
            if busy:
                raise fuse_process.MountBusy(
                    f"failed to unmount {self.remote_mount_point}: {self.local_mount_point}: busy: {busy}; close it again "
                    "when nothing uses it"
                )
        elif time.monotonic() < deadline:
            self._pull()
        self._end()

    def _unmount(self, process: fuse_process.FuseProcess, deadline: float) -> str:
        busy = ""
        for attempt in range(_ATTEMPTS):
            if attempt and time.monotonic() > deadline:
                break
            busy = process.unmount()
            if not busy:
                self._process = None
                return ""
        return busy

    def _end(self) -> None:
        self._closed = True
        process, self._process = self._process, None
        if process is not None:
            process.abandon()
        self._threads.shutdown(cancel_futures=True)
        self._owner.end.call_one().get(_READY)
        self._owner.stop().get(_READY)

    def _asked(self, message: Message) -> None:
        if isinstance(message, FuseRequest):
            try:
                self._threads.submit(bind_context(self._answer), message)
            except RuntimeError:  # it is being closed
                pass

    def _answer(self, asked: FuseRequest) -> None:
        """On a thread of its own, so that a host that is slow holds up nobody else."""
        error, value = 0, None
        try:
            value = self._trees.ask(asked.what, os.fsdecode(asked.path), asked.offset, asked.size)
        except OSError as exc:
            error = exc.errno or errno.EIO
        except Exception:
            logger.exception("gather mount at %s: a question could not be answered", self.local_mount_point)
            error = errno.EIO
        process = self._process
        if process is not None:
            try:
                process.send(FuseReply(asked.number, error, value))
            except OSError:  # it ended meanwhile
                pass

    def __enter__(self) -> GatherMount:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._maker.is_here:
            self.close()

    def _check_maker(self) -> None:
        self._maker.check(f"the gather mount at {self.local_mount_point}")


class RemoteFile(io.RawIOBase):
    """A file that others hold. `size` is what it had when it was opened; reads go on to where it ends now."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._fetch(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._at = base + offset
        return self._at


def gather_mount(
    host_mesh: HostMesh, remote_mount_point: str, local_mount_point: str, mode: str = "auto"
) -> GatherMount:
    """`remote_mount_point` of each host of the mesh as `local_mount_point/<host>`, read-only; hosts are named by their
    coordinates, as in `hosts_0` or `a_1_b_2`, and that of a mesh without dimensions has no folder of its own. `$SUBDIR` in
    `remote_mount_point` stands for that name.

    `mode`: "fuse", a file system in which reads go to the hosts; "mirror", real files, pulled now, at each `refresh()` and at
    `close()`; "auto", FUSE where this machine has it, else a mirror, which a warning says. See docs/mounts.md.
    """
    return GatherMount(host_mesh, remote_mount_point, local_mount_point, mode)
