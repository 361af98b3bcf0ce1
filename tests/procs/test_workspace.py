"""Workspaces synced to processes that stand in for hosts: each has a WORKSPACE_DIR of its own."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monarch._errors import WorkspaceError
from monarch._mesh.workspace.confined_folder import LOCK
from monarch._mesh.workspace.manifest import FILE, LARGE, ManifestEntry
from monarch._mesh.workspace.receiver import NewPath, Problem, Receiver, Root
from monarch._mesh.workspace.scan import scan
from monarch._mesh.workspace.sync import sync_hosts, sync_workspace
from monarch.actor import Actor, HostMesh, ProcMesh, SupervisionError, current_rank, endpoint, get_active_proc_meshes
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytestmark = pytest.mark.procs


class Workspace:
    def __init__(self, dirs: object) -> None:
        self.dirs = dirs


def sync(procs: ProcMesh, dirs: object, **options: Any) -> None:
    asyncio.run(sync_workspace(procs, Workspace(dirs), **options))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One of everything."""
    root = tmp_path / "project"
    for folder in ("pkg/deep", "empty", ".git", "pkg/__pycache__"):
        (root / folder).mkdir(parents=True)
    (root / "pkg" / "module.py").write_text("x = 1\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o750)
    (root / "none").write_bytes(b"")
    (root / "pkg" / "deep" / "large").write_bytes(os.urandom(3 * LARGE + 17))
    (root / "link").symlink_to("pkg/module.py")
    (root / "dangling").symlink_to("/nonexistent/place")
    (root / ".git" / "HEAD").write_text("never sent")
    (root / "pkg" / "__pycache__" / "module.pyc").write_text("never sent")
    (root / "na\udcffme").write_text("a name that is no text")
    return root


@pytest.fixture
def hosts(spawn_procs: Any, tmp_path: Path) -> ProcMesh:
    """Two processes with directories of their own: host0, host1."""

    def enter() -> None:
        os.environ["WORKSPACE_DIR"] = str(tmp_path / f"host{current_rank().rank}")

    return spawn_procs({"hosts": 2}, bootstrap=enter)  # type: ignore[no-any-return]


def same(local: Path, *hosts: Path) -> None:
    wanted = scan(str(local))
    for host in hosts:
        assert scan(str(host)) == wanted
        for path, entry in wanted.items():
            if entry.kind == FILE:
                assert (host / path).read_bytes() == (local / path).read_bytes()


def test_every_host_gets_everything_and_later_what_changed(hosts: ProcMesh, project: Path, tmp_path: Path) -> None:
    copies = [tmp_path / f"host{rank}" / "code" for rank in range(2)]
    sync(hosts, {project: "code"})
    same(project, *copies)
    assert stat.S_IMODE((copies[0] / "run").stat().st_mode) == 0o750
    assert not (copies[0] / ".git").exists()

    untouched = (copies[0] / "run").stat().st_ino
    with open(project / "pkg" / "deep" / "large", "r+b") as file:
        file.seek(LARGE)
        file.write(b"changed")
    (project / "pkg" / "module.py").write_text("x = 2\n")
    (project / "none").unlink()
    (project / "empty").rmdir()
    (project / "empty").write_text("a file now")
    (project / "link").unlink()
    (project / "link").mkdir()
    (project / "link" / "inner").write_text("a folder now")
    (project / "dangling").unlink()
    (project / "dangling").symlink_to("elsewhere")
    (copies[1] / "stray").mkdir()  # the hosts differ from here on
    (copies[1] / "stray" / "file").write_text("not in the workspace")
    sync(hosts, {project: "code"})
    same(project, *copies)
    assert (copies[0] / "run").stat().st_ino == untouched


def test_a_large_file_is_changed_by_what_it_lacks(hosts: ProcMesh, project: Path, tmp_path: Path) -> None:
    large = project / "pkg" / "deep" / "large"
    sync(hosts, {project: "code"})
    before = large.read_bytes()
    for content in (before[:LARGE] + b"inserted" + before[LARGE:], before[: LARGE + 1], before + before, b"small"):
        large.write_bytes(content)
        sync(hosts, {project: "code"})
        same(project, tmp_path / "host0" / "code", tmp_path / "host1" / "code")


def test_what_only_looks_changed_gets_its_time_and_keeps_its_content(
    hosts: ProcMesh, project: Path, tmp_path: Path
) -> None:
    sync(hosts, {project: "code"})
    kept = {path: (tmp_path / "host0/code" / path).stat().st_ino for path in ("run", "pkg/deep/large")}
    for path in kept:
        os.utime(project / path, ns=(1, 1))
    sync(hosts, {project: "code"})
    same(project, tmp_path / "host0" / "code", tmp_path / "host1" / "code")
    assert {path: (tmp_path / "host0/code" / path).stat().st_ino for path in kept} == kept


def test_processes_that_share_a_directory_are_one_host(spawn_procs: Any, project: Path, tmp_path: Path) -> None:
    procs = spawn_procs({"hosts": 3}, env={"WORKSPACE_DIR": str(tmp_path / "shared")})
    sync(procs, [project])
    same(project, tmp_path / "shared" / "project")


def test_a_directory_that_another_sync_writes_is_refused(hosts: ProcMesh, project: Path, tmp_path: Path) -> None:
    (tmp_path / "host1").mkdir()
    with open(tmp_path / "host1" / LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(WorkspaceError, match=r"another sync_workspace writes to .*host1") as caught:
            sync(hosts, [project])
        assert socket.gethostname() in str(caught.value)
    sync(hosts, [project])  # nothing is left of the one that failed
    same(project, tmp_path / "host0" / "project", tmp_path / "host1" / "project")


@pytest.mark.parametrize("value, says", [(None, "is not set"), ("relative/path", "not an absolute path")])
def test_a_host_without_the_variable_is_named(spawn_procs: Any, project: Path, value: str | None, says: str) -> None:
    procs = spawn_procs(env={"WORKSPACE_DIR": value})
    with pytest.raises(
        WorkspaceError, match=rf"on {socket.gethostname()} .*WORKSPACE_DIR .*{says}.*workers are started"
    ):
        sync(procs, [project])


def test_what_a_host_cannot_do_is_told_with_path_and_cause(hosts: ProcMesh, project: Path, tmp_path: Path) -> None:
    keep = tmp_path / "host1" / "code" / "none" / ".git"
    keep.mkdir(parents=True)  # a folder where a file has to be, with something that is never removed
    with pytest.raises(WorkspaceError, match=r"host1/code/none: Directory not empty \(.*move it away\)"):
        sync(hosts, {project: "code"})
    assert keep.is_dir()


def test_a_destination_that_is_a_link_is_refused(hosts: ProcMesh, project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "host0").mkdir()
    (tmp_path / "host0" / "code").symlink_to(outside)
    with pytest.raises(WorkspaceError, match="links are not followed"):
        sync(hosts, {project: "code"})
    assert os.listdir(outside) == []


@full
def test_many_files_come_in_many_batches(hosts: ProcMesh, tmp_path: Path) -> None:
    project = tmp_path / "many"
    project.mkdir()
    for number in range(1100):
        (project / f"file{number}").write_text(str(number))
    for number in range(12):
        (project / f"half{number}").write_bytes(bytes([number]) * (LARGE - number))
    sync(hosts, [project])
    same(project, tmp_path / "host0" / "many", tmp_path / "host1" / "many")


def test_a_host_refuses_what_would_lead_out_of_its_directory(hosts: ProcMesh, tmp_path: Path) -> None:
    receivers: Any = hosts.spawn("receivers", Receiver, "WORKSPACE_DIR", "run")

    def ask(name: str, *args: object) -> list[Any]:
        return getattr(receivers, name).call(*args).get(timeout=TIMEOUT).values()  # type: ignore[no-any-return]

    assert all(isinstance(answer, Problem) for answer in ask("write", [NewPath("early", 0o644, 0, b"")]))
    assert all(isinstance(answer, Root) for answer in ask("lock"))
    assert all(isinstance(answer, Problem) for answer in ask("begin", "../elsewhere"))
    assert all(isinstance(answer, bytes) for answer in ask("begin", "code"))
    assert ask("make", [], ["a"], [("link", str(tmp_path)), ("a/up", "../../..")]) == [None, None]
    for path in ("../x", str(tmp_path / "x"), "link/x", "a/up/x", "a/../x", ""):
        for name, *args in (
            ("write", [NewPath(path, 0o644, 0, b"evil")]),
            ("make", [path], [], []),
            ("make", [], [path], []),
            ("make", [], [], [(path, "target")]),
            ("new_file", path, None),
            ("touch", [(path, 0o777, 0)]),
            ("end", [path], []),
            ("blocks", path),
            ("digests", [path]),
        ):
            assert all(isinstance(answer, Problem) for answer in ask(name, *args)), (name, path)
            ask("begin", "code")
    assert not (tmp_path / "x").exists()
    receivers.stop().get(timeout=TIMEOUT)


def test_a_host_whose_process_dies_is_told_of(hosts: ProcMesh, project: Path, faults: Any) -> None:
    class Ends(Actor):
        @endpoint
        def end(self) -> None:
            os._exit(3)

    with pytest.raises(SupervisionError):
        hosts.slice(hosts=1).spawn("ends", Ends).end.call_one().get(timeout=TIMEOUT)
    with pytest.raises(SupervisionError):
        sync(hosts, [project])


# --- modules


class User(Actor):
    """Has imported modules from the workspace."""

    def __init__(self) -> None:
        sys.path.insert(0, os.path.join(os.environ["WORKSPACE_DIR"], "code"))
        import ws_top

        self.top: Any = ws_top

    @endpoint
    def value(self) -> Any:
        return self.top.VALUE


def write_modules(root: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_changed_modules_are_loaded_again_where_asked_for(hosts: ProcMesh, tmp_path: Path) -> None:
    code = tmp_path / "code"
    write_modules(code, {"ws_top.py": "from ws_pkg.low import LOW\nVALUE = LOW\n", "ws_pkg/low.py": "LOW = 1\n"})
    sync(hosts, [code])
    users = hosts.spawn("users", User)
    assert users.value.call().get(timeout=TIMEOUT).values() == [1, 1]
    # The same size, perhaps in the same second: what Python compiled before must not count.
    write_modules(code, {"ws_pkg/low.py": "LOW = 2\n"})
    sync(hosts, [code], running=[hosts])
    assert users.value.call().get(timeout=TIMEOUT).values() == [1, 1]
    write_modules(
        code,
        {
            "ws_top.py": "from ws_pkg.low import NEW\nfrom ws_new import MORE\nVALUE = NEW + MORE\n",
            "ws_pkg/low.py": "NEW = 3\n",
            "ws_new.py": "MORE = 10\n",
        },
    )
    sync(hosts, [code], auto_reload=True, running=[hosts])
    assert users.value.call().get(timeout=TIMEOUT).values() == [13, 13]


def test_a_module_that_cannot_be_loaded_is_named(hosts: ProcMesh, tmp_path: Path) -> None:
    code = tmp_path / "code"
    write_modules(code, {"ws_top.py": "VALUE = 1\n"})
    sync(hosts, [code])
    users = hosts.spawn("users", User)
    assert users.value.call().get(timeout=TIMEOUT).values() == [1, 1]
    write_modules(code, {"ws_top.py": "VALUE = (\n"})
    with pytest.raises(WorkspaceError, match=r"files were synced, but .*\n  ws_top .*SyntaxError"):
        sync(hosts, [code], auto_reload=True, running=[hosts])
    assert users.value.call().get(timeout=TIMEOUT).values() == [1, 1]


# --- conda


def test_conda_without_an_environment_is_refused(hosts: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    with pytest.raises(ValueError, match="activate one"):
        sync(hosts, [], conda=True)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The active one: a package of conda's with a text and a compiled file, one of pip's with a script."""
    root = tmp_path / "environment"
    for folder in ("conda-meta", "bin", "lib"):
        (root / folder).mkdir(parents=True)
    noted = [("lib/config", "text"), ("lib/compiled.so", "binary"), ("lib/removed", "text")]
    paths: list[dict[str, str]] = [
        {"_path": path, "file_mode": mode, "prefix_placeholder": "/x"} for path, mode in noted
    ]
    record = {"paths_data": {"paths": [*paths, {"_path": "lib/plain"}]}}
    (root / "conda-meta" / "package.json").write_text(json.dumps(record))
    (root / "conda-meta" / "older.json").write_text("{}")
    (root / "lib" / "config").write_text(f"prefix={root}\n")
    (root / "lib" / "compiled.so").write_bytes(b"\0" + os.fsencode(root) + b"/lib\0" + bytes(LARGE))
    (root / "lib" / "plain").write_text(f"only a word: {root}")
    (root / "bin" / "tool").write_text(f"#!{root}/bin/python\n")
    (root / "bin" / "python").symlink_to("python3")
    monkeypatch.setenv("CONDA_PREFIX", str(root))
    return root


def test_a_conda_environment_is_moved_to_where_the_hosts_have_theirs(
    spawn_procs: Any, environment: Path, tmp_path: Path
) -> None:
    there = tmp_path / "env"
    procs = spawn_procs(env={"CONDA_PREFIX": str(there)})
    sync(procs, [], conda=True)
    assert (there / "lib/config").read_text() == f"prefix={there}\n"
    assert (there / "bin/tool").read_text() == f"#!{there}/bin/python\n"
    assert (there / "lib/plain").read_text() == f"only a word: {environment}"
    assert (there / "lib/compiled.so").read_bytes().startswith(b"\0" + os.fsencode(there) + b"/lib\0\0")
    assert (there / "lib/compiled.so").stat().st_size == (environment / "lib/compiled.so").stat().st_size
    assert os.readlink(there / "bin/python") == "python3"
    inodes = [(there / path).stat().st_ino for path in ("lib/config", "lib/compiled.so")]
    sync(procs, [], conda=True)  # nothing is left to do
    assert [(there / path).stat().st_ino for path in ("lib/config", "lib/compiled.so")] == inodes


def test_a_conda_environment_whose_path_would_not_fit_is_refused(
    spawn_procs: Any, environment: Path, tmp_path: Path
) -> None:
    there = tmp_path / "environment-with-a-longer-name"
    with pytest.raises(WorkspaceError, match=r"lib/compiled.so has room for .* no longer"):
        sync(spawn_procs(env={"CONDA_PREFIX": str(there)}), [], conda=True)
    assert os.listdir(there) == [LOCK]


def test_a_conda_environment_that_is_there_already_stays(spawn_procs: Any, environment: Path) -> None:
    before = scan(str(environment))
    sync(spawn_procs(env={"CONDA_PREFIX": str(environment)}), [], conda=True)
    assert scan(str(environment)) == before


# --- the whole of it


def test_a_host_mesh_syncs_through_processes_of_its_own(
    host: HostMesh, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKSPACE_DIR", str(tmp_path / "there"))
    before = set(get_active_proc_meshes())
    asyncio.run(sync_hosts(host, Workspace([project])))
    same(project, tmp_path / "there" / "project")
    assert set(get_active_proc_meshes()) <= before


def test_special_files_are_left_out_with_a_warning(
    hosts: ProcMesh, project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(project / "pipe")
    with caplog.at_level("WARNING", "monarch"):
        sync(hosts, {project: "code"})
    assert "pipe" in caplog.text
    (project / "pipe").unlink()
    same(project, tmp_path / "host0" / "code")
    assert ManifestEntry(FILE) not in scan(str(tmp_path / "host0")).values()
