"""Rows as the JSON of the pages."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.dashboard.pages import shapes
from monarch.telemetry.result import exact

NO_TIME = {
    "first_status_us": None,
    "last_status_us": None,
    "first_message_us": None,
    "last_message_us": None,
    "failure_onset_us": None,
    "total_status_events": 0,
    "total_message_events": 0,
}
NO_MESHES = {"total": 0, "host_meshes": 0, "proc_meshes": 0, "actor_meshes": 0}


def summary(**given: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"meshes": NO_MESHES, "statuses": [], "failed": [], "stopped": [], "message_states": []}
    return shapes.summary(**(empty | {"timeline": NO_TIME} | given))


def failed(at: int, **more: Any) -> dict[str, Any]:
    return {
        "actor_id": 2**63,
        "full_name": "t-1<u>.p-1<u>@x",
        "display_name": "<root>.<m.T t{'gpus': 1/2}>",
        "rank": 1,
        "reason": "Traceback (most recent call last):\n  ...\nValueError: no",
        "timestamp_us": at,
        "mesh_id": 5,
        "root_cause": None,
        "root_cause_name": None,
        "is_propagated": None,
        **more,
    }


def test_a_program_that_has_done_nothing_yet() -> None:
    made = summary()
    assert made["health_status"] == "inactive"
    assert made["actor_counts"] == {"total": 0, "by_status": {}}
    assert made["message_counts"] == {"total": 0, "by_status": {}, "by_endpoint": {}, "delivery_rate": 1.0}
    assert made["timeline"]["start_us"] is None


def test_the_system_does_not_count() -> None:
    rows = [
        {"status": "idle", "is_system": False, "actors": 3},
        {"status": "failed", "is_system": True, "actors": 2},
    ]
    made = summary(statuses=rows)
    assert made["actor_counts"] == {"total": 3, "by_status": {"idle": 3}}
    assert (made["system_actors"], made["health_status"]) == (2, "healthy")


@pytest.mark.parametrize(
    ("by_status", "status", "coverage"),
    [
        ({"idle": 2, "stopped": 1}, "healthy", {"known": 3, "unknown": 0, "stopped": 1}),
        ({"idle": 2, "failed": 1, "odd": 1}, "unhealthy", {"known": 3, "unknown": 1, "stopped": 0}),
        ({"idle": 2, "unknown": 1}, "unknown", {"known": 2, "unknown": 1, "stopped": 0}),
        ({"stopped": 4}, "inactive", {"known": 4, "unknown": 0, "stopped": 4}),
    ],
)
def test_health(by_status: dict[str, int], status: str, coverage: dict[str, int]) -> None:
    made = shapes.health_of(by_status)
    assert (made["health_status"], made["health_coverage"]) == (status, coverage)
    assert made["health_reasons"]


def test_messages_by_endpoint_and_state() -> None:
    rows = [
        {"endpoint": "step", "status": "complete", "messages": 6},
        {"endpoint": "step", "status": "active", "messages": 1},
        {"endpoint": None, "status": "failed", "messages": 2},
    ]
    counts = summary(message_states=rows)["message_counts"]
    assert counts["by_endpoint"] == {"step": 7, "(none)": 2}
    assert counts["delivery_rate"] == 0.667
    stats = shapes.message_stats(rows, [{"from_actor_id": 2**63 + 1, "to_actor_id": None}])
    assert stats["lifecycle"] == {"queued": 0, "active": 1, "completed": 6, "failed": 2}
    assert stats["endpoints"][0] == {"endpoint": "step", "total": 7, "completed": 6}
    assert stats["pairs"] == [["9223372036854775809", "None"]]


def test_ids_are_text() -> None:
    row = {"id": 2**64 - 1, "mesh_id": None, "rank": 3, "message_id": 7}
    assert shapes.with_text_ids(row) == {"id": "18446744073709551615", "mesh_id": None, "rank": 3, "message_id": "7"}


def test_what_javascript_cannot_hold_is_text() -> None:
    assert exact([1, 2**53, -(2**60), True, None, 1.5, float("nan"), b"\x01"]) == [
        1,
        "9007199254740992",
        "-1152921504606846976",
        True,
        None,
        1.5,
        "nan",
        "01",
    ]


def test_concerns_name_the_root_cause_first() -> None:
    found = shapes.concerns(
        failed=[failed(20, is_propagated=True, display_name=None), failed(10, is_propagated=False)],
        running=[
            {"actor_id": 3, "endpoint": "step", "active_us": 0},
            {"actor_id": 4, "endpoint": "step", "active_us": 9},
        ],
        slow=[failed(0) | {"endpoint": "step", "own_us": 1.5e6, "mesh_us": 421_000.0}],
        now_us=60_000_000,
        long_us=30_000_000,
        lost=1200,
        missing=["node7"],
    )
    assert [each["level"] for each in found] == ["error", "error", "warning", "warning", "note", "warning"]
    assert found[0]["text"] == "T t{'gpus': 1/2} failed: ValueError: no"
    assert found[0]["actor_id"] == str(2**63)
    assert found[2]["text"] == "step() has been running for 1 min 0 s in 2 actors"
    assert found[3]["text"] == ("T t{'gpus': 1/2} is slow in step(): 1.5 s where the others of its mesh take 421 ms")
    assert "1,200 rows" in found[4]["text"]
    assert "node7" in found[5]["text"]


def test_nothing_to_be_concerned_about() -> None:
    running = [{"actor_id": 3, "endpoint": "step", "active_us": 50}]
    assert shapes.concerns(failed=[], running=running, slow=[], now_us=100, long_us=60, lost=0, missing=[]) == []


def test_rates_of_counters() -> None:
    samples = [
        {"timestamp_us": 0, "net": 0},
        {"timestamp_us": 1_000_000, "net": 500},
        {"timestamp_us": 2_000_000, "net": 100},  # the machine was started again
        {"timestamp_us": 4_000_000, "net": 300},
        {"timestamp_us": 5_000_000, "net": None},
    ]
    assert shapes.per_second(samples, "net") == [None, 500, None, 100, None]


@pytest.mark.parametrize(
    ("display", "full", "name"),
    [
        ("<root>.<train.Trainer trainers{'gpus': 1/2}>", "x", "Trainer trainers{'gpus': 1/2}"),
        ("<root>", "client", "<root>"),
        (None, "agent-1<u>.p@x", "agent-1<u>.p@x"),
    ],
)
def test_short_names(display: str | None, full: str, name: str) -> None:
    assert shapes.short_name(display, full) == name


def test_an_actor_whose_endpoint_runs_is_processing() -> None:
    actors = [
        {"id": 1, "latest_status": "idle"},
        {"id": 2, "latest_status": "idle"},
        {"id": 3, "latest_status": "failed"},
    ]
    running = [{"actor_id": 1, "active_us": 5}, {"actor_id": 1, "active_us": 8}, {"actor_id": 3, "active_us": 1}]
    made = [(row["id"], row["latest_status"], row["running_us"]) for row in shapes.at_work(actors, running, 10)]
    assert made == [("1", "processing", 5), ("2", "idle", None), ("3", "failed", 9)]
