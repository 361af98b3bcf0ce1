"""Tests of what the routes answer, over the tables of a simulated job."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from examples.simulated_dashboard import FAILED, STRAGGLER
from monarch._mesh.inspection.diagnosis import Diagnosis, Finding
from monarch._mesh.inspection.doctor import FRESH
from monarch.dashboard.pages.api import NotFound, PageData, Unavailable
from monarch.dashboard.pages.latest_findings import LatestFindings
from monarch.telemetry.result import QueryError, QueryTimeout
from monarch.telemetry.store import Store

FINDING = Finding("collective", "ranks 0-2 wait", [], "look there", "workers", [3])


def test_summary(recorded: Any) -> None:
    made = recorded.api().summary()
    assert made["actor_counts"]["by_status"] == {"processing": 63, "idle": 9, "client": 1, "failed": 1}
    assert made["system_actors"] == 64
    assert made["hierarchy_counts"] == {"host_meshes": 1, "proc_meshes": 2, "actor_meshes": 5}
    assert made["health_status"] == "unhealthy"
    (failed,) = made["errors"]["failed_actors"]
    assert (failed["rank"], failed["actor_id"]) == (FAILED, str(recorded.job.actors["trainers"][FAILED]))
    assert made["message_counts"]["by_status"]["active"] == 63
    assert made["timeline"]["failure_onset_us"] == recorded.job.failure_us
    assert [each["level"] for each in made["concerns"]] == ["error", "warning", "warning"]
    assert made["concerns"][1]["text"].startswith("step() has been running for 4")
    assert "'gpus': 17/64} is slow in step(): 9" in made["concerns"][2]["text"]
    assert made["program"]["pid"] == 4711
    assert made["rows_lost"] == 0


def test_the_doctors_findings_are_what_needs_attention(recorded: Any) -> None:
    title = "ranks 0, 2-3 wait in all_reduce #4 of group dp; rank 1 has not entered it (at data.py:31 in load())"
    finding = Finding("collective", title, [], "look there", "workers", [1])
    now = recorded.job.now_us / 1e6
    store = Store()
    try:
        findings = LatestFindings(lambda: Diagnosis([finding], [], 4), lambda: 0.0, lambda look: look())
        made = PageData(store, recorded, lambda: now, findings).summary()
        assert (made["health_status"], made["concerns"]) == ("unhealthy", [{"level": "error", "text": title}])
    finally:
        store.close()
    made = PageData(recorded.store, recorded, lambda: now, findings).summary()
    assert title in [each["text"] for each in made["concerns"]]
    assert not any("has been running" in each["text"] for each in made["concerns"])  # why is said


def test_those_who_read_findings_do_not_wait_for_a_look() -> None:
    clock = [0.0]
    begun: list[Callable[[], None]] = []
    looks = iter([[FINDING], None])

    def look() -> Diagnosis:
        found = next(looks)
        if found is None:
            raise OSError("gone")
        return Diagnosis(found, [], 4)

    findings = LatestFindings(look, lambda: clock[0], begun.append)
    assert (findings.read(), findings.read(), len(begun)) == ((), (), 1)  # one look at a time
    begun.pop()()
    assert (findings.read(), begun) == ([FINDING], [])
    clock[0] += FRESH
    assert (findings.read(), len(begun)) == ([FINDING], 1)
    begun.pop()()
    assert findings.read() == ()


def test_rates_are_of_the_last_seconds(recorded: Any) -> None:
    api = PageData(recorded.store, None, lambda: (recorded.job.start_us + 10_500_000) / 1e6)
    assert api.summary()["rates"]["messages_per_s"] > 100
    assert recorded.api().summary()["rates"]["messages_per_s"] < 1


def test_endpoints_and_stats(recorded: Any) -> None:
    api = recorded.api()
    endpoints = {row["endpoint"]: row for row in api.endpoints()}
    assert endpoints["step"]["max_us"] >= 900_000  # the straggler's
    assert 420_000 <= endpoints["step"]["median_us"] <= 480_000
    stats = api.message_stats()
    assert stats["lifecycle"]["active"] == 63
    assert sum(row["total"] for row in stats["endpoints"]) == sum(stats["lifecycle"].values())
    assert all(isinstance(name, str) for pair in stats["pairs"] for name in pair)


def test_activity(recorded: Any) -> None:
    api = recorded.api()
    whole = api.message_activity()
    assert len(whole["buckets"]) == 44
    assert sum(whole["buckets"]) == whole["total"] == api.summary()["message_counts"]["total"]
    until_now = api.message_activity(to_now=True)
    assert until_now["end_us"] == recorded.job.now_us and until_now["total"] == whole["total"]
    last = api.message_activity(20.0)
    assert sum(last["buckets"]) == last["total"] < whole["total"]


def test_topology(recorded: Any) -> None:
    api = recorded.api()
    meshes = {mesh["name"]: mesh for mesh in api.topology()["meshes"]}
    assert meshes["workers"]["sizes"] == [8, 8]
    assert meshes["trainers"]["cells"][FAILED] == meshes["workers"]["cells"][FAILED] == "f"
    assert meshes["trainers"]["counts"] == {"processing": 63, "failed": 1}
    assert "log_forwarder" not in meshes
    assert "log_forwarder" in {mesh["name"] for mesh in api.topology(show_system=True)["meshes"]}
    found = api.rank(int(meshes["workers"]["id"]), 8)
    assert {row["mesh_name"] for row in found["actors"]} == {"trainers", "loaders", "log_forwarder"}
    trainer = next(row for row in found["actors"] if row["mesh_name"] == "trainers")
    assert trainer["running"]["endpoint"] == "step"
    with pytest.raises(NotFound, match="mesh not found"):
        api.rank(1, 0)


def test_the_graph_is_of_the_living(recorded: Any) -> None:
    made = recorded.api().dag(True)
    assert {node["tier"] for node in made["nodes"]} == {"host", "proc", "actor"}
    failed = [node for node in made["nodes"] if node["tier"] == "actor" and node["status"] == "failed"]
    assert [node["telemetry_actor_id"] for node in failed] == [str(recorded.job.actors["trainers"][FAILED])]
    assert any(edge["type"] == "message" for edge in made["edges"])
    assert len(recorded.api().dag(False)["nodes"]) == len(made["nodes"]) + 64


def test_the_graph_of_what_has_ended_is_of_the_last_snapshot(recorded: Any) -> None:
    store = Store()
    try:
        api = PageData(store, None, None)
        assert api.dag(True)["snapshot_pending"]
        for snapshot, at in (("old", 1), ("new", 2)):
            store.insert("snapshots", [(snapshot, at)])
            store.insert("nodes", [(snapshot, name, kind, at) for name, kind in _nodes(snapshot)])
            above = [("root", "host:a"), ("host:a", "p@a"), ("p@a", "t.p@a"), ("t.p@a", "u.p@a"), ("p@a", "u.p@a")]
            store.insert("children", [(snapshot, over, under, "0", False, False) for over, under in above])
            store.insert("host_nodes", [(snapshot, "host:a", "tcp://a", 1)])
            store.insert("proc_nodes", [(snapshot, "p@a", "p", 2, 100, False, 0)])
            store.insert(
                "actor_nodes",
                [(snapshot, name, "idle", "T", "1", 0, None, None, 0, 0, False) for name in ("t.p@a", "u.p@a")],
            )
        made = PageData(store, None, None).dag(True)
        assert {node["entity_id"] for node in made["nodes"]} == {"host:a", "p@a", "t.p@a", "u.p@a"}
        below = {edge["target_id"]: edge["source_id"] for edge in made["edges"]}
        assert below["actor-u.p@a"] == "proc-p@a"  # not the actor that looks after it
    finally:
        store.close()


def _nodes(snapshot: str) -> list[tuple[str, str]]:
    nodes = [("root", "root"), ("host:a", "host"), ("p@a", "proc"), ("t.p@a", "actor"), ("u.p@a", "actor")]
    return nodes if snapshot == "new" else nodes[:2]


def test_actors(recorded: Any) -> None:
    api = recorded.api()
    actors = api.actors()
    assert len(actors) == 138
    assert all(isinstance(row["id"], str) and isinstance(row["mesh_id"], str) for row in actors)
    one = next(row for row in actors if row["mesh_name"] == "trainers" and row["rank"] == STRAGGLER)
    assert (one["latest_status"], one["mesh_class"], one["is_system"]) == ("processing", "Python<Trainer>", False)
    assert api.actor(int(one["id"]))["full_name"] == one["full_name"]
    assert [event["new_status"] for event in api.status_events(int(one["id"]))] == ["Created", "Initializing", "Idle"]
    messages = api.actor_messages(int(one["id"]))
    assert messages == sorted(messages, key=lambda row: row["timestamp_us"])
    assert messages[-1]["latest_status"] in ("active", "complete")
    history = api.message_events(int(messages[0]["id"]))
    assert [event["status"] for event in history] == ["queued", "active", "complete"]
    assert api.actors(int(one["mesh_id"])) == [row for row in actors if row["mesh_id"] == one["mesh_id"]]
    for ask in (api.actor, api.status_events, api.actor_messages):
        with pytest.raises(NotFound, match="actor not found"):
            ask(1)


def test_messages_are_bounded(recorded: Any) -> None:
    api = recorded.api()
    client = recorded.job.actors["client"][0]
    assert len(api.messages()) == 1000
    assert {row["from_actor_id"] for row in api.messages(sender=client)} == {str(client)}
    assert {row["sender_actor_id"] for row in api.sent_messages(client)} == {str(client)}


def test_meshes(recorded: Any) -> None:
    api = recorded.api()
    assert {mesh["given_name"] for mesh in api.meshes(kind="Proc")} == {"local", "workers"}
    workers = next(mesh for mesh in api.meshes() if mesh["given_name"] == "workers")
    children = api.meshes(parent=int(workers["id"]), without=("Python<LogForwarder>",))
    assert {mesh["given_name"] for mesh in children} == {"trainers", "loaders", "evaluator"}
    assert api.mesh(int(workers["id"])) == workers
    assert api.meshes(kind="'; DROP TABLE meshes; --") == []


def test_sql(recorded: Any) -> None:
    api = recorded.api()
    made = api.sql("SELECT id, rank FROM actors ORDER BY rank LIMIT 3", limit=2)
    assert made["columns"] == ["id", "rank"]
    assert len(made["rows"]) == 2 and made["truncated"]
    assert all(isinstance(row[0], str) for row in made["rows"])
    assert {table["name"] for table in api.tables()} >= {"actors", "messages", "spans"}
    with pytest.raises(QueryError, match="read, not written"):
        api.sql("DELETE FROM actors")
    with pytest.raises(QueryTimeout):
        api.sql("SELECT count(*) FROM range(1000000000) a, range(100000) b", seconds=0.2)


def test_hardware(recorded: Any) -> None:
    made = recorded.api().hardware(600.0)
    assert [host["hostname"] for host in made["hosts"]] == [f"node{number}" for number in range(1, 9)]
    assert len(made["gpus"]) == 64
    first = made["hosts"][0]
    assert all(len(values) == len(first["times_us"]) for values in first["series"].values())
    assert recorded.api().hardware(5.0)["hosts"][0]["times_us"][0] >= recorded.job.now_us - 5_000_000


def test_stacks(recorded: Any) -> None:
    made = recorded.api().stacks()
    assert made["threads"] == 72
    assert made["busy"]["count"] == 64
    assert made["silent"] == {"node9/agent": "it does not answer"}
    actor = recorded.job.actors["trainers"][STRAGGLER]
    (thread,) = recorded.api().actor_stacks(actor)["threads"]
    assert thread["frames"][-1] == ("decode", "data.py", 57)


def test_a_program_that_has_ended_says_so(recorded: Any) -> None:
    api = PageData(recorded.store, None, None)
    for ask in (api.stacks, lambda: api.start_profile(5)):
        with pytest.raises(Unavailable, match="does not run"):
            ask()
    assert api.summary()["program"] is None
    assert api.now_us() <= recorded.job.now_us


def test_services() -> None:
    """From the rows that a service's measures become, each with what was counted since the row before."""
    store = Store()
    try:
        assert PageData(store, None).services() == []
        resource, bounds = "{}", "[1.0,10.0,100.0]"
        for replica, outstanding in ((0, 3.0), (1, 0.0)):
            of = f'{{"service":"x","replica":{replica}}}'
            for at, value in ((1, 9.0), (2, outstanding)):
                gauge = ("service.outstanding", at, None, "monarch", "", of, resource, value, None, None)
                store.insert("metric_gauges", [gauge, ("service.version", *gauge[1:7], float(at), None, None)])
            for at, counts in ((1, "[90,0,0,0]"), (2, "[8,1,1,0]")):
                head = ("service.latency", at, 0, "monarch", "ms", "delta", of, resource)
                times = (
                    *head,
                    sum(json.loads(counts)),
                    50.0,
                    None,
                    None,
                    0.5,
                    None,
                    None,
                    60.0,
                    None,
                    None,
                    bounds,
                    counts,
                )
                batches = ("service.batch_size", *head[1:], 10, 40.0, *times[10:])
                store.insert("metric_histograms", [times, batches])
        refused = (
            "service.not_answered",
            1,
            0,
            "monarch",
            "",
            "delta",
            True,
            '{"service":"x","error":"ServiceOverloaded"}',
        )
        store.insert("metric_sums", [(*refused, resource, None, None, 7)])
        (service,) = PageData(store, None).services()
        first, second = service["replicas"]
        levels = {"replica": 0, "outstanding": 3.0, "version": 2.0}
        assert first == {**levels, "answered": 100, "mean_us": 1000.0, "p99_us": 10_000.0, "batch": 4.0}
        assert (second["replica"], second["outstanding"]) == (1, 0.0)
        assert service["not_answered"] == {"ServiceOverloaded": 7}
    finally:
        store.close()
