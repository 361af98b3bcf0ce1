"""Mounts without processes: places, trees, contents, versions, reading ahead."""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import socket
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import monarch.remotemount
from monarch.actor.file_sync import FILE, FOLDER, LINK, ManifestEntry
from monarch.remotemount import fuse_messages, fuse_program
from monarch.remotemount.file_tree import BLOCK, SMALL, Contents, FileTree, TreeNode, blocks_of
from monarch.remotemount.fuse_messages import BeginMount, Content, FuseReply, Settled, SetTree, Unmounted, Wire
from monarch.remotemount.fuse_program import GatherMountView, ReadAhead
from monarch.remotemount.gather import gather_mount
from monarch.remotemount.mount_point import (
    AROUND,
    FREE,
    INSIDE,
    MARKER,
    NOT_A_FOLDER,
    OURS_ALREADY,
    SOURCE,
    TAKEN,
    MountPointState,
    point_of,
    refusal,
    state_of,
)
from monarch.remotemount.remotemount import remotemount
from monarch.remotemount.source import Versions

# --- places


@pytest.mark.parametrize("given", [None, ["tcp://a:26600"]])
def test_a_mount_takes_hosts(tmp_path: Path, given: Any) -> None:
    for function, places in ((remotemount, (str(tmp_path),)), (gather_mount, ("/logs", str(tmp_path)))):
        with pytest.raises(TypeError, match=rf"{function.__name__} takes a mesh of hosts, such as.* got (None|\[)"):
            function(given, *places)


def test_subdir_stands_for_the_host_in_its_mesh() -> None:
    assert point_of("/mnt/$SUBDIR/code", {"a": 1, "b": 2}) == "/mnt/a_1_b_2/code"
    assert point_of("/mnt/$SUBDIR/code", {}) == "/mnt/code"
    assert point_of("/mnt/", {"a": 1}) == "/mnt"


def test_what_stands_at_a_place(tmp_path: Path) -> None:
    source, token = tmp_path / "home" / "source", "token"
    (source / "deep" / "er").mkdir(parents=True)
    (source / token).touch()
    for name in ("empty", "ours", "taken"):
        (tmp_path / name).mkdir()
    (tmp_path / "ours" / MARKER).touch()
    (tmp_path / "taken" / "file").touch()
    (tmp_path / "link").symlink_to(source)

    def state(path: Path) -> str:
        found = {state_of(str(path), str(source), *known) for known in ((token, False), (token, True))}
        assert len(found) == 1
        return found.pop()

    assert state(tmp_path / "missing") == FREE
    assert state(tmp_path / "empty") == FREE
    assert state(tmp_path / "ours") == OURS_ALREADY
    assert state(tmp_path / "taken") == TAKEN
    assert state(tmp_path / "taken" / "file") == NOT_A_FOLDER
    assert state(source) == SOURCE
    assert state(tmp_path / "link") == SOURCE
    assert state(source / "deep" / "new") == INSIDE
    assert state(tmp_path / "home") == AROUND
    # A source that nothing can be written to is known on the client's machine only.
    assert state_of(str(source), str(source), "", True) == SOURCE
    assert state_of(str(source), str(source), "", False) == TAKEN


@pytest.mark.parametrize(
    ("state", "fuse", "why"),
    [
        (FREE, False, ""),
        (SOURCE, False, ""),
        (TAKEN, True, ""),
        (TAKEN, False, "has files in it that no mount has brought"),
        (INSIDE, True, "lies inside the source /src"),
        (AROUND, False, "contains the source /src"),
        (NOT_A_FOLDER, True, "is not a directory"),
    ],
)
def test_a_place_where_nothing_can_be_mounted_is_refused_with_a_way_out(state: str, fuse: bool, why: str) -> None:
    text = refusal(MountPointState("node1", "/there", state, "", ""), "/src", fuse)
    if not why:
        assert text == ""
        return
    assert text.startswith(f"/there on node1 {why}")
    assert text.endswith("name another mntpoint, one that is empty or does not exist yet")


# --- trees


def file(size: int, content: int) -> TreeNode:
    return TreeNode(FILE, size, 0o640, 5, "", content)


def test_a_tree_answers_as_a_file_system_does() -> None:
    folder, link = TreeNode(FOLDER, 0, 0o755, 7, "", 0), TreeNode(LINK, 0, 0, 0, "ä/b", 0)
    tree = FileTree([("", folder), ("a", folder), ("a/x", file(3, 1)), ("l", link)])
    assert tree.children("/") == {"a": stat.S_IFDIR, "l": stat.S_IFLNK}
    assert tree.children("/a") == {"x": stat.S_IFREG}
    assert tree.node("/a/x").attributes()["st_mode"] == stat.S_IFREG | 0o640
    assert tree.node("/l").attributes()["st_size"] == 4  # bytes
    assert tree.node("/").attributes()["st_mtime"] == 7
    assert tree.contents() == {1}
    for path, number in (("/none", errno.ENOENT), ("/a/x", errno.ENOTDIR)):
        with pytest.raises(OSError) as caught:
            tree.children(path)
        assert caught.value.errno == number


