"""Root, hosts, processes and actors as flat nodes, of a running program or a snapshot, and the graph drawn of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
KINDS = ("root", "host", "proc", "actor", "error")
TITLES = {"host": "Host", "proc": "Proc", "actor": "Actor", "error": "Error"}


@dataclass
class Node:
    """One thing of the tree. `parent` is its proc's, host's or the root's reference."""

    ref: str
    kind: str
    parent: str | None
    label: str
    status: str
    detail: str = ""
    is_system: bool = False


def from_payloads(payloads: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Nodes of NodePayloads as the admin API gives them. An actor below another actor stays below its proc."""
    payloads = list(payloads)
    system: set[str] = set()
    for payload in payloads:
        for properties in payload["properties"].values():
            system.update(properties.get("system_children") or ())
    nodes = []
    for payload in payloads:
        (kind, properties), *_ = payload["properties"].items()
        kind = kind.lower()
        ref = payload["identity"]
        is_system = ref in system or bool(properties.get("is_system"))
        nodes.append(_node(ref, kind, payload.get("parent"), properties, is_system))
    return nodes


def from_snapshot(rows: Iterable[Row]) -> list[Node]:
    """Nodes of the newest snapshot's rows (queries.snapshot_nodes)."""
    nodes = []
    for row in rows:
        properties = {**row, "code": row["error_code"], "message": row["error_message"]}
        is_system = bool(row["is_system"] or row["child_is_system"])
        nodes.append(_node(row["node_id"], row["node_kind"], row["parent_id"], properties, is_system))
    return nodes


def _node(ref: str, kind: str, parent: str | None, properties: Mapping[str, Any], is_system: bool) -> Node:
    status, detail = "idle", ""
    if kind == "proc":
        if properties.get("is_poisoned"):
            status = "failed"
        elif properties.get("failed_actor_count"):
            status, detail = "stopping", f"{properties['failed_actor_count']} failed"
    elif kind == "actor":
        status, detail = words(properties.get("actor_status") or "unknown")
    elif kind == "error":
        status, detail = "failed", f"{properties.get('code')}: {properties.get('message')}"
    label = {"host": _host_label, "proc": _proc_label}.get(kind, _actor_label)(ref, properties)
    return Node(ref, kind, parent, label, status, detail, is_system)


def words(actor_status: str) -> tuple[str, str]:
    """The word of a status, and what is said beside it: "failed: boom" -> ("failed", "boom")."""
    if "processing for" in actor_status:
        return "processing", actor_status
    word, _, detail = actor_status.partition(":")
    return word.strip().lower(), detail.strip()


def _host_label(ref: str, properties: Mapping[str, Any]) -> str:
    address = str(properties.get("addr") or ref)
    return address.partition("://")[2] or address


def _proc_label(ref: str, properties: Mapping[str, Any]) -> str:
    return bracketed(str(properties.get("proc_name") or ref.partition("@")[0]))


def _actor_label(ref: str, properties: Mapping[str, Any]) -> str:
    return bracketed(ref.partition("@")[0].partition(".")[0])


def bracketed(name: str) -> str:
    """Returns `workers-0<uid>` as `workers-0[uid]`."""
    head, mark, uid = name.partition("<")
    return f"{head}[{uid.rstrip('>')}]" if mark else name


def without_system(nodes: Sequence[Node]) -> list[Node]:
    """The user's nodes: no actors of the system, and no process or host that has nothing else."""
    kept = [node for node in nodes if node.kind != "actor" or not node.is_system]
    populated = {node.parent for node in kept if node.kind in ("actor", "error")}
    only_system = {node.parent for node in nodes if node.kind == "actor"} - populated
    return [
        node
        for node in kept
        if node.kind != "proc" or node.ref in populated or not (node.is_system or node.ref in only_system)
    ]


def dag(
    nodes: Sequence[Node],
    *,
    actors: Iterable[Row],
    pairs: Iterable[Row],
    hide_system: bool,
    pending: bool = False,
) -> dict[str, Any]:
    """GET /api/dag: the tree as nodes and edges, and who sent messages to whom."""
    errors = sum(node.kind == "error" for node in nodes)
    shown = without_system(nodes) if hide_system else list(nodes)
    shown = [node for node in shown if node.kind != "root"]
    ids = {node.ref: f"{node.kind}-{node.ref}" for node in shown}
    client_hosts = {node.parent for node in nodes if node.kind == "proc" and node.ref.startswith("client@")}
    known = {row["full_name"]: row for row in actors}
    ref_of = {row["id"]: name for name, row in known.items() if name in ids}
    drawn = []
    for node in shown:
        actor = known.get(node.ref)
        drawn.append(
            {
                "id": ids[node.ref],
                "entity_id": node.ref,
                "tier": node.kind,
                "label": f"{node.label} (controller)" if node.ref in client_hosts else node.label,
                "subtitle": TITLES[node.kind],
                "status": node.status,
                "detail": node.detail,
                "telemetry_actor_id": str(actor["id"]) if actor else None,
                "mesh_name": actor["mesh_name"] if actor else None,
            }
        )
    edges = [_edge(ids[node.parent], ids[node.ref], "hierarchy") for node in shown if node.parent in ids]
    for row in pairs:
        source, target = ref_of.get(row["from_actor_id"]), ref_of.get(row["to_actor_id"])
        if source and target and source != target:
            edges.append(_edge(ids[source], ids[target], "message"))
    return {
        "nodes": drawn,
        "edges": edges,
        "snapshot_pending": pending,
        "snapshot_partial": errors > 0,
        "resolution_error_count": errors,
    }


def _edge(source: str, target: str, kind: str) -> dict[str, str]:
    return {"id": f"{kind}:{source}>{target}", "source_id": source, "target_id": target, "type": kind}
