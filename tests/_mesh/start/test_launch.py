from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._linux.processors import parse_list
from monarch._mesh.start import launch
from monarch._mesh.start.launch import CannotLaunch, command_for, find_program
from monarch._wire.message import Command, LaunchSpec


def spec(**changes: Any) -> LaunchSpec:
    made = LaunchSpec("procs", dict(os.environ), "/", [], "", b"", True, False, [], False)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o700)
    return str(path)


# --- what is executed


def test_a_plain_rank_is_forked() -> None:
    assert command_for(spec(), 0) is None
    assert command_for(spec(commands=[None], binds=[{"cpus": "0"}]), 0) is None


def test_another_interpreter_is_executed(program: str) -> None:
    command = command_for(spec(executable=program), 0)
    assert command is not None
    assert (command.program, command.args) == (program, ["-P", "-m", "monarch._mesh.bootstrap"])


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONHASHSEED", "MALLOC_ARENA_MAX"])
def test_what_is_read_at_the_start_of_a_process_needs_one(name: str) -> None:
    command = command_for(spec(env={**os.environ, name: "17"}), 0)
    assert command is not None
    assert (command.program, command.env[name]) == (sys.executable, "17")
    assert command_for(spec(env={**os.environ, "ANYTHING_ELSE": "17"}), 0) is None


def test_each_rank_has_its_own_command(program: str) -> None:
    mine = Command(program, "shown", ["-c", "pass"], {"PATH": "/bin"})
    both = spec(commands=[None, mine])
    assert command_for(both, 0) is None
    assert command_for(both, 1) == mine


def test_membind_goes_through_numactl(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spec(executable=program, binds=[{"membind": "1", "cpunodebind": "0", "cpus": "3"}])
    monkeypatch.setattr(launch.shutil, "which", lambda name, path=None: "/bin/numactl" if name == "numactl" else name)
    command = command_for(asked, 0)
    assert command is not None
    expected = ["--membind=1", "--cpunodebind=0", program, "-P", "-m", "monarch._mesh.bootstrap"]
    assert (command.program, command.args) == ("/bin/numactl", expected)
    monkeypatch.setattr(launch.shutil, "which", lambda name, path=None: None if name == "numactl" else name)
    with pytest.raises(CannotLaunch, match="needs the program numactl"):
        command_for(asked, 0)


def test_programs_are_looked_for_on_the_path_of_the_new_process(program: str, tmp_path: Path) -> None:
    assert find_program("program", {"PATH": str(tmp_path)}) == program
    for name, why in ((str(tmp_path / "missing"), "does not exist"), (str(tmp_path), "is not executable")):
        with pytest.raises(CannotLaunch, match=rf"'{name}': it {why} \(from with_python_executable"):
            find_program(name, {"PATH": "/bin"})


# --- where it runs


@given(st.sets(st.integers(0, 300), min_size=1))
def test_lists_of_processors(numbers: set[int]) -> None:
    assert parse_list(",".join(map(str, sorted(numbers)))) == numbers
    low, high = min(numbers), max(numbers)
    assert parse_list(f" {low}-{high}, {low}") == set(range(low, high + 1))


@pytest.mark.parametrize("text", ["", "a", "1,", "1-", "-1", "1-2-3", "0x1", "3-1"])
def test_what_is_no_list_of_processors(text: str) -> None:
    with pytest.raises(ValueError):
        parse_list(text)


def test_binding_takes_processors_and_nodes_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node, cpus in ((0, "0-3\n"), (1, "4,5\n")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus)
    monkeypatch.setattr(launch, "_NODES", str(tmp_path))
    bound: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(launch.os, "sched_setaffinity", lambda pid, cpus: bound.append((pid, cpus)))
    launch.apply_affinity({"cpus": "9", "physcpubind": "7-8", "cpunodebind": "1"})
    launch.apply_affinity({"membind": "0"})
    assert bound == [(0, {4, 5, 7, 8, 9})]


@pytest.mark.parametrize("bind", [{"cpus": "none"}, {"cpunodebind": "99"}, {"cpus": "1000000"}])
def test_a_binding_that_cannot_be_is_said_and_survived(
    bind: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "_NODES", str(tmp_path))
    launch.apply_affinity(bind)
    assert f"monarch: proc_bind {bind} could not be applied" in capsys.readouterr().err


# --- whether there is room

PLENTY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("processes", "files", "group", "memory", "why"),
    [
        (50, PLENTY, (None, 0), 0, r"100 processes asked for, and the limit is 50 \(ulimit -u"),
        (109, PLENTY, (None, 0), 0, "ulimit -u"),
        (PLENTY, PLENTY, (300, 1), 0, r"allows 300 tasks, of which 1 exist \(pids\.max\)"),
        (PLENTY, PLENTY, (None, 0), 10 << 20, "at least 1000 MiB .* and 10 MiB are available"),
        (PLENTY, 300, (None, 0), 0, r"needs 594 descriptors for them, and the limit is 300 \(ulimit -n"),
        (110, 594, (300, 0), 1000 << 20, None),
        (PLENTY, PLENTY, (None, 0), 0, None),
    ],
)
def test_too_many_processes_are_refused_by_the_limit_that_forbids_them(
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    files: int,
    group: tuple[int | None, int],
    memory: int,
    why: str | None,
) -> None:
    limits = {resource.RLIMIT_NPROC: processes, resource.RLIMIT_NOFILE: files}
    monkeypatch.setattr(launch.resource, "getrlimit", lambda which: (limits[which], PLENTY))
    monkeypatch.setattr(launch, "_control_group", lambda: group)
    monkeypatch.setattr(launch.procfs, "memory", lambda: (memory, memory))
    if why is None:
        launch.check_room(100, running=10)
    else:
        with pytest.raises(CannotLaunch, match=why):
            launch.check_room(100, running=10)
