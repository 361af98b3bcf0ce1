"""The tables of telemetry: their columns, and how long rows stay. Names, order and meaning of columns are a contract with
queries, see docs/telemetry.md."""

from __future__ import annotations

from typing import NamedTuple

_TYPES = {
    "u64": "UBIGINT",
    "i64": "BIGINT",
    "u32": "UINTEGER",
    "i32": "INTEGER",
    "f64": "DOUBLE",
    "text": "VARCHAR",
    "bool": "BOOLEAN",
}

# Which rows a table lets go of beside those over its bound.
BY_AGE = "by age"  # those older than the retention
BY_SNAPSHOT = "by snapshot"  # all but those of the last snapshots
BY_DUMP = "by dump"  # all but those of the last stack dumps
BY_BOUND = "by bound"  # none: what programs have, which is finite


class Column(NamedTuple):
    name: str
    type: str
    nullable: bool

    @property
    def declared(self) -> str:
        return f'"{self.name}" {_TYPES[self.type]}{"" if self.nullable else " NOT NULL"}'


class Table(NamedTuple):
    name: str
    columns: tuple[Column, ...]
    leaves: str
    rows: int  # bound; the oldest go first

    @property
    def created_by(self) -> str:
        return f'CREATE TABLE "{self.name}" ({", ".join(column.declared for column in self.columns)})'


_MANY, _SOME, _FEW = 4_000_000, 1_000_000, 200_000


def _table(name: str, leaves: str, rows: int, columns: str) -> Table:
    """`columns`: `name type` or `name type?`, separated by commas; text where no type is given (`name`, `name?`)."""
    made = []
    for word in columns.split(","):
        column, _, kind = word.strip().partition(" ")
        nullable = word.strip().endswith("?")
        made.append(Column(column.rstrip("?"), kind.rstrip("?") or "text", nullable))
    return Table(name, tuple(made), leaves, rows)


