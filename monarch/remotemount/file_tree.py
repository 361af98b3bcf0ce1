"""A tree of files as a file system asks for it, and what has come of their contents. Pure."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple

from monarch._linux.locks import Condition

SMALL = 1 << 20  # files below it are delivered whole, before anybody asks
BLOCK = 8 << 20  # of larger ones, what is fetched at a time

Block = bytes | bytearray | memoryview

FILE, FOLDER, LINK = "file", "folder", "link"
_TYPES = {FILE: stat.S_IFREG, FOLDER: stat.S_IFDIR, LINK: stat.S_IFLNK}


class TreeNode(NamedTuple):
    """One thing of a tree. `content` names what a file holds: another number for each version of it."""

    kind: str
    size: int
    mode: int
    mtime_ns: int
    target: str
    content: int

    def attributes(self) -> dict[str, int]:
        """Returns attributes as getattr gives them; times in nanoseconds."""
        size = len(os.fsencode(self.target)) if self.kind == LINK else self.size
        return {
            "st_mode": _TYPES[self.kind] | (0o777 if self.kind == LINK else self.mode),
            "st_nlink": 2 if self.kind == FOLDER else 1,
            "st_size": size,
            "st_blocks": (size + 511) // 512,
            "st_mtime": self.mtime_ns,
            "st_ctime": self.mtime_ns,
            "st_atime": self.mtime_ns,
        }


ROOT = TreeNode(FOLDER, 0, 0o755, 0, "", 0)


class FileTree:
    """Paths begin with `/`. Not changed once made."""

    def __init__(self, entries: Iterable[tuple[str, TreeNode]]) -> None:
        """`entries`: paths as manifests have them, without a leading `/`; "" is the tree's own folder."""
        self._nodes = {"/": ROOT}
        self._children: dict[str, dict[str, int]] = {"/": {}}
        for path, node in entries:
            full = "/" + path
            self._nodes[full] = node
            if not path:
                continue
            folder, _, name = full.rpartition("/")
            self._children.setdefault(folder or "/", {})[name] = _TYPES[node.kind]
            if node.kind == FOLDER:
                self._children.setdefault(full, {})

    def node(self, path: str) -> TreeNode:
        """Returns what is at the path; OSError ENOENT."""
        try:
            return self._nodes[path]
        except KeyError:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from None

    def children(self, path: str) -> dict[str, int]:
        """Names and file types. OSError ENOENT, ENOTDIR."""
        if self.node(path).kind != FOLDER:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return self._children[path]

    def contents(self) -> set[int]:
        return {node.content for node in self._nodes.values() if node.kind == FILE}


def blocks_of(size: int, offset: int, length: int) -> Iterable[tuple[int, int, int]]:
    """(block, from, to within it) of the bytes of a file that a read wants."""
    end = min(offset + length, size)
    while offset < end:
        block = offset // BLOCK if size >= SMALL else 0
        start = block * BLOCK
        stop = min(end - start, BLOCK) if size >= SMALL else end
        yield block, offset - start, stop
        offset = start + stop


class Contents:
    """Blocks that have come. A reader of one that has not waits for it."""

    def __init__(self, ask: Callable[[int, int], None], patience: float) -> None:
        """`ask(content, block)` fetches one, later; `patience`: seconds until a read that waits fails with EIO."""
        self._ask = ask
        self._patience = patience
        self._blocks: dict[tuple[int, int], Block | int] = {}  # the bytes, or an errno
        self._asked: set[tuple[int, int]] = set()
        self._came = Condition()
        self._closed = False

    def put(self, content: int, block: int, data: Block, error: int = 0) -> None:
        with self._came:
            self._asked.discard((content, block))
            self._blocks[content, block] = error or data
            self._came.notify_all()

    def get(self, content: int, block: int) -> Block:
        """OSError with what reading it gave; EIO when it does not come."""
        key = (content, block)
        with self._came:
            wanted = key not in self._blocks and key not in self._asked and not self._closed
            if wanted:
                self._asked.add(key)
        if wanted:
            self._ask(content, block)
        with self._came:
            self._came.wait_for(lambda: key in self._blocks or self._closed, self._patience)
            found = self._blocks.get(key, errno.EIO)
            if found == errno.EIO and not self._closed:
                self._asked.discard(key)  # the next read may ask again
        if isinstance(found, int):
            raise OSError(found, os.strerror(found))
        return found

    def ask_ahead(self, content: int, blocks: range) -> None:
        """They come as well, and nobody waits for them."""
        with self._came:
            keys = [(content, block) for block in blocks]
            keys = [key for key in keys if key not in self._blocks and key not in self._asked and not self._closed]
            self._asked.update(keys)
        for key in keys:
            self._ask(*key)

    def keep(self, contents: set[int]) -> None:
        """Keeps these contents and forgets all others."""
        with self._came:
            self._blocks = {key: found for key, found in self._blocks.items() if key[0] in contents}

    def close(self) -> None:
        """Reads that wait fail, and all later ones of what has not come."""
        with self._came:
            self._closed = True
            self._came.notify_all()
