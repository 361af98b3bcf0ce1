"""A failure, as its page shows it: who owned the actor, what failed with it, what was logged and printed before. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.dashboard.pages import shapes

_UNKNOWN = "an actor of a process that died early"
SHOWN = 50  # others that have failed
_PROCESS = re.compile(r"\.([^.<]+)-(\d{1,9})<")  # mesh and rank, in the reference of an actor

Row = Mapping[str, Any]


def owners(display_name: str | None) -> list[str]:
    """Returns the names of those who own an actor, the outermost first, and its own, of `<root>.<train.Trainer trainers>`."""
    return [part.strip("<>") for part in (display_name or "").split(".<")]


def process_of(full_name: str) -> tuple[str, int] | None:
    """Returns the mesh and rank of its process."""
    found = _PROCESS.search(full_name)
    return (found[1], int(found[2])) if found else None


def of_status(row: Row) -> dict[str, Any]:
    """Returns the failure of an actor of which nothing but its last status is known, as those of others are."""
    return {**row, "actor_id": row["id"], "reason": row["status_reason"], "root_cause": None, "root_cause_name": None}


def failure(actor: Row, failed: Sequence[Row], actors: Sequence[Row]) -> dict[str, Any]:
    """GET /api/failures/{id}, but for the lines. `failed`: all that have."""
    own = next((row for row in failed if row["actor_id"] == actor["id"]), None)
    names = owners(actor["display_name"] or _UNKNOWN)
    ids = {row["display_name"]: str(row["id"]) for row in actors if row["display_name"]}
    chain, whole = [], ""
    for name in names:
        whole = f"{whole}.<{name}>" if whole else f"<{name}>"
        chain.append({"name": shapes.short_name(whole, name).strip("<>"), "actor_id": ids.get(whole)})
    first = sorted(failed, key=lambda row: (row["timestamp_us"], row["actor_id"]))
    return {
        "actor": shapes.with_text_ids(actor),
        "name": shapes.short_name(actor["display_name"], actor["full_name"]) or _UNKNOWN,
        "failed": own is not None,
        "first": bool(first) and first[0]["actor_id"] == actor["id"],
        "failed_us": None if own is None else own["timestamp_us"],
        "reason": (own or {}).get("reason") or "",
        "root_cause": (own or {}).get("root_cause_name") or (own or {}).get("root_cause"),
        "is_propagated": bool((own or {}).get("is_propagated")),
        "owners": chain,
        "others": [
            {
                "actor_id": str(row["actor_id"]),
                "name": shapes.short_name(row["display_name"], row["full_name"]),
                "reason": shapes.first_line(row["reason"]),
                "us": row["timestamp_us"],
            }
            for row in first
            if row["actor_id"] != actor["id"]
        ][:SHOWN],
    }
