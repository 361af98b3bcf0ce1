"""Tests of what share of a host's processors a process gets, and who may say otherwise."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from monarch._mesh.start import threads
from monarch._mesh.start.launch import command_for, threads_of
from monarch._runtime.loop import FirstStep, start_thread
from monarch._wire.message import LaunchSpec


@pytest.mark.parametrize(
    ("processors", "processes", "expected"), [(64, 8, 8), (64, 9, 7), (2, 4, 1), (2, 1, 2), (1, 1, 1), (4, 0, 4)]
)
def test_processors_are_divided_and_nobody_gets_none(processors: int, processes: int, expected: int) -> None:
    assert threads.share(processors, processes) == expected


@pytest.mark.parametrize("name", threads.VARIABLES)
def test_whoever_sets_one_of_them_has_decided(name: str) -> None:
    assert threads.is_said({name: "3"})
    assert not threads.is_said({"OMP_PROC_BIND": "true"})
    assert threads.with_share({name: "3"}, 2) == {name: "3"}
    assert threads.with_share({}, 2) == {"OMP_NUM_THREADS": "2"}
    assert threads.with_share({}, 0) == {}


def test_a_share_is_not_inherited_and_what_was_set_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads.inherited({"OMP_NUM_THREADS": "3", "A": "b"}) == {"OMP_NUM_THREADS": "3", "A": "b"}
    monkeypatch.setattr(threads, "_given", "3")
    assert threads.inherited({"OMP_NUM_THREADS": "3", "A": "b"}) == {"A": "b"}
    assert threads.inherited({"OMP_NUM_THREADS": "5"}) == {"OMP_NUM_THREADS": "5"}


def spec(**given: object) -> LaunchSpec:
    facts: dict[str, object] = {
        "name": "m", "env": dict(os.environ), "cwd": "/", "path": [], "executable": "", "config": b"",
        "forward_logs": False, "prefix_with_rank": True, "preload": [], "gated": False,
    }  # fmt: skip
    return LaunchSpec(**{**facts, **given})  # type: ignore[arg-type]


def test_a_process_that_is_bound_shares_with_those_that_are_bound_alike() -> None:
    binds = [{"cpus": "0-3"}, {"cpus": "0-3"}, {"cpus": "4,6"}, {}]
    mesh = spec(threads=16, binds=binds)
    assert [threads_of(mesh, bind) for bind in binds] == [2, 2, 2, 16]
    assert threads_of(mesh, {"cpus": "nonsense"}) == 16
    assert threads_of(spec(binds=binds), binds[0]) == 0


def test_a_process_that_is_executed_is_told_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    command = command_for(spec(executable="python3", threads=2), 0)
    assert command is not None and command.env["OMP_NUM_THREADS"] == "2"
    command = command_for(spec(executable="python3", threads=2, env={**os.environ, "MKL_NUM_THREADS": "7"}), 0)
    assert command is not None and "OMP_NUM_THREADS" not in command.env


def group(root: Path, path: str, **files: str) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def belongs(root: Path, text: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(text)


def test_the_tightest_control_group_around_a_process_counts(tmp_path: Path) -> None:
    belongs(tmp_path, "0::/job/step\n")
    group(tmp_path, "job", cpu__max="250000 100000\n")
    assert threads.quota(tmp_path) == 2.5
    group(tmp_path, "job/step", cpu__max="max 100000\n")
    assert threads.quota(tmp_path) == 2.5
    group(tmp_path, "job/step", cpu__max="50000 100000\n")
    assert threads.quota(tmp_path) == 0.5
    assert threads.processors(tmp_path) == 1


def test_the_older_kind_of_control_group(tmp_path: Path) -> None:
    belongs(tmp_path, "3:cpu,cpuacct:/job\n1:name=systemd:/\n")
    group(tmp_path, "cpu/job", cpu__cfs_quota_us="400000\n", cpu__cfs_period_us="100000\n")
    assert threads.quota(tmp_path) == 4.0
    group(tmp_path, "cpu/job", cpu__cfs_quota_us="-1\n")
    assert threads.quota(tmp_path) is None


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert threads.quota(tmp_path) is None
    assert threads.processors(tmp_path) == len(os.sched_getaffinity(0))


def test_what_a_fork_server_has_found_out_its_processes_use(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    looked: list[bool] = []

    def setters() -> list[Callable[[int], None]]:
        looked.append(True)
        return [told.append]

    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))
    monkeypatch.setattr(threads, "_openblas", None)
    monkeypatch.setattr(threads, "_setters_of_openblas", setters)
    threads._tell_openblas(2)  # executed, not forked: it looks itself
    threads.look()
    threads._tell_openblas(3)
    assert (told, len(looked)) == ([2, 3], 2)


def test_each_thread_asks_torch_first_for_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    torch: Any = ModuleType("torch")
    torch.set_num_threads = lambda count: asked.append(f"{count} in {threading.current_thread().name}")
    torch.get_num_threads = lambda: asked.append(threading.current_thread().name)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    monkeypatch.setattr(threads, "_given", "")
    monkeypatch.setattr(FirstStep, "take", None)
    for name in threads.VARIABLES:
        monkeypatch.setenv(name, "")  # so that what it becomes is taken back
        monkeypatch.delenv(name)
    threads.take(3)
    start_thread(asked.append, "worker", "its work").join(10)
    assert asked == ["3 in MainThread", "worker", "its work"]


def test_only_a_share_that_other_meshes_made_smaller_is_told_and_only_to_programs_with_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[tuple[object, ...]] = []
    monkeypatch.setattr(threads, "log", lambda logger, level, text, *args: said.append((level, text % args)))
    monkeypatch.setattr(threads, "processors", lambda: 8)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert not any([threads.say(count, processes) for count, processes in ((8, 1), (4, 2), (2, 3), (1, 16))])
    assert said == []
    assert threads.say(2, 2)
    assert said == [
        (
            logging.WARNING,
            "torch computes with 2 thread(s) in each new process, its share of the processors; OMP_NUM_THREADS sets another "
            "number",
        )
    ]
    monkeypatch.delitem(sys.modules, "torch")
    assert not threads.say(2, 2)
