"""From rows to the JSON of the pages. Pure: rows as dicts in, plain values out."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monarch._mesh.inspection.diagnosis import Finding
from monarch._text import counted, duration
from monarch.dashboard.pages.queries import BUCKETS

Row = Mapping[str, Any]

NOBODY = "(none)"  # a message of the runtime, which has no endpoint
LIVE = ("idle", "client", "processing", "created", "initializing", "saving", "loading", "stopping")

MOST_REASONS = 5


def with_text_ids(row: Row) -> dict[str, Any]:
    """The row with its ids as text: they have 64 bits, and JavaScript's numbers 53."""
    return {
        name: str(value) if value is not None and (name == "id" or name.endswith("_id")) else value
        for name, value in row.items()
    }


def at_work(actors: Iterable[Row], running: Iterable[Row], now_us: int) -> list[dict[str, Any]]:
    """GET /api/actors. One in which an endpoint runs is processing, whatever it has said last; `running_us`: for how long, by
    the oldest one."""
    since = {row["actor_id"]: row["active_us"] for row in reversed(list(running))}
    made = []
    for row in actors:
        begun = since.get(row["id"])
        works = begun is not None and row["latest_status"] in ("idle", "created")
        made.append(
            {
                **with_text_ids(row),
                "latest_status": "processing" if works else row["latest_status"],
                "running_us": None if begun is None else max(0, now_us - begun),
            }
        )
    return made


# --- overview


def summary(
    *,
    meshes: Row,
    statuses: Sequence[Row],
    failed: Sequence[Row],
    stopped: Sequence[Row],
    message_states: Sequence[Row],
    timeline: Row,
    findings: Sequence[Finding] = (),
    looked: bool = True,
) -> dict[str, Any]:
    """GET /api/summary. Actors of the system count nowhere but in `system_actors`."""
    by_status: Counter[str] = Counter()
    system = 0
    for row in statuses:
        if row["is_system"]:
            system += row["actors"]
        else:
            by_status[row["status"]] += row["actors"]
    total = by_status.total()
    health = health_of(by_status, findings, looked)
    status_of_messages: Counter[str] = Counter()
    by_endpoint: Counter[str] = Counter()
    for row in message_states:
        status_of_messages[row["status"]] += row["messages"]
        by_endpoint[row["endpoint"] or NOBODY] += row["messages"]
    messages = status_of_messages.total()
    starts = [timeline[name] for name in ("first_status_us", "first_message_us") if timeline[name] is not None]
    ends = [timeline[name] for name in ("last_status_us", "last_message_us") if timeline[name] is not None]
    return {
        "mesh_counts": {"total": meshes["total"]},
        "hierarchy_counts": {name: meshes[name] for name in ("host_meshes", "proc_meshes", "actor_meshes")},
        "actor_counts": {"total": total, "by_status": dict(by_status.most_common())},
        "system_actors": system,
        "message_counts": {
            "total": messages,
            "by_status": dict(status_of_messages.most_common()),
            "by_endpoint": dict(by_endpoint.most_common()),
            "delivery_rate": round(status_of_messages["complete"] / messages, 3) if messages else 1.0,
        },
        "errors": {
            "failed_actors": [ended(row) for row in failed],
            "stopped_actors": [ended(row) for row in stopped],
            "failed_messages": status_of_messages["failed"],
        },
        **health,
        "timeline": {
            "start_us": min(starts, default=None),
            "end_us": max(ends, default=None),
            "failure_onset_us": timeline["failure_onset_us"],
            "total_status_events": timeline["total_status_events"],
            "total_message_events": timeline["total_message_events"],
        },
    }


def ended(row: Row) -> dict[str, Any]:
    """An actor that failed or was stopped, as the summary lists it."""
    return {
        "actor_id": str(row["actor_id"]),
        "full_name": row["full_name"],
        "display_name": row["display_name"],
        "rank": row["rank"],
        "reason": row["reason"],
        "timestamp_us": row["timestamp_us"],
        "mesh_id": None if row["mesh_id"] is None else str(row["mesh_id"]),
        "root_cause": row["root_cause"],
        "root_cause_name": row["root_cause_name"],
        "is_propagated": row["is_propagated"],
    }


def health_of(by_status: Mapping[str, int], findings: Sequence[Finding] = (), looked: bool = True) -> dict[str, Any]:
    """`health_status`, what it rests on, and how many actors it could look at. Healthy is what the doctor has `looked` at."""
    failed, stopped = by_status.get("failed", 0), by_status.get("stopped", 0)
    live = sum(by_status.get(name, 0) for name in LIVE)
    unknown = sum(by_status.values()) - failed - stopped - live
    if failed:
        status, reasons = "unhealthy", [f"{counted(failed, 'actor')} failed"]
    elif findings:
        status, reasons = "unhealthy", ["the doctor has found what keeps the program from going on"]
    elif unknown:
        status, reasons = "unknown", [f"{counted(unknown, 'actor')} did not say how they are"]
    elif live and not looked:
        status, reasons = "unknown", ["the doctor has not looked"]
    elif live:
        status, reasons = "healthy", [f"{counted(live, 'actor')} at work or ready, none failed"]
    else:
        status = "inactive"
        reasons = ["all actors have stopped"] if stopped else ["no actors yet"]
    return {
        "health_status": status,
        "health_reasons": reasons,
        "health_coverage": {"known": live + failed + stopped, "unknown": unknown, "stopped": stopped},
    }


