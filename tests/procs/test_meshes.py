"""Processes of meshes: where they come from, what they inherit, how they end. See tests/_mesh/meshes/test_proc_mesh.py."""

from __future__ import annotations

import asyncio
import atexit
import gc
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from monarch.actor import (
    Actor,
    HostMesh,
    ProcMesh,
    context,
    default_bootstrap_cmd,
    endpoint,
    this_host,
    this_proc,
)
from monarch.config import configured
from tests.support.patience import TIMEOUT
from tests.support.process_actors import Pid
from tests.support.tiers import full

pytestmark = pytest.mark.procs


class Probe(Pid):
    """Tells about the process it lives in."""

    def __init__(self) -> None:
        self.at_start = dict(os.environ)

    @endpoint
    def address(self) -> str:
        return str(context().actor_instance.actor_id)

    @endpoint
    def env(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @endpoint
    def env_at_start(self, *names: str) -> list[str | None]:
        return [self.at_start.get(name) for name in names]

    @endpoint
    def facts(self) -> dict[str, Any]:
        return {
            "cwd": os.getcwd(),
            "path": list(sys.path),
            "stdin": os.readlink("/proc/self/fd/0"),
            "input": sys.stdin.read(),
            "group": os.getpgid(0),
            "method": multiprocessing.get_start_method(),
            "executable": sys.executable,
        }

    @endpoint
    def cpus(self) -> set[int]:
        return os.sched_getaffinity(0)

    @endpoint
    def import_and_read(self, module: str) -> Any:
        return __import__(module).VALUE

    @endpoint
    def at_exit(self, path: str) -> None:
        atexit.register(Path(path).write_text, "left")

    @endpoint
    def echo(self, value: Any) -> Any:
        return value


class Nester(Actor):
    """Uses the mesh API from inside a process."""

    def __init__(self) -> None:
        self.kids: Any = None

    @endpoint
    def grow(self, count: int) -> list[int]:
        self.kids = this_host().spawn_procs(per_host={"kids": count}).spawn("probe", Probe)
        return self.kids.pid.call().get(timeout=TIMEOUT).values()

    @endpoint
    def spawn_on(self, procs: ProcMesh) -> list[int]:
        return procs.spawn("probe", Probe).pid.call().get(timeout=TIMEOUT).values()

    @endpoint
    def here(self) -> tuple[int, int]:
        return os.getpid(), this_proc().spawn("probe", Probe).pid.call_one().get(timeout=TIMEOUT)


def pids(mesh: ProcMesh) -> list[int]:
    return mesh.spawn("probe", Probe).pid.call().get(timeout=TIMEOUT).values()


# --- this_host, this_proc


def test_this_host_has_no_dimension_and_equals_itself(host: HostMesh) -> None:
    assert dict(host.sizes) == {} and len(host) == 1
    assert this_host() == host


def test_this_host_is_initialized(host: HostMesh) -> None:
    assert host.initialized.get(timeout=TIMEOUT) is True


def test_this_proc_has_no_dimension_and_is_one_object() -> None:
    assert this_proc() is this_proc()
    assert dict(this_proc().sizes) == {} and len(this_proc()) == 1


def test_an_actor_of_this_proc_runs_in_the_clients_process() -> None:
    assert pids(this_proc()) == [os.getpid()]


def test_this_proc_inside_an_actor_is_its_own_process(proc: ProcMesh) -> None:
    own, other = proc.spawn("nester", Nester).here.call_one().get(timeout=TIMEOUT)
    assert own == other != os.getpid()


# --- spawn_procs: the shape


def test_without_per_host_the_mesh_has_no_dimension(proc: ProcMesh) -> None:
    assert dict(proc.sizes) == {} and len(proc) == 1
    assert pids(proc) != [os.getpid()]


def test_every_rank_is_a_process_of_its_own(procs4: ProcMesh) -> None:
    assert len({*pids(procs4), os.getpid()}) == 5


def test_the_extent_is_per_host_in_its_own_order(procs4: ProcMesh) -> None:
    assert procs4.extent.labels == ["a", "b"] and procs4.extent.sizes == [2, 2]
    assert procs4.size() == 4 and procs4.size("b") == 2


def test_spawn_procs_takes_positional_arguments(spawn_procs: Any) -> None:
    def prepare() -> None:
        os.environ["PREPARED"] = "yes"

    mesh = spawn_procs({"gpus": 1}, prepare, "positional")
    probe = mesh.spawn("probe", Probe)
    assert probe.env.call_one("PREPARED").get(timeout=TIMEOUT) == ["yes"]
    assert "positional-0" in probe.address.call_one().get(timeout=TIMEOUT)


def test_initialized_is_true(procs2: ProcMesh) -> None:
    assert procs2.initialized.get(timeout=TIMEOUT) is True


# --- spawn_procs: binding to processors


def test_cpus_binds_each_process_to_its_processors(spawn_procs: Any) -> None:
    mine = sorted(os.sched_getaffinity(0))
    first, last = mine[0], mine[-1]
    mesh = spawn_procs({"gpus": 2}, proc_bind=[{"cpus": str(first)}, {"cpus": str(last)}])
    assert mesh.spawn("probe", Probe).cpus.call().get(timeout=TIMEOUT).values() == [{first}, {last}]


# --- spawn_procs: the command


def test_a_bootstrap_command_sets_and_removes_variables(spawn_procs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNWANTED", "here")
    command = default_bootstrap_cmd().with_env({"WANTED": "yes", "UNWANTED": None})
    probe = spawn_procs({"gpus": 2}, bootstrap_command=command).spawn("probe", Probe)
    assert probe.env.call("WANTED", "UNWANTED").get(timeout=TIMEOUT).values() == [["yes", None]] * 2
    assert os.environ["UNWANTED"] == "here"


@full
def test_a_bootstrap_command_may_depend_on_the_point(spawn_procs: Any, host: HostMesh) -> None:
    def command(point: Any) -> Any:
        return default_bootstrap_cmd().with_env({"WHERE": f"{point['hosts']}.{point['gpus']} of {point.size('gpus')}"})

    mesh = spawn_procs({"gpus": 2}, bootstrap_command=command, on=host.flatten("hosts"))
    probe = mesh.spawn("probe", Probe)
    assert probe.env.call("WHERE").get(timeout=TIMEOUT).values() == [["0.0 of 2"], ["0.1 of 2"]]


@full
def test_without_inherit_env_only_the_given_variables_arrive(spawn_procs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_CLIENT", "here")
    command = default_bootstrap_cmd()
    command.inherit_env = False
    command.env = {"ONLY": "this", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    probe = spawn_procs(bootstrap_command=command).spawn("probe", Probe)
    assert probe.env.call_one("ONLY", "OF_THE_CLIENT").get(timeout=TIMEOUT) == ["this", None]


@full
def test_a_bootstrap_command_holds_for_its_own_call_only(spawn_procs: Any, host: HostMesh) -> None:
    command = default_bootstrap_cmd().with_env({"ONCE": "yes"})
    spawn_procs(bootstrap_command=command).initialized.get(timeout=TIMEOUT)
    assert spawn_procs().spawn("probe", Probe).env.call_one("ONCE").get(timeout=TIMEOUT) == [None]


def _wrapper(folder: Path) -> Path:
    """A program that behaves as this interpreter and leaves a mark for each time it was passed through."""
    wrapper = folder / "wrapped-python"
    wrapper.write_text(
        f'#!/bin/sh\nexport PASSED="x$PASSED"\necho pass >>{folder}/passes\nexec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


def test_with_python_executable_starts_that_interpreter(spawn_procs: Any, host: HostMesh, tmp_path: Path) -> None:
    wrapped = host.with_python_executable(str(_wrapper(tmp_path)))
    probe = spawn_procs({"gpus": 2}, on=wrapped).spawn("probe", Probe)
    assert probe.env.call("PASSED").get(timeout=TIMEOUT).values() == [["x"], ["x"]]
    assert spawn_procs().spawn("probe", Probe).env.call_one("PASSED").get(timeout=TIMEOUT) == [None]


@full
def test_with_python_executable_holds_for_the_hosts_processes_hosts_too(
    spawn_procs: Any, host: HostMesh, tmp_path: Path
) -> None:
    wrapped = host.with_python_executable(str(_wrapper(tmp_path)))
    nester = spawn_procs(on=wrapped).spawn("nester", Nester)
    nester.here.call_one().get(timeout=TIMEOUT)
    before = (tmp_path / "passes").read_text()
    nester.grow.call_one(1).get(timeout=TIMEOUT)
    assert len((tmp_path / "passes").read_text()) > len(before)


# --- What a process inherits


@full
def test_the_environment_is_that_of_the_client_when_it_spawned(
    spawn_procs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_LATE", "1")
    probe = spawn_procs().spawn("probe", Probe)
    assert probe.env_at_start.call_one("SET_LATE").get(timeout=TIMEOUT) == ["1"]
    monkeypatch.delenv("SET_LATE")
    probe = spawn_procs().spawn("probe", Probe)
    assert probe.env_at_start.call_one("SET_LATE").get(timeout=TIMEOUT) == [None]


def test_the_working_folder_is_that_of_the_client(
    spawn_procs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = spawn_procs().spawn("probe", Probe).facts.call_one().get(timeout=TIMEOUT)
    assert facts["cwd"] == str(tmp_path)


@full
def test_modules_in_the_working_folder_can_be_imported(
    spawn_procs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lies_in_cwd.py").write_text("VALUE = 5")
    monkeypatch.chdir(tmp_path)
    probe = spawn_procs().spawn("probe", Probe)
    assert probe.import_and_read.call_one("lies_in_cwd").get(timeout=TIMEOUT) == 5


@full
def test_what_the_client_added_to_sys_path_can_be_imported(
    spawn_procs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lies_elsewhere.py").write_text("VALUE = 6")
    monkeypatch.syspath_prepend(str(tmp_path))
    probe = spawn_procs().spawn("probe", Probe)
    assert probe.import_and_read.call_one("lies_elsewhere").get(timeout=TIMEOUT) == 6


def test_standard_input_is_empty(proc: ProcMesh) -> None:
    facts = proc.spawn("probe", Probe).facts.call_one().get(timeout=TIMEOUT)
    assert facts["stdin"] == "/dev/null" and facts["input"] == ""


def test_processes_are_not_in_the_clients_process_group(proc: ProcMesh) -> None:
    assert proc.spawn("probe", Probe).facts.call_one().get(timeout=TIMEOUT)["group"] != os.getpgid(0)


def test_multiprocessing_does_not_fork_processes_full_of_threads(proc: ProcMesh) -> None:
    assert proc.spawn("probe", Probe).facts.call_one().get(timeout=TIMEOUT)["method"] == "forkserver"


# --- Stopping


def test_stop_ends_the_processes(spawn_procs: Any, watch: Any) -> None:
    mesh = spawn_procs({"gpus": 2})
    watched = watch(pids(mesh))
    mesh.stop().get(timeout=TIMEOUT)
    assert watched.survivors(2) == {}


def test_a_stopped_process_finishes_its_interpreter_in_the_normal_way(spawn_procs: Any, tmp_path: Path) -> None:
    mesh = spawn_procs()
    mesh.spawn("probe", Probe).at_exit.call_one(str(tmp_path / "left")).get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)
    assert (tmp_path / "left").read_text() == "left"


def test_dropping_every_reference_does_not_stop_a_mesh(host: HostMesh, spawn_procs: Any) -> None:
    mesh = host.spawn_procs()
    (pid,) = pids(mesh)
    del mesh
    gc.collect()
    pids(spawn_procs())  # whatever the collection set off on this host came before this
    os.kill(pid, 0)


# --- Ownership


@full
def test_async_with_stops_the_procs(host: HostMesh, watch: Any) -> None:
    async def main() -> Any:
        async with host.spawn_procs({"gpus": 2}) as mesh:
            found = await mesh.spawn("probe", Probe).pid.call()
            watched = watch(found.values())
        assert watched.survivors(2) == {}
        with pytest.raises(RuntimeError, match="stopped"):
            async with mesh:
                pass

    asyncio.run(main())


# --- Views of procs


def test_an_actor_on_a_slice_runs_in_those_processes_only(procs4: ProcMesh) -> None:
    everyone = pids(procs4)
    assert pids(procs4.slice(a=1)) == everyone[2:]
    assert pids(procs4.slice(b=0)) == [everyone[0], everyone[2]]
    assert pids(procs4.flatten("rank").slice(rank=slice(1, 3))) == everyone[1:3]


# --- Meshes as values


def test_pickled_procs_are_a_reference_to_the_same_processes(procs2: ProcMesh) -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(procs2))
    assert copy.extent == procs2.extent
    assert pids(copy) == pids(procs2)
    with pytest.raises(ValueError, match="ProcMesh is not owned"):
        copy.stop().get(timeout=TIMEOUT)


@full
def test_procs_not_ready_yet_can_be_sent(spawn_procs: Any, proc: ProcMesh) -> None:
    nester = proc.spawn("nester", Nester)
    mesh = spawn_procs({"gpus": 2})
    found = nester.spawn_on.call_one(mesh)
    assert found.get(timeout=TIMEOUT) == pids(mesh)


def test_meshes_come_back_from_an_actor_as_references_that_work(procs2: ProcMesh, host: HostMesh) -> None:
    probe = procs2.slice(gpus=0).spawn("probe", Probe)
    procs, where = probe.echo.call_one((procs2.slice(gpus=1), host)).get(timeout=TIMEOUT)
    assert pids(procs) == pids(procs2)[1:]
    assert where == host


# --- Meshes made inside actors


def test_an_actor_spawns_processes_on_this_host(spawn_procs: Any) -> None:
    mesh = spawn_procs()
    (own,) = pids(mesh)
    kids = mesh.spawn("nester", Nester).grow.call_one(2).get(timeout=TIMEOUT)
    assert len({*kids, own, os.getpid()}) == 4


def test_processes_of_an_actor_end_with_it(spawn_procs: Any, watch: Any) -> None:
    mesh = spawn_procs()
    nester = mesh.spawn("nester", Nester)
    watched = watch(nester.grow.call_one(2).get(timeout=TIMEOUT))
    nester.stop().get(timeout=TIMEOUT)
    assert watched.survivors(2) == {}
    assert len(pids(mesh)) == 1  # the process the actor lived in goes on


def test_processes_of_an_actor_end_with_the_actors_process(spawn_procs: Any, watch: Any) -> None:
    mesh = spawn_procs()
    watched = watch(mesh.spawn("nester", Nester).grow.call_one(2).get(timeout=TIMEOUT))
    mesh.stop().get(timeout=TIMEOUT)
    assert watched.survivors(2) == {}


# --- What only a fresh interpreter can have, and what a bootstrap function may do


class Interpreter(Actor):
    @endpoint
    def hash_randomization(self) -> int:
        return sys.flags.hash_randomization

    @endpoint
    def path(self) -> list[str]:
        return sys.path


@full
def test_variables_that_an_interpreter_reads_at_its_start_have_their_effect(spawn_procs: Any) -> None:
    fixed = spawn_procs(env={"PYTHONHASHSEED": "0"}).spawn("fixed", Interpreter)
    assert fixed.hash_randomization.call_one().get(timeout=TIMEOUT) == 0
    usual = spawn_procs().spawn("usual", Interpreter)
    assert usual.hash_randomization.call_one().get(timeout=TIMEOUT) == sys.flags.hash_randomization


def test_a_python_path_given_to_the_processes_leads_their_search_path(spawn_procs: Any, tmp_path: Path) -> None:
    there = spawn_procs(env={"PYTHONPATH": str(tmp_path)}).spawn("there", Interpreter)
    path = there.path.call_one().get(timeout=TIMEOUT)
    assert str(tmp_path) in path and path.index(str(tmp_path)) <= 1


def test_a_bootstrap_function_may_call_what_it_spawns_in_its_own_process(spawn_procs: Any) -> None:
    def prepare() -> None:
        helper = this_proc().spawn("helper", Interpreter)
        os.environ["HELPED"] = str(len(helper.path.call_one().get(timeout=300)))

    mesh = spawn_procs(bootstrap=prepare)
    probe = mesh.spawn("probe", Probe)
    (helped,) = probe.env.call_one("HELPED").get(timeout=TIMEOUT)
    assert helped is not None and int(helped) > 0


def test_settings_of_the_client_hold_in_its_processes(spawn_procs: Any) -> None:
    class Settings(Actor):
        @endpoint
        def cleanup_timeout(self) -> str:
            from monarch.config import get_global_config

            return str(get_global_config()["cleanup_timeout"])

    with configured(cleanup_timeout="7s"):
        told = spawn_procs().spawn("told", Settings)
        assert told.cleanup_timeout.call_one().get(timeout=TIMEOUT) == "7s"
