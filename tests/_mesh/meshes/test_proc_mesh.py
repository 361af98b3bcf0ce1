"""Host and proc meshes: their shapes, what a call refuses, who may stop them. Processes themselves: tests/procs."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import cloudpickle
import pytest

from monarch.actor import (
    Actor,
    ActorError,
    HostMesh,
    ProcMesh,
    SupervisionError,
    context,
    current_rank,
    current_size,
    default_bootstrap_cmd,
    endpoint,
    get_active_proc_meshes,
    register_proc_mesh_spawn_callback,
    unregister_proc_mesh_spawn_callback,
)
from monarch.testing import InProcessCluster, Local
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")


@pytest.fixture
def host(cluster: InProcessCluster) -> HostMesh:
    return cluster.this_host()


@pytest.fixture
def proc(host: HostMesh) -> ProcMesh:
    return host.spawn_procs()


@pytest.fixture
def procs2(host: HostMesh) -> ProcMesh:
    return host.spawn_procs({"gpus": 2})


class Probe(Actor):
    """Tells where it is."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def rank(self) -> tuple[int, dict[str, int], dict[str, int]]:
        return current_rank().rank, dict(current_rank()), current_size()

    @endpoint
    def home_rank(self) -> dict[str, int]:
        return dict(context().actor_instance.rank)

    @endpoint
    def address(self) -> str:
        return str(context().actor_instance.actor_id)


class Holder(Actor):
    """Uses meshes that it was sent."""

    @endpoint
    def try_stop(self, procs: ProcMesh) -> str:
        try:
            procs.stop().get(timeout=TIMEOUT)
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"
        return "stopped"

    @endpoint
    def try_host(self, host: HostMesh) -> str:
        try:
            host.shutdown().get(timeout=TIMEOUT)
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"
        return "shut down"


# --- spawn_procs: the shape


def test_an_empty_per_host_is_the_same_as_none(host: HostMesh) -> None:
    assert dict(host.spawn_procs({}).sizes) == {}


def test_host_dimensions_come_first(host: HostMesh) -> None:
    mesh = host.flatten("hosts").spawn_procs({"gpus": 2})
    assert mesh.extent.labels == ["hosts", "gpus"] and mesh.extent.sizes == [1, 2]


def test_a_label_of_the_host_cannot_be_used_again(host: HostMesh) -> None:
    with pytest.raises(ValueError, match="overlap with host labels"):
        host.flatten("hosts").spawn_procs({"hosts": 2})


@pytest.mark.parametrize("per_host", [{"gpus": 0}, {"a": 2, "b": 0}])
def test_a_dimension_of_size_zero_is_refused_at_the_call(host: HostMesh, per_host: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="0"):
        host.spawn_procs(per_host)


@pytest.mark.parametrize("per_host", [{"gpus": -1}, {"gpus": "two"}, {3: 2}, "gpus"])
def test_a_per_host_that_is_no_extent_is_refused_at_the_call(host: HostMesh, per_host: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        host.spawn_procs(per_host)


def test_the_name_is_part_of_the_addresses(host: HostMesh) -> None:
    mesh = host.spawn_procs({"gpus": 2}, name="trainer")
    addresses = mesh.spawn("probe", Probe).address.call().get(timeout=TIMEOUT).values()
    assert "trainer-0" in addresses[0] and "trainer-1" in addresses[1]


def test_host_mesh_of_a_single_proc_is_a_host_without_dimensions(proc: ProcMesh, host: HostMesh) -> None:
    assert dict(proc.host_mesh.sizes) == {}
    assert proc.host_mesh == host


def test_host_mesh_of_several_procs_is_not_implemented(procs2: ProcMesh) -> None:
    with pytest.raises(NotImplementedError):
        _ = procs2.host_mesh


def test_proc_bind_must_have_an_entry_for_each_process(host: HostMesh) -> None:
    with pytest.raises(ValueError, match=r"proc_bind length \(1\) must equal procs_per_host \(2\)"):
        host.spawn_procs({"gpus": 2}, proc_bind=[{"cpus": "0"}])


# --- spawn_procs: bootstrap


def test_a_plain_bootstrap_sees_no_running_loop_and_an_async_one_is_awaited(host: HostMesh) -> None:
    loops = Local[list[bool]]([])

    def prepare() -> None:
        loops.value.append(asyncio._get_running_loop() is not None)

    async def prepare_async() -> None:
        await asyncio.sleep(0)
        prepare()

    for bootstrap in (prepare, prepare_async):
        host.spawn_procs(bootstrap=bootstrap).spawn("probe", Probe).pid.call_one().get(timeout=TIMEOUT)
    assert loops.value == [False, True]


def test_a_failing_bootstrap_is_an_actor_error_of_initialized_and_of_every_call(host: HostMesh) -> None:
    def prepare() -> None:
        raise OSError("no such scratch disk")

    mesh = host.spawn_procs({"gpus": 2}, bootstrap=prepare)
    probe = mesh.spawn("probe", Probe)
    with pytest.raises(ActorError, match="no such scratch disk") as caught:
        mesh.initialized.get(timeout=TIMEOUT)
    assert str(caught.value).startswith("Actor call setup.setup failed.")
    with pytest.raises(ActorError, match="no such scratch disk"):
        probe.pid.call().get(timeout=TIMEOUT)


# --- spawn_procs: the command


def test_the_default_command_is_this_interpreter_and_imports_nothing_from_the_working_directory() -> None:
    command = default_bootstrap_cmd()
    assert command.program == sys.executable
    assert command.env == {} and command.inherit_env is True
    assert command.args[:2] == ["-P", "-m"]


def test_with_env_makes_a_copy() -> None:
    first = default_bootstrap_cmd()
    second = first.with_env({"A": "1"})
    third = second.with_env({"B": "2"})
    assert (first.env, second.env, third.env) == ({}, {"A": "1"}, {"A": "1", "B": "2"})


# --- Stopping


def test_stop_may_be_called_again(host: HostMesh) -> None:
    mesh = host.spawn_procs()
    assert mesh.stop().get(timeout=TIMEOUT) is None
    assert mesh.stop("again").get(timeout=TIMEOUT) is None


def test_stop_of_a_mesh_just_asked_for(host: HostMesh) -> None:
    assert host.spawn_procs({"gpus": 2}).stop().get(timeout=TIMEOUT) is None


def test_initialized_stays_true_after_stop(host: HostMesh) -> None:
    mesh = host.spawn_procs()
    mesh.initialized.get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)
    assert mesh.initialized.get(timeout=TIMEOUT) is True


