"""Syncing a workspace without processes: what is planned, which blocks are sent, and that nothing leaves its directory."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._errors import WorkspaceError
from monarch._mesh.workspace.conda import BINARY, TEXT, relocate
from monarch._mesh.workspace.confined_folder import LOCK, ConfinedFolder
from monarch._mesh.workspace.delta import Matcher, Piece, block_digest, signature
from monarch._mesh.workspace.manifest import (
    FILE,
    FOLDER,
    LARGE,
    LINK,
    WORKSPACE,
    Manifest,
    ManifestEntry,
    RefusedPath,
    compare,
    digest,
    parts,
)
from monarch._mesh.workspace.reload import imported_by, in_order
from monarch._mesh.workspace.scan import scan
from monarch._mesh.workspace.sender import Sender, SourceFolder, Window
from monarch._mesh.workspace.sync import destinations

# --- manifests and plans

NAMES = st.sampled_from(["a", "b", "c"])
FILES = st.builds(
    ManifestEntry,
    st.just(FILE),
    st.sampled_from([0, 5, LARGE + 1]),
    st.sampled_from([0o644, 0o755]),
    st.integers(1, 2),
    st.just(""),
)
LINKS = st.sampled_from([ManifestEntry(LINK, target="x"), ManifestEntry(LINK, target="/etc")])
TREES = st.recursive(
    st.dictionaries(NAMES, FILES | LINKS, max_size=3),
    lambda inner: st.dictionaries(NAMES, inner | FILES | LINKS, max_size=3),
    max_leaves=8,
)


def flat(tree: dict, prefix: str = "") -> Manifest:
    found: Manifest = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found[prefix + name] = ManifestEntry(FOLDER, mode=0o755)
            found.update(flat(value, f"{prefix}{name}/"))
        else:
            found[prefix + name] = value
    return found


class Disk:
    """A directory that is as strict as a file system about the order of what is done to it."""

    def __init__(self, held: Manifest) -> None:
        self.held = dict(held)

    def _parent_is_there(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        assert not parent or self.held[parent].kind == FOLDER

    def remove(self, path: str) -> None:
        assert not any(other.startswith(path + "/") for other in self.held), f"{path} is not empty"
        del self.held[path]

    def make_folder(self, path: str) -> None:
        self._parent_is_there(path)
        assert path not in self.held
        self.held[path] = ManifestEntry(FOLDER, mode=0o700)

    def put(self, path: str, entry: ManifestEntry) -> None:
        self._parent_is_there(path)
        assert path not in self.held or self.held[path].kind != FOLDER
        self.held[path] = entry


@given(TREES.map(flat), TREES.map(flat))
def test_a_plan_makes_one_directory_into_the_other(wanted: Manifest, found: Manifest) -> None:
    plan = compare(wanted, found)
    disk = Disk(found)
    for path in plan.clear:
        disk.remove(path)
    for path in plan.folders:
        disk.make_folder(path)
    for path, target in plan.links:
        disk.put(path, ManifestEntry(LINK, target=target))
    for path in [*plan.send, *plan.doubtful, *plan.patch]:
        disk.put(path, wanted[path])
    for path in plan.remove:
        disk.remove(path)
    for path, mode in plan.modes:
        disk.held[path] = disk.held[path]._replace(mode=mode)
    assert disk.held == wanted


@given(TREES.map(flat))
def test_nothing_is_planned_for_what_is_equal(held: Manifest) -> None:
    assert compare(held, dict(reversed(held.items()))).empty


@given(TREES.map(flat), TREES.map(flat))
def test_digests_are_equal_when_manifests_are(one: Manifest, other: Manifest) -> None:
    assert digest(one) == digest(dict(reversed(one.items())))
    assert (digest(one) == digest(other)) == (one == other)


def test_what_may_differ_is_asked_for_and_what_must_differ_is_sent() -> None:
    def file(size: int, mtime: int, mode: int = 0o644) -> ManifestEntry:
        return ManifestEntry(FILE, size, mode, mtime)

    wanted = {"same": file(5, 1), "time": file(5, 2), "size": file(6, 1), "new": file(5, 1), "mode": file(5, 1, 0o755)}
    wanted |= {"large": file(LARGE + 9, 2), "grown": file(LARGE + 9, 2)}
    found = {
        "same": file(5, 1),
        "time": file(5, 1),
        "size": file(5, 1),
        "mode": file(5, 1),
        "large": file(LARGE + 1, 1),
    }
    found |= {"grown": file(10, 1)}
    plan = compare(wanted, found)
    assert (plan.send, plan.doubtful, plan.patch) == (["grown", "new", "size"], ["time"], ["large"])
    assert plan.modes == [("mode", 0o755)]
    assert not (plan.clear or plan.folders or plan.links or plan.remove)


@pytest.mark.parametrize(
    "path", ["", "/", "/etc/passwd", "..", "a/..", "a/../b", "./a", "a//b", "a/", "a\0b", "a/" * 300 + "b"]
)
def test_paths_that_could_lead_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(RefusedPath, match="refused"):
        parts(path)


def test_what_is_never_sent() -> None:
    names = [".git", "__pycache__", ".venv", "x.pyc", ".monarch-sync.1234", ".gitignore", "x.py", "git", "venv"]
    assert [name for name in names if WORKSPACE.exclude(name)] == names[:5]


# --- blocks


def put_together(pieces: list[Piece], older: bytes) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else older[piece[0] : sum(piece)] for piece in pieces)


def matched(older: bytes, new: bytes, block: int, cuts: list[int]) -> list[Piece]:
    """`new` in parts of these sizes, the last one taking the rest."""
    matcher = Matcher(b"".join(signature(older[at : at + block]) for at in range(0, len(older), block)), block)
    pieces: list[Piece] = []
    for cut in cuts:
        pieces += matcher.feed(new[:cut])
        new = new[cut:]
    return [*pieces, *matcher.feed(new), *matcher.flush()]


def sent(pieces: list[Piece]) -> int:
    return sum(len(piece) for piece in pieces if isinstance(piece, bytes))


BYTES = st.lists(st.sampled_from([b"a", b"b", b"\0" * 7, bytes(range(40))])).map(b"".join)


@given(BYTES, BYTES, st.integers(0, 80), st.integers(0, 80), st.integers(1, 40), st.lists(st.integers(0, 50)))
def test_pieces_make_the_new_file(
    older: bytes, inserted: bytes, start: int, removed: int, block: int, cuts: list[int]
) -> None:
    new = older[:start] + inserted + older[start + removed :]
    assert put_together(matched(older, new, block, cuts), older) == new


@given(BYTES, st.integers(1, 40), st.lists(st.integers(0, 50)))
def test_nothing_is_sent_of_what_is_equal(older: bytes, block: int, cuts: list[int]) -> None:
    assert sent(matched(older, older, block, cuts)) == 0


RANDOM = random.Random(7).randbytes(64 * 100)  # blocks of 64 below


@pytest.mark.parametrize("start", [0, 64 * 5, 64 * 5 + 1, 64 * 70 + 63])
@pytest.mark.parametrize("inserted", [b"", b"x", b"y" * 63, b"z" * 65, b"w" * 64 * 40])
@pytest.mark.parametrize("removed", [0, 1, 63, 64, 65, 64 * 12 + 5])
def test_after_a_change_of_any_length_what_is_old_is_found_again(start: int, inserted: bytes, removed: int) -> None:
    pieces = matched(RANDOM, RANDOM[:start] + inserted + RANDOM[start + removed :], 64, [1000, 1000])
    assert sent(pieces) <= len(inserted) + 2 * 64  # what is left of the blocks around the change


def test_a_long_change_in_place_is_sent_and_nothing_else() -> None:
    new = RANDOM[:640] + b"?" * 64 * 50 + RANDOM[640 + 64 * 50 :]
    pieces = matched(RANDOM, new, 64, [])
    assert pieces[:2] == [(0, 640), b"?" * 64 * 50]
    assert sent(pieces) == 64 * 50


def test_signatures_of_another_length_are_none() -> None:
    with pytest.raises(ValueError, match="33 bytes"):
        Matcher(b"x" * 33)


# --- a tree that is never left


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("as it was")
    return folder


@pytest.fixture
def tree(tmp_path: Path):
    (tmp_path / "base").mkdir()
    tree = ConfinedFolder(str(tmp_path / "base"), "project")
    yield tree
    tree.close()


def every_write(tree: ConfinedFolder, path: str):
    """Everything that a host can be asked to do with a path."""
    return [
        lambda: tree.write(path, b"evil", 0o644, 0),
        lambda: tree.make_folder(path),
        lambda: tree.make_link(path, "/etc/passwd"),
        lambda: tree.new_file(path),
        lambda: tree.set_times(path, 0o777, 0),
        lambda: tree.set_mode(path, 0o777),
        lambda: tree.remove(path),
        lambda: tree.open_file(path),
        lambda: tree.forget_compiled(path),
    ]


@pytest.mark.parametrize(
    "path", ["../outside/secret", "/{outside}/secret", "a/../../outside/secret", "link/secret", "link/new"]
)
def test_nothing_outside_is_touched(tree: ConfinedFolder, outside: Path, path: str) -> None:
    tree.make_link("link", str(outside))
    before = scan(str(outside))
    for attempt in every_write(tree, path.format(outside=str(outside))):
        with pytest.raises(RefusedPath):
            attempt()
    assert scan(str(outside)) == before
    assert (outside / "secret").read_text() == "as it was"


def test_a_link_itself_is_replaced_and_never_written_through(tree: ConfinedFolder, outside: Path) -> None:
    tree.make_link("file", str(outside / "secret"))
    for refused in (
        lambda: tree.open_file("file"),
        lambda: tree.set_times("file", 0o777, 0),
        lambda: tree.make_folder("file"),
    ):
        with pytest.raises(RefusedPath):
            refused()
    with pytest.raises(OSError):
        tree.set_mode("file", 0o777)
    tree.write("file", b"ours", 0o644, 7)
    assert (outside / "secret").read_text() == "as it was"
    assert Path(tree.root, "file").read_text() == "ours"
    assert not Path(tree.root, "file").is_symlink()


def test_a_folder_that_becomes_a_link_while_it_is_open_leads_nowhere(tree: ConfinedFolder, outside: Path) -> None:
    tree.make_folder("a")
    tree.write("a/one", b"1", 0o644, 0)
    Path(tree.root, "a").rename(Path(tree.root, "b"))
    Path(tree.root, "a").symlink_to(outside)
    tree.write("a/two", b"2", 0o644, 0)  # goes to the folder that was opened, wherever that is now
    assert sorted(os.listdir(outside)) == ["secret"]
    assert Path(tree.root, "b/two").exists()


def test_a_destination_that_is_a_link_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "project").symlink_to(outside)
    for path in ("project", "project/sub", "../outside"):
        with pytest.raises(RefusedPath):
            ConfinedFolder(str(tmp_path / "base"), path)
    assert sorted(os.listdir(outside)) == ["secret"]


def test_special_files_are_not_opened(tree: ConfinedFolder) -> None:
    os.mkfifo(os.path.join(tree.root, "pipe"))
    with pytest.raises(RefusedPath, match="not a regular file"):
        tree.open_file("pipe")
    tree.remove("pipe")
    assert os.listdir(tree.root) == []


def test_removing_a_folder_takes_compiled_python_with_it_and_nothing_else(tree: ConfinedFolder, outside: Path) -> None:
    tree.make_folder("a")
    tree.make_folder("a/__pycache__")
    tree.write("a/__pycache__/x.cpython-311.pyc", b"", 0o644, 0)
    tree.make_link("a/__pycache__/link", str(outside))
    tree.remove("a")
    tree.remove("a")
    assert os.listdir(tree.root) == []
    tree.make_folder("b")
    tree.make_folder("b/.git")
    with pytest.raises(OSError, match="not empty"):
        tree.remove("b")
    assert sorted(os.listdir(outside)) == ["secret"]


def test_a_file_appears_whole_or_not_at_all(tree: ConfinedFolder) -> None:
    tree.write("x", b"before", 0o640, 5)
    with tree.new_file("x", (6, 5)) as file:
        file.append([b"abc", (0, 6)])
        assert Path(tree.root, "x").read_bytes() == b"before"
    assert os.listdir(tree.root) == ["x"]
    with tree.new_file("x", (6, 5)) as file:
        file.append([b"abc", (1, 5)])
        file.finish(0o4755, 9)
    status = os.stat(os.path.join(tree.root, "x"))
    assert Path(tree.root, "x").read_bytes() == b"abcefore"
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o755, 9)  # nothing gets set-user-id


def test_ranges_are_those_of_the_file_that_was_hashed(tree: ConfinedFolder) -> None:
    tree.write("x", b"before", 0o644, 5)
    with pytest.raises(OSError, match="changed on the host"):
        tree.new_file("x", (6, 4))
    for piece in ((0, 7), (-1, 2), (2, -1)):
        with tree.new_file("x", (6, 5)) as file, pytest.raises(RefusedPath):
            file.append([piece])
    with tree.new_file("x") as file, pytest.raises(RefusedPath):
        file.append([(0, 1)])
    with tree.new_file("x", (6, 5)) as file:
        os.utime(os.path.join(tree.root, "x"))
        with pytest.raises(OSError, match="changed on the host"):
            file.finish(0o644, 1)
    assert os.listdir(tree.root) == ["x"]


def test_folders_without_write_permission_are_written_to_and_keep_their_mode(tmp_path: Path) -> None:
    tree = ConfinedFolder(str(tmp_path), "project")
    tree.make_folder("a")
    tree.set_mode("a", 0o555)
    tree.write("a/x", b"", 0o644, 0)
    tree.restore_modes()
    assert stat.S_IMODE(os.stat(os.path.join(tree.root, "a")).st_mode) == 0o555
    tree.write("a/y", b"", 0o644, 0)
    tree.close()  # in the middle of it
    assert stat.S_IMODE(os.stat(os.path.join(tree.root, "a")).st_mode) == 0o555
    os.chmod(os.path.join(tree.root, "a"), 0o755)


def test_leftovers_of_a_killed_run_are_removed_and_not_seen(tree: ConfinedFolder) -> None:
    tree.make_folder("a")
    for path in (".monarch-sync.1", "a/.monarch-sync.2", LOCK):
        Path(tree.root, path).write_text("")
    assert list(scan(tree.root)) == ["a"]
    tree.clear_leftovers()
    assert sorted(os.listdir(tree.root)) == [LOCK, "a"]
    assert os.listdir(os.path.join(tree.root, "a")) == []


def test_a_tree_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    tree = ConfinedFolder(str(tmp_path), "a/b")
    tree.make_folder("c")
    tree.write("c/x", b"1", 0o644, 0)
    for attempt in every_write(tree, "c/x/y"):
        with pytest.raises(RefusedPath):
            attempt()
    with pytest.raises(IsADirectoryError):
        tree.write("c", b"", 0o644, 0)
    tree.close()
    with pytest.raises(RefusedPath):
        ConfinedFolder(str(tmp_path), "a/b/c/x")
    assert set(os.listdir("/proc/self/fd")) == before


# --- what a sender sends


class Host:
    """Answers as a host does, and keeps what it was asked."""

    def __init__(self, digests: list[list[bytes]]) -> None:
        self.digests = digests
        self.asked: list[tuple] = []

    def ask(self, name: str, *args: object):
        self.asked.append((name, *args))
        answers = self.digests if name == "digests" else [None] * len(self.digests)

        class Answers:
            def __await__(self):
                return answers
                yield

        return Answers()


def drive(coroutine) -> None:
    import asyncio

    asyncio.run(coroutine)


def test_a_file_that_only_looks_newer_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"equal")
    manifest = scan(str(tmp_path))
    found = {"x": manifest["x"]._replace(mtime_ns=1)}
    host = Host([[block_digest(b"equal")]])
    sender = Sender(SourceFolder(str(tmp_path), manifest), found, host.ask, 1 << 20)
    drive(sender.run(compare(manifest, found)))
    assert [name for name, *_ in host.asked] == ["make", "digests", "touch", "end"]
    assert sender.written == []


def test_a_file_that_differs_on_one_host_is_sent_to_all_that_looked_equal(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"equal")
    manifest = scan(str(tmp_path))
    found = {"x": manifest["x"]._replace(mtime_ns=1)}
    host = Host([[block_digest(b"equal")], [block_digest(b"other")]])
    sender = Sender(SourceFolder(str(tmp_path), manifest), found, host.ask, 1 << 20)
    drive(sender.run(compare(manifest, found)))
    assert sender.written == ["x"]


def test_what_is_on_its_way_is_bounded() -> None:
    """In bytes, and in calls where these carry none. Answers are waited for in order."""
    under_way: list[int] = []
    most = [0, 0]

    class Call:
        def __init__(self, size: int) -> None:
            self.size = size
            under_way.append(size)
            most[:] = max(most[0], sum(under_way)), max(most[1], len(under_way))

        def __await__(self):
            assert under_way.pop(0) == self.size
            return []
            yield

    async def send() -> None:
        window = Window(lambda _name, size: Call(size), 100)
        for size in [30, 30, 30, 30, 100, 1, 250, *[0] * 1000]:
            await window.send(size, "append", size)
        await window.drain()

    drive(send())
    assert under_way == []
    assert most == [250, 256]  # what is larger than the bound goes alone


@pytest.mark.parametrize("now", [b"", b"longer than it was"])
@pytest.mark.parametrize("size", [9, LARGE + 9])
def test_a_local_file_that_changes_is_an_error_and_is_not_finished(tmp_path: Path, now: bytes, size: int) -> None:
    (tmp_path / "x").write_bytes(b"x" * size)
    manifest = scan(str(tmp_path))
    (tmp_path / "x").write_bytes(now)
    host = Host([[]])
    with pytest.raises(WorkspaceError, match=r"x changed while it was sent .*again"):
        drive(Sender(SourceFolder(str(tmp_path), manifest), {}, host.ask, 1 << 20).run(compare(manifest, {})))
    assert not {"write", "finish", "end"} & {name for name, *_ in host.asked}


# --- where it goes


class Workspace:
    def __init__(self, dirs: object) -> None:
        self.dirs = dirs


def test_directories_keep_their_names_or_get_new_ones(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert destinations(Workspace([a, Path(b)])) == {"a": a, "b": b}
    assert destinations(Workspace({a: "x/y", Path(b): "x/z/"})) == {"x/y": a, "x/z": b}
    assert destinations(Workspace({a: "."})) == {"": a}
    assert destinations(Workspace({})) == destinations(Workspace(None)) == {}


@pytest.mark.parametrize("first, second", [("x", "x"), ("x", "x/y"), ("x/y", "x"), (".", "x"), ("x", "./x")])
def test_destinations_that_overlap_are_refused(tmp_path: Path, first: str, second: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="one contains the other"):
        destinations(Workspace({str(tmp_path / "a"): first, str(tmp_path / "b"): second}))


@pytest.mark.parametrize("dst", ["/etc", "..", "../x", "a/../../x"])
def test_destinations_elsewhere_are_refused(tmp_path: Path, dst: str) -> None:
    with pytest.raises(ValueError, match="WORKSPACE_DIR"):
        destinations(Workspace({str(tmp_path): dst}))


def test_directories_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="does not exist on this machine"):
        destinations(Workspace([str(tmp_path / "missing")]))
    with pytest.raises(NotADirectoryError, match="not a directory"):
        destinations(Workspace([str(tmp_path / "file")]))


def test_directories_beyond_any_workspace_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).write_text("")
    monkeypatch.setattr("monarch._mesh.workspace.scan.LIMIT", 2)
    with pytest.raises(OSError, match="more than 2 files and folders"):
        scan(str(tmp_path))


# --- conda


def test_a_path_in_text_is_exchanged_and_a_longer_one_is_not() -> None:
    text = b"#!/old/env/bin/python\nx=/old/env\ny=/old/env2 /old/env-b /old/env.b"
    assert relocate(text, b"/old/env", b"/a/new/place", TEXT) == (
        b"#!/a/new/place/bin/python\nx=/a/new/place\ny=/old/env2 /old/env-b /old/env.b"
    )


def test_a_path_in_a_compiled_file_is_exchanged_in_its_place() -> None:
    data = b"\x7fELF\0/old/env/lib:/old/env/lib64\0next\0/old/env2\0"
    assert (
        relocate(data, b"/old/env", b"/new", BINARY)
        == b"\x7fELF\0/new/lib:/new/lib64\0\0\0\0\0\0\0\0\0next\0/old/env2\0"
    )
    with pytest.raises(ValueError, match="room for 8 bytes"):
        relocate(data, b"/old/env", b"/long/path", BINARY)


@given(
    st.lists(st.sampled_from([b"/o/e", b"/o/e/", b"\0", b"x", b" ", b"/n", b":"])), st.sampled_from([b"/n", b"/n/e"])
)
def test_what_lies_around_a_path_keeps_its_place(parts: list[bytes], new: bytes) -> None:
    data = b"".join(parts)
    there = relocate(data, b"/o/e", new, BINARY)
    assert len(there) == len(data)
    for before, after in zip(data.split(b"\0"), _strings_at(there, data), strict=True):
        assert after.rstrip(b"\0") == relocate(before, b"/o/e", new, TEXT)


def _strings_at(there: bytes, data: bytes) -> list[bytes]:
    """The bytes of `there` where `data` has a string."""
    found, at = [], 0
    for string in data.split(b"\0"):
        found.append(there[at : at + len(string)])
        at += len(string) + 1
    return found


# --- modules


def test_imports_are_read_from_source() -> None:
    source = "import a.b, c\nfrom d import e\nfrom . import f\nfrom .g import h\nfrom .. import i\n"
    source += "def late():\n    import j\n"
    inside = {"a.b", "c", "d", "d.e", "j"}
    assert imported_by("p.q.m", False, source) == inside | {"p.q", "p.q.f", "p.q.g", "p.q.g.h", "p", "p.i"}
    assert imported_by("p.q", True, source) == inside | {"p.q", "p.q.f", "p.q.g", "p.q.g.h", "p", "p.i"}
    assert imported_by("m", False, "def broken(:") == set()


@given(st.dictionaries(st.integers(0, 6).map(str), st.sets(st.integers(0, 6).map(str))))
def test_modules_come_after_those_they_import(imports: dict[str, set[str]]) -> None:
    acyclic = {name: {other for other in others if other < name} for name, others in imports.items()}
    order = in_order(acyclic)
    assert sorted(order) == sorted(acyclic)
    for name, others in acyclic.items():
        assert all(order.index(other) < order.index(name) for other in others if other in acyclic)
    assert sorted(in_order(imports)) == sorted(imports)  # circles end too
