"""Files that nobody else can have written: what another user of the machine tries."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._linux import owners, private_files
from monarch._linux.private_files import UntrustedFileError
from tests.support.users import STRANGER, as_stranger, needs_root

LIMIT = 1000
ROOT = str(Path(__file__).resolve().parents[2])


def own(path: Path, content: bytes = b"mine", mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def read(path: Path) -> bytes:
    return private_files.read(path, LIMIT)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# --- reading


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400])
def test_ones_own_file_is_read(tmp_path: Path, mode: int) -> None:
    assert read(own(tmp_path / "f", mode=mode)) == b"mine"


def test_a_relative_path_and_links_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    own(tmp_path / "a" / "f")
    (tmp_path / "to_folder").symlink_to("a")
    (tmp_path / "to_file").symlink_to(tmp_path / "to_folder" / "f")
    monkeypatch.chdir(tmp_path / "a")
    for path in ("f", "./f", "../to_file", "../to_folder/../a/f"):
        assert read(Path(path)) == b"mine"
    assert private_files.resolve("../to_file") == str(tmp_path / "a" / "f")
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(OSError) as caught:
        read(tmp_path / "ring")
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_may_write_is_not_read(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UntrustedFileError, match=rf"f may be written by others \(mode {mode:04o}\)") as caught:
        read(own(tmp_path / "f", mode=mode))
    assert (caught.value.path, caught.value.mode) == (str(tmp_path / "f"), mode)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_does_not_hold_us(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "f")
    with pytest.raises(UntrustedFileError, match="is not an ordinary file"):
        private_files.open_to_read(tmp_path / "f")


def test_missing_and_too_large(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "none" / "f"):
        with pytest.raises(FileNotFoundError) as caught:
            read(path)
        assert str(tmp_path / "none") in str(caught.value)
    with pytest.raises(ValueError, match="has more than 1,000 bytes"):
        read(own(tmp_path / "f", bytes(LIMIT + 1)))


@needs_root
def test_what_a_stranger_has_written_is_not_read(shared: Path) -> None:
    as_stranger(lambda: own(shared / "f"))
    with pytest.raises(UntrustedFileError, match=rf"{shared}/f belongs to user {STRANGER}"):
        read(shared / "f")
    own(shared / "mine")
    assert read(shared / "mine") == b"mine"


@needs_root
def test_roots_file_is_as_good_as_ones_own_unless_it_is_not_to_be(open_folder: Path) -> None:
    own(open_folder / "f", mode=0o644)
    assert as_stranger(lambda: read(open_folder / "f")) == b"mine"

    def strictly() -> bool:
        with pytest.raises(UntrustedFileError, match="belongs to user 0"):
            private_files.open_to_read(open_folder / "f", root=False)
        return True

    assert as_stranger(strictly)


@needs_root
def test_a_strangers_link_is_not_followed_wherever_it_leads(shared: Path) -> None:
    own(shared.parent / "f")
    (shared.parent / "folder").mkdir()
    own(shared.parent / "folder" / "f")

    def plant() -> None:
        (shared / "f").symlink_to(shared.parent / "f")
        (shared / "folder").symlink_to(shared.parent / "folder")

    as_stranger(plant)
    for path in (shared / "f", shared / "folder" / "f"):
        with pytest.raises(UntrustedFileError, match=f"is a link of user {STRANGER}"):
            read(path)
    for change in (private_files.open_lock, private_files.open_log):
        with pytest.raises(PermissionError):  # by the kernel (fs.protected_regular), or by us
            change(shared / "f")
    assert (shared.parent / "f").read_bytes() == b"mine"


@needs_root
@pytest.mark.parametrize("put", ["a link", "a folder"])
def test_a_link_that_a_stranger_puts_there_after_the_look_is_not_followed(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, put: str
) -> None:
    """He may move what is in a folder that everybody may write in; here he does so between two calls of the walk."""
    own(open_folder / "good")
    own(open_folder / "other", b"of this user as well, but not what the link names")
    open_folder.chmod(0o777)
    (open_folder / "link").symlink_to("good")

    def change() -> None:
        (open_folder / "link").rename(open_folder / "away")
        if put == "a link":
            (open_folder / "link").symlink_to("other")
        else:
            (open_folder / "link").mkdir()

    look = os.stat

    def and_change(path: str, **where: Any) -> os.stat_result:
        found = look(path, **where)
        if path == "link":
            as_stranger(change)
        return found

    monkeypatch.setattr(os, "stat", and_change)
    with pytest.raises(
        UntrustedFileError, match=f"link (is|was) a link(, and| of user {STRANGER})|link belongs to user {STRANGER}"
    ):
        read(open_folder / "link")


def test_a_file_with_a_second_name_is_not_read_where_everybody_may_give_it_one(tmp_path: Path) -> None:
    """Kernels without fs.protected_hardlinks let a stranger link any file of the victim into such a folder."""
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    own(tmp_path / "f")
    os.link(tmp_path / "f", tmp_path / "sticky" / "f")
    assert read(tmp_path / "f") == b"mine"
    with pytest.raises(UntrustedFileError, match="sticky/f has a second name"):
        read(tmp_path / "sticky" / "f")
    (tmp_path / "f").unlink()
    assert read(tmp_path / "sticky" / "f") == b"mine"


def test_a_whole_path_needs_no_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path / "f")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert read(tmp_path / "f") == b"mine"
    with pytest.raises(FileNotFoundError):
        read(Path("f"))


@needs_root
def test_nothing_is_read_below_a_strangers_folder(shared: Path) -> None:
    as_stranger(lambda: (shared / "his").mkdir(0o777))
    inner = shared / "his" / "mine"
    inner.mkdir(0o700)  # root may
    own(inner / "f")
    with pytest.raises(UntrustedFileError, match=f"{shared}/his belongs to user {STRANGER}"):
        read(inner / "f")
    (shared / "his").chmod(0o1777)  # sticky: he may move what is in it, and cannot make another of ours
    assert read(inner / "f") == b"mine"


def test_a_folder_in_which_others_write_can_be_excluded(tmp_path: Path) -> None:
    file = own(tmp_path / "f")
    for mode, closed in ((0o755, True), (0o777, False), (0o1777, True)):
        tmp_path.chmod(mode)
        os.close(private_files.open_to_read(file))
        if closed:
            os.close(private_files.open_to_read(file, closed=True))
        else:
            with pytest.raises(UntrustedFileError, match=rf"{tmp_path} may be written by others \(mode 0777\)"):
                private_files.open_to_read(file, closed=True)


@needs_root
def test_a_search_upward_ends_at_the_first_folder_of_somebody_else(shared: Path) -> None:
    inner = shared / "his" / "mine" / "deep"
    inner.mkdir(parents=True)
    os.chown(shared / "his", STRANGER, STRANGER)
    assert list(private_files.folders_upward(inner)) == [str(inner), str(inner.parent)]
    assert list(private_files.folders_upward(shared))[:2] == [str(shared), str(shared.parent)]
    assert list(private_files.folders_upward(shared))[-1] == "/"


@pytest.mark.parametrize(
    ("uid_map", "trusted"), [("0 0 4294967295\n", False), ("1000 1000 1\n", True), ("0 100000 65536\n", False)]
)
def test_folders_of_users_that_a_container_does_not_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uid_map: str, trusted: bool
) -> None:
    """With one user in it, a container shows those of the machine's root as another's, whom it cannot have."""
    (tmp_path / "uid_map").write_text(uid_map)
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: real(tmp_path / "uid_map" if path == "/proc/self/uid_map" else path, *a, **k)
    )  # fmt: skip
    found = list(os.stat(tmp_path))
    for mode, uid, taken in ((0o755, 65534, trusted), (0o775, 65534, False), (0o755, 65533, False)):
        found[0], found[4] = stat.S_IFDIR | mode, uid
        if taken:
            private_files._check_folder(os.stat_result(found), "/x", None)
        else:
            with pytest.raises(UntrustedFileError):
                private_files._check_folder(os.stat_result(found), "/x", None)


UNMAPPED = """
import os, sys
from monarch._linux import owners, private_files
for do in (private_files.open_to_read, private_files.open_log, private_files.make_folder, private_files.take_folder):
    try:
        do(sys.argv[1])
    except private_files.UntrustedFileError as exc:
        print(exc)