def test_a_read_touches_the_blocks_it_needs() -> None:
    assert list(blocks_of(10, 4, 100)) == [(0, 4, 10)]
    assert list(blocks_of(10, 10, 5)) == []
    assert list(blocks_of(SMALL - 1, 0, SMALL)) == [(0, 0, SMALL - 1)]
    assert list(blocks_of(3 * BLOCK, BLOCK - 2, 4)) == [(0, BLOCK - 2, BLOCK), (1, 0, 2)]
    assert list(blocks_of(BLOCK + 7, BLOCK, BLOCK)) == [(1, 0, 7)]


def test_a_block_is_asked_for_once_and_kept() -> None:
    asked: list[tuple[int, int]] = []
    contents = Contents(lambda *key: asked.append(key), 60)
    results: list[bytes] = []
    readers = [threading.Thread(target=lambda: results.append(contents.get(1, 0))) for _ in range(3)]
    for reader in readers:
        reader.start()
    contents.put(1, 0, b"data")
    for reader in readers:
        reader.join(60)
    assert results == [b"data"] * 3
    assert len(asked) <= 1
    assert contents.get(1, 0) == b"data"
    contents.keep({2})
    contents.close()
    with pytest.raises(OSError, match="Input/output error"):
        contents.get(1, 0)


def test_blocks_asked_for_ahead_are_asked_for_once_and_awaited_by_nobody() -> None:
    asked: list[tuple[int, int]] = []
    contents = Contents(lambda *key: asked.append(key), 60)
    contents.put(1, 0, b"here")
    for _ in range(2):
        contents.ask_ahead(1, range(3))
    assert asked == [(1, 1), (1, 2)]
    contents.put(1, 1, b"came")
    assert contents.get(1, 1) == b"came"


def test_a_block_that_could_not_be_read_is_an_error_until_its_file_has_a_new_content() -> None:
    contents = Contents(lambda *key: None, 60)
    contents.put(1, 0, b"", errno.EACCES)
    with pytest.raises(PermissionError):
        contents.get(1, 0)


def test_a_block_that_never_comes_is_asked_for_again_by_the_next_read() -> None:
    asked: list[tuple[int, int]] = []
    contents = Contents(lambda *key: asked.append(key), 0)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            contents.get(1, 0)
    assert asked == [(1, 0), (1, 0)]


# --- versions


def test_a_changed_file_has_a_new_content_and_an_unchanged_one_keeps_its_own() -> None:
    versions = Versions()
    tree = {
        "a": ManifestEntry(FILE, 1, 0o644, 1),
        "b": ManifestEntry(FILE, SMALL, 0o644, 1),
        "d": ManifestEntry(FOLDER, mode=0o755),
    }
    new = versions.update(tree, 100)
    assert [versions.files[number][0] for number in new] == ["a", "b"]
    assert [versions.files[number][0] for number in versions.small(new)] == ["a"]
    assert versions.update(tree, 200) == []
    assert not versions.changed
    again = versions.update(
        {**tree, "a": ManifestEntry(FILE, 1, 0o644, 2), "d/c": ManifestEntry(FILE, 0, 0o644, 1)}, 300
    )
    assert [versions.files[number][0] for number in again] == ["a", "d/c"]
    assert not set(again) & set(new)
    times = {entry[0]: entry[4] for entry in versions.entries()}
    assert times[b""] == 100 and times[b"d"] == 300  # a name came into d, and none into the tree's own folder


def test_a_file_that_could_not_be_read_is_new_at_the_next_update() -> None:
    versions = Versions()
    tree = {"a": ManifestEntry(FILE, 1, 0o644, 1)}
    (number,) = versions.update(tree, 0)
    versions.forget({number})
    assert versions.update(tree, 0) != []


# --- messages


def test_names_that_are_no_text_and_large_contents_cross_the_socket() -> None:
    ours, theirs = socket.socketpair()
    one, other = Wire(ours), Wire(theirs)
    name = os.fsencode("na\udcffme")
    one.send(SetTree([(name, FILE, 1, 0o644, 2, b"", 3)], True, 1))
    assert other.receive() == SetTree([(name, FILE, 1, 0o644, 2, b"", 3)], True, 1)
    with pytest.raises(ValueError, match="over the limit"):
        one.send(FuseReply(1, 0, bytes(65 << 20)))
    one.shut()
    assert other.receive() is None
    one.close()
    other.close()


def test_who_takes_a_message_and_goes_has_taken_it() -> None:
    """A process that could not mount says so at last, and its owner closes the socket when it has that."""
    sent: list[bytes] = []

    class End:
        def sendall(self, data: bytes) -> None:
            if sent:
                raise BrokenPipeError
            sent.append(data)

    Wire(End()).send(Settled(1))  # type: ignore[arg-type]
    assert len(sent) == 1


