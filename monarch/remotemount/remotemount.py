"""A directory of this machine, as it is now, on every host of a mesh."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from monarch._linux.maker import Maker
from monarch.actor import HostMesh, bind_context, this_proc
from monarch.actor.lowlevel import start_thread
from monarch.remotemount import mirror
from monarch.remotemount.fuse_process import MountBusy
from monarch.remotemount.mount_point import check_asked, refusal
from monarch.remotemount.source import MountSource

logger = logging.getLogger("monarch")

R = TypeVar("R")
_OPEN = 900.0  # seconds until an open, refresh or close that does not come back is given up


class MountHandler:
    """A mount of `sourcepath` at `mntpoint`, held by this process: it ends with it, or with `close`.

    A context manager: opens, and closes. Not for several threads at a time.
    """

    def __init__(self, host_mesh: HostMesh, sourcepath: str, mntpoint: str | None, mode: str) -> None:
        self.sourcepath = os.path.abspath(os.path.expanduser(os.fspath(sourcepath)))
        self.mntpoint = self.sourcepath if mntpoint is None else os.fspath(mntpoint)
        if not os.path.isabs(self.mntpoint):
            raise ValueError(f"mntpoint {self.mntpoint!r} is not absolute: hosts do not know this program's folder")
        check_asked("remotemount", host_mesh, mode)
        self._hosts = host_mesh
        self._wanted = mode
        self._mode: str | None = None
        self._source: Any = None
        self._maker = Maker()

    @property
    def mode(self) -> str | None:
        """The way it is mounted: "fuse" or "mirror". None when it is not open."""
        return self._mode

    def open(self, via_gateway: bool = False) -> MountHandler:
        """Mounts on all hosts, and returns when the whole tree is there and files below 1 MiB can be read. An open one is
        refreshed. `via_gateway` changes nothing: all goes over the connections that the hosts have.

        ValueError for a place where nothing can be mounted; RuntimeError, with mode="fuse", when a host cannot;
        WorkspaceError, when a mirror cannot be written; FileNotFoundError, NotADirectoryError for the source.
        """
        if self._mode is not None:
            self.refresh()
            return self
        mirror.manifest_of(self.sourcepath)
        if self._wanted != "mirror" and self._open_fuse():
            self._mode = "fuse"
            return self
        run_async(lambda: mirror.sync(self._hosts, self.sourcepath, self.mntpoint))
        self._mode = "mirror"
        return self

    def _open_fuse(self) -> bool:
        source: Any = this_proc().spawn("remote_mount", MountSource, self.sourcepath, self.mntpoint)
        opened = False
        try:
            looks, problems = source.open.call_one(self._hosts, source).get(_OPEN)
            refused = [why for look in looks if (why := refusal(look, self.sourcepath, fuse=True))]
            if refused:
                raise ValueError(f"cannot mount {self.sourcepath}: {refused[0]}")
            if problems and self._wanted == "fuse":
                more = f" (and {len(problems) - 1} more hosts)" if len(problems) > 1 else ""
                raise RuntimeError(
                    f"cannot mount {self.sourcepath} with FUSE: {problems[0]}{more}; mode='mirror' needs nothing of the kind"
                )
            if problems:
                logger.warning(
                    "remote mount of %s: FUSE cannot be used (%s), so hosts get real files at %s instead; mode='mirror' "
                    "does so without this line",
                    self.sourcepath,
                    problems[0],
                    self.mntpoint,
                )
                return False
            self._source, opened = source, True
            return True
        finally:
            if not opened:
                source.stop().get(_OPEN)

    def refresh(self, sourcepath: str | None = None) -> None:
        """The hosts see the source, or from now on `sourcepath`, as it is now. Only what changed is sent: a file of the same
        size and time counts as unchanged. Files that are open stay so, and show the new content (FUSE), or the old one
        (mirror, where a changed file is another file). RuntimeError when it is not open.
        """
        if self._mode is None:
            raise RuntimeError(f"the mount at {self.mntpoint} is not open: call open() first")
        if sourcepath is not None:
            self.sourcepath = os.path.abspath(os.path.expanduser(os.fspath(sourcepath)))

        if self._mode == "fuse":
            self._source.refresh.call_one(self.sourcepath).get(_OPEN)
        else:
            run_async(lambda: mirror.sync(self._hosts, self.sourcepath, self.mntpoint))

    def close(self) -> None:
        """Nothing of it is left on the hosts, but for what others have written into a mirror. RuntimeError when a mount is in
        use; it stays then, and can be closed later. Nothing when it is not open."""
        if self._mode == "fuse":
            busy = self._source.close.call_one().get(_OPEN)
            if busy:
                raise MountBusy(
                    f"failed to unmount {self.sourcepath}: {'; '.join(busy)}; close it again when it is free"
                )
            source, self._source = self._source, None
            source.stop().get(_OPEN)
        elif self._mode == "mirror":
            run_async(lambda: mirror.remove(self._hosts, self.sourcepath, self.mntpoint))
        self._mode = None

    def __enter__(self) -> MountHandler:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        if self._maker.is_here:
            self.close()


def remotemount(host_mesh: HostMesh, sourcepath: str, mntpoint: str | None = None, mode: str = "auto") -> MountHandler:
    """`sourcepath` of this machine at `mntpoint` (None: the same path) on each host of the mesh, once `open()` is called on
    the handler that is returned. `$SUBDIR` in `mntpoint` stands for the host's name in the mesh, as in `hosts_0`.

    `mode`: "fuse", a read-only file system that fetches large files when they are read; "mirror", real files, kept equal at
    each refresh; "auto", FUSE where all hosts have it, else a mirror, which a warning says. See docs/mounts.md.
    """
    return MountHandler(host_mesh, sourcepath, mntpoint, mode)


def run_async(work: Callable[[], Awaitable[R]]) -> R:
    """Returns what `work()` gives, awaited here. In a thread where an event loop runs, such as a notebook's, in another
    thread."""

    async def awaited() -> R:
        return await work()

    if not _loop_runs():
        return asyncio.run(awaited())
    results: list[R] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(awaited()))
        except BaseException as exc:
            errors.append(exc)

    start_thread(bind_context(run), "monarch-mount").join()
    if errors:
        raise errors[0]
    return results[0]


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