_METRIC = "name, timestamp_us i64, start_timestamp_us i64, scope_name, unit, temporality"
_ATTRIBUTES = "attributes_json, resource_attributes_json"

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        _table("actors", BY_BOUND, _SOME, "id u64, timestamp_us i64, mesh_id u64, rank u64, full_name, display_name?"),
        _table("actor_status_events", BY_AGE, _SOME, "id u64, timestamp_us i64, actor_id u64, new_status, reason?"),
        _table(
            "meshes",
            BY_BOUND,
            _FEW,
            "id u64, timestamp_us i64, class, given_name, full_name, shape_json, parent_mesh_id u64?, parent_view_json?",
        ),
        _table(
            "messages",
            BY_AGE,
            _MANY,
            "id u64, timestamp_us i64, from_actor_id u64, to_actor_id u64, endpoint?, port_index u64?",
        ),
        _table("message_status_events", BY_AGE, 3 * _MANY, "id u64, timestamp_us i64, message_id u64, status"),
        _table(
            "sent_messages",
            BY_AGE,
            _MANY,
            "id u64, timestamp_us i64, sender_actor_id u64, actor_mesh_id u64, view_json, shape_json",
        ),
        _table(
            "events",
            BY_AGE,
            _SOME,
            "name, target, level, fields_json, timestamp_us i64, parent_span u64?, thread_id u64, thread_name, module_path?, "
            "file?, line u32?",
        ),
        _table(
            "spans",
            BY_AGE,
            _MANY,
            "process_id, id u64, name, target, level, fields_json, timestamp_us i64, parent_id u64?, thread_name, file?, "
            "line u32?",
        ),
        _table("span_events", BY_AGE, 3 * _MANY, "process_id, id u64, timestamp_us i64, event_type"),
        _table(
            "metric_gauges",
            BY_AGE,
            _SOME,
            f"name, timestamp_us i64, start_timestamp_us i64?, scope_name, unit, {_ATTRIBUTES}, value_f64 f64?, "
            "value_i64 i64?, value_u64 u64?",
        ),
        _table(
            "metric_sums",
            BY_AGE,
            _SOME,
            f"{_METRIC}, is_monotonic bool, {_ATTRIBUTES}, sum_f64 f64?, sum_i64 i64?, sum_u64 u64?",
        ),
        _table(
            "metric_histograms",
            BY_AGE,
            _SOME,
            f"{_METRIC}, {_ATTRIBUTES}, count u64, sum_f64 f64?, sum_i64 i64?, sum_u64 u64?, min_f64 f64?, min_i64 i64?, "
            "min_u64 u64?, max_f64 f64?, max_i64 i64?, max_u64 u64?, bounds_json, bucket_counts_json",
        ),
        # What programs log of themselves: monarch.metrics.
        _table(
            "metrics",
            BY_AGE,
            _MANY,
            "timestamp_us i64, name, step i64, value f64, mesh, rank u64, process_id",
        ),
        _table(
            "host_metrics",
            BY_AGE,
            _SOME,
            "timestamp_us i64, hostname, cpu_percent f64, cpu_count u64?, load_avg_1m f64, load_avg_5m f64, "
            "load_avg_15m f64, memory_total_bytes u64, memory_available_bytes u64, memory_used_bytes u64, "
            "swap_used_bytes u64, net_rx_bytes u64, net_tx_bytes u64, disk_read_bytes u64?, disk_write_bytes u64?, "
            "disk_root_free_bytes u64?, disk_tmp_free_bytes u64?",
        ),
        _table(
            "gpu_metrics",
            BY_AGE,
            _SOME,
            "timestamp_us i64, hostname, gpu_index u32, gpu_uuid, gpu_name, utilization_percent f64?, "
            "memory_used_bytes u64, memory_total_bytes u64, temperature_c u32?, power_watts f64?",
        ),
        # What the tree of actors was, at one time after another.
        _table("snapshots", BY_SNAPSHOT, _FEW, "snapshot_id, snapshot_ts i64"),
        _table("nodes", BY_SNAPSHOT, _SOME, "snapshot_id, node_id, node_kind, as_of i64"),
        _table(
            "children",
            BY_SNAPSHOT,
            _SOME,
            "snapshot_id, parent_id, child_id, child_sort_key, is_system bool, is_stopped bool",
        ),
        _table("root_nodes", BY_SNAPSHOT, _FEW, "snapshot_id, node_id, num_hosts i64, started_at i64, started_by"),
        _table("host_nodes", BY_SNAPSHOT, _FEW, "snapshot_id, node_id, addr, host_num_procs i64"),
        _table(
            "proc_nodes",
            BY_SNAPSHOT,
            _SOME,
            "snapshot_id, node_id, proc_name, num_actors i64, stopped_retention_cap i64, is_poisoned bool, "
            "failed_actor_count i64",
        ),
        _table(
            "actor_nodes",
            BY_SNAPSHOT,
            _SOME,
            "snapshot_id, node_id, actor_status, actor_type, instance_id, messages_processed i64, created_at i64?, "
            "last_message_handler?, total_processing_time_us i64, queue_depth i64, is_system bool",
        ),
        _table(
            "actor_failures",
            BY_SNAPSHOT,
            _FEW,
            "snapshot_id, node_id, failure_error_message, failure_root_cause_actor, failure_root_cause_name?, "
            "failure_occurred_at i64, failure_is_propagated bool",
        ),
        _table(
            "actor_executions",
            BY_SNAPSHOT,
            _SOME,
            "snapshot_id, node_id, active_count i64, complete bool, truncated bool",
        ),
        _table(
            "active_handlers",
            BY_SNAPSHOT,
            _SOME,
            "snapshot_id, node_id, name, active_count i64, oldest_since i64",
        ),
        _table(
            "actor_inbound_orderings",
            BY_SNAPSHOT,
            _SOME,
            "snapshot_id, node_id, enabled bool, snapshot_complete bool, skipped_session_count i64, "
            "known_session_count i64, returned_buffered_session_count i64, returned_buffered_message_count i64, "
            "returned_max_buffered_count i64",
        ),
        _table(
            "ordering_sessions",
            BY_SNAPSHOT,
            _SOME,
            "snapshot_id, node_id, session_id, sender?, last_released_seq i64, expected_next_seq i64, buffered_count i64, "
            "oldest_buffered_seq i64?, newest_buffered_seq i64?",
        ),
        _table("resolution_errors", BY_SNAPSHOT, _FEW, "snapshot_id, node_id, error_code, error_message"),
        # Stacks that were asked for.
        _table(
            "pyspy_dumps",
            BY_DUMP,
            _FEW,
            "dump_id, timestamp_us i64, pid i32, binary, proc_ref, capture_mode, warnings_json",
        ),
        _table(
            "pyspy_stack_traces",
            BY_DUMP,
            _FEW,
            "dump_id, pid i32, thread_id u64, thread_name?, os_thread_id u64?, active bool, owns_gil bool",
        ),
        _table(
            "pyspy_frames",
            BY_DUMP,
            _SOME,
            "dump_id, thread_id u64, frame_depth i32, name, filename, module?, short_filename?, line i32, is_entry bool",
        ),
        _table(
            "pyspy_local_variables",
            BY_DUMP,
            _SOME,
            "dump_id, thread_id u64, frame_depth i32, name, addr u64, arg bool, repr?",
        ),
        # What was recorded and is not here, and by how much the clocks of machines differ.
        _table(
            "telemetry_sources",
            BY_BOUND,
            _FEW,
            "process_id, hostname, address, timestamp_us i64, batches u64, batches_lost u64, dropped u64, "
            "clock_offset_us i64, "
            "clock_error_us i64",
        ),
    )
}
