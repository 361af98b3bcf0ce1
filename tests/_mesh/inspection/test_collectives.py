"""Tests of what torch has recorded of its collectives."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from monarch._mesh.inspection.collectives import RecordedCollective, groups, last_recorded, store_of


def entry(number: int, name: str = "0", operation: str = "gloo:all_reduce", **more: object) -> dict[str, object]:
    return {
        "process_group": [name, "default_pg"],
        "collective_seq_id": number,
        "profiling_name": operation,
        "input_sizes": [[3, 5]],
        "retired": True,
        "state": "scheduled",
        "is_p2p": False,
    } | more


def recording(*entries: object) -> bytes:
    return json.dumps({"version": "2.10", "entries": entries}).encode()


def test_the_last_collective_of_each_group() -> None:
    text = recording(entry(1), entry(1, "1"), entry(2, "1", "nccl:broadcast", retired=False))
    assert last_recorded(text) == {
        "0": RecordedCollective(1, "all_reduce", [3, 5], False),
        "1": RecordedCollective(2, "broadcast", [3, 5], True),
    }


def test_sends_and_receives_do_not_count() -> None:
    assert last_recorded(recording(entry(4), entry(9, is_p2p=True)))["0"].number == 4


@pytest.mark.parametrize(
    ("more", "running"), [({"state": "completed", "retired": False}, False), ({"retired": None}, True)]
)
def test_whether_it_has_ended(more: dict[str, object], running: bool) -> None:
    assert last_recorded(recording(entry(1, **more)))["0"].running is running


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"\xff", recording(1, {}, {"process_group": []}, entry(1, input_sizes=3))]
)
def test_what_is_not_understood_is_passed_over(text: bytes) -> None:
    assert last_recorded(text) == {}


def test_an_input_without_shape() -> None:
    assert last_recorded(recording(entry(1, "0", "barrier", input_sizes=[])))["0"] == RecordedCollective(
        1, "barrier", [], False
    )


def test_a_process_without_torch_has_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed.distributed_c10d", None)
    assert list(groups()) == []


def test_a_group_is_told_from_the_one_before_by_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "2")  # of a group to come
    tcp = SimpleNamespace(host="10.0.0.1", port=1)
    prefixed = SimpleNamespace(underlying_store=SimpleNamespace(underlying_store=tcp))
    assert [store_of(store) for store in (tcp, prefixed)] == ["10.0.0.1:1", "10.0.0.1:1"]
    assert [store_of(store) for store in (None, SimpleNamespace())] == ["10.0.0.1:2", "10.0.0.1:2"]
