"""Tests of which hosts of a mesh are lost, and who may take their places."""

from __future__ import annotations

import pytest

from monarch._mesh.failures.replace_policy import ReplacePolicy
from monarch._mesh.meshes.host_slots import HostSlots, NoReplacement

A, B, C, S, T = (f"tcp://{name}:1" for name in "abcst")


def test_each_loss_is_told_once_until_another_is_there() -> None:
    slots = HostSlots([A, B, C])
    assert slots.host_lost("tcp://stranger:1", "why") is None
    assert slots.host_lost(B, "power cut") == 1
    assert slots.host_lost(B, "again") is None
    assert slots.lost == {1: "power cut"} and slots.living() == [A, C]
    slots.answered.add(1)
    assert slots.living() == [A, B, C] and slots.lost  # it is told what others are told
    slots.answered.discard(1)
    slots.taken(1, S)
    assert slots.living() == [A, B, C] and slots.at == [A, S, C]  # by name
    assert slots.host_lost(S, "names count") is None
    assert slots.host_lost(B, "S is gone") == 1


def test_who_is_chosen() -> None:
    slots = HostSlots([A, B, C])
    assert slots.choose(None) == []
    slots.host_lost(C, "x")
    slots.host_lost(A, "x")
    assert slots.choose(None) == [0, 2]
    assert slots.choose([2]) == [2]
    with pytest.raises(NoReplacement, match=f"host 1 of the mesh, {B}, is not dead"):
        slots.choose([0, 1])


def test_spares_come_first_in_order_and_then_whoever_is_at_the_address() -> None:
    slots = HostSlots([A, B], [S, T])
    slots.ready_spares.add(S)
    assert slots.living() == [A, B, S]
    slots.host_lost(B, "x")
    assert slots.candidates(1) == [S, T, B]
    slots.host_lost(S, "spares die as well")
    assert slots.candidates(1) == [T, B] and slots.living() == [A]
    slots.taken(1, T)
    slots.host_lost(B, "x")
    assert slots.candidates(1) == [T]  # a worker at its present address
    text = slots.why_none(1, {T: "nobody listens"}, named=False)
    assert f"host 1 of the mesh, {B}, in whose place {T} is, was not replaced (x)" in text
    assert f"{T}: nobody listens" in text and f"spare {S} was lost: spares die as well" in text


def test_a_host_is_in_a_mesh_once() -> None:
    slots = HostSlots([A, B, C])
    slots.host_lost(B, "x")
    slots.host_lost(C, "x")
    assert slots.check(1, A) == f"{A} is host 0 of this mesh already"
    assert slots.check(1, B) == slots.check(1, S) == slots.check(1, C) == ""
    slots.taken(1, C)
    assert slots.check(2, C) == f"{C} is host 1 of this mesh already"


def test_how_often_a_policy_replaces() -> None:
    intensity = ReplacePolicy(max_replacements=2, within="1m", backoff="1s").begin()
    assert [intensity.next(0.0), intensity.next(1.0), intensity.next(2.0)] == [1.0, 2.0, None]
    assert intensity.next(60.5) == 2.0
    with pytest.raises(ValueError, match="max_replacements must be 0 or more"):
        ReplacePolicy(-1)
    with pytest.raises(ValueError, match="within must be seconds or a duration"):
        ReplacePolicy(within="soon")
    assert repr(ReplacePolicy()) == "ReplacePolicy(max_replacements=10, within=3600, backoff=0)"
