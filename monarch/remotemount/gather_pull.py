"""The files of one host, brought into a local folder: only what differs."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from monarch.actor.file_sync import (
    LARGE,
    ConfinedFolder,
    Manifest,
    ManifestEntry,
    RefusedPath,
    Rules,
    SyncPlan,
    compare,
    scan,
)
from monarch.remotemount.settled import HostErrno

_HERE = Rules(frozenset({".monarch-gather"}))
_MARKER = ".monarch-gather"  # which files here were brought
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 512
_PIECE = 4 << 20
_DIGESTED = 256 << 20  # of which a host gives a digest at a time
_IN_FLIGHT = 4  # pieces
_ATTEMPTS = 2  # at a large file that changes
_SHOWN = 5  # paths in a warning
_SHOWN_OF_PATH = 200
_NAMED = 10_000  # paths that are known to have been named; those beyond are named again
# What is wrong with a path, or with what is here at that place; not with the disk, the host or this process.
_OF_ONE_PATH = {
    errno.EACCES, errno.EBUSY, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOTDIR, errno.ENOTEMPTY, errno.EPERM, errno.ETXTBSY,
}  # fmt: skip


class Pull:
    """One host's. `ask(host, endpoint, *args)` raises OSError. `named`: hosts and paths that cannot be here, of which a
    warning was given."""

    def __init__(
        self, host: Any, base: str, name: str, ask: Callable[..., Any], named: set[tuple[str, str]] | None = None
    ) -> None:
        self._host = host
        self._base = base
        self._name = name
        self._ask = ask
        self._named = set() if named is None else named
        self.total = self.brought = 0  # bytes of the files that differ, and of those that have come so far
        self._changing: list[str] = []
        self._lost: dict[str, str] = {}  # paths that cannot be here, and why; "": what is above it cannot

    def run(self) -> str:
        """Brings everything; returns what could not be brought, and why; "" when all was."""
        where = self._name or "the host"
        try:
            wanted: Manifest = self._ask(self._host, "manifest")
        except OSError as exc:
            return f"{where} could not be read ({exc.strerror}): what is here of it stays as it is"
        try:
            tree = ConfinedFolder(self._base, self._name)
        except (OSError, RefusedPath) as exc:
            return f"{where}: {exc}"
        try:
            self._bring(tree, wanted)
        except (OSError, RefusedPath) as exc:
            return f"{where}: {exc}: the next refresh goes on from there"
        finally:
            tree.close()
        return "; ".join(f"{where}: {said}" for said in (self._said_of_changing(), self._said_of_lost()) if said)

    def _said_of_changing(self) -> str:
        if not self._changing:
            return ""
        return (
            f"{len(self._changing)} file(s) changed while they were read, and stay here as they were until the next refresh: "
            + ", ".join(self._changing[:_SHOWN])
        )

    def _said_of_lost(self) -> str:
        """Names each path once in the life of the mount."""
        new = {path: why for path, why in self._lost.items() if why and (self._name, path) not in self._named}
        if len(self._named) < _NAMED:
            self._named.update((self._name, path) for path in new)
        if not new:
            return ""
        some = "; ".join(f"{path[:_SHOWN_OF_PATH]!r}: {why}" for path, why in list(new.items())[:_SHOWN])
        return f"{len(new)} path(s) cannot be here, with what is below them: {some}"

    def _bring(self, tree: ConfinedFolder, wanted: Manifest) -> None:
        tree.clear_leftovers()
        brought = _noted(tree)
        here = scan(tree.root, _HERE)
        found = {path: entry for path, entry in here.items() if path in brought}
        _note(tree, brought | wanted.keys())
        plan = compare(wanted, found)
        for path in plan.clear:
            self._try(path, tree.remove, path)
        for path in plan.folders:
            self._try(path, tree.make_folder, path)
        for path, target in plan.links:
            self._try(path, tree.make_link, path, target)
        self._files(tree, wanted, found, plan)
        for path in plan.remove:
            try:
                tree.remove(path)
            except OSError:  # a folder with files of others in it
                continue
        for path, mode in plan.modes:
            self._try(path, tree.set_mode, path, mode)
        _note(tree, set(wanted))

    def _try(self, path: str, do: Callable[..., object], *args: Any) -> None:
        """Does it for a path, of which what is wrong holds up no other. What is wrong with the disk or host is raised."""
        if self._is_lost(path):
            return
        try:
            do(*args)
        except RefusedPath as exc:
            self._lost[path] = str(exc)
        except OSError as exc:
            if exc.errno not in _OF_ONE_PATH:
                raise
            self._lost[path] = exc.strerror or str(exc)

    def _is_lost(self, path: str) -> bool:
        if os.path.dirname(path) in self._lost:
            self._lost.setdefault(path, "")
        return path in self._lost

    def _files(self, tree: ConfinedFolder, wanted: Manifest, found: Manifest, plan: SyncPlan) -> None:
        whole = [path for path in [*plan.send, *plan.doubtful] if not self._is_lost(path)]
        self.total = sum(wanted[path].size for path in [*whole, *plan.patch])
        for batch in _batches([(path, wanted[path]) for path in whole if wanted[path].size <= LARGE]):
            contents = self._ask(self._host, "read_whole", [path for path, _ in batch])
            for (path, entry), read in zip(batch, contents, strict=True):
                if isinstance(read, HostErrno):
                    self._not_read(path, read.error)
                else:
                    self._try(path, tree.write, path, read.data, entry.mode, read.mtime_ns)
                self.brought += entry.size
        for path in whole:
            if wanted[path].size > LARGE:
                self._try(path, self._large, tree, path, wanted[path], None)
        for path in plan.patch:
            self._try(path, self._large, tree, path, wanted[path], found[path])

    def _not_read(self, path: str, error: int) -> None:
        if error in (errno.EAGAIN, errno.ENOENT):  # it is changing, or has gone
            self._changing.append(path)
        else:
            self._lost.setdefault(path, f"the host cannot read it: {os.strerror(error)}")

    def _large(self, tree: ConfinedFolder, path: str, entry: ManifestEntry, older: ManifestEntry | None) -> None:
        """Brings a large file in one state of it; of one that has only grown, such as a log, what is new."""
        for _ in range(_ATTEMPTS):
            try:
                if self._bring_large(tree, path, entry, older):
                    return
            except OSError as exc:
                if exc.errno not in (errno.EAGAIN, errno.ENOENT):
                    raise
                break
        self._changing.append(path)

    def _bring_large(self, tree: ConfinedFolder, path: str, entry: ManifestEntry, older: ManifestEntry | None) -> bool:
        """False if it changed meanwhile."""
        # Of the first look: a write after it may bear the same time only where that one was recent.
        before, recent = self._ask(self._host, "stamp", path)
        start = 0
        if older is not None and older.size <= before.size and self._begins_equal(tree, path, older.size):
            start = older.size
        there = (older.size, older.mtime_ns) if older is not None and start else None
        with tree.new_file(path, there) as file:
            if start:
                file.append([(0, start)])
                self.brought += start
            at, digests = start, _Digests(start)
            for data in self._pieces(path, start, before.size):
                if isinstance(data, HostErrno) or not data:
                    return False
                file.append([data])
                digests.update(data)
                at += len(data)
                self.brought += len(data)
            if at != before.size:
                return False
            after, _ = self._ask(self._host, "stamp", path)
            if (before != after or recent) and not (
                before.grew_to(after)
                and (not start or self._begins_equal(tree, path, start))
                and all(self._ask(self._host, "digest", path, *each) == digest for each, digest in digests.all())
            ):
                return False
            file.finish(entry.mode, before.mtime_ns)
        return True

    def _begins_equal(self, tree: ConfinedFolder, path: str, size: int) -> bool:
        with open(tree.open_file(path), "rb", buffering=0) as file:
            for start in range(0, size, _DIGESTED):
                state = hashlib.blake2b(digest_size=16)
                left = min(_DIGESTED, size - start)
                while left and (data := file.read(min(_PIECE, left))):
                    state.update(data)
                    left -= len(data)
                theirs = self._ask(self._host, "digest", path, start, min(_DIGESTED, size - start))
                if left or theirs != state.digest():
                    return False
        return True

    def _pieces(self, path: str, start: int, end: int) -> Iterator[Any]:
        calls: deque[Any] = deque()
        for offset in range(start, end, _PIECE):
            if len(calls) == _IN_FLIGHT:
                yield calls.popleft().get(60)
            calls.append(self._host.read.call_one(path, offset, min(_PIECE, end - offset)))
        while calls:
            yield calls.popleft().get(60)


class _Digests:
    """Digests of what follows `start`, as `GatherHost.digest` gives them."""

    def __init__(self, start: int) -> None:
        self._start, self._length = start, 0
        self._state = hashlib.blake2b(digest_size=16)
        self._done: list[tuple[tuple[int, int], bytes]] = []

    def update(self, data: bytes) -> None:
        self._state.update(data)
        self._length += len(data)
        if self._length >= _DIGESTED:
            self._end()

    def all(self) -> list[tuple[tuple[int, int], bytes]]:
        """Returns (start, size) and digest of each part."""
        self._end()
        return self._done

    def _end(self) -> None:
        if self._length:
            self._done.append(((self._start, self._length), self._state.digest()))
            self._start, self._length = self._start + self._length, 0
            self._state = hashlib.blake2b(digest_size=16)


def _batches(files: Sequence[tuple[str, ManifestEntry]]) -> Iterator[list[tuple[str, ManifestEntry]]]:
    batch: list[tuple[str, ManifestEntry]] = []
    size = 0
    for path, entry in files:
        batch.append((path, entry))
        size += entry.size
        if size >= _BATCH_BYTES or len(batch) == _BATCH_FILES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _noted(tree: ConfinedFolder) -> set[str]:
    try:
        with open(tree.open_file(_MARKER), "rb") as file:
            return {os.fsdecode(path) for path in file.read().split(b"\0") if path}
    except FileNotFoundError:
        return set()


def _note(tree: ConfinedFolder, paths: set[str]) -> None:
    if not paths or paths != _noted(tree):
        tree.write(_MARKER, b"\0".join(os.fsencode(path) for path in sorted(paths)), 0o600, time.time_ns())
