"""Expansion of events: SQL that the engine runs over the columns of `batches`, which it sees as the tables `in_<kind>`.

An id is a hash of what names a thing everywhere: of an actor its unique name, of a message its sender, receiver and number.
The upper 16 bits of the ids of messages, spans and events say which process recorded them, so that the rows of one that
floods can be told from the others' (`retention`).
"""

from __future__ import annotations

import itertools

from monarch._mesh.actors.adverb_codes import (
    BROADCAST,
    CALL,
    CALL_ONE,
    CHOOSE,
    KEEP,
    KEEP_COUNTED,
    MAP_CHUNK,
    SEND,
    STREAM,
)
from monarch._runtime.metrics import BOUNDS

SOURCE_BITS = 48  # the source is above them

_ADVERBS = {
    CALL: "call",
    CALL_ONE: "call_one",
    CHOOSE: "choose",
    STREAM: "stream",
    BROADCAST: "broadcast",
    SEND: "send",
    KEEP: "rref",
    KEEP_COUNTED: "keep",
    MAP_CHUNK: "map",
}
_ENDPOINT_TARGET = "monarch_hyperactor::telemetry::endpoint"
_TARGET = "monarch_hyperactor::telemetry"


POSTS = "mailbox.posts"


def _resource(of_process: str = "") -> str:
    """The attributes of what has measured, as OpenTelemetry names them."""
    return f"""CAST(json_object('service.name', 'monarch', 'telemetry.sdk.name', 'opentelemetry'{of_process}) AS VARCHAR)"""


def us(column: str) -> str:
    """A time of the process, in microseconds since the epoch."""
    return f"CAST(round(({column} + shift) * 1000000) AS BIGINT)"


def _id(*parts: str) -> str:
    """Unique among what this process records."""
    return f"((hash(address) % 65536) * {2**SOURCE_BITS}::UBIGINT + hash({', '.join(parts)}) // 65536)"


_MESSAGE = _id("receiver", "sender", "seq")
_PARENT_SPAN = _id("address", "'span'", "parent_span")
_PARENT_MESSAGE = _id("sender_or_actor", "parent_sender", "parent_seq")
_PARENT = f"CASE WHEN parent_span > 0 THEN {_PARENT_SPAN} WHEN parent_seq IS NOT NULL THEN {_PARENT_MESSAGE} END"
_CALL_SPAN = _id("address", "'call'", "serial")
_USER_SPAN = _id("address", "'span'", "serial")
# The same at the caller and at the receiver. Nobody waits for a broadcast, so no port names it: then it is its number.
_CORRELATION_THERE = "CASE WHEN port > 0 THEN hash(back, port) ELSE hash(sender, split_part(receiver, '.', 1), seq) END"
_CORRELATION_HERE = "CASE WHEN port > 0 THEN hash(address, port) ELSE hash(sender, mesh_key, serial) END"

_ADVERB = "CASE adverb " + " ".join(f"WHEN {code} THEN '{name}'" for code, name in _ADVERBS.items()) + " END"

_BUCKETS = [f"count(*) FILTER (WHERE value <= {BOUNDS[0]})"]
_BUCKETS += [f"count(*) FILTER (WHERE value > {low} AND value <= {high})" for low, high in itertools.pairwise(BOUNDS)]
_BUCKETS.append(f"count(*) FILTER (WHERE value > {BOUNDS[-1]})")
_COUNTS = "CAST(to_json([" + ", ".join(_BUCKETS) + "]) AS VARCHAR)"
_BOUNDS_JSON = "[" + ",".join(f"{bound:.1f}" for bound in BOUNDS) + "]"


def _statuses(kind: str, columns: str) -> str:
    return f"""
        INSERT INTO message_status_events
        SELECT {_id("receiver", "sender", "seq", "status")}, happened, {_MESSAGE}, status
        FROM (SELECT *, unnest([{columns}], recursive := true) FROM in_{kind}) WHERE wanted"""


def _status(status: str, at: str, wanted: str) -> str:
    return f"{{'status': {status}, 'happened': {us(at)}, 'wanted': {wanted}}}"


_QUEUED = _status("'queued'", "arrived", "told = 0")
_ACTIVE = _status("'active'", "started", "told < 2 AND started > 0")
_DONE = _status("CASE WHEN failed THEN 'failed' ELSE 'complete' END", "ended", "true")


def _messages(kind: str) -> list[str]:
    """Rows of messages: the time is that of its handling; of one that was told while it waited, from then on."""
    return [
        f"""
        INSERT INTO messages
        SELECT {_MESSAGE}, CASE WHEN started > 0 THEN {us("started")} ELSE {us("arrived")} END, hash(sender), hash(receiver),
            nullif(method, ''), CASE WHEN method <> '' THEN hash(method) END
        FROM in_{kind} WHERE told = 0""",
        f"""
        UPDATE messages SET timestamp_us = active.happened
        FROM (SELECT {_MESSAGE} AS message, {us("started")} AS happened FROM in_{kind} WHERE told = 1 AND started > 0) active
        WHERE id = active.message""",
    ]


