"""Mirror mode: real files on the hosts, made equal to the client's directory at each refresh.

Nothing runs on the hosts between two refreshes. Each one starts a process a host, which holds a lock in the directory.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from monarch.actor import HostMesh, Point
from monarch.actor.file_sync import FolderSync, HostAnswers, Manifest, SourceFolder, local_manifest, lock_hosts
from monarch.actor.lowlevel import WatchedProgress
from monarch.remotemount import fuse_process
from monarch.remotemount.mirror_host import MirrorHost
from monarch.remotemount.mount_point import MOUNTED, TOKEN, MountPointState, point_of, refusal

logger = logging.getLogger("monarch")

_ATTEMPTS = 3  # at a tree that is being written to


async def sync(hosts: HostMesh, source: str, point: str) -> None:
    """Makes `point` on each host hold what `source` does. What others have written there stays.

    A file that is written to meanwhile stays as it was, with a warning. WorkspaceError when a host cannot do its part;
    ValueError for a place where nothing can be mirrored.
    """
    async with _mirrors(hosts, point) as mirrors:
        for found in await _look(mirrors, source):
            if why := refusal(found, source, fuse=False):
                raise ValueError(f"cannot mirror {source}: {why}")
        run = mirrors.run
        roots = await lock_hosts(mirrors.actors, run)
        if not roots:
            return
        for left in reversed(range(_ATTEMPTS)):
            manifest = await asyncio.to_thread(manifest_of, source)
            files = SourceFolder(source, manifest, skipping=True)
            paths = [*manifest]
            await mirrors.ask("note", paths, True, ranks=roots)
            with WatchedProgress(f"remote mount of {source}", functools.partial(_brought, files), of_bytes=True):
                await FolderSync(mirrors.actors, roots, "", {}).sync(dict.fromkeys(roots, files))
            await mirrors.ask("note", paths, False, ranks=roots)
            if not files.changed:
                return
            if not left:
                some = ", ".join(sorted(files.changed)[:5])
                logger.warning(
                    "remote mount of %s: %d file(s) are written to all the time, and stay on the hosts as they were: %s; "
                    "refresh again when nothing writes to them",
                    source,
                    len(files.changed),
                    some,
                )


def _brought(files: SourceFolder) -> tuple[int, int]:
    return files.sent, files.total


async def remove(hosts: HostMesh, source: str, point: str) -> None:
    """Removes what `sync` brought, and the directory itself if it made it and nobody else has files there. RuntimeError when
    a host is lost; then it is done on the others."""
    try:
        await _remove(hosts, source, point)
        return
    except RuntimeError as exc:
        if len(hosts) == 1:
            raise
        logger.info("remote mount of %s: a host is lost, and the others are cleared one by one: %s", source, exc)
    points = [Point(rank, hosts.extent) for rank in range(len(hosts))]
    done = await asyncio.gather(
        *[_remove(hosts.slice(**here), source, point_of(point, here)) for here in points], return_exceptions=True
    )
    failed = [f"{dict(here)}: {found}" for here, found in zip(points, done, strict=True) if found is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} host(s) of {len(hosts)} could not be cleared: {failed[0]}")


async def _remove(hosts: HostMesh, source: str, point: str) -> None:
    async with _mirrors(hosts, point) as mirrors:
        await _look(mirrors, source, clearing=True)
        roots = await lock_hosts(mirrors.actors, mirrors.run)
        if not roots:
            return
        cleared = await mirrors.ask("clear", ranks=roots)
        for root, whole in zip(roots.values(), cleared, strict=True):
            if not whole:
                logger.warning(
                    "remote mount: %s on %s stays, for others have written files there", root.path, root.host
                )


def manifest_of(source: str) -> Manifest:
    """Returns what a mount of `source` brings. FileNotFoundError, NotADirectoryError; WorkspaceError when it cannot be
    read."""
    crossings: list[str] = []
    if not os.path.exists(source):
        raise FileNotFoundError(f"the source {source} of a remote mount does not exist on this machine")
    if not os.path.isdir(source):
        raise NotADirectoryError(
            f"the source {source} of a remote mount is not a directory: name the one that holds it"
        )
    manifest = local_manifest(source, MOUNTED, crossings)
    if crossings:
        some = ", ".join(crossings[:5])
        logger.warning("remote mount of %s: other file systems are mounted there, and count as empty: %s", source, some)
    return manifest


class _Mirrors:
    """The actors of one sync."""

    def __init__(self, actors: Any, run: str) -> None:
        self.actors = actors
        self.run = run

    async def ask(self, name: str, *args: Any, ranks: Any = None) -> list[Any]:
        """The answers of all, or of `ranks`. One message to many hosts where all are asked."""
        if ranks is None or len(ranks) == len(self.actors):
            return await HostAnswers([getattr(self.actors, name).call(*args)])
        views = [self.actors.slice(**Point(rank, self.actors.extent)) for rank in ranks]
        return await HostAnswers([getattr(view, name).call(*args) for view in views])


@asynccontextmanager
async def _mirrors(hosts: HostMesh, point: str) -> AsyncIterator[_Mirrors]:
    run = secrets.token_hex(8)
    async with hosts.spawn_procs(name="remotemount") as procs:
        await procs.initialized
        actors: Any = procs.spawn("mirror", MirrorHost, point, run)
        try:
            yield _Mirrors(actors, run)
        finally:
            await actors.stop()


async def _look(mirrors: _Mirrors, source: str, clearing: bool = False) -> list[MountPointState]:
    """A file appears in the source for a moment: hosts that see it as well share the source with us."""
    token = TOKEN + secrets.token_hex(8)
    path = os.path.join(source, token)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError:  # a source that this user may only read
        token = ""
    try:
        return await mirrors.ask("look", source, token, fuse_process.machine(), clearing)
    finally:
        if token:
            os.unlink(path)
