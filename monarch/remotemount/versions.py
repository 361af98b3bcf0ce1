"""Which content each file of a tree has, as numbers: a changed file gets a new one, an unchanged one keeps its own. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator

from monarch.actor.file_sync import FILE, FOLDER, Entry, Manifest
from monarch.remotemount.fuse_messages import TreeEntry
from monarch.remotemount.tree import SMALL


class Versions:
    """The tree as hosts were told of it last."""

    def __init__(self) -> None:
        self._numbers: dict[str, tuple[Entry, int]] = {}
        self._folders: dict[str, tuple[frozenset[str], int]] = {}
        self._next = 1
        self.files: dict[int, tuple[str, Entry]] = {}  # content -> what it is

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
        numbers: dict[str, tuple[Entry, int]] = {}
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
        """Those that are delivered before anybody asks."""
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
