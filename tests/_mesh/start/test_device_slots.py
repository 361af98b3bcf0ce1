"""Tests of which slots of a host's devices meshes get, and what of it the processes hand on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.start import device_slots
from monarch._mesh.start.device_slots import HostDeviceSlots


def test_meshes_follow_each_other_and_what_is_free_is_used_again() -> None:
    host = HostDeviceSlots()
    assert host.give("a", "trainers", 0, 4, "take").first == 0
    second = host.give("b", "generators", 8, 2, "take")
    assert (second.first, second.processes, second.rank, second.others) == (4, 2, 8, [("trainers", 0, 4)])
    host.release("a")
    assert host.give("c", "evaluators", 0, 3, "take").first == 0
    assert host.give("d", "more", 0, 2, "take").first == 6  # one is free below, and two are wanted
    assert host.give("e", "one", 0, 1, "take").first == 3


def test_who_takes_the_place_of_others_gets_what_they_had() -> None:
    host = HostDeviceSlots()
    host.give("a", "first", 0, 2, "take")
    before = host.give("b", "second", 0, 4, "take")
    host.release("a")
    assert host.give("b", "second", 0, 1, "take") is before


def test_helpers_take_nothing_and_use_what_is_free() -> None:
    host = HostDeviceSlots()
    assert host.give("a", "helper", 0, 1, "use").first == 0
    assert host.give("b", "trainers", 0, 4, "take").first == 0
    assert host.give("c", "helper", 0, 2, "use").first == 4
    assert host.give("d", "generators", 0, 4, "take").first == 4


def test_who_says_what_it_sees_is_given_that() -> None:
    host = HostDeviceSlots()
    host.give("a", "trainers", 0, 4, "take")
    own = host.give("b", "own", 0, 4, "see")
    assert (own.first, own.others) == (0, [])


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12))
def test_no_slot_is_taken_twice(meshes: list[tuple[int, bool]]) -> None:
    host, taken = HostDeviceSlots(), dict[str, set[int]]()
    for number, (processes, ends) in enumerate(meshes):
        slots = host.give(str(number), "m", 0, processes, "take")
        mine = set(range(slots.first, slots.first + processes))
        assert not any(mine & other for other in taken.values())
        taken[str(number)] = mine
        if ends:
            host.release(str(number))
            del taken[str(number)]


@pytest.mark.parametrize(
    ("env", "labels", "wanted"),
    [
        ({}, ["gpus"], "take"),
        ({}, ["hosts", "replica", "gpu"], "take"),
        ({}, ["who"], "use"),
        ({}, [], "use"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["gpus"], "see"),
        ({"ROCR_VISIBLE_DEVICES": ""}, ["gpus"], "see"),
        ({"CUDA_VISIBLE_DEVICES": None}, ["gpus"], "take"),
    ],
)
def test_a_dimension_or_the_environment_says_what_a_mesh_wants(env: Any, labels: list[str], wanted: str) -> None:
    assert device_slots.wanted(env, labels) == wanted


def test_what_a_process_was_given_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_slots, "_given", {})
    device_slots.changed({"CUDA_VISIBLE_DEVICES": ("0,1", "1,0"), "HIP_VISIBLE_DEVICES": (None, "1,0")})
    given = {"CUDA_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1,0", "A": "b"}
    assert device_slots.inherited(given) == {"CUDA_VISIBLE_DEVICES": "0,1", "A": "b"}
    chosen = {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}
    assert device_slots.inherited(chosen) == chosen
