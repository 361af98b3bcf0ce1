"""The contents of a directory, and the changes that make another one equal. Pure.

A manifest names everything below a directory by its path there, `/` between the parts. What a manifest says of the other
side is only ever compared: `parts` is what every path goes through before it touches a disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import NamedTuple

FILE, FOLDER, LINK, OTHER = "file", "folder", "link", "other"

# Files above it are sent in pieces, and where the host has an older one, only the blocks that it lacks.
LARGE = 1 << 20

OURS = ".monarch-sync."  # begins the names of our temporary files and locks
_DEPTH = 256  # each level costs the host a descriptor


class ManifestEntry(NamedTuple):
    """One thing in a directory. `mtime_ns` and `size` are 0 for what is not a file, `target` is a link's."""

    kind: str
    size: int = 0
    mode: int = 0
    mtime_ns: int = 0
    target: str = ""


Manifest = dict[str, ManifestEntry]


class Rules(NamedTuple):
    """The names that are left out of a directory: neither sent nor removed. Our temporary files always are."""

    names: frozenset[str]
    suffix: str | None = None
    one_file_system: bool = False  # what is mounted below the directory counts as an empty folder

    def exclude(self, name: str) -> bool:
        return name in self.names or name.startswith(OURS) or (self.suffix is not None and name.endswith(self.suffix))


WORKSPACE = Rules(frozenset({".git", "__pycache__", ".venv"}), ".pyc")


class RefusedPath(ValueError):
    """A path that could lead out of the directory it is meant for."""


class SyncPlan(NamedTuple):
    """Steps that make `found` into `wanted`, in this order.

    `clear` goes first: what stands where something of another kind has to be. `remove` goes last, so that what runs there
    never misses a file that only moved.
    """

    clear: list[str]
    folders: list[str]
    links: list[tuple[str, str]]
    send: list[str]  # files the host lacks, or of another size: whole
    doubtful: list[str]  # files of the same size and another time: only a hash can tell
    patch: list[str]  # large files of which the host has an older one
    modes: list[tuple[str, int]]  # of folders, and of files that are otherwise equal
    remove: list[str]

    @property
    def empty(self) -> bool:
        return not any(self)


def parts(path: str) -> list[str]:
    """The names along `path`. RefusedPath for one that is absolute, empty, too deep, or has `..`, `.` or a NUL in it."""
    names = path.split("/")
    if any(name in ("", ".", "..") or "\0" in name for name in names) or len(names) > _DEPTH:
        raise RefusedPath(
            f"the path {path[:200]!r} is refused: it must be relative, without '.', '..' and empty parts, and at most "
            f"{_DEPTH} deep"
        )
    return names


def digest(manifest: Manifest) -> bytes:
    """Equal for equal manifests: 16 bytes."""
    state = hashlib.blake2b(digest_size=16)
    for path in sorted(manifest):
        state.update(repr((path, *manifest[path])).encode())
    return state.digest()


def compare(wanted: Manifest, found: Manifest) -> SyncPlan:
    """Returns what turns a directory that holds `found` into one that holds `wanted`."""
    plan = SyncPlan([], [], [], [], [], [], [], [])
    blocked = [
        path for path in found if path in wanted and (found[path].kind == FOLDER) != (wanted[path].kind == FOLDER)
    ]
    gone = _below(blocked, found)
    plan.clear.extend(sorted(gone, reverse=True))
    for path in sorted(wanted):
        mine = wanted[path]
        theirs = None if path in gone else found.get(path)
        _compare_one(plan, path, mine, theirs)
    plan.remove.extend(sorted((path for path in found if path not in wanted and path not in gone), reverse=True))
    return plan


def _compare_one(plan: SyncPlan, path: str, mine: ManifestEntry, theirs: ManifestEntry | None) -> None:
    if mine.kind == FOLDER:
        if theirs is None:
            plan.folders.append(path)
        if theirs is None or theirs.mode != mine.mode:
            plan.modes.append((path, mine.mode))
    elif mine.kind == LINK:
        if theirs is None or theirs != mine:
            plan.links.append((path, mine.target))
    elif theirs is None or theirs.kind != FILE:
        plan.send.append(path)
    elif (theirs.size, theirs.mtime_ns) == (mine.size, mine.mtime_ns):
        if theirs.mode != mine.mode:
            plan.modes.append((path, mine.mode))
    elif min(mine.size, theirs.size) > LARGE:
        plan.patch.append(path)
    elif mine.size == theirs.size and mine.size <= LARGE:
        plan.doubtful.append(path)
    else:
        plan.send.append(path)


def _below(tops: Collection[str], manifest: Manifest) -> set[str]:
    """Returns `tops` and everything under them."""
    if not tops:
        return set()
    chosen = set(tops)
    return {path for path in manifest if any(prefix in chosen for prefix in _prefixes(path))}


def _prefixes(path: str) -> Iterable[str]:
    yield path
    cut = path.rfind("/")
    while cut > 0:
        yield path[:cut]
        cut = path.rfind("/", 0, cut)
