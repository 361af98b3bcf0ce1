"""Files that nobody else can have written, on a machine with other users.

A path is walked from the root by descriptors, so what was checked is what is used. On the way each folder belongs to this
user or to root, or is sticky and what is in it does; so do symbolic links. In such folders others can at most move what is
this user's already. What does not hold raises UntrustedFileError, which names the file or folder.

Whose a file is, its user's number says. In a user namespace everybody without a number there has the same one, and nothing
with that one is trusted: it may be anybody's.

Over 600 lines because the walk and all that is opened, written and made by it are judged together, in one place.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from typing import Any

from monarch._linux import owners

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # needs no permission to list it
_LINK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a FIFO does not hold us
_MOST_LINKS = 40  # of one path, as in the kernel
_OF_THE_KERNEL = ("/dev", "/dev/fd", "/proc/self/fd")  # what is written to there is no file of the folder
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedFileError(PermissionError):
    """A file or folder that somebody else has made, or may write. `path`: which; `mode`: if only that is wrong."""

    def __init__(self, path: str, why: str, mode: int | None = None) -> None:
        super().__init__(errno.EPERM, f"{path} {why}")
        self.path = path
        self.mode = mode

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, str(self.strerror).removeprefix(f"{self.path} "), self.mode)


# --- reading


def open_to_read(
    path: str | os.PathLike[str], *, root: bool = True, closed: bool = False, own_group: bool = False
) -> int:
    """Returns a descriptor of a file that only this user, or with `root` that one, can have written.

    `closed`: others may not even write in the folder that it lies in. `own_group`: this user's own group, which nobody else
    is in, may write it, as editors have it with a umask of 002. FileNotFoundError when it is missing.
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
        _check_file(found, shown, root, own_group=file if own_group else None)
        if _gives_names(where):
            _check_names(found, shown)
    except BaseException:
        os.close(file)
        raise
    return file


