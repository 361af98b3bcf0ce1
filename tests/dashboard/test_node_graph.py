"""The tree of a program as a graph."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.dashboard.pages import node_graph


def payload(identity: str, kind: str, parent: str | None, **properties: Any) -> dict[str, Any]:
    return {"identity": identity, "properties": {kind: properties}, "children": [], "parent": parent, "as_of": ""}


def small() -> list[node_graph.Node]:
    return node_graph.from_payloads(
        [
            payload("root", "Root", None, num_hosts=1),
            payload("host:a", "Host", "root", addr="tcp://node1:26600"),
            payload(
                "p-0<u>@a",
                "Proc",
                "host:a",
                proc_name="p-0<u>",
                system_children=["log<s>.p-0<u>@a"],
                failed_actor_count=1,
            ),
            payload("s@a", "Proc", "host:a", proc_name="s", system_children=["x.s@a"], failed_actor_count=0),
            payload("t-0<v>.p-0<u>@a", "Actor", "p-0<u>@a", actor_status="failed: boom: twice"),
            payload("log<s>.p-0<u>@a", "Actor", "p-0<u>@a", actor_status="idle"),
            payload("x.s@a", "Actor", "s@a", actor_status="idle"),
            payload("gone", "Error", "host:a", code="not_found", message="it has ended"),
        ]
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("idle", ("idle", "")),
        ("failed: boom: twice", ("failed", "boom: twice")),
        ("stopped: asked", ("stopped", "asked")),
        ("step: processing for 12ms", ("processing", "step: processing for 12ms")),
        ("processing for 3ms", ("processing", "processing for 3ms")),
    ],
)
def test_the_word_of_a_status(text: str, found: tuple[str, str]) -> None:
    assert node_graph.words(text) == found


def test_labels_and_states() -> None:
    nodes = {node.ref: node for node in small()}
    assert nodes["host:a"].label == "node1:26600"
    assert nodes["p-0<u>@a"].label == "p-0[u]"
    assert nodes["p-0<u>@a"].status == "stopping"
    assert nodes["t-0<v>.p-0<u>@a"].label == "t-0[v]"
    assert nodes["t-0<v>.p-0<u>@a"].detail == "boom: twice"
    assert nodes["gone"].detail == "not_found: it has ended"
    assert nodes["log<s>.p-0<u>@a"].is_system


def test_a_graph_without_the_system() -> None:
    actors = [
        {"id": 1, "full_name": "t-0<v>.p-0<u>@a", "mesh_name": "t"},
        {"id": 2, "full_name": "x.s@a", "mesh_name": None},
    ]
    pairs = [{"from_actor_id": 1, "to_actor_id": 2}, {"from_actor_id": 2, "to_actor_id": 77}]
    made = node_graph.dag(small(), actors=actors, pairs=pairs, hide_system=True)
    assert {node["entity_id"] for node in made["nodes"]} == {"host:a", "p-0<u>@a", "t-0<v>.p-0<u>@a", "gone"}
    assert made["snapshot_partial"] and made["resolution_error_count"] == 1
    assert [edge for edge in made["edges"] if edge["type"] == "message"] == []
    whole = node_graph.dag(small(), actors=actors, pairs=pairs, hide_system=False)
    assert len(whole["nodes"]) == 7
    assert [(edge["source_id"], edge["target_id"]) for edge in whole["edges"] if edge["type"] == "message"] == [
        ("actor-t-0<v>.p-0<u>@a", "actor-x.s@a")
    ]
    first = next(node for node in made["nodes"] if node["tier"] == "actor")
    assert (first["telemetry_actor_id"], first["mesh_name"], first["id"]) == ("1", "t", "actor-t-0<v>.p-0<u>@a")


def test_a_snapshot_gives_the_same_nodes() -> None:
    row = {
        "child_is_system": False,
        "is_stopped": False,
        "addr": None,
        "proc_name": None,
        "is_poisoned": None,
        "failed_actor_count": None,
        "actor_status": None,
        "actor_type": None,
        "is_system": None,
        "error_code": None,
        "error_message": None,
    }
    rows = [
        row | {"node_id": "host:a", "node_kind": "host", "parent_id": "root", "addr": "unix:/x"},
        row | {"node_id": "p@a", "node_kind": "proc", "parent_id": "host:a", "proc_name": "p", "is_poisoned": True},
        row | {"node_id": "t.p@a", "node_kind": "actor", "parent_id": "p@a", "actor_status": "idle", "is_system": True},
    ]
    nodes = node_graph.from_snapshot(rows)
    assert [(node.kind, node.label, node.status, node.is_system) for node in nodes] == [
        ("host", "unix:/x", "idle", False),
        ("proc", "p", "failed", False),
        ("actor", "t", "idle", True),
    ]


def test_the_host_of_the_program_itself_is_named() -> None:
    nodes = node_graph.from_payloads(
        [
            payload("host:a", "Host", "root", addr="unix:/run/x"),
            payload("client@unix:/run/x", "Proc", "host:a", proc_name="client"),
            payload("host:b", "Host", "root", addr="tcp://b:1"),
        ]
    )
    labels = [node["label"] for node in node_graph.dag(nodes, actors=[], pairs=[], hide_system=True)["nodes"]]
    assert labels == ["unix:/run/x (controller)", "client", "b:1"]