def _callee_spans(kind: str) -> str:
    return f"""
        INSERT INTO spans
        SELECT process, {_MESSAGE}, 'python_user_span', '{_TARGET}', 'INFO',
            CAST(json_object('name', method, 'actor_id', hash(receiver), 'correlation_id', {_CORRELATION_THERE}) AS VARCHAR),
            {us("started")}, NULL, '', NULL, NULL
        FROM in_{kind} WHERE spans AND started > 0 AND told < 2"""


def _events(kind: str, id: str, where: str, columns: str) -> str:
    return f"""
        INSERT INTO span_events
        SELECT process, span_id, happened, event_type
        FROM (SELECT process, {id} AS span_id, unnest([{columns}], recursive := true) FROM in_{kind} WHERE {where})
        WHERE wanted"""


def _event(kind: str, at: str, wanted: str = "true") -> str:
    return f"{{'event_type': '{kind}', 'happened': {us(at)}, 'wanted': {wanted}}}"


def _sent(kind: str) -> str:
    return f"""
        INSERT INTO sent_messages
        SELECT {_CALL_SPAN}, {us("began")}, hash(sender), hash(mesh_key), view, shape FROM in_{kind} WHERE told = 0"""


def _caller_spans(kind: str) -> str:
    return f"""
        INSERT INTO spans
        SELECT process, {_CALL_SPAN}, {_ADVERB}, '{_ENDPOINT_TARGET}', 'INFO',
            CAST(json_object('correlation_id', {_CORRELATION_HERE}, 'actor_id', hash(sender), 'mesh', mesh, 'method', method,
                'call_name', {_ADVERB}) AS VARCHAR),
            {us("began")}, {_PARENT}, '', NULL, NULL
        FROM (SELECT *, sender AS sender_or_actor FROM in_{kind}) WHERE told = 0"""


def _sums(name: str, kind: str, keys: str, attributes: str, where: str = "true", at: str = "ended") -> str:
    """A counter of the runtime, made from events that came together."""
    return f"""
        INSERT INTO metric_sums
        SELECT {name}, max({us(at)}), min({us(at)}), 'monarch', '1', 'delta', true, {attributes}, {_resource()},
            NULL, NULL, count(*)
        FROM (SELECT *, {_ADVERB if kind == "called" else "''"} AS called_by FROM in_{kind}) WHERE {where} GROUP BY {keys}"""


def _histogram(name: str, kind: str, unit: str, value: str, keys: str, attributes: str, where: str = "true") -> str:
    return f"""
        INSERT INTO metric_histograms
        SELECT {name}, max({us("ended")}), min({us("ended")}), 'monarch', '{unit}', 'delta', {attributes}, {_resource()},
            count(*), sum(value), NULL, NULL, min(value), NULL, NULL, max(value), NULL, NULL, '{_BOUNDS_JSON}', {_COUNTS}
        FROM (SELECT *, {value} AS value, {_ADVERB if kind == "called" else "''"} AS called_by FROM in_{kind})
        WHERE {where} GROUP BY {keys}"""


def _posts(kind: str) -> str:
    """The messages from one actor to another."""
    attributes = """CAST(json_object('actor_id', CAST(hash(sender) AS VARCHAR),
        'dest_actor_id', CAST(hash(receiver) AS VARCHAR)) AS VARCHAR)"""
    return _sums(f"'{POSTS}'", kind, "sender, receiver", attributes, "told = 0", "arrived")


_OF_CALL = "CAST(json_object('mesh', mesh, 'method', method) AS VARCHAR)"
_OF_METHOD = "CAST(json_object('method', method) AS VARCHAR)"
_OF_PROCESS = _resource(", 'process_id', process")
_ATTRIBUTES = "coalesce(attributes, '{}')"