def concerns(
    *,
    failed: Sequence[Row],
    findings: Sequence[Finding] = (),
    running: Sequence[Row],
    slow: Sequence[Row],
    now_us: int,
    long_us: int,
    lost: int,
    missing: Sequence[str],
) -> list[dict[str, str]]:
    """Returns what somebody should look at, the worst first: `level` is error, warning or note. What runs long is said where
    the doctor's `findings` do not say why."""
    found = []
    first = [row for row in failed if not row["is_propagated"]] or list(failed)
    for row in sorted(first, key=lambda row: row["timestamp_us"])[:MOST_REASONS]:
        name = short_name(row["display_name"], row["full_name"])
        reason = first_line(row["reason"]) or "no reason given"
        found.append({"level": "error", "text": f"{name} failed: {reason}", "actor_id": str(row["actor_id"])})
    if len(failed) > len(first[:MOST_REASONS]):
        found.append({"level": "error", "text": f"{counted(len(failed), 'actor')} failed in all"})
    # Failures are above already, with the actor.
    told = [finding for finding in findings if finding.kind != "failed" or not failed]
    found += [{"level": "error", "text": finding.title} for finding in told]
    old = [row for row in running if not told and now_us - row["active_us"] >= long_us]
    by_endpoint: dict[str, list[Row]] = {}
    for row in old:
        by_endpoint.setdefault(row["endpoint"] or NOBODY, []).append(row)
    for endpoint, rows in list(by_endpoint.items())[:MOST_REASONS]:
        age = duration((now_us - rows[0]["active_us"]) / 1e6)
        found.append(
            {
                "level": "warning",
                "text": f"{endpoint}() has been running for {age} in {counted(len(rows), 'actor')}",
                "actor_id": str(rows[0]["actor_id"]),
            }
        )
    for row in slow[:MOST_REASONS]:
        name = short_name(row["display_name"], row["full_name"])
        took = f"{duration(row['own_us'] / 1e6)} where the others of its mesh take {duration(row['mesh_us'] / 1e6)}"
        text = f"{name} is slow in {row['endpoint']}(): {took}"
        found.append({"level": "warning", "text": text, "actor_id": str(row["actor_id"])})
    if lost:
        found.append(
            {"level": "note", "text": f"{lost:,} rows of telemetry were lost: what is counted here is a lower bound"}
        )
    if missing:
        found.append({"level": "warning", "text": f"no answer from {', '.join(missing[:8])}"})
    return found


def message_stats(message_states: Sequence[Row], pairs: Sequence[Row]) -> dict[str, Any]:
    """GET /api/message-stats."""
    total: Counter[str] = Counter()
    completed: Counter[str] = Counter()
    lifecycle: Counter[str] = Counter()
    for row in message_states:
        endpoint = row["endpoint"] or NOBODY
        total[endpoint] += row["messages"]
        lifecycle[row["status"]] += row["messages"]
        if row["status"] == "complete":
            completed[endpoint] += row["messages"]
    return {
        "lifecycle": {
            "queued": lifecycle["queued"],
            "active": lifecycle["active"],
            "completed": lifecycle["complete"],
            "failed": lifecycle["failed"],
        },
        "endpoints": [
            {"endpoint": endpoint, "total": number, "completed": completed[endpoint]}
            for endpoint, number in sorted(total.items(), key=lambda item: (-item[1], item[0]))
        ],
        "pairs": [[str(row["from_actor_id"]), str(row["to_actor_id"])] for row in pairs],
    }


def activity(span: Row, rows: Iterable[Row]) -> dict[str, Any]:
    """GET /api/message-activity: how many messages in each of equal parts of the time."""
    buckets = [0] * BUCKETS
    for row in rows:
        buckets[min(row["bucket"], BUCKETS - 1)] += row["messages"]
    return {"buckets": buckets, "start_us": span["start_us"], "end_us": span["end_us"], "total": span["total"]}


def rates(row: Row, window_us: int) -> dict[str, float]:
    seconds = window_us / 1e6
    return {"calls_per_s": round(row["calls"] / seconds, 2), "messages_per_s": round(row["messages"] / seconds, 2)}


