"""The right pane's text about a node: lines of (label, value), by section. Pure."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from monarch._mesh.inspection.diagnosis import Finding
from monarch._text import age, size
from monarch.admin import payloads
from monarch.admin.payloads import (
    ActorProperties,
    ErrorProperties,
    HostProperties,
    NodePayload,
    ProcProperties,
    RootProperties,
)
from monarch.admin.screen import labels
from monarch.admin.screen.words import Words

MOST_CHILDREN = 50
_SENDERS = 10  # most stalled ones that are shown


class DetailLine(NamedTuple):
    """`tone`: "", "good", "warning", "error" or "dim"; `label` "" continues the line before."""

    label: str
    value: str
    tone: str = ""


class DetailSection(NamedTuple):
    """`title` "" is the first, which has none."""

    title: str
    lines: list[DetailLine]


def sections(
    nodes: Mapping[str, NodePayload], node: NodePayload, now: float, say: Words, findings: Sequence[Finding] = ()
) -> list[DetailSection]:
    """`now`: seconds since the epoch. `findings`: the doctor's, of which those of this node are said first."""
    told = list(_findings(nodes, node, findings))
    return [*([DetailSection("", told)] if told else []), *_sections(nodes, node, now, say)]


def _findings(nodes: Mapping[str, NodePayload], node: NodePayload, findings: Sequence[Finding]) -> Iterator[DetailLine]:
    """Yields those whose fault seems to be of this node: all for the root."""
    actor = node.properties.Actor
    above = nodes.get(node.parent or "") if actor is not None else node
    proc = above.properties.Proc if above is not None else None
    for finding in findings:
        mine = proc is not None and proc.mesh_name == finding.mesh and proc.rank in finding.ranks
        mine |= actor is not None and actor.name == finding.mesh and actor.rank in finding.ranks
        if mine or node.properties.Root is not None:
            yield DetailLine("", finding.title, "error")


def _sections(nodes: Mapping[str, NodePayload], node: NodePayload, now: float, say: Words) -> list[DetailSection]:
    properties = node.properties
    if properties.Root is not None:
        return _root(nodes, node, properties.Root, now, say)
    if properties.Host is not None:
        return _host(nodes, node, properties.Host, say)
    if properties.Proc is not None:
        return _proc(nodes, node, properties.Proc, say)
    if properties.Actor is not None:
        return _actor(nodes, node, properties.Actor, now, say)
    assert properties.Error is not None
    return _error(node, properties.Error, say)


def _as_of(node: NodePayload, say: Words) -> DetailLine:
    return DetailLine(say("Data as of"), clock(node.as_of), "dim")


def _root(
    nodes: Mapping[str, NodePayload], node: NodePayload, root: RootProperties, now: float, say: Words
) -> list[DetailSection]:
    lines = [
        DetailLine(say("Hosts"), str(root.num_hosts)),
        DetailLine(say("Started by"), root.started_by),
        DetailLine(say("Uptime"), age(max(0.0, now - payloads.seconds(root.started_at)))),
        DetailLine(say("Started at"), clock(root.started_at)),
        DetailLine(say("Command"), root.command),
        _as_of(node, say),
    ]
    if root.failed_count:
        lines.append(DetailLine(say("failed"), str(root.failed_count), "error"))
    lines += [DetailLine(say("Silent"), f"{address}: {why}", "warning") for address, why in root.silent.items()]
    return [DetailSection("", lines), _children(nodes, node, say)]


def _host(nodes: Mapping[str, NodePayload], node: NodePayload, host: HostProperties, say: Words) -> list[DetailSection]:
    used = host.memory_total_bytes - host.memory_available_bytes
    lines = [
        DetailLine(say("Host"), host.hostname),
        DetailLine(say("Address"), host.addr),
        DetailLine(say("Procs"), str(host.num_procs)),
        DetailLine(say("RSS"), f"{size(host.memory.process_rss_bytes)} (host agent, pid {host.pid})"),
        DetailLine(say("VM size"), size(host.memory.process_vm_size_bytes)),
        DetailLine(say("Memory"), f"{size(used)} of {size(host.memory_total_bytes)}"),
        DetailLine(say("Load"), f"{host.load_average:.2f} ({host.processors} processors)"),
        _as_of(node, say),
    ]
    if host.problem:
        lines.append(DetailLine(say("Problem"), host.problem, "error"))
    return [DetailSection("", lines), _children(nodes, node, say)]