def read(path: str | os.PathLike[str], limit: int, *, root: bool = True, own_group: bool = False) -> bytes:
    """Reads such a file. ValueError when it has more than `limit` bytes."""
    with os.fdopen(open_to_read(path, root=root, own_group=own_group), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{os.fspath(path)} has more than {limit:,} bytes")
    return content


def open_regular(path: str | os.PathLike[str]) -> int:
    """Returns a descriptor of a regular file, whoever has written it. UntrustedFileError for a FIFO or a device."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UntrustedFileError(os.fspath(path), "is not an ordinary file")
    return file


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
    folder, name, shown = _resolve(path, follow=False)
    try:
        target = f".{name}.{secrets.token_hex(4)}" if replace else name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(target, flags, mode, dir_fd=folder)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, shown) from None
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
                opened.flush()
                if sync:
                    os.fsync(file)
            if replace:
                os.replace(target, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException as exc:
            os.unlink(target, dir_fd=folder)
            if isinstance(exc, OSError):
                raise OSError(exc.errno, exc.strerror, shown) from None
            raise
        if sync:
            _sync_folder(folder)
    finally:
        os.close(folder)


def _sync_folder(folder: int) -> None:
    opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def memory_file(content: bytes) -> int:
    """Returns a descriptor at the beginning of a file in memory. It has no name: who is given it has it, and nobody else."""
    file = os.memfd_create("monarch", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as opened:
            opened.write(content)
        os.lseek(file, 0, os.SEEK_SET)
    except BaseException:
        os.close(file)
        raise
    return file


def open_lock(path: str | os.PathLike[str]) -> int:
    """Returns a descriptor of a file to lock (flock), 0600 when it is made here; never a link, and what is in it stays."""
    return _open_own(path, os.O_RDWR | os.O_CREAT)


def open_log(path: str | os.PathLike[str], *, empty: bool = False) -> int:
    """Returns a descriptor to append to a file of this user alone, 0600 when it is made here. `empty`: as if it were new."""
    file = _open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if empty:
        os.ftruncate(file, 0)
    return file


def open_output(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """Returns a descriptor to write anew the file that somebody has named, in whosever folder. `mode`: of a new one, less the
    umask.

    Where everybody may write (/tmp), no link of others is followed and no file of theirs is written, as kernels with
    fs.protected_symlinks and protected_regular have it. Nowhere is the name itself a link of others, nor, where they could
    give it, the second name of a file.
    """
    whole = os.path.abspath(path)
    if os.path.dirname(whole) in _OF_THE_KERNEL:  # /dev/stdout
        return os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    folder, name, shown = _resolve(path, named=True)
    try:
        return _open_output(name, folder, shown, mode)
    finally:
        os.close(folder)


class OutputFolder:
    """A folder that somebody has named to write files anew in, or to remove them, whosever it is: no link of others leads
    to it. It stays the same one until `close`, also if its path is given to another meanwhile. `path`: a name of it that
    does so too, in this process alone."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        above, name, self._shown = _resolve(path, named=True, others_links=False)
        try:
            self._opened = _open_folder(name, above, self._shown)
        finally:
            os.close(above)
        self.path = f"/proc/self/fd/{self._opened}"

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_output(self, name: str, mode: int = 0o666) -> int:
        """Returns a descriptor to write a file of the folder anew, as the function of this name does. A link is refused."""
        return _open_output(name, self._opened, os.path.join(self._shown, name), mode)

    def close(self) -> None:
        os.close(self._opened)


def _open_output(name: str, folder: int, shown: str, mode: int) -> int:
    where = os.fstat(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        file = os.open(name, flags, mode, dir_fd=folder)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            owner = os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid
            raise UntrustedFileError(shown, f"is a link of {owners.named(owner)}") from None
        raise OSError(exc.errno, exc.strerror, shown) from None
    try:
        found = os.fstat(file)
        if _is_crowded(where) and found.st_uid not in (os.geteuid(), 0):
            raise UntrustedFileError(shown, f"belongs to {owners.named(found.st_uid)}")
        if stat.S_ISREG(found.st_mode):
            if _gives_names(where):
                _check_names(found, shown)
            os.ftruncate(file, 0)
        os.set_blocking(file, True)
    except BaseException:
        os.close(file)
        raise
    return file


def write_output(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes such a file."""
    with open(open_output(path), "wb") as file:
        file.write(content)


def _is_crowded(folder: os.stat_result) -> bool:
    return bool(folder.st_mode & (OTHERS_WRITE if folder.st_mode & stat.S_ISVTX else stat.S_IWOTH))


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
        _make_one(name, folder, shown)
        inner = _open_folder(name, folder, shown)
    finally:
        os.close(folder)
    try:
        found = os.fstat(inner)
    finally:
        os.close(inner)
    if found.st_uid not in ((os.geteuid(),) if mine else (os.geteuid(), 0)):
        raise UntrustedFileError(shown, f"belongs to {owners.named(found.st_uid)}")
    if closed:
        _check_closed(found, shown, sticky=not mine)
    return shown


def take_folder(path: str | os.PathLike[str]) -> bool:
    """Makes a folder 0700, or makes one of this user so. False for one of somebody else, and for a link.

    UntrustedFileError where others could put another in its place: in a folder of theirs, or one that they may write in and
    that is not sticky.
    """
    folder, name, shown = _resolve(path, follow=False)
    try:
        _check_base(os.fstat(folder), os.path.dirname(shown))
        _make_one(name, folder, shown)
        try:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                return False
            raise OSError(exc.errno, exc.strerror, shown) from None
        _check_device(inner, folder, shown)
    finally:
        os.close(folder)
    try:
        found = os.fstat(inner)
        if found.st_uid != os.geteuid():
            return False
        if found.st_mode & 0o077:
            os.fchmod(inner, 0o700)
        return True
    finally:
        os.close(inner)


def user_folder(base: str, name: str) -> str:
    """Returns a folder of this user alone in `base`, which others may write in: `name`, made if need be. Where somebody else
    has taken that, one whose name nobody could know before; it is found again. UntrustedFileError for a base as
    `take_folder` has it."""
    if take_folder(os.path.join(base, name)):
        return os.path.join(base, name)
    for other in user_folders(base, name):
        if take_folder(other):
            return other
    made = os.path.join(base, f"{name}-{secrets.token_hex(4)}")
    os.mkdir(made, 0o700)
    return made


def is_private(folder: str) -> bool:
    """True if it is a folder of this user that nobody else can enter."""
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def is_closed(folder: str) -> bool:
    """True if `closed_folder` returns it."""
    try:
        closed_folder(folder)
    except OSError:
        return False
    return True


def closed_folder(path: str | os.PathLike[str]) -> str:
    """Returns the folder without links, if only this user, his own group or root can put a file there, or another folder in
    its place: then what is found there by its name is theirs. UntrustedFileError else."""
    folder = os.path.realpath(path)
    here = folder
    while True:
        found = os.stat(here)
        if not _is_ours(found):
            raise UntrustedFileError(here, f"belongs to {owners.named(found.st_uid)}")
        if _others_write(found, here) and (here == folder or not found.st_mode & stat.S_ISVTX):
            mode = stat.S_IMODE(found.st_mode)
            raise UntrustedFileError(here, f"may be written by others (mode {mode:04o})", mode)
        if here == "/":
            return folder
        here = os.path.dirname(here)


def user_folders(base: str, name: str) -> list[str]:
    """Returns the folders that `user_folder` has made there, in the order in which it takes them. None is made, and what
    somebody else has put there is passed over, links too."""
    folder, _, shown = _resolve(os.path.join(base, name), follow=False)
    try:
        _check_base(os.fstat(folder), os.path.dirname(shown))
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            like = re.compile(re.escape(name) + "(-[0-9a-f]{8})?")
            names = sorted(filter(like.fullmatch, os.listdir(listed)))
            return [os.path.join(base, name) for name in names if _is_own_folder(name, listed)]
        finally:
            os.close(listed)
    finally:
        os.close(folder)


def _is_own_folder(name: str, folder: int) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS_WRITE


def resolve(path: str | os.PathLike[str], *, make: bool = False) -> str:
    """Returns the path without links, each of them and each folder checked. `make`: missing folders are made, 0700."""
    folder, _, shown = _resolve(path, make=make)
    os.close(folder)
    return shown


# --- the walk


def _resolve(
    path: str | os.PathLike[str],
    *,
    follow: bool = True,
    make: bool = False,
    named: bool = False,
    others_links: bool = True,
) -> tuple[int, str, str]:
    """Returns (descriptor of the folder, name in it, path for people). `follow`: the name itself is no link then. `named`:
    whosever the folders are, and, with `others_links`, links to them outside of those where everybody may write."""
    whole = os.fspath(path)
    names = _names(whole if os.path.isabs(whole) else os.path.join(os.getcwd(), whole))
    _check_user(whole)
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
            where = os.fstat(folder)
            if not named:
                _check_folder(where, shown, entry)
            if entry is not None and stat.S_ISLNK(entry.st_mode) and (names or follow):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
                anybodys = named and others_links and bool(names) and not _is_crowded(where)
                target = _read_link(name, folder, here, anybodys)
                names += _names(target)
                if target.startswith("/"):
                    os.close(folder)
                    folder, shown = os.open("/", _FOLDER), "/"
                continue
            if not names:
                return folder, name, here
            if entry is None and make:
                _make_one(name, folder, here)
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


def _make_one(name: str, folder: int, shown: str) -> None:
    """Makes a folder in that one, unless something has the name."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        pass
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, shown) from None


def _open_folder(name: str, folder: int, shown: str) -> int:
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, shown) from None
    _check_device(inner, folder, shown)
    return inner


def _check_device(file: int, folder: int, shown: str) -> None:
    """Closes `file` and raises if a file system begins with it that a program of another user serves: whose its files are is
    what that program says."""
    try:
        if os.fstat(file).st_dev == os.fstat(folder).st_dev:
            return
        mount = owners.mount_of(file)
        if mount and mount != owners.mount_of(folder):  # else one with several devices, such as an overlay
            with open("/proc/self/mountinfo", errors="replace") as mounts:
                server = owners.serving_user(mount, mounts)
            if server not in (os.geteuid(), 0):
                raise UntrustedFileError(shown, f"lies on a file system that {owners.named(server)} serves")
    except BaseException:
        os.close(file)
        raise


def _read_link(name: str, folder: int, shown: str, anybodys: bool) -> str:
    """Returns where the link leads that was checked: another may have its name a moment later."""
    try:
        link = os.open(name, _LINK, dir_fd=folder)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, shown) from None
    try:
        found = os.fstat(link)
        if found.st_uid not in (os.geteuid(), 0) and not anybodys:
            raise UntrustedFileError(shown, f"is a link of {owners.named(found.st_uid)}")
        if not stat.S_ISLNK(found.st_mode):
            raise UntrustedFileError(shown, "was a link, and is none any more")
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _open(name: str, flags: int, folder: int, shown: str) -> int:
    try:
        file = os.open(name, flags | _FILE, 0o600, dir_fd=folder)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise UntrustedFileError(shown, "is a link") from None
        if exc.errno == errno.ENXIO:  # a FIFO that nobody reads, a socket
            raise UntrustedFileError(shown, "is not an ordinary file") from None
        raise OSError(exc.errno, exc.strerror, shown) from None
    _check_device(file, folder, shown)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UntrustedFileError(shown, "is not an ordinary file")
    return file


