"""The sending to hosts that hold the same: reads the local files, never more than a few pieces of them at a time."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from monarch._errors import WorkspaceError
from monarch._mesh.workspace.delta import BLOCK, Matcher, Piece, block_digest
from monarch._mesh.workspace.manifest import LARGE, Manifest, SyncPlan
from monarch._mesh.workspace.receiver import NewPath, Problem

IN_FLIGHT = 32 << 20  # bytes sent and not yet written by every host, over all groups
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 512
_PIECE = 8 * BLOCK  # memory of this size is used again and again; larger pieces cost fresh pages each, twice the time
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_CALLS = 256  # under way at a time, however few bytes they carry

# (endpoint's name, arguments) -> the answer of each host of the group. Sends at once, before it is awaited.
Ask = Callable[..., Awaitable[list[Any]]]


class FileChanged(WorkspaceError):
    """A local file is not what its manifest says any more."""


class SourceFolder:
    """A local directory, read as it will be on the hosts.

    With `skipping`, a file that changes while it is sent stays on the hosts as it was, and is noted in `changed`; without,
    it ends the sync.
    """

    def __init__(self, root: str, manifest: Manifest, skipping: bool = False) -> None:
        self.root = root
        self.manifest = manifest
        self.skipping = skipping
        self.changed: set[str] = set()
        self.total = self.sent = 0  # bytes of the files that a sync brings, and of those that it has brought so far

    def read(self, path: str) -> bytes:
        """A small file. FileChanged when it is not what the manifest says."""
        with self.open(path) as file:
            data: bytes = file.read(self.manifest[path].size + 1)
            self.check(path, file, len(data))
        return data

    def open(self, path: str) -> Any:
        try:
            return open(os.path.join(self.root, path), "rb", buffering=0)
        except OSError as error:
            if self.skipping and error.errno in _GONE:
                raise self._changed(path, "was removed") from None
            raise WorkspaceError(
                f"cannot read {os.path.join(self.root, path)} on this machine: {error.strerror}; let this user read it, or "
                "move it out of the workspace"
            ) from error

    def check(self, path: str, file: Any, size: int) -> None:
        """After `size` bytes of it were read, which is all: FileChanged unless they are the file of the manifest."""
        expected = self.manifest[path]
        if size != expected.size:
            raise self._changed(path, f"{expected.size} bytes became {size}")
        if self.skipping and os.fstat(file.fileno()).st_mtime_ns != expected.mtime_ns:
            raise self._changed(path, "it was written to")

    def _changed(self, path: str, how: str) -> FileChanged:
        self.changed.add(path)
        return FileChanged(
            f"{os.path.join(self.root, path)} changed while it was sent ({how}): run sync_workspace again when nothing "
            "writes to it"
        )


class Window:
    """Calls under way, bounded by the bytes they carry: `send` waits for the oldest ones when they are too many."""

    def __init__(self, ask: Ask, limit: int) -> None:
        self._ask = ask
        self._limit = limit
        self._size = 0
        self._calls: deque[tuple[int, Awaitable[list[Any]]]] = deque()

    async def send(self, size: int, name: str, *args: Any) -> None:
        """Calls the endpoint; `size` is of its arguments, in bytes."""
        while self._calls and (self._size + size > self._limit or len(self._calls) == _CALLS):
            await self._oldest()
        self._size += size
        self._calls.append((size, self._ask(name, *args)))

    async def drain(self) -> None:
        """Every call has been answered. Raises what the first of them met."""
        while self._calls:
            await self._oldest()

    async def _oldest(self) -> None:
        size, call = self._calls.popleft()
        self._size -= size
        await call


class LargeFile:
    """A large file on its way. As long as it is equal to the older one from its first byte on, nothing is sent."""

    def __init__(self, window: Window, path: str, older: tuple[int, int] | None) -> None:
        self._window = window
        self._path = path
        self._older = older
        self._equal = 0
        self._begun = False

    async def append(self, pieces: Sequence[Piece]) -> None:
        if not pieces:
            return
        if not self._begun and len(pieces) == 1 and isinstance(pieces[0], tuple) and pieces[0][0] == self._equal:
            self._equal += pieces[0][1]
            return
        await self._begin()
        await self._window.send(sum(len(piece) for piece in pieces if isinstance(piece, bytes)), "append", pieces)

    async def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        await self._window.send(0, "new_file", self._path, self._older)
        if self._equal:
            await self._window.send(0, "append", [(0, self._equal)])

    async def finish(self, mode: int, mtime_ns: int) -> bool:
        """False when it was equal to the end, and only its time and mode were set."""
        if not self._begun and self._older is not None and self._equal == self._older[0]:
            await self._window.send(0, "touch", [(self._path, mode, mtime_ns)])
            return False
        await self._begin()
        await self._window.send(0, "finish", mode, mtime_ns)
        return True


class Sender:
    """Makes the hosts behind `ask` hold what `source` does. They hold `found`, all of them."""

    def __init__(self, source: SourceFolder, found: Manifest, ask: Ask, in_flight: int) -> None:
        self._source = source
        self._found = found
        self._ask = ask
        self._window = Window(ask, in_flight)
        self.written: list[str] = []  # paths of the files whose content changed

    async def run(self, plan: SyncPlan) -> None:
        await self._ask("make", plan.clear, plan.folders, plan.links)
        sizes = self._source.manifest
        changed = [*plan.send, *await self._differing(plan.doubtful)]
        self._source.total += sum(sizes[path].size for path in [*changed, *plan.patch])
        changed.sort(key=lambda path: path.endswith(".pyc"))  # a new module removes what was compiled of the old one
        await self._send_small([path for path in changed if sizes[path].size <= LARGE])
        large = [(path, False) for path in changed if sizes[path].size > LARGE]
        for path, older in [*large, *((path, True) for path in plan.patch)]:
            try:
                await (self._patch(path) if older else self._send_large(path, None))
            except FileChanged:  # what was sent of it is dropped by the host
                if not self._source.skipping:
                    raise
        await self._window.drain()
        await self._ask("end", plan.remove, plan.modes)

    async def _differing(self, paths: Sequence[str]) -> list[str]:
        """Returns the files whose content differs on any host; the others get their times."""
        differing = []
        for batch in _chunks(paths, _BATCH_FILES):
            mine = await asyncio.to_thread(self._digests, batch)
            answers = await self._ask("digests", batch)
            same = []
            for index, path in enumerate(batch):
                if all(digests[index] == mine[index] for digests in answers):
                    same.append(self._times(path))
                else:
                    differing.append(path)
            await self._ask("touch", same)
        return differing

    def _digests(self, paths: Sequence[str]) -> list[bytes]:
        return [b"" if data is None else block_digest(data) for data in map(self._content, paths)]

    def _content(self, path: str) -> bytes | None:
        """Returns the content of a small file. None for one that changed and is skipped."""
        try:
            return self._source.read(path)
        except FileChanged:
            if not self._source.skipping:
                raise
            return None

    async def _send_small(self, paths: Sequence[str]) -> None:
        for batch in self._batches(paths):
            files = await asyncio.to_thread(self._read, batch)
            size = sum(len(file.data) for file in files)
            await self._window.send(size, "write", files)
            self._source.sent += size
            self.written += [file.path for file in files]

    def _batches(self, paths: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        size = 0
        for path in paths:
            batch.append(path)
            size += self._source.manifest[path].size
            if size >= _BATCH_BYTES or len(batch) == _BATCH_FILES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _read(self, paths: Iterable[str]) -> list[NewPath]:
        contents = [(path, self._content(path)) for path in paths]
        return [NewPath(*self._times(path), data) for path, data in contents if data is not None]

    def _times(self, path: str) -> tuple[str, int, int]:
        entry = self._source.manifest[path]
        return path, entry.mode, entry.mtime_ns

    async def _patch(self, path: str) -> None:
        """A large file of which the hosts have an older one: only what that one lacks."""
        answers = await self._ask("blocks", path)
        # Same time and size, other content: then no range is the same for all of them.
        same = all(answer == answers[0] for answer in answers)
        await self._send_large(path, Matcher(answers[0]) if same else None)

    async def _send_large(self, path: str, older: Matcher | None) -> None:
        found, mine = self._found.get(path), self._source.manifest[path]
        there = (found.size, found.mtime_ns) if older is not None and found is not None else None
        outgoing = LargeFile(self._window, path, there)
        offset = 0
        with self._source.open(path) as file:
            while data := await asyncio.to_thread(_read_piece, file):
                await outgoing.append([data] if older is None else await asyncio.to_thread(older.feed, data))
                offset += len(data)
                self._source.sent += len(data)
            self._source.check(path, file, offset)
        if older is not None:
            await outgoing.append(await asyncio.to_thread(older.flush))
        if await outgoing.finish(mine.mode, mine.mtime_ns):
            self.written.append(path)


def _read_piece(file: Any) -> bytes:
    """Reads as much as is there, up to one piece: a raw file may read less than it was asked."""
    parts = []
    missing = _PIECE
    while missing and (data := file.read(missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def _chunks(paths: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(paths), size):
        yield paths[start : start + size]


def check(answers: Sequence[Any]) -> list[Any]:
    """The answers of hosts. WorkspaceError when one of them met a problem."""
    problems = [answer for answer in answers if isinstance(answer, Problem)]
    if problems:
        more = f"\n  and {len(problems) - 3} more hosts" if len(problems) > 3 else ""
        lines = "".join(f"\n  on {problem.host}: {problem.what}" for problem in problems[:3])
        raise WorkspaceError(f"the files were not synced:{lines}{more}")
    return list(answers)