def _proc(nodes: Mapping[str, NodePayload], node: NodePayload, proc: ProcProperties, say: Words) -> list[DetailSection]:
    debug = proc.debug
    depth = f"{debug.actor_work_queue_depth_total} total, {debug.actor_work_queue_depth_max} max"
    lines = [
        DetailLine(say("Name"), proc.proc_name),
        DetailLine(
            say("Mesh"),
            proc.mesh_name + (f", rank {proc.rank}" if proc.rank is not None else "") if proc.mesh_name else "-",
        ),
        DetailLine(say("State"), proc.state, "" if proc.state == "running" else "warning"),
        DetailLine(say("Pid"), f"{proc.pid} on {proc.hostname}"),
        DetailLine(say("Actors"), str(proc.num_actors)),
        DetailLine(say("RSS"), size(debug.memory.process_rss_bytes)),
        DetailLine(say("VM size"), size(debug.memory.process_vm_size_bytes)),
        DetailLine(say("Queue depth"), depth),
    ]
    if debug.actor_work_queue_depth_high_water_mark:
        lines.append(DetailLine(say("Peak depth"), str(debug.actor_work_queue_depth_high_water_mark)))
    running = labels.stuck(nodes, node)
    busy = f"{say('now')}, {age(running)}" if running else _last_busy(debug.last_nonzero_queue_depth_age_ms, say)
    lines.append(DetailLine(say("Last busy"), busy))
    lines.append(_as_of(node, say))
    if proc.is_poisoned:
        lines.append(DetailLine(say("Poisoned"), say("yes"), "error"))
    if proc.failed_actor_count:
        lines.append(DetailLine(say("Failed actors"), str(proc.failed_actor_count), "error"))
    return [DetailSection("", lines), _children(nodes, node, say)]


def _mesh(proc: ProcProperties) -> str:
    rank = "" if proc.rank is None else f", rank {proc.rank}"
    return proc.mesh_name + rank if proc.mesh_name else "-"


def _last_busy(age: int | None, say: Words) -> str:
    if age is None:
        return say("never")
    return f"{age} ms {say('ago')}" if age < 1000 else f"{age // 1000} s {say('ago')}"


def _children(nodes: Mapping[str, NodePayload], node: NodePayload, say: Words) -> DetailSection:
    titles = {"Root": "Hosts", "Host": "Procs", "Proc": "Actors", "Actor": "Children"}
    shown = [nodes[child] for child in node.children if child in nodes]
    lines = [
        DetailLine("", labels.label(child), "error" if labels.has_failed(child) else "")
        for child in shown[:MOST_CHILDREN]
    ]
    if len(shown) > MOST_CHILDREN:
        lines.append(DetailLine("", "... " + say("and {0} more", len(shown) - MOST_CHILDREN), "dim"))
    return DetailSection(say(titles.get(node.kind, "Children")), lines)


