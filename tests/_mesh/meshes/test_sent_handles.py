"""Handles that are sent again and again."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest

from monarch._mesh.meshes import specs
from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.testing import InProcessCluster
from tests.support.actors import Local
from tests.support.patience import TIMEOUT


class Named(Actor):
    def __init__(self, name: str = "") -> None:
        self.name = name

    @endpoint
    def own_name(self) -> str:
        return self.name


class Keeper(Actor):
    """Keeps the handles that it is sent, for the test to look at: the processes are one interpreter."""

    def __init__(self, kept: Local) -> None:
        self.kept = kept.value

    @endpoint
    def keep(self, *handles: Any) -> None:
        self.kept += handles

    @endpoint
    async def names(self, handles: list[Any]) -> list[list[str]]:
        return [list((await handle.own_name.call()).values()) for handle in handles]


@pytest.fixture
def kept() -> list[Any]:
    return []


@pytest.fixture
def keeper(cluster: InProcessCluster, kept: list[Any]) -> Any:
    return this_host().spawn_procs().spawn("keeper", Keeper, Local(kept))


@pytest.fixture
def named(cluster: InProcessCluster) -> Any:
    return this_host().spawn_procs({"gpus": 3}).spawn("named", Named, "n")


def test_handles_are_each_receivers_own_and_share_the_facts(keeper: Any, named: Any, kept: list[Any]) -> None:
    part = named.slice(gpus=slice(1, 3))
    for handles in ((named, part), (named, part), (part.slice(gpus=0),)):
        keeper.keep.call_one(*handles).get(TIMEOUT)
    whole, cut, again, cut_again, one = kept
    assert len({id(handle) for handle in kept}) == 5
    assert len({id(handle._spec) for handle in kept}) == 1
    assert whole._plan is again._plan and cut._plan is cut_again._plan and one.sizes == {}
    whole._proc_mesh = "of my own"
    assert isinstance(again._proc_mesh, ProcMesh)
    assert [len(handle) for handle in kept] == [3, 2, 3, 2, 1]


def test_they_reach_their_actors(keeper: Any, named: Any) -> None:
    handles = [named, named.slice(gpus=2), named.slice(gpus=slice(0, 2))]
    for _ in range(2):
        assert keeper.names.call_one(handles).get(TIMEOUT) == [["n"] * 3, ["n"], ["n"] * 2]


def test_process_meshes_too(keeper: Any, kept: list[Any], cluster: InProcessCluster) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    keeper.keep.call_one(procs, procs.slice(gpus=1)).get(TIMEOUT)
    keeper.keep.call_one(procs).get(TIMEOUT)
    assert kept[0]._spec is kept[1]._spec is kept[2]._spec and kept[0] == procs == kept[2] != kept[1]


def test_a_mesh_is_pickled_once(keeper: Any, named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = specs.make_pickle
    monkeypatch.setattr(specs, "make_pickle", lambda build, args: (made.append(build), make(build, args))[1])
    for _ in range(3):
        keeper.keep.call_one(named, named.slice(gpus=1)).get(TIMEOUT)
    assert made.count(specs.ActorSpec) == 1 and made.count(specs.ProcSpec) <= 1


def test_a_module_that_is_to_go_by_value_from_now_on_does(named: Any) -> None:
    module = sys.modules[__name__]
    by_name = named._spec.pickled()
    assert named._spec.pickled() is by_name
    cloudpickle.register_pickle_by_value(module)
    try:
        assert len(named._spec.pickled()) > 2 * len(by_name)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert named._spec.pickled() == by_name


def test_classes_that_travel_by_value_are_the_same_class_each_time(keeper: Any, kept: list[Any]) -> None:
    class Here(Actor):
        @endpoint
        def where(self) -> str:
            return "here"

    here = this_host().spawn_procs().spawn("here", Here)
    for _ in range(2):
        keeper.keep.call_one(here).get(TIMEOUT)
    assert kept[0]._class is kept[1]._class
    assert kept[1].where.call_one().get(TIMEOUT) == "here"