@pytest.mark.parametrize("shared", [True, False])
def test_the_bytes_of_a_block_come_with_its_message_and_the_next_follows_them(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory that is mapped, and through the socket where there is none."""
    if not shared:

        def none(*_args: object) -> int:
            raise OSError(errno.ENOMEM, "none")

        monkeypatch.setattr(fuse_messages.os, "memfd_create", none)
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = socket.socketpair()
    one, other = Wire(ours), Wire(theirs)
    sent = [Content(1, number, bytes([number]) * size) for number, size in enumerate((0, 10, SMALL, BLOCK))]

    def send() -> None:
        for message in sent:
            one.send(msgspec.structs.replace(message, data=memoryview(message.data)))
        one.send(Settled(5))
        one.shut()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    for wanted in sent:
        came = other.receive()
        assert isinstance(came, Content) and (came.block, came.error) == (wanted.block, 0)
        assert bytes(came.data) == wanted.data
    assert other.receive() == Settled(5) and other.receive() is None
    thread.join()
    one.close()
    other.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_mount_comes_with_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows all of it to those who look as soon as it is mounted."""
    seen: list[list[str]] = []
    mounted = threading.Event()

    def fuse(operations: Any, _point: str, **_options: object) -> None:
        seen.append([name for name, _, _ in operations.readdir("/", 0)])
        mounted.set()

    monkeypatch.setitem(sys.modules, "mfusepy", SimpleNamespace(Operations=object, FUSE=fuse))
    monkeypatch.setattr(fuse_program.FuseProgram, "_unmount", lambda *_args: "")
    monkeypatch.setattr(fuse_program.os, "_exit", lambda _status: None)
    monkeypatch.setattr(fuse_program, "end_helper", lambda: None)
    ours, theirs = socket.socketpair()
    owner, program = Wire(ours), Wire(theirs)
    thread = threading.Thread(
        target=fuse_program.FuseProgram(program, BeginMount(b"/nowhere", "tree", "x")).run, daemon=True
    )
    thread.start()
    owner.send(SetTree([(b"a", FILE, 1, 0o644, 2, b"", 3)], False, 1))
    owner.send(SetTree([(b"b", FILE, 1, 0o644, 2, b"", 4)], True, 1))
    assert mounted.wait(60)
    assert seen == [[".", "..", "a", "b"]]
    assert isinstance(owner.receive(), Unmounted | Settled)
    thread.join(60)
    listener = next(thread for thread in threading.enumerate() if thread.name == "owner")
    owner.shut()
    listener.join(60)
    owner.close()
    program.close()


# --- reading ahead


def test_what_is_read_in_order_is_read_ahead_and_what_is_not_is_not() -> None:
    data = os.urandom(6 << 20)
    reads: list[tuple[int, int]] = []

    def fetch(offset: int, size: int) -> bytes:
        reads.append((offset, size))
        return data[offset : offset + size]

    now = [0.0]
    opened = ReadAhead(fetch, lambda: now[0])
    step = 128 << 10
    got = b"".join(opened.read(offset, step) for offset in range(0, len(data), step))
    assert got == data
    assert len(reads) < 8
    assert sum(size for _, size in reads) < 2 * len(data)
    reads.clear()
    assert opened.read(100, 10) == data[100:110]
    assert reads == [(100, 10)]
    now[0] = 1.0  # the file may have changed since
    opened.read(100, 10)
    assert len(reads) == 2


def test_a_listing_answers_for_the_attributes_of_what_is_in_it() -> None:
    asked: list[str] = []

    def ask(what: str, path: str, *_: int) -> object:
        asked.append(what)
        return [(b"x", {"st_mode": stat.S_IFREG})] if what == "names" else {"st_mode": stat.S_IFDIR}

    view = GatherMountView(ask)
    assert view.names("/d") == {"x": stat.S_IFREG}
    assert view.attributes("/d/x") == {"st_mode": stat.S_IFREG}
    view.attributes("/d")
    assert asked == ["names", "attributes"]


def test_the_name_in_the_package_is_the_function_and_not_the_module() -> None:
    module = importlib.import_module("monarch.remotemount.remotemount")
    from monarch.remotemount import remotemount

    assert remotemount is module.remotemount and callable(remotemount)
    assert list(inspect.signature(remotemount).parameters)[:3] == ["host_mesh", "sourcepath", "mntpoint"]
    sys.modules.pop("monarch.remotemount.remotemount")
    try:
        again = importlib.import_module("monarch.remotemount.remotemount")  # sets the name in the package
        assert monarch.remotemount.remotemount is again.remotemount is not remotemount
    finally:
        sys.modules["monarch.remotemount.remotemount"] = module