def _check_user(path: str) -> None:
    if not owners.can_be_told():
        raise UntrustedFileError(
            path,
            f"may be anybody's: this user has the number {owners.OVERFLOW}, as everybody who has none in this user "
            f"namespace; be another user in it (unshare --map-root-user, runAsUser)",
        )


def _check_folder(found: os.stat_result, shown: str, entry: os.stat_result | None) -> None:
    if _is_ours(found):
        return
    if found.st_mode & stat.S_ISVTX and (entry is None or entry.st_uid in (os.geteuid(), 0)):
        return
    raise UntrustedFileError(shown, f"belongs to {owners.named(found.st_uid)}")


def _is_ours(found: os.stat_result) -> bool:
    if found.st_uid in (os.geteuid(), 0):
        return True
    # Most likely of the machine's root, seen in a container that has this user alone; files are looked at again.
    return (
        found.st_uid == owners.OVERFLOW and not found.st_mode & OTHERS_WRITE and not owners.is_mapped(owners.OVERFLOW)
    )


def _check_file(found: os.stat_result, shown: str, root: bool, own_group: int | None = None) -> None:
    """`own_group`: the file's descriptor, where this user's own group may write it."""
    if found.st_uid not in ((os.geteuid(), 0) if root else (os.geteuid(),)):
        raise UntrustedFileError(shown, f"belongs to {owners.named(found.st_uid)}")
    if found.st_mode & OTHERS_WRITE if own_group is None else _others_write(found, own_group):
        mode = stat.S_IMODE(found.st_mode)
        raise UntrustedFileError(shown, f"may be written by others (mode {mode:04o})", mode)


