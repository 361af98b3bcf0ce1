"""What one host has, brought into a local folder: only what differs."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from monarch.actor.file_sync import (
    LARGE,
    OURS,
    ConfinedFolder,
    Manifest,
    ManifestEntry,
    RefusedPath,
    Rules,
    SyncPlan,
    compare,
    scan,
)
from monarch.remotemount.gather_host import HostErrno

_HERE = Rules(frozenset({".monarch-gather"}))
_MARKER = ".monarch-gather"  # which files here were brought
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 512
_PIECE = 4 << 20
_DIGESTED = 256 << 20  # of which a host gives a digest at a time
_IN_FLIGHT = 4  # pieces


class Pull:
    """One host's. `ask(host, endpoint, *args)` raises OSError."""

    def __init__(self, host: Any, base: str, name: str, ask: Callable[..., Any]) -> None:
        self._host = host
        self._base = base
        self._name = name
        self._ask = ask
        self._skipped: list[str] = []

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
        if self._skipped:
            some = ", ".join(self._skipped[:5])
            count = len(self._skipped)
            return f"{where}: {count} file(s) changed while they were read, and come with the next refresh: {some}"
        return ""

    def _bring(self, tree: ConfinedFolder, wanted: Manifest) -> None:
        tree.clear_leftovers()
        marker = os.path.join(tree.root, _MARKER)
        brought = _noted(marker)
        here = scan(tree.root, _HERE)
        found = {path: entry for path, entry in here.items() if path in brought}
        _note(marker, brought | wanted.keys())
        plan = compare(wanted, found)
        for path in plan.clear:
            tree.remove(path)
        for path in plan.folders:
            tree.make_folder(path)
        for path, target in plan.links:
            tree.make_link(path, target)
        self._files(tree, wanted, found, plan)
        for path in plan.remove:
            try:
                tree.remove(path)
            except OSError:  # a folder with files of others in it
                continue
        for path, mode in plan.modes:
            tree.set_mode(path, mode)
        _note(marker, set(wanted))

    def _files(self, tree: ConfinedFolder, wanted: Manifest, found: Manifest, plan: SyncPlan) -> None:
        whole = [*plan.send, *plan.doubtful]
        for batch in _batches([(path, wanted[path]) for path in whole if wanted[path].size <= LARGE]):
            contents = self._ask(self._host, "read_whole", [(path, entry.size) for path, entry in batch])
            for (path, entry), data in zip(batch, contents, strict=True):
                if isinstance(data, HostErrno) or len(data) != entry.size:
                    self._skipped.append(path)
                else:
                    tree.write(path, data, entry.mode, entry.mtime_ns)
        for path in whole:
            if wanted[path].size > LARGE:
                self._large(tree, path, wanted[path], None)
        for path in plan.patch:
            self._large(tree, path, wanted[path], found[path])

    def _large(self, tree: ConfinedFolder, path: str, entry: ManifestEntry, older: ManifestEntry | None) -> None:
        """Brings a large file; of one that has only grown, such as a log, what is new."""
        start = 0
        if older is not None and older.size <= entry.size and self._begins_equal(tree, path, older.size):
            start = older.size
        there = (older.size, older.mtime_ns) if older is not None and start else None
        with tree.new_file(path, there) as file:
            if start:
                file.append([(0, start)])
            for data in self._pieces(path, start, entry.size):
                if isinstance(data, HostErrno) or not data:
                    self._skipped.append(path)
                    return
                file.append([data])
                start += len(data)
            if start != entry.size:
                self._skipped.append(path)
                return
            file.finish(entry.mode, entry.mtime_ns)

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


def _noted(marker: str) -> set[str]:
    try:
        with open(marker, "rb") as file:
            return {os.fsdecode(path) for path in file.read().split(b"\0") if path}
    except FileNotFoundError:
        return set()


def _note(marker: str, paths: set[str]) -> None:
    if paths == _noted(marker) and os.path.exists(marker):
        return
    temporary = os.path.join(os.path.dirname(marker), OURS + "note")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(b"\0".join(os.fsencode(path) for path in sorted(paths)))
    os.replace(temporary, marker)
