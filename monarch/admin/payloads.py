"""The shapes of what the admin API answers: one NodePayload for each node of the tree root -> hosts -> procs -> actors.

All fields are always there; `None` is null. Times are ISO 8601 in UTC. See docs/admin.md.
"""

from __future__ import annotations

import datetime

import msgspec

from monarch.telemetry.curves import Curve


class MemoryUse(msgspec.Struct, gc=False):
    process_rss_bytes: int | None
    process_vm_size_bytes: int | None


class RootProperties(msgspec.Struct, gc=False):
    num_hosts: int
    started_at: str
    started_by: str
    system_children: list[str]
    pid: int
    command: str
    num_procs: int
    num_actors: int
    failed_count: int
    silent: dict[str, str]  # processes that gave no answer, and why


class HostProperties(msgspec.Struct, gc=False):
    addr: str
    num_procs: int
    system_children: list[str]
    memory: MemoryUse
    hostname: str
    pid: int
    processors: int
    load_average: float
    memory_total_bytes: int
    memory_available_bytes: int
    problem: str | None


class Debug(msgspec.Struct, gc=False):
    memory: MemoryUse
    actor_work_queue_depth_total: int
    actor_work_queue_depth_max: int
    actor_work_queue_depth_high_water_mark: int
    last_nonzero_queue_depth_age_ms: int | None


class DeviceUse(msgspec.Struct, gc=False):
    """A process's GPU: `number` as the process calls it; load in percent, null where its driver does not tell; the memory of
    the whole device."""

    number: int
    load_percent: float | None
    memory_used_bytes: int
    memory_total_bytes: int


class ProcProperties(msgspec.Struct, gc=False):
    proc_name: str
    num_actors: int
    system_children: list[str]
    stopped_children: list[str]
    stopped_retention_cap: int
    is_poisoned: bool
    failed_actor_count: int
    debug: Debug
    address: str
    pid: int
    hostname: str
    mesh_name: str
    rank: int | None
    state: str
    started_at: str
    processor_seconds: float = 0.0  # of processor time so far
    device: DeviceUse | None = None  # null: it uses none, or none that can be measured


class OrderingSession(msgspec.Struct, gc=False):
    session_id: str
    sender: str | None
    last_released_seq: int
    expected_next_seq: int
    buffered_count: int
    oldest_buffered_seq: int | None
    newest_buffered_seq: int | None


class InboundOrdering(msgspec.Struct, gc=False):
    enabled: bool
    snapshot_complete: bool
    skipped_session_count: int
    known_session_count: int
    returned_buffered_session_count: int
    returned_buffered_message_count: int
    returned_max_buffered_count: int
    sessions: list[OrderingSession]


class FailureInfo(msgspec.Struct, gc=False):
    error_message: str
    root_cause_actor: str
    root_cause_name: str | None
    occurred_at: str
    is_propagated: bool


class ActiveHandler(msgspec.Struct, gc=False):
    name: str
    active_count: int
    oldest_since: str
    at: str = ""  # FILE:LINE of the actor's oldest call; "" where that cannot be seen


class Execution(msgspec.Struct, gc=False):
    active_count: int
    active_handlers: list[ActiveHandler]
    complete: bool
    truncated: bool


class WaitsFor(msgspec.Struct, gc=False):
    """The actor waits for an answer of `target` (mesh.endpoint), of that many ranks."""

    target: str
    unanswered: int
    since: str


class ActorProperties(msgspec.Struct, gc=False):
    actor_status: str  # as `status` and `status_detail` in one text
    actor_type: str
    instance_id: str
    messages_processed: int
    created_at: str | None
    last_message_handler: str | None
    total_processing_time_us: int
    queue_depth: int
    flight_recorder: str | None
    is_system: bool
    inbound_ordering: InboundOrdering | None
    failure_info: FailureInfo | None
    execution: Execution | None
    name: str
    rank: int
    status: str
    status_detail: str
    queue_depth_high_water_mark: int
    waits_for: list[WaitsFor]
    stuck_ms: int | None  # how long its oldest endpoint has been running; null: none runs


class ErrorProperties(msgspec.Struct, gc=False):
    """A note in place of a node that cannot be told of: its process has ended, or does not answer."""

    code: str
    message: str


class Properties(msgspec.Struct, omit_defaults=True, gc=False):
    """Exactly one of them is there."""

    Root: RootProperties | None = None
    Host: HostProperties | None = None
    Proc: ProcProperties | None = None
    Actor: ActorProperties | None = None
    Error: ErrorProperties | None = None


class NodePayload(msgspec.Struct, gc=False):
    identity: str
    properties: Properties
    children: list[str]
    parent: str | None
    as_of: str

    @property
    def kind(self) -> str:
        return kind_of(self.properties)


def kind_of(properties: Properties) -> str:
    return next(name for name in properties.__struct_fields__ if getattr(properties, name) is not None)


class AdminInfo(msgspec.Struct, gc=False):
    """The server that answers."""

    actor_id: str
    proc_id: str
    host: str
    url: str


class Nodes(msgspec.Struct, gc=False):
    """The whole tree in one answer."""

    nodes: list[NodePayload]


NO_CURVES = (
    "this program keeps no curves: it calls monarch.metrics.keep(), or monarch.telemetry.start(), and then "
    "monarch.metrics.log(step=..., loss=...) in any rank"
)


class CurvesFound(msgspec.Struct):
    """The curves of what a program has logged of itself. `left_out`: values of curves that were too many."""

    curves: list[Curve]
    left_out: int = 0


class ConfigEntry(msgspec.Struct, gc=False):
    name: str
    value: str
    default_value: str | None
    source: str
    changed_from_default: bool
    env_var: str | None
    has_effect: bool


class ApiError(msgspec.Struct, omit_defaults=True, gc=False):
    code: str
    message: str
    details: dict[str, str] | None = None


class ApiErrorEnvelope(msgspec.Struct, gc=False):
    error: ApiError


def iso(at: float) -> str:
    """Seconds since the epoch as text: 2026-11-22T03:20:55.502Z."""
    moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return moment.isoformat(timespec="milliseconds")[: -len("+00:00")] + "Z"


def seconds(text: str) -> float:
    """The inverse."""
    return datetime.datetime.fromisoformat(text).timestamp()