"""


@needs_root
def test_one_without_a_number_trusts_nothing(open_folder: Path) -> None:
    """In a user namespace all users without a number look like one: what is a stranger's looks like one's own."""
    file = own(open_folder / "f", mode=0o644)
    os.chown(file, 4242, 4242)
    command = ["unshare", "--user", sys.executable, "-c", UNMAPPED, str(file)]
    env = {"PYTHONPATH": ROOT, "PATH": os.environ["PATH"]}
    made = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if "unshare failed" in made.stderr:
        pytest.skip("this machine makes no user namespaces")
    why = f"{file} may be anybody's: this user has the number 65534, as everybody who has none in this user namespace"
    assert made.stderr == "" and len(made.stdout.splitlines()) == 4
    assert all(line.startswith(why) and "--map-root-user" in line for line in made.stdout.splitlines())


def test_a_file_of_somebody_without_a_number_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "_numbers", lambda: [(1000, 1)])
    found = list(os.stat(own(tmp_path / "f")))
    found[4] = 65534
    with pytest.raises(
        UntrustedFileError, match="belongs to user 65534, that is somebody who has no number in this user"
    ):
        private_files._check_file(os.stat_result(found), "f", root=True)


def test_a_second_name_counts_where_others_can_give_it(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    own(tmp_path / "f")
    os.link(tmp_path / "f", tmp_path / "wide" / "f")
    assert read(tmp_path / "wide" / "f") == b"mine"
    (tmp_path / "wide").chmod(0o777)
    with pytest.raises(UntrustedFileError, match="wide/f has a second name"):
        read(tmp_path / "wide" / "f")


MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,user_id=9
37 21 0:44 / /tmp/his rw,nosuid shared:7 - fuse.sshfs h:/ rw,user_id=4242,group_id=4242,allow_other
38 21 0:45 / /mnt/a\\040b rw - fuse src rw,user_id=0,group_id=0
39 21 0:46 / /mnt/c rw - fuseblk /dev/sdb rw,group_id=0
"""