def _gives_names(folder: os.stat_result) -> bool:
    """True for a folder in which others could give a second name to a file that this user has written elsewhere."""
    return _is_crowded(folder) or folder.st_uid not in (os.geteuid(), 0)


def _check_names(found: os.stat_result, shown: str) -> None:
    if found.st_nlink > 1:
        raise UntrustedFileError(shown, "has a second name, which somebody else may have given it")


def _check_base(found: os.stat_result, shown: str) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise UntrustedFileError(shown, f"belongs to {owners.named(found.st_uid)}")
    _check_closed(found, shown, sticky=True)


def _check_closed(found: os.stat_result, shown: str, *, sticky: bool) -> None:
    if found.st_mode & OTHERS_WRITE and not (sticky and found.st_mode & stat.S_ISVTX):
        mode = stat.S_IMODE(found.st_mode)
        why = f"may be written by others (mode {mode:04o})"
        raise UntrustedFileError(
            shown, f"{why} and is not sticky: they can exchange what is in it" if sticky else why, mode
        )


def _others_write(found: os.stat_result, place: int | str) -> bool:
    """True if somebody may write there who is neither this user nor root; his own group has nobody else in it."""
    if not found.st_mode & stat.S_IWGRP:
        return bool(found.st_mode & stat.S_IWOTH)
    return bool(found.st_mode & stat.S_IWOTH) or not owners.is_own_group(found.st_gid) or _has_list(place)


def _has_list(place: int | str) -> bool:
    """True if an access control list says who may write: the group's bits are then those of everybody in it."""
    try:
        os.getxattr(place, "system.posix_acl_access")
    except OSError as exc:
        return exc.errno not in (errno.ENODATA, errno.EOPNOTSUPP)
    return True