# By the name of the kind of event.
STATEMENTS: dict[str, list[str]] = {
    "handled": [
        *_messages("handled"),
        _statuses("handled", f"{_QUEUED}, {_ACTIVE}, {_DONE}"),
        _callee_spans("handled"),
        _events(
            "handled",
            _MESSAGE,
            "spans AND started > 0",
            f"{_event('enter', 'started', 'told < 2')}, {_event('exit', 'ended')}, {_event('close', 'ended')}",
        ),
        _posts("handled"),
        _sums("'actor.messages_received'", "handled", "method", _OF_METHOD),
        _histogram(
            "'actor.message_handler_duration'",
            "handled",
            "us",
            "(ended - started) * 1e6",
            "method",
            _OF_METHOD,
            "started > 0",
        ),
        _histogram(
            "'message.e2e_latency.us'",
            "handled",
            "us",
            "(started - arrived) * 1e6",
            "method",
            _OF_METHOD,
            "started > 0",
        ),
    ],
    "under_way": [
        *_messages("under_way"),
        _statuses("under_way", f"{_QUEUED}, {_ACTIVE}"),
        _posts("under_way"),
        _callee_spans("under_way"),
        _events("under_way", _MESSAGE, "spans AND started > 0", f"{_event('enter', 'started', 'told < 2')}"),
    ],
    "called": [
        _sent("called"),
        _caller_spans("called"),
        _events(
            "called",
            _CALL_SPAN,
            "true",
            f"{_event('enter', 'began', 'told = 0')}, {_event('exit', 'ended')}, {_event('close', 'ended')}",
        ),
        _sums("'actor.messages_sent'", "called", "mesh, method", _OF_CALL),
        _sums("'endpoint_' || any_value(called_by) || '_throughput'", "called", "mesh, method, adverb", _OF_CALL),
        _sums("'endpoint_' || any_value(called_by) || '_error'", "called", "mesh, method, adverb", _OF_CALL, "failed"),
        _histogram(
            "'endpoint_' || any_value(called_by) || '_latency_us_histogram'",
            "called",
            "us",
            "(ended - began) * 1e6",
            "mesh, method, adverb",
            _OF_CALL,
            "called_by NOT IN ('broadcast', 'send')",
        ),
    ],
    "calling": [
        _sent("calling"),
        _caller_spans("calling"),
        _events("calling", _CALL_SPAN, "true", f"{_event('enter', 'began')}"),
    ],
    "actor": [
        """INSERT INTO actors
        SELECT hash(actor), """
        + us("happened")
        + """, hash(mesh_key), rank, full_name, display_name
        FROM in_actor WHERE hash(actor) NOT IN (SELECT id FROM actors)
        QUALIFY row_number() OVER (PARTITION BY actor) = 1"""
    ],
    "status": [
        f"""INSERT INTO actor_status_events
        SELECT {_id("actor", "status", "happened")}, {us("happened")}, hash(actor), status, nullif(reason, '')
        FROM in_status""",
        f"""INSERT INTO events
        SELECT 'event actor status', 'monarch', 'INFO',
            CAST(json_object('name', 'ActorStatus', 'prev_status', nullif(status_before, ''), 'status', status, 'actor_id',
                hash(actor), 'actor_name', actor, 'change_reason', reason) AS VARCHAR),
            {us("happened")}, NULL, 0, '', NULL, NULL, NULL
        FROM in_status""",
    ],
    "mesh": [
        f"""INSERT INTO meshes
        SELECT hash(mesh_key), {us("happened")}, class, given_name, full_name, shape,
            CASE WHEN parent_key <> '' THEN hash(parent_key) END, nullif(parent_view, '')
        FROM in_mesh WHERE hash(mesh_key) NOT IN (SELECT id FROM meshes)
        QUALIFY row_number() OVER (PARTITION BY mesh_key) = 1"""
    ],
    "span": [
        f"""INSERT INTO spans
        SELECT process, {_USER_SPAN}, 'python_user_span', '{_TARGET}', 'INFO',
            CAST(json_object('name', name, 'actor_id', CASE WHEN actor <> '' THEN hash(actor) END, 'correlation_id', NULL,
                'error', nullif(error, '')) AS VARCHAR),
            {us("began")}, {_PARENT}, thread_name, NULL, NULL
        FROM (SELECT *, actor AS sender_or_actor FROM in_span)""",
        _events(
            "span",
            _USER_SPAN,
            "true",
            f"{_event('enter', 'began')}, {_event('exit', 'ended')}, {_event('close', 'ended')}",
        ),
    ],
    "log": [
        f"""INSERT INTO events
        SELECT 'event ' || parse_filename(file) || ':' || line, logger, level,
            CAST(json_object('message', text, 'actor_id', CASE WHEN actor <> '' THEN hash(actor) END, 'process_id', process)
                AS VARCHAR),
            {us("happened")}, CASE WHEN parent_span > 0 THEN {_PARENT_SPAN} END, thread_id, thread_name,
            module, file, line
        FROM in_log"""
    ],
    "sum": [
        f"""INSERT INTO metric_sums
        SELECT name, {us("happened")}, {us("began")}, 'monarch', unit, 'delta', is_monotonic, {_ATTRIBUTES},
            {_OF_PROCESS}, NULL, CASE WHEN NOT is_monotonic THEN amount END,
            CASE WHEN is_monotonic AND amount >= 0 THEN amount END
        FROM in_sum"""
    ],
    "histogram": [
        f"""INSERT INTO metric_histograms
        SELECT name, {us("happened")}, {us("began")}, 'monarch', unit, 'delta', {_ATTRIBUTES},
            {_OF_PROCESS}, count, sum, NULL, NULL, least, NULL, NULL, most, NULL, NULL,
            '{_BOUNDS_JSON}', counts
        FROM in_histogram"""
    ],
    "gauge": [
        f"""INSERT INTO metric_gauges
        SELECT name, {us("happened")}, NULL, 'monarch', unit, {_ATTRIBUTES},
            {_OF_PROCESS}, value, NULL, NULL
        FROM in_gauge"""
    ],
    "logged": [
        f"""INSERT INTO metrics
        SELECT {us("happened")}, name, CAST(step AS BIGINT), value, mesh, rank, process FROM in_logged"""
    ],
}