def _actor(
    nodes: Mapping[str, NodePayload], node: NodePayload, actor: ActorProperties, now: float, say: Words
) -> list[DetailSection]:
    detail = actor.status_detail.splitlines()[0] if actor.status_detail else ""
    tone = {"failed": "error", "zombie": "error", "processing": "good", "stopped": "dim"}.get(actor.status, "")
    depth = str(actor.queue_depth)
    if actor.queue_depth_high_water_mark:
        depth += f" (peak {actor.queue_depth_high_water_mark})"
    lines = [
        DetailLine(say("Status"), f"{actor.status}: {detail}" if detail else actor.status, tone),
        DetailLine(say("Instance"), actor.instance_id),
        DetailLine(say("Type"), actor.actor_type),
        DetailLine(say("Queue depth"), depth),
        DetailLine(say("Messages"), str(actor.messages_processed)),
        DetailLine(say("Processing time"), f"{actor.total_processing_time_us / 1e6:.3f} s"),
        DetailLine(say("Created"), clock(actor.created_at) if actor.created_at else "-"),
        DetailLine(say("Last handler"), actor.last_message_handler or "-"),
        DetailLine(say("Children"), str(len(node.children))),
        _as_of(node, say),
    ]
    found = [DetailSection("", lines)]
    failure = actor.failure_info
    if failure is not None:
        cause = failure.root_cause_name or labels.short(failure.root_cause_actor)
        away = "  (Enter)" if failure.is_propagated else ""
        error = [
            DetailLine(say("Root cause"), cause + away, "warning"),
            DetailLine(say("Failed at"), clock(failure.occurred_at)),
        ]
        error.append(DetailLine(say("Propagated"), say("yes") if failure.is_propagated else say("no")))
        error += [DetailLine("", line, "error") for line in failure.error_message.splitlines()]
        found.append(DetailSection(say("Error"), error))
    if actor.waits_for:
        found.append(DetailSection(say("Waits for"), [_wait(wait, now) for wait in actor.waits_for]))
    found.append(_execution(actor, now, say))
    found.append(_ordering(actor, say))
    if node.children:
        found.append(_children(nodes, node, say))
    found.append(DetailSection(say("Flight recorder"), events(actor.flight_recorder)))
    return [section for section in found if section.lines]


def _wait(wait: payloads.WaitsFor, now: float) -> DetailLine:
    since = age(max(0.0, now - payloads.seconds(wait.since)))
    ranks = f", {wait.unanswered} ranks" if wait.unanswered > 1 else ""
    return DetailLine("", f"{wait.target}{ranks}  {since}", "warning")


def _execution(actor: ActorProperties, now: float, say: Words) -> DetailSection:
    execution = actor.execution
    if execution is None:
        return DetailSection(say("Execution"), [])
    lines = []
    for handler in execution.active_handlers:
        since = age(max(0.0, now - payloads.seconds(handler.oldest_since)))
        lines.append(DetailLine("", f"{handler.name} ×{handler.active_count}  {since}", "good"))  # noqa: RUF001
    return DetailSection(say("Execution"), lines or [DetailLine("", say("nothing runs"), "dim")])


def _ordering(actor: ActorProperties, say: Words) -> DetailSection:
    ordering = actor.inbound_ordering
    if ordering is None:
        return DetailSection(say("Inbound ordering"), [])
    if not ordering.sessions:
        return DetailSection(say("Inbound ordering"), [DetailLine("", say("in order"), "dim")])
    lines = []
    for session in ordering.sessions[:_SENDERS]:
        text = f"{say('Need seq')} {session.expected_next_seq}, {say('Buffered')} {session.buffered_count}"
        lines.append(DetailLine(session.sender or session.session_id, text, "warning"))
    return DetailSection(say("Inbound ordering"), lines)


def events(text: str | None) -> list[DetailLine]:
    """Returns the flight recorder's events, oldest first."""
    try:
        rows = json.loads(text) if text else []
        return [
            DetailLine(
                "",
                f"{row['level']:<5} {clock(row['timestamp'])} {row['name']} {row['fields'].get('message', '')}".rstrip(),
                {"ERROR": "error", "WARNING": "warning"}.get(row["level"], ""),
            )
            for row in rows
        ]
    except (ValueError, KeyError, TypeError, AttributeError):  # of another version
        return [DetailLine("", str(text), "dim")]


def _error(node: NodePayload, error: ErrorProperties, say: Words) -> list[DetailSection]:
    first, *rest = error.message.splitlines() or [""]
    lines = [
        DetailLine(say("Name"), labels.short(node.identity)),
        DetailLine(say("Code"), error.code, "error"),
        DetailLine(say("Error"), first, "error"),
        *[DetailLine("", line, "error") for line in rest],
        _as_of(node, say),
    ]
    return [DetailSection("", lines)]


def clock(text: str) -> str:
    """A time of the API as this machine's clock shows it."""
    try:
        moment = datetime.datetime.fromisoformat(text).astimezone()
    except ValueError:
        return text
    return moment.strftime("%H:%M:%S")
