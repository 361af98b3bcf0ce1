"""`HostMesh.sync_workspace`, as the client runs it, over a mesh of one process a host."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Collection, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch._errors import WorkspaceError
from monarch._mesh.meshes.proc_mesh import ProcMesh, get_active_proc_meshes
from monarch._mesh.workspace.conda import Relocated, active_prefix
from monarch._mesh.workspace.manifest import OTHER, WORKSPACE, Manifest, RefusedPath, Rules, compare, digest, parts
from monarch._mesh.workspace.receiver import Receiver, Root, Taken
from monarch._mesh.workspace.reload import reload_modules
from monarch._mesh.workspace.scan import scan
from monarch._mesh.workspace.sender import IN_FLIGHT, Sender, SourceFolder, check
from monarch._runtime.future import Future
from monarch._shape.extent import Point

if TYPE_CHECKING:
    from monarch._mesh.meshes.host_mesh import HostMesh

logger = logging.getLogger("monarch")

_GROUPS_AT_ONCE = 8  # they share the bytes in flight


async def sync_hosts(hosts: HostMesh, workspace: Any, conda: bool = False, auto_reload: bool = False) -> None:
    """`sync_workspace` through a process on each host, which ends with it. Modules are reloaded in the processes of the
    meshes that this process spawned and still holds."""
    destinations(workspace)  # what is wrong with it is told before anything starts
    running = get_active_proc_meshes() if auto_reload else []
    async with hosts.spawn_procs(name="workspace") as procs:
        await procs.initialized
        await sync_workspace(procs, workspace, conda, auto_reload, running)


async def sync_workspace(
    procs: ProcMesh,
    workspace: Any,
    conda: bool = False,
    auto_reload: bool = False,
    running: Sequence[ProcMesh] = (),
) -> None:
    """Makes `$WORKSPACE_DIR/<dst>` on each host hold what the local directories of `workspace.dirs` hold.

    `procs`: one process a host, with WORKSPACE_DIR in its environment; hosts (or processes) that share that directory
    are served once. `workspace.dirs`: {local directory: dst}, or a list of directories, which keep their names. Files
    are compared by size and mtime, then by content; what is not there locally is removed there; modes, mtimes of files
    and links are kept. `.git`, `.venv`, `__pycache__` and `*.pyc` are neither sent nor removed; sockets, devices and
    pipes are not sent; hard links become separate files.

    `conda`: the active conda environment (CONDA_PREFIX here) as well, to $CONDA_PREFIX on each host; where that is
    another path, the files that hold the path are changed on their way. `auto_reload`: modules whose files changed are
    then reloaded in the processes of `running`.

    Raises, before anything is sent: ValueError for a dst that is not below WORKSPACE_DIR, or two that overlap;
    FileNotFoundError and NotADirectoryError for a local path that is not a directory. WorkspaceError when a host cannot
    do its part, or a local file changes meanwhile; SupervisionError when a host's process ends.
    """
    folders = destinations(workspace)
    prefix = active_prefix() if conda else ""
    changed: dict[str, set[str]] = {}
    if folders:
        await _sync_folders(procs, "WORKSPACE_DIR", folders, changed)
    if prefix:
        await _sync_folders(procs, "CONDA_PREFIX", {"": prefix}, changed, relocated=True)
    if auto_reload:
        await reload_modules(running, changed)


def destinations(workspace: Any) -> dict[str, str]:
    """dst -> local directory, both checked."""
    dirs = workspace.dirs or {}
    pairs = (
        dirs.items()
        if isinstance(dirs, Mapping)
        else [(path, os.path.basename(os.path.abspath(path))) for path in dirs]
    )
    folders: dict[str, str] = {}
    for path, dst in pairs:
        local, name = os.path.abspath(path), os.path.normpath(os.fspath(dst))
        name = "" if name == "." else name
        try:
            parts(name or "x")
        except RefusedPath:
            raise ValueError(
                f"{str(dst)!r} for {local} does not lie below WORKSPACE_DIR: give a relative path without '..'"
            ) from None
        for other, rival in folders.items():
            if name == other or not name or not other or name.startswith(other + "/") or other.startswith(name + "/"):
                raise ValueError(
                    f"{rival} and {local} go to {other or '.'!r} and {name or '.'!r}, and one contains the other: each "
                    "would remove what the other brings; give each a directory of its own"
                )
        if not os.path.exists(local):
            raise FileNotFoundError(f"the workspace directory {local} does not exist on this machine")
        if not os.path.isdir(local):
            raise NotADirectoryError(f"{local} in the workspace is not a directory: name the directory that holds it")
        folders[name] = local
    return folders


async def _sync_folders(
    procs: ProcMesh,
    variable: str,
    folders: Mapping[str, str],
    changed: dict[str, set[str]],
    relocated: bool = False,
) -> None:
    run = secrets.token_hex(8)
    receivers: Any = procs.spawn("workspace", Receiver, variable, run)
    try:
        roots = await lock_hosts(receivers, run)
        for dst, local in folders.items():
            await _sync_folder(FolderSync(receivers, roots, dst, changed), local, relocated)
    finally:
        await receivers.stop()


async def _sync_folder(folder: FolderSync, local: str, relocated: bool) -> None:
    manifest = await asyncio.to_thread(local_manifest, local)
    places = {rank: root.path if relocated else "" for rank, root in folder.roots.items()}
    sources = {place: await asyncio.to_thread(_source, local, manifest, place) for place in sorted({*places.values()})}
    await folder.sync({rank: sources[place] for rank, place in places.items()})


async def lock_hosts(receivers: Any, run: str) -> dict[int, Root]:
    """rank -> the directory it writes. Of ranks that share one, one."""
    answers = check((await receivers.lock.call()).values())
    # The sync that holds it for this run has written so by now, but perhaps not before others looked.
    waiting = [rank for rank, answer in enumerate(answers) if isinstance(answer, Taken) and answer.run != run]
    if waiting:
        again = await HostAnswers([_one(receivers, rank).lock.call() for rank in waiting])
        for rank, answer in zip(waiting, again, strict=True):
            answers[rank] = answer
    for answer in answers:
        if isinstance(answer, Taken) and answer.run != run:
            raise WorkspaceError(
                f"another sync_workspace writes to {answer.path} on {answer.host}: wait until it is done, or give each "
                "program a WORKSPACE_DIR of its own"
            )
    return {rank: answer for rank, answer in enumerate(answers) if isinstance(answer, Root)}


def _one(receivers: Any, rank: int) -> Any:
    return receivers.slice(**Point(rank, receivers.extent))


class HostAnswers:
    """Answers of several calls that are under way, in order. Awaiting it raises WorkspaceError for the first problems."""

    def __init__(self, futures: Sequence[Future[Any]]) -> None:
        self._futures = futures

    def __await__(self) -> Generator[Any, None, list[Any]]:
        values: list[Any] = []
        for future in self._futures:
            values += (yield from future.__await__()).values()
        return check(values)


class FolderSync:
    """One folder of the hosts on its way to what local directories hold. `changed` takes the paths that were written."""

    def __init__(self, receivers: Any, roots: Mapping[int, Root], dst: str, changed: dict[str, set[str]]) -> None:
        self.roots = roots
        self._receivers = receivers
        self._dst = dst
        self._changed = changed

    async def sync(self, sources: Mapping[int, SourceFolder]) -> None:
        """rank -> what is to be there. Hosts that hold the same and get the same are served together."""
        ranks = sorted(sources)
        wanted = {id(source): digest(source.manifest) for source in sources.values()}
        begun = await HostAnswers([view.begin.call(self._dst) for view in _views(self._receivers, ranks)])
        groups: dict[tuple[int, bytes], list[int]] = {}
        for rank, found in zip(ranks, begun, strict=True):
            source = id(sources[rank])
            if found != wanted[source]:
                groups.setdefault((source, found), []).append(rank)
        turns = asyncio.Semaphore(_GROUPS_AT_ONCE)
        limit = IN_FLIGHT // min(len(groups) or 1, _GROUPS_AT_ONCE)
        await _all([self._serve(turns, sources[members[0]], members, limit) for members in groups.values()])

    async def _serve(self, turns: asyncio.Semaphore, source: SourceFolder, members: list[int], limit: int) -> None:
        """Hosts that hold the same and are to hold the same."""
        async with turns:
            views = _views(self._receivers, members)
            (found,) = await HostAnswers([_one(self._receivers, members[0]).listing.call()])
            sender = Sender(source, found, lambda name, *args: _ask(views, name, args), limit // len(views))
            await sender.run(compare(source.manifest, found))
        for rank in members:
            root = self.roots[rank]
            paths = self._changed.setdefault(root.prefix, set())
            paths.update(os.path.join(root.path, self._dst, path) for path in sender.written)


def _source(local: str, manifest: Manifest, place: str) -> SourceFolder:
    return Relocated(local, manifest, place) if place else SourceFolder(local, manifest)


def local_manifest(path: str, rules: Rules = WORKSPACE, crossings: list[str] | None = None) -> Manifest:
    """Returns what is to be sent of a local directory. WorkspaceError when it cannot be read."""
    try:
        manifest = scan(path, rules, crossings)
    except OSError as error:
        raise WorkspaceError(f"cannot read {error.filename or path} on this machine: {error.strerror}") from error
    special = [name for name, entry in manifest.items() if entry.kind == OTHER]
    if special:
        logger.warning("not synced, because they are not files, folders or links: %s", ", ".join(special[:5]))
    for name in special:
        del manifest[name]
    return manifest


def _views(receivers: Any, ranks: Collection[int]) -> list[Any]:
    """Returns as few meshes as hold these ranks: one call to all costs the client one message."""
    if len(ranks) == len(receivers):
        return [receivers]
    return [_one(receivers, rank) for rank in ranks]


def _ask(views: Sequence[Any], name: str, args: Sequence[Any]) -> HostAnswers:
    return HostAnswers([getattr(view, name).call(*args) for view in views])


async def _all(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Runs them together; the first that raises ends the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        for task in asyncio.as_completed(tasks):
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
