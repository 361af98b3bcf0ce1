"""One line about each node, and what stands in the right column of the tree. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from monarch._text import age, counted, first_line
from monarch.admin.payloads import ActorProperties, NodePayload, ProcProperties

STUCK_FROM = 1.0  # seconds that an endpoint has been running from which the tree says so


def label(node: NodePayload) -> str:
    properties = node.properties
    if properties.Root is not None:
        return "root"
    if properties.Host is not None:
        host = properties.Host
        name = host.hostname or host.addr
        return f"{name}  ({counted(host.num_procs, 'proc')})" + ("  [no answer]" if host.problem else "")
    if properties.Proc is not None:
        return proc_label(properties.Proc)
    if properties.Actor is not None:
        return actor_name(node)
    error = properties.Error
    assert error is not None
    return f"{short(node.identity)}  [error] {error.code}: {first_line(error.message)}"


def proc_label(proc: ProcProperties) -> str:
    stopped, system = len(proc.stopped_children), len(set(proc.system_children) - set(proc.stopped_children))
    parts = [f"{system} system"] if system else []
    parts.append(f"{proc.num_actors - system} user")
    if stopped:
        parts.append(f"{stopped} stopped" + (" (max retained)" if stopped >= proc.stopped_retention_cap else ""))
    text = f"{proc.proc_name}  ({counted(proc.num_actors, 'actor')}: {', '.join(parts)})"
    if proc.is_poisoned:
        text += f"  [POISONED: {proc.failed_actor_count} failed]"
    elif proc.failed_actor_count:
        text += f"  [{proc.failed_actor_count} failed]"
    return text + (f"  [{proc.state}]" if proc.state not in ("running", "") else "")


def actor_name(node: NodePayload) -> str:
    """Returns name[rank]; the client is "client"."""
    actor = node.properties.Actor
    assert actor is not None
    return "client" if actor.status == "client" else f"{actor.name}[{actor.rank}]"


def short(reference: str) -> str:
    """Returns a reference without its location."""
    return reference.rpartition("@")[0] or reference


def has_failed(node: NodePayload) -> bool:
    properties = node.properties
    if properties.Actor is not None:
        return properties.Actor.status == "failed" or properties.Actor.failure_info is not None
    if properties.Proc is not None:
        return properties.Proc.is_poisoned or properties.Proc.failed_actor_count > 0
    return properties.Error is not None and properties.Error.code != "starting"


def searched(node: NodePayload) -> str:
    """The text that the filter looks at."""
    actor = node.properties.Actor
    if actor is None:
        return label(node)
    return f"{actor_name(node)} {short(node.identity)} {actor.actor_type} {actor.actor_status}"


def stuck(nodes: Mapping[str, NodePayload], node: NodePayload) -> float:
    """Returns for how many seconds the oldest endpoint has been running, of an actor, or of those in a process."""
    actor = node.properties.Actor
    if actor is not None:
        return (actor.stuck_ms or 0) / 1000
    if node.properties.Proc is None:
        return 0.0
    return max((stuck(nodes, nodes[child]) for child in node.children if child in nodes), default=0.0)


def note(nodes: Mapping[str, NodePayload], node: NodePayload) -> str:
    """Returns the right column: how long it has been at it, and what it waits for."""
    actor = node.properties.Actor
    if actor is None:
        seconds = stuck(nodes, node)
        return age(seconds) if seconds >= STUCK_FROM else ""
    return actor_note(actor)


def actor_note(actor: ActorProperties) -> str:
    if actor.status in ("failed", "stopped", "zombie", "stopping", "initializing", "created"):
        return actor.status
    waits = f"→ {actor.waits_for[0].target}" if actor.waits_for else ""
    seconds = (actor.stuck_ms or 0) / 1000
    if seconds < STUCK_FROM:
        return waits if actor.status == "client" else ""
    endpoint = actor.execution.active_handlers[0].name if actor.execution and actor.execution.active_handlers else ""
    return " ".join(part for part in (endpoint, age(seconds), waits) if part)
