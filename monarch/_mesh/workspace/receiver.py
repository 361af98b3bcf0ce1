"""The actor that writes a workspace, one on each host. Every endpoint answers with a value or with the `Problem` it met."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from monarch._linux import private_files
from monarch._mesh.actors.actor import Actor
from monarch._mesh.actors.endpoint import endpoint
from monarch._mesh.workspace.confined_folder import LOCK, ConfinedFolder, NewFile
from monarch._mesh.workspace.delta import BLOCK, Piece, block_digest, signature
from monarch._mesh.workspace.manifest import WORKSPACE, Manifest, RefusedPath, digest
from monarch._mesh.workspace.scan import scan
from monarch._runtime.context import here

P = ParamSpec("P")
R = TypeVar("R")


class Problem(NamedTuple):
    """An obstacle that kept a host from doing what it was asked, and what its user can do about it."""

    host: str
    what: str


class Root(NamedTuple):
    """A host that holds the lock: its name, its directory, and the prefix of its addresses."""

    host: str
    path: str
    prefix: str


class Taken(NamedTuple):
    """Another process holds the lock of this directory, for the run of this id."""

    host: str
    path: str
    run: str


class NewPath(NamedTuple):
    path: str
    mode: int
    mtime_ns: int
    data: bytes


def answers(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R | Problem]:
    """Decorates endpoints: a `Problem` in place of an error of the file system."""

    @functools.wraps(method)
    def guarded(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R | Problem:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            return _problem_of(self, error)
        except RefusedPath as error:
            return Problem(self.host, f"{error} (below {self.path})")

    return guarded


_ADVICE = {
    errno.ENOSPC: "make room on that file system",
    errno.EDQUOT: "make room within the quota of that user",
    errno.EROFS: "name a directory on a file system that can be written to",
    errno.ENOTEMPTY: "it holds what is never synced, such as .git or .venv: move it away",
    errno.EBUSY: "run it again when nothing on the host writes to it",
}


def _problem_of(self: Receiver, error: OSError) -> Problem:
    if isinstance(error, private_files.UntrustedFileError):
        return Problem(self.host, f"{error}: name a directory that nobody but the user of the workers can exchange")
    reason = error.strerror or str(error)
    where = self.at or error.filename or self.path
    advice = _ADVICE.get(error.errno or 0, "")
    if error.errno in (errno.EACCES, errno.EPERM):
        advice = f"let the user of the workers (uid {os.geteuid()}) write there"
    return Problem(self.host, f"{where}: {reason}" + (f" ({advice})" if advice else ""))


class Receiver(Actor):
    """Writes below the directory that the environment variable `variable` names in this process. `run` is the same for
    all hosts of a sync."""

    _is_system_actor = True
    rules = WORKSPACE

    def __init__(self, variable: str, run: str) -> None:
        self.host = f"{socket.gethostname()} ({here().address})"
        self.path = os.environ.get(variable, "")
        self._variable = variable
        self.run = run
        self._lock: int | None = None
        self._tree: ConfinedFolder | None = None
        self._file: NewFile | None = None
        self._manifest: Manifest = {}
        self.at = ""  # what is being written, for the text of a problem

    @endpoint
    @answers
    def lock(self) -> Root | Taken | Problem:
        return self.take_lock()

    @endpoint
    @answers
    def begin(self, path: str) -> bytes:
        """Begins a sync: what follows is about `path` below the directory. Answers with the digest of what is there."""
        self._close_tree()
        self.at = os.path.join(self.path, path)
        self._tree = ConfinedFolder(self.path, path)
        self._tree.clear_leftovers()
        self._manifest = self.found(self._tree.root)
        return digest(self._manifest)

    @endpoint
    @answers
    def listing(self) -> Manifest:
        """Returns what was there when it began."""
        return self._manifest

    @endpoint
    @answers
    def digests(self, paths: Sequence[str]) -> list[bytes]:
        """Returns digests of the content of small files."""
        return [block_digest(b"".join(self._read(path))) for path in paths]

    @endpoint
    @answers
    def blocks(self, path: str) -> bytes:
        """The signatures of the blocks of a file, one behind the other."""
        return b"".join(signature(block) for block in self._read(path))

    @endpoint
    @answers
    def make(self, clear: Sequence[str], folders: Sequence[str], links: Sequence[tuple[str, str]]) -> None:
        for path in clear:
            self._here(path).remove(path)
        for path in folders:
            self._here(path).make_folder(path)
        for path, target in links:
            self._here(path).make_link(path, target)

    @endpoint
    @answers
    def write(self, files: Sequence[NewPath]) -> None:
        for file in files:
            tree = self._here(file.path)
            tree.write(file.path, file.data, file.mode, file.mtime_ns)
            if file.path.endswith(".py"):
                tree.forget_compiled(file.path)

    @endpoint
    @answers
    def new_file(self, path: str, older: tuple[int, int] | None) -> None:
        """A large file begins. `older`: size and mtime_ns of the one whose ranges may be named."""
        self._close_file()
        self._file = self._here(path).new_file(path, older)

    @endpoint
    @answers
    def append(self, pieces: Sequence[Piece]) -> None:
        self._open_file().append(pieces)

    @endpoint
    @answers
    def finish(self, mode: int, mtime_ns: int) -> None:
        self._open_file().finish(mode, mtime_ns)
        self._close_file()

    @endpoint
    @answers
    def touch(self, files: Sequence[tuple[str, int, int]]) -> None:
        """Files whose content is right: path, mode, mtime_ns."""
        for path, mode, mtime_ns in files:
            self._here(path).set_times(path, mode, mtime_ns)

    @endpoint
    @answers
    def end(self, remove: Sequence[str], modes: Sequence[tuple[str, int]]) -> None:
        """Removes what is not wanted (a folder that holds what is never sent stays) and sets modes."""
        for path in remove:
            try:
                self._here(path).remove(path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
        for path, mode in modes:
            self._here(path).set_mode(path, mode)
        self._here("").restore_modes()
        self._close_tree()

    def take_lock(self) -> Root | Taken | Problem:
        """Makes the directory where it is missing and takes its lock, which goes with this actor."""
        if not os.path.isabs(self.path):
            has = f"is {self.path!r}, which is not an absolute path" if self.path else "is not set"
            return Problem(
                self.host,
                f"the environment variable {self._variable} {has} there: it names the directory to write to; set it where "
                "the workers are started",
            )
        private_files.make_folder(self.path, mine=False, closed=False)
        fd = private_files.open_lock(os.path.join(self.path, LOCK))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 64).decode("ascii", "replace")
            os.close(fd)
            return Taken(self.host, self.path, holder)
        except BaseException:
            os.close(fd)
            raise
        self._lock = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, self.run.encode("ascii"), 0)
        return Root(self.host, self.path, here().host)

    def found(self, root: str) -> Manifest:
        """Returns what counts of the directory that is written to."""
        return scan(root, self.rules)

    def __cleanup__(self, exc: Exception | None) -> None:
        self._close_tree()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _here(self, path: str) -> ConfinedFolder:
        if self._tree is None:
            raise RefusedPath("nothing was begun")
        self.at = os.path.join(self._tree.root, path)
        return self._tree

    def _open_file(self) -> NewFile:
        if self._file is None:
            raise RefusedPath("no file is open")
        return self._file

    def _read(self, path: str) -> Any:
        fd = self._here(path).open_file(path)
        with open(fd, "rb", buffering=0) as file:
            while block := file.read(BLOCK):
                yield block

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _close_tree(self) -> None:
        self._close_file()
        tree, self._tree = self._tree, None
        if tree is not None:
            tree.close()
