"""The tree of actors at one time, as rows of the snapshot tables. Pure; nodes are the admin API's, as JSON has them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

Rows = dict[str, list[tuple[Any, ...]]]
Node = Mapping[str, Any]

_ORDERING = (
    "enabled",
    "snapshot_complete",
    "skipped_session_count",
    "known_session_count",
    "returned_buffered_session_count",
    "returned_buffered_message_count",
    "returned_max_buffered_count",
)
_SESSION = (
    "session_id",
    "sender",
    "last_released_seq",
    "expected_next_seq",
    "buffered_count",
    "oldest_buffered_seq",
    "newest_buffered_seq",
)


def snapshot_rows(snapshot_id: str, nodes: Iterable[Node], now_us: int) -> Rows:
    """Rows by table, of all nodes of the tree; a reader that begins with `snapshots` finds the rest there if that is inserted
    last."""
    rows: Rows = {}
    known = {node["identity"]: node for node in nodes}

    def add(table: str, *values: Any) -> None:
        rows.setdefault(table, []).append((snapshot_id, *values))

    for reference, node in known.items():
        ((kind, facts),) = node["properties"].items()
        add("nodes", reference, kind.lower(), micros(node["as_of"]) or now_us)
        stopped = set(facts.get("stopped_children", ()))
        for place, child in enumerate(node["children"]):
            add("children", reference, child, f"{place:08d}", _is_system(known.get(child)), child in stopped)
        _of_kind(add, kind, reference, facts, now_us)
    add("snapshots", now_us)
    return rows


def _of_kind(add: Any, kind: str, reference: str, facts: Mapping[str, Any], now_us: int) -> None:
    if kind == "Root":
        add("root_nodes", reference, facts["num_hosts"], micros(facts["started_at"]) or now_us, facts["started_by"])
    elif kind == "Host":
        add("host_nodes", reference, facts["addr"], facts["num_procs"])
    elif kind == "Proc":
        names = ("proc_name", "num_actors", "stopped_retention_cap", "is_poisoned", "failed_actor_count")
        add("proc_nodes", reference, *(facts[name] for name in names))
    elif kind == "Error":
        add("resolution_errors", reference, facts["code"], facts["message"])
    else:
        _actor(add, reference, facts, now_us)


def _actor(add: Any, reference: str, facts: Mapping[str, Any], now_us: int) -> None:
    add(
        "actor_nodes",
        reference,
        facts["actor_status"],
        facts["actor_type"],
        facts["instance_id"],
        facts["messages_processed"],
        micros(facts["created_at"]),
        facts["last_message_handler"],
        facts["total_processing_time_us"],
        facts["queue_depth"],
        facts["is_system"],
    )
    failure = facts["failure_info"]
    if failure is not None:
        add(
            "actor_failures",
            reference,
            failure["error_message"],
            failure["root_cause_actor"],
            failure["root_cause_name"],
            micros(failure["occurred_at"]) or now_us,
            failure["is_propagated"],
        )
    execution = facts["execution"]
    if execution is not None:
        add("actor_executions", reference, execution["active_count"], execution["complete"], execution["truncated"])
        for handler in execution["active_handlers"]:
            since = micros(handler["oldest_since"]) or now_us
            add("active_handlers", reference, handler["name"], handler["active_count"], since)
    ordering = facts["inbound_ordering"]
    if ordering is not None:
        add("actor_inbound_orderings", reference, *(ordering[name] for name in _ORDERING))
        for session in ordering["sessions"]:
            add("ordering_sessions", reference, *(session[name] for name in _SESSION))


def _is_system(node: Node | None) -> bool:
    return node is not None and bool(node["properties"].get("Actor", {}).get("is_system", False))


def micros(text: str | None) -> int | None:
    """A time of the admin API in microseconds since the epoch."""
    if not text:
        return None
    return round(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1e6)
