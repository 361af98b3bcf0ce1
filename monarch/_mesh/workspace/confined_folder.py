"""A directory that is written to and never left, whatever the paths say and whatever links stand in it.

Every path is taken apart and walked from a descriptor of the root, name by name, each opened with O_NOFOLLOW relative to the
one before (openat(2)): there is no moment in which a link could be put in the way. Files appear under their names complete
or not at all.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Sequence

from monarch._mesh.workspace.delta import Piece
from monarch._mesh.workspace.manifest import OURS, RefusedPath, parts

LOCK = OURS + "lock"

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
_PIECE = 1 << 20


class ConfinedFolder:
    """The directory `path` below the directory `base`; made when it is missing. `base` is trusted and may be a link.

    Keeps one descriptor for each folder on the way to the last file written. Not for more than one thread.
    """

    def __init__(self, base: str, path: str) -> None:
        self._names: list[str] = []  # the folders that are open, and their descriptors
        self._fds: list[int] = []
        self._loosened: dict[str, int] = {}  # folders we made writable, and their modes before
        self.root = os.path.join(base, path) if path else base
        self._root = os.open(base, _OPEN_FOLDER & ~os.O_NOFOLLOW)
        try:
            for name in parts(path) if path else ():
                self._root = _step_down(self._root, name)
        except BaseException:
            os.close(self._root)
            raise

    # --- the way to a file

    def _folder(self, path: str) -> tuple[int, str]:
        """The open folder that holds `path`, and the last name of it."""
        *folders, name = parts(path)
        same = 0
        while same < min(len(folders), len(self._names)) and folders[same] == self._names[same]:
            same += 1
        self._close_beyond(same)
        for folder in folders[same:]:
            self._fds.append(_open_folder(folder, self._fds[-1] if self._fds else self._root, path))
            self._names.append(folder)
        return (self._fds[-1] if self._fds else self._root), name

    def _writable(self, path: str) -> tuple[int, str]:
        """The same, and things can be made there."""
        fd, name = self._folder(path)
        mode = os.fstat(fd).st_mode & 0o7777
        if mode & 0o300 != 0o300:
            self._loosened.setdefault("/".join(self._names), mode)
            os.fchmod(fd, mode | 0o700)
        return fd, name

    def _close_beyond(self, depth: int) -> None:
        while len(self._fds) > depth:
            os.close(self._fds.pop())
            self._names.pop()

    # --- what is done there

    def make_folder(self, path: str) -> None:
        """Makes a folder; there may be one already."""
        fd, name = self._writable(path)
        try:
            os.mkdir(name, 0o700, dir_fd=fd)
        except FileExistsError:
            os.close(_open_folder(name, fd, path))

    def make_link(self, path: str, target: str) -> None:
        """Makes a link in place of what stands there, which may be anything but a folder."""
        fd, name = self._writable(path)
        temporary = _temporary()
        os.symlink(target, temporary, dir_fd=fd)
        _into_place(temporary, name, fd)

    def write(self, path: str, data: bytes, mode: int, mtime_ns: int) -> None:
        """A whole file, in place of what stands there, which may be anything but a folder."""
        with self.new_file(path) as file:
            file.append([data])
            file.finish(mode, mtime_ns)

    def new_file(self, path: str, older: tuple[int, int] | None = None) -> NewFile:
        """A file that comes in pieces. With `older` ranges of the one that stands there are taken from it, as long as it has
        this size and mtime."""
        fd, name = self._writable(path)
        source = self._open_older(path, older) if older is not None else None
        return NewFile(os.dup(fd), name, source, older)

    def _open_older(self, path: str, older: tuple[int, int]) -> int:
        fd = self.open_file(path)
        try:
            _check_older(fd, older)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_file(self, path: str) -> int:
        """A descriptor that reads the regular file at `path`; RefusedPath for anything else."""
        fd, name = self._folder(path)
        try:
            file = os.open(name, _READ, dir_fd=fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise RefusedPath(f"{path!r} is a link, where a file was expected") from None
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise RefusedPath(f"{path!r} is not a regular file")
        return file

    def set_times(self, path: str, mode: int, mtime_ns: int) -> None:
        fd = self.open_file(path)
        try:
            os.fchmod(fd, mode & 0o777)
            os.utime(fd, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(fd)

    def set_mode(self, path: str, mode: int) -> None:
        """Sets the mode of a file or folder."""
        fd, name = self._folder(path)
        target = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            os.chmod(f"/proc/self/fd/{target}", mode & 0o777)  # needs no permission to read; fails for a link
        finally:
            os.close(target)
        self._loosened.pop(path, None)

    def remove(self, path: str) -> None:
        """A file, a link, or a folder with nothing in it but compiled Python. What is gone already is no error.

        A folder that holds other things which are never sent (`.git`) stays: OSError ENOTEMPTY.
        """
        try:
            fd, name = self._writable(path)
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=fd)
                return
            folder = _open_folder(name, fd, path)
            try:
                _clear_compiled(folder)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=fd)
        except FileNotFoundError:
            return
        self._loosened.pop(path, None)

    def forget_compiled(self, path: str) -> None:
        """Removes what Python compiled from the module at `path`: it is told by size and seconds, which may not have
        changed."""
        fd, name = self._folder(path)
        try:
            cache = os.open("__pycache__", _OPEN_FOLDER, dir_fd=fd)
        except OSError:
            return
        try:
            stem = name.removesuffix("py")
            for compiled in os.listdir(cache):
                if compiled.startswith(stem) and compiled.endswith(".pyc"):
                    os.unlink(compiled, dir_fd=cache)
        finally:
            os.close(cache)

    def restore_modes(self) -> None:
        """Folders that were made writable for a while are as they were."""
        while self._loosened:
            path, mode = self._loosened.popitem()
            if not path:
                os.fchmod(self._root, mode)
                continue
            try:
                self.set_mode(path, mode)
            except FileNotFoundError:
                continue

    def clear_leftovers(self) -> None:
        """Removes the temporary files of a run that was killed. Only while no other run writes here."""
        for _, _, files, fd in os.fwalk(".", dir_fd=self._root, follow_symlinks=False):
            for name in files:
                if name.startswith(OURS) and name != LOCK:
                    os.unlink(name, dir_fd=fd)

    def close(self) -> None:
        """Closes it. Folders that are writable for a while get their modes back, as well as that can be done."""
        try:
            self.restore_modes()
        except (OSError, RefusedPath):
            pass
        self._close_beyond(0)
        os.close(self._root)


class NewFile:
    """A file under a temporary name, until `finish`. A context manager: what was not finished is removed."""

    def __init__(self, folder: int, name: str, older: int | None, expected: tuple[int, int] | None) -> None:
        self._folder = folder
        self._name = name
        self._older = older
        self._expected = expected
        self._temporary = _temporary()
        self._done = False
        try:
            self._fd = os.open(self._temporary, _CREATE, 0o600, dir_fd=folder)
        except BaseException:
            self._close_others()
            raise

    def append(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, bytes):
                _write_all(self._fd, piece)
            else:
                self._copy(*piece)

    def _copy(self, offset: int, length: int) -> None:
        if self._older is None or self._expected is None or min(offset, length) < 0:
            raise RefusedPath(f"{self._name!r}: a range of an older file was named, and there is none")
        if offset + length > self._expected[0]:
            raise RefusedPath(
                f"{self._name!r}: bytes {offset}..{offset + length} of a file of {self._expected[0]} were named"
            )
        _copy_range(self._older, self._fd, offset, length)

    def finish(self, mode: int, mtime_ns: int) -> None:
        """It has its name, mode and time. OSError when the older file changed meanwhile: it is as it was then."""
        if self._older is not None and self._expected is not None:
            _check_older(self._older, self._expected)
        os.fchmod(self._fd, mode & 0o777)
        os.utime(self._fd, ns=(mtime_ns, mtime_ns))
        self._done = True
        _into_place(self._temporary, self._name, self._folder)

    def close(self) -> None:
        os.close(self._fd)
        if not self._done:
            _discard(self._temporary, self._folder)
        self._close_others()

    def _close_others(self) -> None:
        os.close(self._folder)
        if self._older is not None:
            os.close(self._older)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _temporary() -> str:
    return OURS + secrets.token_hex(8)


def _step_down(fd: int, name: str) -> int:
    """The folder `name` of `fd`, made when it is missing; `fd` is closed."""
    try:
        os.mkdir(name, 0o777, dir_fd=fd)
    except FileExistsError:
        pass
    inner = _open_folder(name, fd, name)
    os.close(fd)
    return inner


def _open_folder(name: str, fd: int, path: str) -> int:
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise RefusedPath(
                f"{path!r} is refused: {name!r} there is a link or no folder, and links are not followed"
            ) from None
        raise


def _into_place(temporary: str, name: str, fd: int) -> None:
    try:
        os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
    except BaseException:
        _discard(temporary, fd)
        raise


def _discard(temporary: str, fd: int) -> None:
    try:
        os.unlink(temporary, dir_fd=fd)
    except FileNotFoundError:
        pass


def _check_older(fd: int, expected: tuple[int, int]) -> None:
    status = os.fstat(fd)
    if (status.st_size, status.st_mtime_ns) != expected:
        raise OSError(errno.EBUSY, "the file was changed on the host while it was being synced")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _copy_range(source: int, target: int, offset: int, length: int) -> None:
    """Copies, in the kernel where it can: some file systems share the blocks instead of copying them."""
    while length:
        try:
            count = os.copy_file_range(source, target, length, offset_src=offset)
        except OSError as error:
            if error.errno not in _NO_COPY:
                raise
            data = os.pread(source, min(length, _PIECE), offset)
            _write_all(target, data)
            count = len(data)
        if count == 0:
            raise OSError(errno.EBUSY, "the file became shorter on the host while it was being synced")
        offset += count
        length -= count


def _clear_compiled(folder: int) -> None:
    """Removes what Python leaves in a folder of modules, which else could not be removed."""
    with os.scandir(folder) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in names:
        if name == "__pycache__" and is_folder:
            shutil.rmtree(name, dir_fd=folder)
        elif name.endswith(".pyc") and not is_folder:
            os.unlink(name, dir_fd=folder)
