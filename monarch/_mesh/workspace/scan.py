"""A directory on this machine -> its manifest."""

from __future__ import annotations

import errno
import os
import stat

from monarch._mesh.workspace.manifest import FILE, FOLDER, LINK, OTHER, WORKSPACE, Manifest, ManifestEntry, Rules

LIMIT = 1_000_000  # entries of a manifest; some hundred bytes each


def scan(root: str, rules: Rules = WORKSPACE, crossings: list[str] | None = None) -> Manifest:
    """Everything below `root` but what `rules` exclude. Links are told of, never followed. A file that is removed meanwhile
    is left out. `crossings` takes the folders that are not looked into, being of another file system.

    OSError where a folder cannot be read, and E2BIG for more than a million entries.
    """
    found: Manifest = {}
    device = os.stat(root).st_dev if rules.one_file_system else 0
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            entries = os.scandir(os.path.join(root, folder))
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
            if not folder:
                raise
            del found[folder]
            continue
        with entries:
            for entry in entries:
                if rules.exclude(entry.name):
                    continue
                path = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    found[path] = _entry(entry)
                except FileNotFoundError:
                    continue
                if len(found) > LIMIT:
                    raise OSError(errno.E2BIG, f"more than {LIMIT:,} files and folders: sync a part of it", root)
                if found[path].kind != FOLDER:
                    continue
                if rules.one_file_system and entry.stat(follow_symlinks=False).st_dev != device:
                    if crossings is not None:
                        crossings.append(path)
                    continue
                waiting.append(path)
    return found


def _entry(entry: os.DirEntry[str]) -> ManifestEntry:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        return ManifestEntry(FILE, status.st_size, status.st_mode & 0o777, status.st_mtime_ns)
    if stat.S_ISDIR(status.st_mode):
        return ManifestEntry(FOLDER, mode=status.st_mode & 0o777)
    if stat.S_ISLNK(status.st_mode):
        return ManifestEntry(LINK, target=os.readlink(entry.path))
    return ManifestEntry(OTHER)
