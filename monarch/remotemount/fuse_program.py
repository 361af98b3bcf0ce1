"""Serves one FUSE mount: `python -m monarch.remotemount.fuse_program FD`, started by `fuse_process`.

A process of its own: libfuse has threads and signal handlers, and a reader of the mount must never wait for a thread that
waits for the mount. It ends with its owner: when the socket closes, it takes the mount away, in use or not.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from monarch._linux import procfs
from monarch._linux.locks import Condition, Lock
from monarch.remotemount.file_tree import BLOCK, FILE, LINK, Contents, FileTree, TreeNode, blocks_of
from monarch.remotemount.fuse_messages import (
    BeginMount,
    Content,
    FuseReply,
    FuseRequest,
    Message,
    Mounted,
    NotMounted,
    Settled,
    SetTree,
    Unmount,
    Unmounted,
    UnmountRefused,
    Want,
    Wire,
)

AHEAD = 3  # blocks that are on their way while one is read, this one among them
CACHED = 0.2  # seconds that the kernel keeps names and attributes
_LATE = 0.05  # until an answer of before has reached the kernel, and its clock has ticked
PATIENCE = 120.0  # seconds that a read waits for its owner


class TreeMountView:
    """Answers to the kernel for a remote mount: names from the tree, bytes from the blocks that have come."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.tree = FileTree([])
        self._last_read = (0, 0)
        self.ready = threading.Event()  # there is a tree
        self._coming: list[tuple[str, TreeNode]] = []
        self.contents = Contents(lambda content, block: wire.send(Want(content, block)), PATIENCE)

    def take(self, message: Message) -> None:
        match message:
            case SetTree(entries, last, number):
                for path, kind, size, mode, mtime_ns, target, content in entries:
                    self._coming.append(
                        (os.fsdecode(path), TreeNode(kind, size, mode, mtime_ns, os.fsdecode(target), content))
                    )
                if last:
                    self.tree, self._coming = FileTree(self._coming), []
                    self.contents.keep(self.tree.contents())
                    self.ready.set()
                    # The kernel may know names and attributes of before for so long.
                    timer = threading.Timer(CACHED + _LATE, self._tell, [Settled(number)])
                    timer.daemon = True
                    timer.start()
            case Content(content, block, data, error):
                self.contents.put(content, block, data, error)

    def _tell(self, message: Message) -> None:
        try:
            self._wire.send(message)
        except OSError:  # the owner has gone
            pass

    def close(self) -> None:
        self.contents.close()

    def attributes(self, path: str) -> dict[str, int]:
        return self.tree.node(path).attributes()

    def names(self, path: str) -> dict[str, int]:
        return self.tree.children(path)

    def target(self, path: str) -> str:
        node = self.tree.node(path)
        if node.kind != LINK:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return node.target

    def open(self, path: str) -> TreeNode:
        node = self.tree.node(path)
        if node.kind != FILE:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        return node

    def read(self, path: str, opened: TreeNode, size: int, offset: int) -> bytes:
        """Reads what stands there now; after a removal, what was opened."""
        try:
            node = self.open(path)
        except OSError:
            node = opened
        if node.size > BLOCK:
            block = offset // BLOCK
            if (opened.content, block) != self._last_read:  # the first read in a block
                self._last_read = opened.content, block
                self.contents.ask_ahead(node.content, range(block, min(block + AHEAD, -(-node.size // BLOCK))))
        pieces = [
            memoryview(self.contents.get(node.content, block))[start:stop]
            for block, start, stop in blocks_of(node.size, offset, size)
        ]
        return pieces[0].tobytes() if len(pieces) == 1 else b"".join(pieces)

    def release(self, opened: TreeNode) -> None:
        return


class Requests:
    """Questions to the owner, each answered once."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._numbers = itertools.count()
        self._answers: dict[int, FuseReply] = {}
        self._came = Condition()
        self._closed = False

    def ask(self, what: str, path: str, offset: int = 0, size: int = 0) -> Any:
        """OSError as the owner met it; EIO when it does not answer."""
        number = next(self._numbers)
        self._wire.send(FuseRequest(number, what, os.fsencode(path), offset, size))
        with self._came:
            self._came.wait_for(lambda: number in self._answers or self._closed, PATIENCE)
            answer = self._answers.pop(number, None)
        if answer is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if answer.error:
            raise OSError(answer.error, os.strerror(answer.error))
        return answer.value

    def take(self, answer: FuseReply) -> None:
        with self._came:
            self._answers[answer.number] = answer
            self._came.notify_all()

    def close(self) -> None:
        with self._came:
            self._closed = True
            self._came.notify_all()


def operations(view: Any, mounted: Callable[[], None]) -> Any:
    """`view` as mfusepy wants it. Whatever the file system is not for is refused by the kernel: it is mounted read-only."""
    import mfusepy

    handles: dict[int, Any] = {}
    numbers = itertools.count(1)
    uid, gid = os.getuid(), os.getgid()

    class Operations(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def init_with_config(self, conn_info: Any, config: Any) -> None:
            if config is not None:
                config.attr_timeout = config.entry_timeout = config.negative_timeout = CACHED
                config.auto_cache = 1  # what the kernel has of a file goes when its size or time changes
            mounted()

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            return {**view.attributes(path), "st_uid": uid, "st_gid": gid}

        def readdir(self, path: str, fh: int) -> Iterator[tuple[str, dict[str, int], int]]:
            names = view.names(path)
            yield from ((name, {}, 0) for name in (".", ".."))
            yield from ((name, {"st_mode": kind}, 0) for name, kind in names.items())

        def readlink(self, path: str) -> str:
            target: str = view.target(path)
            return target

        def open(self, path: str, flags: int) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            number = next(numbers)
            handles[number] = view.open(path)
            return number

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            data: bytes = view.read(path, handles[fh], size, offset)
            return data

        def release(self, path: str, fh: int) -> int:
            view.release(handles.pop(fh))
            return 0

        def statfs(self, path: str) -> dict[str, int]:
            return {"f_bsize": 4096, "f_frsize": 4096, "f_namemax": 255}

    return Operations()


class FuseProgram:
    """One mount, from the first word of the owner to the last."""

    def __init__(self, wire: Wire, begin: BeginMount) -> None:
        self._wire = wire
        self._point = os.fsdecode(begin.point)
        self._name = begin.name
        self._requests = Requests(wire)
        self._view: Any = TreeMountView(wire) if begin.kind == "tree" else GatherMountView(self._requests.ask)
        self._fusermount = shutil.which("fusermount3") or "fusermount3"

    def run(self) -> None:
        import mfusepy

        threading.Thread(target=self._listen, name="owner", daemon=True).start()
        self._view.ready.wait()  # nobody sees a mount without its tree; without an owner this process ends there
        try:
            mfusepy.FUSE(
                operations(self._view, lambda: self._wire.send(Mounted())),
                self._point,
                foreground=True,
                ro=True,
                auto_unmount=True,  # a helper of libfuse's takes the mount away should we be killed
                fsname=self._name,
                subtype="monarch",
            )
        except RuntimeError as exc:
            self._wire.send(NotMounted(f"libfuse ended with {exc}"))
            return
        end_helper()
        self._wire.send(Unmounted())

    def _listen(self) -> None:
        while (message := self._wire.receive()) is not None:
            match message:
                case Unmount():
                    why = self._unmount()
                    if why:
                        self._wire.send(UnmountRefused(why))
                case FuseReply():
                    self._requests.take(message)
                case _:
                    self._view.take(message)
        self._requests.close()
        self._view.close()
        if not self._unmount("-z"):
            end_helper()
        os._exit(0)  # with files open the kernel keeps the session, and libfuse would wait for it

    def _unmount(self, *options: str) -> str:
        """Unmounts; returns why it could not, "" when it is done."""
        done = subprocess.run(
            [self._fusermount, "-u", *options, "--", self._point], capture_output=True, text=True, check=False
        )
        return done.stderr.strip() or f"fusermount3 ended with {done.returncode}" if done.returncode else ""


def end_helper() -> None:
    """libfuse's helper unmounts when this process has ended, whatever is mounted there by then. It is to do so only if this
    process could not."""
    for child in procfs.children_of("self"):
        try:
            os.kill(child, signal.SIGKILL)
        except OSError:  # it has ended
            continue


def main() -> None:
    os.chdir("/")
    wire = Wire(socket.socket(fileno=int(sys.argv[1])))
    begin = wire.receive()
    if isinstance(begin, BeginMount):
        FuseProgram(wire, begin).run()


KEPT = 0.2  # seconds
_FIRST = 256 << 10  # bytes read at a time; twice as many at each read that goes on where the last one ended
_MOST = 4 << 20
_NAMES = 100_000  # whose attributes are kept at most


class GatherMountView:
    """`ask(what, path, offset, size)`: "attributes", "names", "target" or "read" of a path. OSError as it was there."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self.ready = threading.Event()
        self.ready.set()
        self._kept: dict[str, tuple[float, dict[str, int]]] = {}

    def take(self, message: Any) -> None:
        """Nothing is told to it unasked."""

    def close(self) -> None:
        self._kept = {}

    def attributes(self, path: str) -> dict[str, int]:
        until, kept = self._kept.get(path, (0.0, {}))
        if time.monotonic() < until:
            return kept
        found: dict[str, int] = self._ask("attributes", path)
        return found

    def names(self, path: str) -> dict[str, int]:
        listed = {os.fsdecode(name): attributes for name, attributes in self._ask("names", path)}
        now = time.monotonic()
        kept = {old: value for old, value in self._kept.items() if value[0] > now}
        if len(kept) + len(listed) <= _NAMES:
            folder = path.rstrip("/")
            kept.update({f"{folder}/{name}": (now + KEPT, found) for name, found in listed.items()})
        self._kept = kept
        return {name: attributes["st_mode"] for name, attributes in listed.items()}

    def target(self, path: str) -> str:
        return os.fsdecode(self._ask("target", path))

    def open(self, path: str) -> ReadAhead:
        return ReadAhead(lambda offset, size: self._ask("read", path, offset, size), time.monotonic)

    def read(self, path: str, opened: ReadAhead, size: int, offset: int) -> bytes:
        return opened.read(offset, size)

    def release(self, opened: ReadAhead) -> None:
        return


class ReadAhead:
    """An open file: a piece of it, read ahead while it is read in order, and as fresh as attributes are."""

    def __init__(self, fetch: Callable[[int, int], bytes], clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._reading = Lock()
        self._start = 0
        self._piece = b""
        self._until = 0.0
        self._ahead = _FIRST

    def read(self, offset: int, size: int) -> bytes:
        with self._reading:
            end = self._start + len(self._piece)
            if not (self._start <= offset and offset + size <= end and self._clock() < self._until):
                in_order = self._piece and self._start <= offset <= end
                self._ahead = min(2 * self._ahead, _MOST) if in_order else _FIRST
                self._piece = self._fetch(offset, max(size, self._ahead if in_order or not offset else size))
                self._start, self._until = offset, self._clock() + KEPT
            at = offset - self._start
            return self._piece[at : at + size]


if __name__ == "__main__":
    main()
