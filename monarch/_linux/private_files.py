"""Files that nobody else can have written, on a machine with other users.

A path is walked from the root by descriptors, so what was checked is what is used. On the way each folder belongs to this
user or to root, or is sticky and what is in it does; so do symbolic links. In such folders others can at most move what is
this user's already. What does not hold raises UntrustedFileError, which names the file or folder.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # needs no permission to list it
_LINK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a FIFO does not hold us
_MOST_LINKS = 40  # of one path, as in the kernel
_OVERFLOW = 65534  # whose files those of users without a number in this user namespace seem to be
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedFileError(PermissionError):
    """A file or folder that somebody else has made, or may write. `path`: which; `mode`: if only that is wrong."""

    def __init__(self, path: str, why: str, mode: int | None = None) -> None:
        super().__init__(errno.EPERM, f"{path} {why}")
        self.path = path
        self.mode = mode

    def __str__(self) -> str:
        return str(self.strerror)


# --- reading


def open_to_read(path: str | os.PathLike[str], *, root: bool = True, closed: bool = False) -> int:
    """Returns a descriptor of a file that only this user, or with `root` that one, can have written.

    `closed`: others may not even write in the folder that it lies in. FileNotFoundError when it is missing.
    """
    folder, name, shown = _resolve(path)
    try:
        where = os.fstat(folder)
        if closed:
            _check_closed(where, os.path.dirname(shown), sticky=True)
        file = _open(name, os.O_RDONLY, folder, shown)
    finally:
        os.close(folder)
    try:
        found = os.fstat(file)
        _check_file(found, shown, root)
        if where.st_mode & stat.S_ISVTX and where.st_mode & OTHERS_WRITE:
            _check_names(found, shown)
    except BaseException:
        os.close(file)
        raise
    return file


def read(path: str | os.PathLike[str], limit: int, *, root: bool = True) -> bytes:
    """Reads such a file. ValueError when it has more than `limit` bytes."""
    with os.fdopen(open_to_read(path, root=root), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{os.fspath(path)} has more than {limit:,} bytes")
    return content


def open_regular(path: str | os.PathLike[str]) -> int:
    """Returns a descriptor of a regular file, whoever has written it. UntrustedFileError for a FIFO or a device."""
    return _open(os.fspath(path), os.O_RDONLY, None, os.fspath(path), follow=True)


def folders_upward(start: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the folder, the one above it and so on, up to the first of somebody else: nothing is looked for there."""
    folder = os.path.abspath(start)
    while True:
        try:
            if os.stat(folder).st_uid not in (os.geteuid(), 0):
                return
        except OSError:
            return
        yield folder
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above


# --- writing


def write(
    path: str | os.PathLike[str],
    content: bytes,
    mode: int = 0o600,
    *,
    replace: bool = False,
    sync: bool = False,
) -> None:
    """Writes a new file, which has `mode` from its first moment. With `replace` it takes the place of one that is there, as
    a whole or not at all; without, that is a FileExistsError. `sync`: it is on the disk afterwards."""
    # Never into an existing file: its mode may be wider, somebody may hold it open, and it may be a link.
    where, name = os.path.split(os.fspath(path))
    folder = os.open(where or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        target = f".{name}.{secrets.token_hex(4)}" if replace else name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(target, flags, mode, dir_fd=folder)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, os.fspath(path)) from None
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
                opened.flush()
                if sync:
                    os.fsync(file)
            if replace:
                os.replace(target, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(target, dir_fd=folder)
            raise
        if sync:
            os.fsync(folder)
    finally:
        os.close(folder)


def open_lock(path: str | os.PathLike[str]) -> int:
    """Returns a descriptor of a file to lock (flock), 0600 when it is made here; never a link, and what is in it stays."""
    return _open_own(path, os.O_RDWR | os.O_CREAT)


def open_log(path: str | os.PathLike[str], *, empty: bool = False) -> int:
    """Returns a descriptor to append to a file of this user alone, 0600 when it is made here. `empty`: as if it were new."""
    file = _open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if empty:
        os.ftruncate(file, 0)
    return file


def _open_own(path: str | os.PathLike[str], flags: int) -> int:
    folder, name, shown = _resolve(path, follow=False)
    try:
        file = _open(name, flags, folder, shown)
    finally:
        os.close(folder)
    try:
        found = os.fstat(file)
        _check_file(found, shown, root=False)
        _check_names(found, shown)
    except BaseException:
        os.close(file)
        raise
    return file


# --- folders


def make_folder(path: str | os.PathLike[str], *, mine: bool = True, closed: bool = True) -> str:
    """Makes a folder, and those above it that are missing, 0700; returns its path, without links.

    If it is there: `mine`, it belongs to this user, not to root; `closed`, others may not write in it (in a sticky one they
    may, unless it is to be `mine`).
    """
    folder, name, shown = _resolve(path, make=True)
    try:
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            pass
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, shown) from None
        inner = _open_folder(name, folder, shown)
    finally:
        os.close(folder)
    try:
        found = os.fstat(inner)
    finally:
        os.close(inner)
    if found.st_uid not in ((os.geteuid(),) if mine else (os.geteuid(), 0)):
        raise UntrustedFileError(shown, f"belongs to user {found.st_uid}")
    if closed:
        _check_closed(found, shown, sticky=not mine)
    return shown