def test_spawn_on_a_stopped_mesh_is_refused_at_the_call(host: HostMesh) -> None:
    mesh = host.spawn_procs()
    mesh.stop().get(timeout=TIMEOUT)
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        mesh.spawn("probe", Probe)


def test_calls_on_actors_of_a_stopped_mesh_say_that_it_was_stopped(host: HostMesh) -> None:
    mesh = host.spawn_procs({"gpus": 2})
    probe = mesh.spawn("probe", Probe)
    probe.pid.call().get(timeout=TIMEOUT)
    mesh.stop("enough for today").get(timeout=TIMEOUT)
    with pytest.raises(SupervisionError, match="stopped"):
        probe.pid.call().get(timeout=TIMEOUT)
    with pytest.raises(SupervisionError, match="stopped"):
        probe.slice(gpus=1).pid.call_one().get(timeout=TIMEOUT)


# --- Ownership


def test_a_slice_of_procs_cannot_be_stopped(procs2: ProcMesh) -> None:
    with pytest.raises(ValueError, match="ProcMesh is not owned; must be stopped by an owner"):
        procs2.slice(gpus=0).stop().get(timeout=TIMEOUT)


def test_this_host_cannot_be_shut_down(host: HostMesh) -> None:
    with pytest.raises(RuntimeError, match="cannot shut down `HostMesh` that is a reference instead of owned"):
        host.shutdown().get(timeout=TIMEOUT)


def test_this_host_cannot_be_stopped(host: HostMesh) -> None:
    with pytest.raises(RuntimeError, match="cannot stop `HostMesh` that is a reference instead of owned"):
        host.stop().get(timeout=TIMEOUT)


def test_leaving_async_with_this_host_raises(host: HostMesh) -> None:
    async def main() -> None:
        async with host as same:
            assert same is host

    with pytest.raises(RuntimeError, match="reference instead of owned"):
        asyncio.run(main())


def test_a_plain_with_is_a_type_error(procs2: ProcMesh) -> None:
    with pytest.raises(TypeError), procs2:  # type: ignore[attr-defined]
        pass


# --- Views of procs


def test_an_actor_on_a_slice_has_its_rank_in_that_slice(host: HostMesh) -> None:
    probe = host.spawn_procs({"a": 2, "b": 2}).slice(a=1).spawn("probe", Probe)
    assert probe.rank.call().get(timeout=TIMEOUT).values() == [
        (0, {"b": 0}, {"b": 2}),
        (1, {"b": 1}, {"b": 2}),
    ]
    assert probe.home_rank.call().get(timeout=TIMEOUT).values() == [{"b": 0}, {"b": 1}]


def test_actors_on_a_slice_are_owned_by_who_spawned_them(procs2: ProcMesh) -> None:
    probe = procs2.slice(gpus=1).spawn("probe", Probe)
    probe.pid.call_one().get(timeout=TIMEOUT)
    assert probe.stop().get(timeout=TIMEOUT) is None


def test_a_slice_with_everything_in_it_is_the_mesh_itself(procs2: ProcMesh, host: HostMesh) -> None:
    assert procs2.slice() is procs2
    assert host.slice() is host


# --- Meshes as values


def test_a_pickled_host_is_a_reference_to_the_same_host(host: HostMesh) -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(host))
    assert copy == host
    with pytest.raises(RuntimeError, match="reference instead of owned"):
        copy.shutdown().get(timeout=TIMEOUT)


def test_an_actor_that_was_sent_procs_cannot_stop_them(procs2: ProcMesh, proc: ProcMesh) -> None:
    said = proc.spawn("holder", Holder).try_stop.call_one(procs2).get(timeout=TIMEOUT)
    assert said.startswith("ValueError") and "ProcMesh is not owned" in said


def test_an_actor_that_was_sent_a_host_cannot_shut_it_down(host: HostMesh, proc: ProcMesh) -> None:
    said = proc.spawn("holder", Holder).try_host.call_one(host).get(timeout=TIMEOUT)
    assert said.startswith("RuntimeError") and "reference instead of owned" in said


# --- Callbacks


def test_a_spawn_callback_sees_each_mesh_before_the_caller_does(host: HostMesh) -> None:
    seen: list[ProcMesh] = []
    register_proc_mesh_spawn_callback(seen.append)
    try:
        mesh = host.spawn_procs({"gpus": 2})
        assert len(seen) == 1 and seen[0] is mesh
    finally:
        unregister_proc_mesh_spawn_callback(seen.append)
    host.spawn_procs()
    assert len(seen) == 1


def test_a_callback_that_was_never_registered_cannot_be_unregistered() -> None:
    with pytest.raises(ValueError):
        unregister_proc_mesh_spawn_callback(print)


def test_a_mesh_is_among_the_active_ones(procs2: ProcMesh) -> None:
    assert any(mesh is procs2 for mesh in get_active_proc_meshes())