@pytest.mark.parametrize(("mount", "user"), [(21, 0), (37, 4242), (38, 0), (39, 0), (40, 65534)])
def test_who_serves_a_file_system(mount: int, user: int) -> None:
    assert owners.serving_user(str(mount), MOUNTS.splitlines(keepends=True)) == user


def test_what_another_user_serves_is_not_ones_own_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """With user_allow_other in /etc/fuse.conf, a stranger's program may say that its files belong to anybody."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        if folder.stat().st_dev == Path("/dev").stat().st_dev:
            pytest.skip("/dev/shm is no file system of its own here")
        assert read(own(folder / "f")) == b"mine"
        monkeypatch.setattr(owners, "serving_user", lambda *_: 4242)
        before = os.listdir("/proc/self/fd")
        for do in (read, private_files.open_lock, private_files.make_folder, private_files.take_folder):
            with pytest.raises(UntrustedFileError, match=r"/dev(/shm)? lies on a file system that user 4242 serves"):
                do(folder / "f")
        assert os.listdir("/proc/self/fd") == before
    finally:
        shutil.rmtree(folder)


# --- writing


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_written_whole_and_private(tmp_path: Path, sync: bool) -> None:
    file = tmp_path / "f"
    private_files.write(file, b"1", sync=sync)
    assert (file.read_bytes(), mode_of(file)) == (b"1", 0o600)
    with pytest.raises(FileExistsError) as caught:
        private_files.write(file, b"2", sync=sync)
    assert str(file) in str(caught.value)
    with file.open("rb") as before:
        private_files.write(file, b"2", 0o640, replace=True, sync=sync)
        assert (before.read(), file.read_bytes(), mode_of(file)) == (b"1", b"2", 0o640)
    assert os.listdir(tmp_path) == ["f"]


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    target = own(tmp_path / "target")
    (tmp_path / "f").symlink_to(target)
    with pytest.raises(FileExistsError):
        private_files.write(tmp_path / "f", b"new")
    private_files.write(tmp_path / "f", b"new", replace=True)
    assert (target.read_bytes(), (tmp_path / "f").read_bytes()) == (b"mine", b"new")


def test_what_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path / "f")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        private_files.write(tmp_path / "f", b"new", replace=True)
    assert (os.listdir(tmp_path), (tmp_path / "f").read_bytes()) == (["f"], b"mine")


# --- locks and logs


def test_a_lock_is_private_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    for _ in range(2):
        lock = private_files.open_lock(tmp_path / "lock")
        assert os.fstat(lock).st_mode & 0o777 == 0o600 and not os.get_inheritable(lock)
        os.pwrite(lock, b"who", 0)
        os.close(lock)
    assert (tmp_path / "lock").read_bytes() == b"who"


def test_a_log_grows_or_begins_anew(tmp_path: Path) -> None:
    for said, empty, all_of_it in ((b"1", False, b"1"), (b"2", False, b"12"), (b"3", True, b"3")):
        log = private_files.open_log(tmp_path / "log", empty=empty)
        os.write(log, said)
        os.close(log)
        assert (tmp_path / "log").read_bytes() == all_of_it


@pytest.mark.parametrize("opened", [private_files.open_lock, private_files.open_log])
def test_no_file_that_may_be_anothers_is_locked_or_written(tmp_path: Path, opened: Callable[[Path], int]) -> None:
    file = own(tmp_path / "f")
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "second").hardlink_to(file)
    os.mkfifo(tmp_path / "fifo")
    for name, why in (("link", "is a link"), ("second", "has a second name"), ("fifo", "is not an ordinary file")):
        with pytest.raises(UntrustedFileError, match=why):
            opened(tmp_path / name)
    own(tmp_path / "wide", mode=0o666)
    with pytest.raises(UntrustedFileError, match="may be written by others"):
        opened(tmp_path / "wide")
    assert file.read_bytes() == b"mine"


@needs_root
def test_a_strangers_lock_is_not_taken(shared: Path) -> None:
    as_stranger(lambda: own(shared / "lock", mode=0o666))
    with pytest.raises(PermissionError):  # by the kernel (fs.protected_regular), or by us
        private_files.open_lock(shared / "lock")


# --- folders


def test_folders_are_made_private_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    assert private_files.make_folder(path) == str(path)
    assert mode_of(path) == mode_of(path.parent) == 0o700
    private_files.make_folder(path)
    path.chmod(0o770)
    with pytest.raises(UntrustedFileError, match=r"b may be written by others \(mode 0770\)"):
        private_files.make_folder(path)
    private_files.make_folder(path, closed=False)
    path.chmod(0o1777)
    private_files.make_folder(path, mine=False)
    with pytest.raises(UntrustedFileError):
        private_files.make_folder(path)
    own(tmp_path / "f")
    with pytest.raises(NotADirectoryError):
        private_files.make_folder(tmp_path / "f")


@needs_root
def test_a_strangers_folder_is_not_taken_for_ones_own(shared: Path) -> None:
    (shared / "target").mkdir()

    def squat() -> None:
        (shared / "his").mkdir(0o700)
        (shared / "link").symlink_to(shared / "target")

    as_stranger(squat)
    for name in ("his", "link", "his/inner", "link/inner"):
        with pytest.raises(UntrustedFileError, match=f"user {STRANGER}"):
            private_files.make_folder(shared / name)
    assert as_stranger(lambda: private_files.make_folder(shared / "his" / "inner")) == str(shared / "his" / "inner")

    def roots() -> bool:
        with pytest.raises(UntrustedFileError, match="belongs to user 0"):
            private_files.make_folder(shared)
        return private_files.make_folder(shared, mine=False) == str(shared)

    assert as_stranger(roots)


@needs_root
def test_a_users_folder_whose_name_is_taken(shared: Path) -> None:
    assert private_files.user_folder(str(shared), "own-0") == str(shared / "own-0")
    assert mode_of(shared / "own-0") == 0o700
    (shared / "own-0").chmod(0o777)
    assert private_files.user_folder(str(shared), "own-0") == str(shared / "own-0")
    assert mode_of(shared / "own-0") == 0o700  # from now on nobody else can enter it

    def squat() -> None:
        (shared / "own-1").mkdir(0o777)
        (shared / "own-1-0").mkdir(0o777)
        (shared / "own-2").symlink_to(shared / "own-0")

    as_stranger(squat)
    for name in ("own-1", "own-2"):
        other = private_files.user_folder(str(shared), name)
        assert other.startswith(f"{shared}/{name}-") and other != f"{shared}/own-1-0"
        assert (os.stat(other).st_uid, mode_of(Path(other))) == (0, 0o700)
        assert private_files.user_folder(str(shared), name) == other


@needs_root
def test_nothing_is_written_where_others_decide_what_is_there(shared: Path) -> None:
    as_stranger(lambda: (shared / "his").mkdir(0o777))
    (shared / "mine").mkdir(0o700)
    as_stranger(lambda: (shared / "link").symlink_to("mine"))
    for name, why in (("his", "his belongs to"), ("link", "link is a link of")):
        for do in (lambda path: private_files.write(path, b"new", replace=True), private_files.take_folder):
            with pytest.raises(UntrustedFileError, match=f"{why} user {STRANGER}"):
                do(shared / name / "f")
    assert os.listdir(shared / "his") == os.listdir(shared / "mine") == []


def test_a_users_folder_is_not_made_where_others_can_exchange_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for do in (private_files.user_folder, private_files.user_folders):
        with pytest.raises(UntrustedFileError, match=r"may be written by others \(mode 0777\) and is not sticky"):
            do(str(tmp_path), "own-0")
    assert os.listdir(tmp_path) == []
    tmp_path.chmod(0o1777)
    private_files.user_folder(str(tmp_path), "own-0")
    (tmp_path / "own-0-00000000").symlink_to("own-0")
    (tmp_path / "own-0-11111111").mkdir(0o700)
    (tmp_path / "own-0-22222222").mkdir(0o700)
    (tmp_path / "own-0-22222222").chmod(0o777)
    found = private_files.user_folders(str(tmp_path), "own-0")
    assert found == [f"{tmp_path}/own-0", f"{tmp_path}/own-0-11111111"]


@needs_root
def test_a_folder_of_ones_own_with_a_like_name_is_not_taken_for_the_other(shared: Path) -> None:
    (shared / "own-0-results").mkdir(0o755)
    as_stranger((shared / "own-0").mkdir)
    other = private_files.user_folder(str(shared), "own-0")
    assert other != f"{shared}/own-0-results" and mode_of(shared / "own-0-results") == 0o755
    assert private_files.user_folder(str(shared), "own-0") == other


# --- groups, and folders that others cannot write in


def test_ones_own_group_may_write_what_is_not_secret(tmp_path: Path) -> None:
    """A umask of 002 gives every file such a mode, and that group has nobody else in it; an access control list may."""
    mine = own(tmp_path / "f", mode=0o664)
    os.chown(mine, -1, pwd.getpwuid(os.geteuid()).pw_gid)
    if grp.getgrgid(mine.stat().st_gid).gr_name != pwd.getpwuid(os.geteuid()).pw_name:
        pytest.skip("this user has no group of its own")
    with pytest.raises(UntrustedFileError, match="mode 0664"):
        read(mine)
    assert private_files.read(mine, LIMIT, own_group=True) == b"mine"
    (tmp_path / "folder").mkdir(0o775)
    (tmp_path / "folder").chmod(0o775)
    assert private_files.closed_folder(tmp_path / "folder") == str(tmp_path / "folder")
    entries = [(1, 6, -1), (2, 6, STRANGER), (4, 6, -1), (16, 6, -1), (32, 4, -1)]  # tag, permissions, id
    try:
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
        os.setxattr(mine, "system.posix_acl_access", acl)
    except OSError:
        pytest.skip("this file system has no access control lists")
    with pytest.raises(UntrustedFileError, match="mode 0664"):
        private_files.read(mine, LIMIT, own_group=True)


@needs_root
def test_another_group_is_others(tmp_path: Path) -> None:
    mine = own(tmp_path / "f", mode=0o664)
    os.chown(mine, -1, STRANGER)
    with pytest.raises(UntrustedFileError, match="mode 0664"):
        private_files.read(mine, LIMIT, own_group=True)


@needs_root
def test_a_closed_folder_keeps_its_name(shared: Path) -> None:
    """Keeps its name by what is above: whoever may rename this folder could put another one in its place."""
    folder = shared / "a" / "b"
    folder.mkdir(parents=True)
    assert private_files.closed_folder(folder) == str(folder)
    with pytest.raises(UntrustedFileError, match=rf"{shared} may be written by others \(mode 1777\)"):
        private_files.closed_folder(shared)
    (shared / "a").chmod(0o777)
    with pytest.raises(UntrustedFileError, match=rf"{shared}/a may be written by others"):
        private_files.closed_folder(folder)
    (shared / "a").chmod(0o755)
    os.chown(shared / "a", STRANGER, STRANGER)
    with pytest.raises(UntrustedFileError, match=rf"{shared}/a belongs to user {STRANGER}"):
        private_files.closed_folder(folder)