def endpoint_times(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [
        {name: round(value, 1) if isinstance(value, float) else value for name, value in row.items()} for row in rows
    ]


# --- services


def services(replicas: Iterable[Row], latencies: Iterable[Row], refusals: Iterable[Row]) -> list[dict[str, Any]]:
    """Per service its replicas, and what was not answered by the error; times in microseconds."""
    buckets: dict[tuple[str, int], list[Row]] = {}
    for row in latencies:
        buckets.setdefault((row["service"], row["replica"]), []).append(row)
    found: dict[str, dict[str, Any]] = {}

    def service(name: str) -> dict[str, Any]:
        return found.setdefault(name, {"name": name, "replicas": [], "not_answered": {}})

    for row in replicas:
        answered, calls = row["answered"] or 0, row["calls"] or 0
        service(row["service"])["replicas"].append(
            {
                "replica": row["replica"],
                "outstanding": row["outstanding"],
                "version": row["version"],
                "answered": answered,
                "mean_us": 1e3 * row["latency_sum"] / answered if answered else None,
                "p99_us": _percentile(buckets.get((row["service"], row["replica"]), []), 0.99, row["latency_max"]),
                "batch": row["requests"] / calls if calls else None,
            }
        )
    for row in refusals:
        service(row["service"])["not_answered"][row["error"]] = row["requests"]
    return list(found.values())


def _percentile(buckets: list[Row], part: float, longest: float | None) -> float | None:
    """Returns the end of the bucket that holds it, in microseconds, or the longest time if that is less."""
    total, seen = sum(row["counted"] for row in buckets), 0
    if not total or longest is None:
        return None
    for row in buckets:
        seen += row["counted"]
        bounds = json.loads(row["bounds"])
        if seen >= part * total and row["place"] < len(bounds):
            return 1e3 * float(min(bounds[row["place"]], longest))
    return 1e3 * longest


# --- hardware

COUNTERS = ("net_rx_bytes", "net_tx_bytes", "disk_read_bytes", "disk_write_bytes")
LEVELS = ("cpu_percent", "memory_used_bytes", "load_avg_1m", "swap_used_bytes")
GPU_LEVELS = ("utilization_percent", "memory_used_bytes", "temperature_c", "power_watts")


def hosts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Per host: levels and, of what counts since boot, rates a second, with the times of the samples."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["hostname"], []).append(row)
    return [_host(name, samples) for name, samples in found.items()]


def _host(name: str, samples: list[Row]) -> dict[str, Any]:
    last = samples[-1]
    series = {level: [row[level] for row in samples] for level in LEVELS}
    for counter in COUNTERS:
        series[counter.replace("_bytes", "_per_s")] = per_second(samples, counter)
    kept = ("cpu_count", "memory_total_bytes", "memory_available_bytes", "disk_root_free_bytes", "disk_tmp_free_bytes")
    return {
        "hostname": name,
        **{key: last[key] for key in kept},
        "times_us": [row["timestamp_us"] for row in samples],
        "series": series,
    }


def per_second(samples: Sequence[Row], counter: str) -> list[float | None]:
    """The rate of a counter up to each time; None for the first, and where it is not known: a machine that was started
    again counts from zero."""
    rates: list[float | None] = [None]
    for before, after in itertools.pairwise(samples):
        seconds = (after["timestamp_us"] - before["timestamp_us"]) / 1e6
        if before[counter] is None or after[counter] is None or seconds <= 0 or after[counter] < before[counter]:
            rates.append(None)
        else:
            rates.append(round((after[counter] - before[counter]) / seconds))
    return rates


def gpus(rows: Iterable[Row]) -> list[dict[str, Any]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["hostname"], row["gpu_index"]), []).append(row)
    return [
        {
            "hostname": hostname,
            "gpu_index": index,
            "gpu_name": samples[-1]["gpu_name"],
            "memory_total_bytes": samples[-1]["memory_total_bytes"],
            "times_us": [row["timestamp_us"] for row in samples],
            "series": {level: [row[level] for row in samples] for level in GPU_LEVELS},
        }
        for (hostname, index), samples in found.items()
    ]


def tables(rows: Iterable[Row]) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        column = {"name": row["column_name"], "type": row["data_type"], "nullable": row["is_nullable"] in (True, "YES")}
        found.setdefault(row["table_name"], []).append(column)
    return [{"name": name, "columns": columns} for name, columns in found.items()]


# --- words


def first_line(text: str | None) -> str:
    """The last line of a traceback says what happened; of other texts the first does."""
    lines = [line for line in (text or "").strip().splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line.strip() if len(line) <= 240 else line.strip()[:239] + "…"


def short_name(display_name: str | None, full_name: str) -> str:
    """`Trainer trainers{'gpus': 1/2}` of `<root>.<train.Trainer trainers{'gpus': 1/2}>`."""
    name = display_name or full_name
    inner = name.rpartition(".<")[2].rstrip(">") if ".<" in name else name
    head, space, rest = inner.partition(" ")
    return head.rpartition(".")[2] + space + rest if display_name and ".<" in name else inner
