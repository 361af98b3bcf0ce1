"""The actor of the client that reads the files of a FUSE mount and sends them to all hosts at once.

What one host reads all get: programs of a mesh read the same files. Each message goes down the runtime's tree of hosts.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pickle import PickleBuffer
from typing import Any

from monarch.actor import Actor, HostMesh, Point, SupervisionError, endpoint
from monarch.actor.file_sync import FILE, FOLDER, Manifest, ManifestEntry
from monarch.actor.lowlevel import WatchedProgress
from monarch.remotemount.file_tree import BLOCK, SMALL
from monarch.remotemount.fuse_messages import TreeEntry
from monarch.remotemount.fuse_process import machine
from monarch.remotemount.mirror import manifest_of
from monarch.remotemount.mount_host import Delivery, MountHost, name_of
from monarch.remotemount.mount_point import MOUNTED_ALREADY, SOURCE, TOKEN, MountPointState, refusal

logger = logging.getLogger("monarch")

_READY = 120.0  # seconds for a host to start a process
_ANSWER = 300.0  # and to take what it is sent
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 512
_IN_FLIGHT = 4  # messages of at most a block each
_ENTRIES = 20_000  # of a tree in one message


class MountSource(Actor):
    """Owns the processes that hold the mounts. `this` is its own handle, for the hosts."""

    _is_system_actor = True

    def __init__(self, source: str, template: str) -> None:
        self._source = source
        self._template = template
        self._versions = Versions()
        self._procs: Any = None
        self._hosts: _Hosts | None = None
        self._sent: set[tuple[int, int]] = set()

    @endpoint
    def open(self, hosts: HostMesh, this: Any) -> tuple[list[MountPointState], list[str]]:
        """Mounts on all hosts. (what they had there, why some could not): all or none is mounted."""
        self._procs = hosts.spawn_procs(name="remotemount")
        self._procs.initialized.get(_READY)
        actors: Any = self._procs.spawn("mount", MountHost, self._template, name_of(self._source), this)
        looks = self._look(actors)
        problems = [f"{look.host}: {look.obstacle}" for look in looks if look.obstacle]
        if problems or any(refusal(look, self._source, fuse=True) for look in looks):
            self._end()
            return looks, problems
        actors.leave_out.call(_left_out(looks)).get(_ANSWER)
        self._hosts = _Hosts(actors)
        actors.start.call().get(_ANSWER)
        self._bring()
        problems = [why for why in actors.mounted.call().get(_ANSWER).values() if why]
        if problems:
            self._end()
        return looks, problems

    @endpoint
    def refresh(self, source: str) -> None:
        """The tree as it is now."""
        self._source = source
        self._bring()

    @endpoint
    def want(self, content: int, block: int) -> None:
        """Some host reads it: all get it."""
        found = self._versions.files.get(content)
        if self._hosts is None or (content, block) in self._sent or found is None:
            return
        self._sent.add((content, block))
        self._hosts.send("deliver", [self._block(content, block, *found)])

    @endpoint
    def close(self) -> list[str]:
        """Unmounts; returns which mounts are in use. If none is, all that was started is gone as well."""
        busy: list[str] = []
        if self._hosts is not None:
            busy = [why for why in self._hosts.ask("unmount") if why]
        if not busy:
            self._end()
        return busy

    def __supervise__(self, failure: Any) -> bool:
        logger.warning("a remote mount of %s is lost: %s", self._source, failure)
        return True

    def _end(self) -> None:
        procs, self._procs, self._hosts = self._procs, None, None
        if procs is not None:
            procs.stop().get(_READY)

    def _look(self, actors: Any) -> list[MountPointState]:
        token = TOKEN + secrets.token_hex(8)
        path = os.path.join(self._source, token)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except OSError:
            token = ""
        try:
            return list(actors.look.call(self._source, token, machine()).get(_ANSWER).values())
        finally:
            if token:
                os.unlink(path)

    def _bring(self) -> None:
        """First what the new tree needs, then the tree: nobody sees a file without its content."""
        hosts = self._hosts
        assert hosts is not None
        new = self._versions.update(manifest_of(self._source), time.time_ns())
        small = self._versions.small(new)
        sent = 0
        with WatchedProgress(f"files of the remote mount of {self._source}", lambda: (sent, len(small))):
            for batch in self._batches(small):
                hosts.send("deliver", batch)
                sent += len(batch)
        if self._versions.changed:
            entries = list(self._versions.entries())
            for start in range(0, len(entries), _ENTRIES):
                part = entries[start : start + _ENTRIES]
                hosts.send("tree", part, start + _ENTRIES >= len(entries))
        hosts.drain()
        self._sent = {key for key in self._sent if key[0] in self._versions.files}

    def _batches(self, contents: Sequence[int]) -> Iterator[list[Delivery]]:
        batch: list[Delivery] = []
        size = 0
        for content in contents:
            batch.append(self._block(content, 0, *self._versions.files[content]))
            size += len(batch[-1][2])
            if size >= _BATCH_BYTES or len(batch) == _BATCH_FILES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _block(self, content: int, block: int, path: str, entry: ManifestEntry) -> Delivery:
        """EIO for a file that is not the one that was scanned, before or after it was read."""
        start = block * BLOCK if entry.size >= SMALL else 0
        length = min(entry.size - start, BLOCK if entry.size >= SMALL else SMALL)
        try:
            with open(os.path.join(self._source, path), "rb", buffering=0) as file:
                file.seek(start)
                data = _read(file, length)
                status = os.fstat(file.fileno())
            if (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime_ns) and len(data) == length:
                return content, block, PickleBuffer(data) if length >= SMALL else data, 0
        except OSError as exc:
            if exc.errno == errno.EACCES:
                return content, block, b"", errno.EACCES
        self._versions.forget({content})
        return content, block, b"", errno.EIO


class _Hosts:
    """The hosts of a mount. One that is lost is left out from then on."""

    def __init__(self, actors: Any) -> None:
        self._views = [actors]
        self._calls: deque[tuple[Any, Any]] = deque()  # to whom, and the Future
        self._actors = actors

    def send(self, name: str, *args: Any) -> None:
        """Sends in order, with a few calls under way: waits for the oldest when they are too many."""
        while len(self._calls) >= _IN_FLIGHT * len(self._views):
            self._oldest()
        for view in list(self._views):
            self._calls.append((view, getattr(view, name).call(*args)))

    def drain(self) -> None:
        while self._calls:
            self._oldest()

    def ask(self, name: str) -> list[Any]:
        """The answers of those that are there."""
        self.drain()
        found = []
        for view in list(self._views):
            try:
                found += getattr(view, name).call().get(_ANSWER).values()
            except SupervisionError:
                self._lost(view)
                if view is self._actors:
                    return self.ask(name)
        return found

    def _oldest(self) -> None:
        view, call = self._calls.popleft()
        try:
            call.get(_ANSWER)
        except SupervisionError:
            self._lost(view)

    def _lost(self, view: Any) -> None:
        """Goes on when some hosts are lost: from now on each is sent to alone."""
        if view not in self._views:
            return
        self._views.remove(view)
        if view is self._actors and len(view) > 1:
            extent = view.extent
            self._views = [view.slice(**Point(rank, extent)) for rank in range(len(view))]


def _left_out(looks: Sequence[MountPointState]) -> list[int]:
    """Ranks that mount nothing: where the files are already, and of hosts on one machine all but the first."""
    seen: set[tuple[str, str]] = set()
    out = []
    for rank, look in enumerate(looks):
        key = (look.machine, look.path)
        if look.state in (SOURCE, MOUNTED_ALREADY) or key in seen:
            out.append(rank)
        seen.add(key)
    return out


def _read(file: Any, length: int) -> bytes:
    parts = []
    while length and (data := file.read(length)):
        parts.append(data)
        length -= len(data)
    return b"".join(parts)


class Versions:
    """The tree as hosts were told of it last."""

    def __init__(self) -> None:
        self._numbers: dict[str, tuple[ManifestEntry, int]] = {}
        self._folders: dict[str, tuple[frozenset[str], int]] = {}
        self._next = 1
        self.files: dict[int, tuple[str, ManifestEntry]] = {}  # content -> what it is

    def update(self, manifest: Manifest, now_ns: int) -> list[int]:
        """The contents that are new since the last time. A file counts as unchanged when size and time are the same; a folder
        has the time when a name in it came or went, which is when Python looks for modules again."""
        new = []
        folders = _folders(manifest)
        for path, names in folders.items():
            before_names, _ = self._folders.get(path, (None, 0))
            if before_names != names:
                self._folders[path] = names, now_ns
        self._folders = {path: self._folders[path] for path in folders}
        numbers: dict[str, tuple[ManifestEntry, int]] = {}
        for path, entry in manifest.items():
            if entry.kind != FILE:
                numbers[path] = entry, 0
                continue
            before, number = self._numbers.get(path, (None, 0))
            if before is None or (before.size, before.mtime_ns) != (entry.size, entry.mtime_ns) or not number:
                number, self._next = self._next, self._next + 1
                new.append(number)
            numbers[path] = entry, number
        self.changed = numbers != self._numbers
        self._numbers = numbers
        self.files = {number: (path, entry) for path, (entry, number) in numbers.items() if number}
        return new

    changed = False  # whether the last update differed from the one before

    def forget(self, contents: set[int]) -> None:
        """They could not be read: the next update gives these files new numbers, changed or not."""
        for number in contents & self.files.keys():
            path, entry = self.files[number]
            self._numbers[path] = entry, 0

    def entries(self) -> Iterator[TreeEntry]:
        yield b"", FOLDER, 0, 0o755, self._folders[""][1], b"", 0
        for path, (entry, number) in self._numbers.items():
            target = os.fsencode(entry.target)
            time = self._folders[path][1] if entry.kind == FOLDER else entry.mtime_ns
            yield os.fsencode(path), entry.kind, entry.size, entry.mode, time, target, number

    def small(self, contents: list[int]) -> list[int]:
        """Returns the contents that are delivered before anybody asks."""
        return [number for number in contents if self.files[number][1].size < SMALL]


def _folders(manifest: Manifest) -> dict[str, frozenset[str]]:
    """folder -> the names in it; the tree's own is ""."""
    found: dict[str, set[str]] = {"": set()}
    for path, entry in manifest.items():
        folder, _, name = path.rpartition("/")
        found.setdefault(folder, set()).add(name)
        if entry.kind == FOLDER:
            found.setdefault(path, set())
    return {path: frozenset(names) for path, names in found.items()}
