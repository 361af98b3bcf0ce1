"""The tree as rows, and stack dumps as rows: each fits its table."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from monarch.admin.payloads import (
    ActiveHandler,
    ActorProperties,
    Debug,
    ErrorProperties,
    Execution,
    FailureInfo,
    HostProperties,
    InboundOrdering,
    MemoryUse,
    NodePayload,
    OrderingSession,
    ProcProperties,
    Properties,
    RootProperties,
)
from monarch.telemetry.snapshots import micros, snapshot_rows
from monarch.telemetry.store import Store, dump_rows
from monarch.telemetry.tables import TABLES

AT = "2026-11-22T03:20:55.502Z"
AT_US = 1_795_317_655_502_000


def nodes() -> list[Any]:
    ordering = InboundOrdering(True, True, 0, 1, 1, 1, 1, [OrderingSession("s", "a", 1, 2, 1, 3, 3)])
    failure = FailureInfo("boom", "other", "o[0]", AT, True)
    execution = Execution(1, [ActiveHandler("inc", 1, AT)], True, False)
    actor = ActorProperties(
        *("idle", "m.C", "a.p@x", 5, AT, "inc", 12, 0, None, False),
        *(ordering, failure, execution, "a", 0, "idle", "", 1, [], None),
    )
    system = msgspec.structs.replace(actor, is_system=True, failure_info=None, execution=None, inbound_ordering=None)
    memory = MemoryUse(1, 2)
    proc = ProcProperties(
        "p", 2, ["s.p@x"], ["a.p@x"], 100, False, 1, Debug(memory, 0, 0, 0, None), "x/p", 5, "n", "m", 0, "up", AT
    )
    host = HostProperties("x", 1, [], memory, "n", 5, 2, 0.5, 10, 5, None)
    root = RootProperties(1, AT, "me", [], 5, "python", 1, 2, 1, {})
    made = [
        NodePayload("root", Properties(Root=root), ["host:x"], None, AT),
        NodePayload("host:x", Properties(Host=host), ["p@x", "q@x"], "root", AT),
        NodePayload("p@x", Properties(Proc=proc), ["a.p@x", "s.p@x"], "host:x", AT),
        NodePayload("q@x", Properties(Error=ErrorProperties("process_ended", "it has ended")), [], "host:x", AT),
        NodePayload("a.p@x", Properties(Actor=actor), [], "p@x", AT),
        NodePayload("s.p@x", Properties(Actor=system), [], "p@x", AT),
    ]
    return [msgspec.to_builtins(node) for node in made]


def test_each_node_is_in_the_table_of_its_kind() -> None:
    rows = snapshot_rows("id", nodes(), 7)
    assert {table: len(found) for table, found in rows.items()} == {
        **{"nodes": 6, "children": 5, "root_nodes": 1, "host_nodes": 1, "proc_nodes": 1, "resolution_errors": 1},
        **{"actor_nodes": 2, "actor_failures": 1, "actor_executions": 1, "active_handlers": 1},
        **{"actor_inbound_orderings": 1, "ordering_sessions": 1, "snapshots": 1},
    }
    for table, found in rows.items():
        assert all(len(row) == len(TABLES[table].columns) for row in found), table
    assert [row[2] for row in rows["nodes"]] == ["root", "host", "proc", "error", "actor", "actor"]
    assert ("id", "p@x", "a.p@x", "00000000", False, True) in rows["children"]
    assert ("id", "p@x", "s.p@x", "00000001", True, False) in rows["children"]
    assert rows["actor_failures"][0][5] == AT_US


def test_times_of_the_api_are_read() -> None:
    assert micros(AT) == AT_US
    assert micros(None) is None and micros("") is None


DUMP = {
    "Ok": {
        "pid": 5,
        "binary": "python",
        "capture_mode": "python_only",
        "warnings": ["w"],
        "stack_traces": [
            {
                "pid": 5,
                "thread_id": 2**63 + 5,
                "thread_name": None,
                "os_thread_id": 7,
                "active": True,
                "owns_gil": False,
                "frames": [
                    {
                        "name": "f",
                        "filename": "/a.py",
                        "module": None,
                        "short_filename": "a.py",
                        "line": 3,
                        "locals": [{"name": "x", "addr": 1, "arg": True, "repr": "1"}],
                        "is_entry": True,
                    },
                    {"name": "g", "filename": "/a.py", "line": 4},
                ],
            }
        ],
    }
}


@pytest.mark.parametrize("text", ["", "{}", '{"Failed": {"pid": 1}}', '{"BinaryNotFound": {"searched": []}}', "[1]"])
def test_what_is_no_dump_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is no stack dump"):
        dump_rows("d", "p@x", text, 1)


def test_snapshots_and_dumps_are_kept() -> None:
    store = Store()
    try:
        for table, rows in snapshot_rows("id", nodes(), 7).items():
            store.insert(table, rows)
        store.store_pyspy_dump("d", "p@x", json.dumps(DUMP))
        assert store.query("SELECT count(*) FROM nodes").rows == [(6,)]
        frames = "SELECT f.name, t.thread_id, l.repr FROM pyspy_frames f "
        frames += "JOIN pyspy_stack_traces t USING (dump_id, thread_id) "
        frames += "LEFT JOIN pyspy_local_variables l USING (dump_id, thread_id, frame_depth) ORDER BY frame_depth"
        assert store.query(frames).rows == [("f", 2**63 + 5, "1"), ("g", 2**63 + 5, None)]
        assert store.query("SELECT proc_ref, warnings_json FROM pyspy_dumps").rows == [("p@x", '["w"]')]
    finally:
        store.close()