def take_folder(path: str) -> bool:
    """Makes a folder 0700, or makes one of this user so. False for one of somebody else, and for a link."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            return False
        raise
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():
            return False
        if found.st_mode & 0o077:
            os.fchmod(folder, 0o700)
        return True
    finally:
        os.close(folder)


def user_folder(base: str, name: str) -> str:
    """Returns a folder of this user alone in `base`, which others may write in: `name`, made if need be. Where somebody else
    has taken that, one whose name nobody could know before; it is found again."""
    if take_folder(os.path.join(base, name)):
        return os.path.join(base, name)
    for other in sorted(os.listdir(base)):
        if re.fullmatch(re.escape(name) + "-[0-9a-f]{8}", other) and take_folder(os.path.join(base, other)):
            return os.path.join(base, other)
    made = os.path.join(base, f"{name}-{secrets.token_hex(4)}")
    os.mkdir(made, 0o700)
    return made


def resolve(path: str | os.PathLike[str], *, make: bool = False) -> str:
    """Returns the path without links, each of them and each folder checked. `make`: missing folders are made, 0700."""
    folder, _, shown = _resolve(path, make=make)
    os.close(folder)
    return shown


# --- the walk


def _resolve(path: str | os.PathLike[str], *, follow: bool = True, make: bool = False) -> tuple[int, str, str]:
    """Returns (descriptor of the folder, name in it, path for people). `follow`: the name itself is no link then."""
    whole = os.fspath(path)
    names = _names(whole if os.path.isabs(whole) else os.path.join(os.getcwd(), whole))
    folder, shown = os.open("/", _FOLDER), "/"
    links = 0
    try:
        while names:
            name = names.pop()
            here = os.path.normpath(os.path.join(shown, name))
            try:
                entry: os.stat_result | None = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                entry = None
            except OSError as exc:
                raise OSError(exc.errno, exc.strerror, here) from None
            _check_folder(os.fstat(folder), shown, entry)
            if entry is not None and stat.S_ISLNK(entry.st_mode) and (names or follow):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
                target = _read_link(name, folder, here)
                names += _names(target)
                if target.startswith("/"):
                    os.close(folder)
                    folder, shown = os.open("/", _FOLDER), "/"
                continue
            if not names:
                return folder, name, here
            if entry is None and make:
                try:
                    os.mkdir(name, 0o700, dir_fd=folder)
                except FileExistsError:
                    pass
                except OSError as exc:
                    raise OSError(exc.errno, exc.strerror, here) from None
            inner = _open_folder(name, folder, here)
            os.close(folder)
            folder, shown = inner, here
        return folder, ".", shown
    except BaseException:
        os.close(folder)
        raise


def _names(path: str) -> list[str]:
    """Its parts, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _open_folder(name: str, folder: int, shown: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, shown) from None


def _read_link(name: str, folder: int, shown: str) -> str:
    """Returns where the link leads that was checked: another may have its name a moment later."""
    try:
        link = os.open(name, _LINK, dir_fd=folder)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, shown) from None
    try:
        found = os.fstat(link)
        if found.st_uid not in (os.geteuid(), 0):
            raise UntrustedFileError(shown, f"is a link of user {found.st_uid}")
        if not stat.S_ISLNK(found.st_mode):
            raise UntrustedFileError(shown, "was a link, and is none any more")
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _open(name: str, flags: int, folder: int | None, shown: str, *, follow: bool = False) -> int:
    try:
        file = os.open(name, flags | (_FILE & ~os.O_NOFOLLOW if follow else _FILE), 0o600, dir_fd=folder)
    except OSError as exc:
        if exc.errno == errno.ELOOP and not follow:
            raise UntrustedFileError(shown, "is a link") from None
        if exc.errno == errno.ENXIO:  # a FIFO that nobody reads, a socket
            raise UntrustedFileError(shown, "is not an ordinary file") from None
        raise OSError(exc.errno, exc.strerror, shown) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UntrustedFileError(shown, "is not an ordinary file")
    return file


def _check_folder(found: os.stat_result, shown: str, entry: os.stat_result | None) -> None:
    owners = (os.geteuid(), 0)
    if found.st_uid in owners:
        return
    if found.st_mode & stat.S_ISVTX and (entry is None or entry.st_uid in owners):
        return
    if found.st_uid == _OVERFLOW and not found.st_mode & OTHERS_WRITE and not _is_mapped(_OVERFLOW):
        return  # of the machine's root, seen in a container that has this user alone
    raise UntrustedFileError(shown, f"belongs to user {found.st_uid}")


def _check_file(found: os.stat_result, shown: str, root: bool) -> None:
    if found.st_uid not in ((os.geteuid(), 0) if root else (os.geteuid(),)):
        raise UntrustedFileError(shown, f"belongs to user {found.st_uid}")
    if found.st_mode & OTHERS_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        raise UntrustedFileError(shown, f"may be written by others (mode {mode:04o})", mode)


def _check_names(found: os.stat_result, shown: str) -> None:
    if found.st_nlink > 1:
        raise UntrustedFileError(shown, "has a second name, which somebody else may have given it")


def _check_closed(found: os.stat_result, shown: str, *, sticky: bool) -> None:
    if found.st_mode & OTHERS_WRITE and not (sticky and found.st_mode & stat.S_ISVTX):
        mode = stat.S_IMODE(found.st_mode)
        raise UntrustedFileError(shown, f"may be written by others (mode {mode:04o})", mode)


def _is_mapped(uid: int) -> bool:
    """True if a user of this number can be in this user namespace."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return any(int(first) <= uid < int(first) + int(count) for first, _, count in map(str.split, file))
    except (OSError, ValueError):
        return True
