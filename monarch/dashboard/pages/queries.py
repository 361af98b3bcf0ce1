"""The SQL behind the pages. Every statement has a bound on its rows; values from outside are literals made here."""

from __future__ import annotations

MOST_ACTORS = 20_000
MOST_MESHES = 2_000
MOST_MESSAGES = 1_000  # of one list; the newest
MOST_EVENTS = 200  # of one actor; the newest
BUCKETS = 44  # of the activity over time

# Several events of one actor may have the same time: a status that comes later in life wins.
_ORDER_OF_LIFE = (
    "CASE lower(new_status) WHEN 'unknown' THEN 0 WHEN 'created' THEN 1 WHEN 'initializing' THEN 2 "
    "WHEN 'stopping' THEN 4 WHEN 'stopped' THEN 5 WHEN 'failed' THEN 6 ELSE 3 END"
)

_LATEST_STATUS = f"""
    SELECT actor_id, lower(new_status) AS status, reason, timestamp_us
    FROM actor_status_events
    QUALIFY row_number() OVER (PARTITION BY actor_id ORDER BY timestamp_us DESC, {_ORDER_OF_LIFE} DESC) = 1
"""


def _states(condition: str = "") -> str:
    """complete > failed > active > queued, whatever the order in which the events came."""
    return f"""
    SELECT message_id,
           max(CASE status WHEN 'complete' THEN 4 WHEN 'failed' THEN 3 WHEN 'active' THEN 2 ELSE 1 END) AS state,
           min(timestamp_us) FILTER (WHERE status = 'active') AS active_us,
           max(timestamp_us) FILTER (WHERE status IN ('complete', 'failed')) AS ended_us
    FROM message_status_events {condition} GROUP BY message_id"""


_STATE_NAME = (
    "CASE coalesce(s.state, 1) WHEN 4 THEN 'complete' WHEN 3 THEN 'failed' WHEN 2 THEN 'active' ELSE 'queued' END"
)


def literal(text: str) -> str:
    """Returns `text` as an SQL string."""
    return "'" + text.replace("'", "''").replace("\0", "") + "'"


def actors(mesh_id: int | None = None, actor_id: int | None = None, limit: int = MOST_ACTORS) -> str:
    """One row an actor, with its latest status and its mesh. Actors without a display name are the system's."""
    where = [f"a.mesh_id = {mesh_id}"] if mesh_id is not None else []
    where += [f"a.id = {actor_id}"] if actor_id is not None else []
    return f"""
    WITH latest AS ({_LATEST_STATUS}),
         one_mesh AS (SELECT * FROM meshes QUALIFY row_number() OVER (PARTITION BY id ORDER BY timestamp_us DESC) = 1)
    SELECT a.id, a.timestamp_us, a.mesh_id, a.rank, a.full_name, a.display_name,
           latest.status AS latest_status, latest.timestamp_us AS status_timestamp_us, latest.reason AS status_reason,
           m.given_name AS mesh_name, m.class AS mesh_class, a.display_name IS NULL AS is_system
    FROM (SELECT * FROM actors QUALIFY row_number() OVER (PARTITION BY id ORDER BY timestamp_us DESC) = 1) a
    LEFT JOIN latest ON latest.actor_id = a.id LEFT JOIN one_mesh m ON m.id = a.mesh_id
    {_where(where)} ORDER BY a.mesh_id, a.rank, a.id LIMIT {limit}"""


def last_status(actor_id: int) -> str:
    """The last status of an actor, as a row of `actors` has it where all else is unknown: its process died before it said
    who it was."""
    return f"""
    SELECT actor_id AS id, timestamp_us, NULL AS mesh_id, NULL AS rank, '' AS full_name, NULL AS display_name,
           status AS latest_status, timestamp_us AS status_timestamp_us, reason AS status_reason,
           NULL AS mesh_name, NULL AS mesh_class, FALSE AS is_system
    FROM ({_LATEST_STATUS}) WHERE actor_id = {actor_id}"""


def meshes(
    mesh_id: int | None = None, parent: int | None = None, kind: str | None = None, without: tuple[str, ...] = ()
) -> str:
    where = [f"id = {mesh_id}"] if mesh_id is not None else []
    where += [f"parent_mesh_id = {parent}"] if parent is not None else []
    where += [f"class = {literal(kind)}"] if kind else []
    where += [f"class NOT IN ({', '.join(map(literal, without))})"] if without else []
    return f"""
    SELECT id, timestamp_us, class, given_name, full_name, shape_json, parent_mesh_id, parent_view_json
    FROM (SELECT * FROM meshes QUALIFY row_number() OVER (PARTITION BY id ORDER BY timestamp_us DESC) = 1)
    {_where(where)} ORDER BY timestamp_us, id LIMIT {MOST_MESHES}"""


def mesh_counts() -> str:
    return """
    SELECT count(*) AS total, count(*) FILTER (WHERE class = 'Host') AS host_meshes,
           count(*) FILTER (WHERE class = 'Proc') AS proc_meshes,
           count(*) FILTER (WHERE class NOT IN ('Host', 'Proc')) AS actor_meshes
    FROM (SELECT DISTINCT ON (id) id, class FROM meshes)"""


def statuses() -> str:
    """Actors by latest status, the system's apart. One in which an endpoint runs is at work, whatever it has said last."""
    return f"""
    WITH latest AS ({_LATEST_STATUS})
    SELECT CASE WHEN latest.status IN ('idle', 'created') AND a.id IN (SELECT actor_id FROM ({running()}))
                THEN 'processing' ELSE coalesce(latest.status, 'unknown') END AS status,
           a.system AS is_system, count(*) AS actors
    FROM (SELECT id, bool_and(display_name IS NULL) AS system FROM actors GROUP BY id) a
    LEFT JOIN latest ON latest.actor_id = a.id GROUP BY ALL"""


def ended_actors(status: str, limit: int = 100) -> str:
    """Actors whose latest status is `status`, the newest first, with the root cause that the newest snapshot names."""
    return f"""
    WITH latest AS ({_LATEST_STATUS}),
         newest AS (SELECT snapshot_id FROM snapshots ORDER BY snapshot_ts DESC LIMIT 1)
    SELECT latest.actor_id, a.full_name, a.display_name, latest.reason, latest.timestamp_us, a.mesh_id, a.rank,
           f.failure_root_cause_actor AS root_cause, f.failure_root_cause_name AS root_cause_name,
           f.failure_is_propagated AS is_propagated
    FROM latest JOIN (SELECT DISTINCT ON (id) * FROM actors) a ON a.id = latest.actor_id
    LEFT JOIN (SELECT * FROM actor_failures WHERE snapshot_id = (SELECT snapshot_id FROM newest)) f ON f.node_id = a.full_name
    WHERE latest.status = {literal(status)} ORDER BY latest.timestamp_us DESC, latest.actor_id LIMIT {limit}"""


def message_states() -> str:
    return f"""
    SELECT m.endpoint, {_STATE_NAME} AS status, count(*) AS messages
    FROM messages m LEFT JOIN ({_states()}) s ON s.message_id = m.id GROUP BY ALL"""


def endpoint_times(limit: int = 50) -> str:
    """Returns how long endpoints took, from active to complete, the largest share of time first."""
    return f"""
    SELECT endpoint, count(*) AS calls, avg(us) AS mean_us, quantile_cont(us, 0.5) AS median_us,
           quantile_cont(us, 0.99) AS p99_us, max(us) AS max_us, sum(us) AS total_us
    FROM (SELECT coalesce(m.endpoint, '(none)') AS endpoint, s.ended_us - s.active_us AS us
          FROM messages m JOIN ({_states()}) s ON s.message_id = m.id
          WHERE s.ended_us IS NOT NULL AND s.active_us IS NOT NULL)
    GROUP BY endpoint ORDER BY p99_us DESC LIMIT {limit}"""


def slow_actors(since_us: int, times: float = 1.8, more_us: int = 50_000, limit: int = 20) -> str:
    """Actors whose median time in an endpoint is far from that of their mesh: meshes of four and more, calls of three and
    more."""
    return f"""
    WITH took AS (
        SELECT a.mesh_id, a.id AS actor_id, a.full_name, a.display_name, m.endpoint,
               median(s.ended_us - s.active_us) AS own_us
        FROM messages m JOIN ({_states(f"WHERE timestamp_us >= {since_us}")}) s ON s.message_id = m.id
        JOIN (SELECT DISTINCT ON (id) * FROM actors) a ON a.id = m.to_actor_id
        WHERE s.ended_us IS NOT NULL AND s.active_us IS NOT NULL AND m.endpoint IS NOT NULL
        GROUP BY ALL HAVING count(*) >= 3),
    meshes AS (SELECT mesh_id, endpoint, median(own_us) AS mesh_us FROM took GROUP BY ALL HAVING count(*) >= 4)
    SELECT took.actor_id, took.full_name, took.display_name, took.endpoint, took.own_us, meshes.mesh_us
    FROM took JOIN meshes USING (mesh_id, endpoint)
    WHERE own_us > {times} * mesh_us AND own_us - mesh_us > {more_us}
    ORDER BY own_us / greatest(mesh_us, 1) DESC, actor_id LIMIT {limit}"""


def running(limit: int = MOST_ACTORS) -> str:
    """Endpoints that have begun and not ended, the oldest first."""
    return f"""
    SELECT m.to_actor_id AS actor_id, m.endpoint, s.active_us
    FROM ({_states()}) s JOIN messages m ON m.id = s.message_id
    WHERE s.state = 2 ORDER BY s.active_us LIMIT {limit}"""


def pairs(limit: int = 5_000) -> str:
    return f"""
    SELECT from_actor_id, to_actor_id, count(*) AS messages FROM messages
    GROUP BY ALL ORDER BY messages DESC, from_actor_id, to_actor_id LIMIT {limit}"""


def message_span() -> str:
    return "SELECT min(timestamp_us) AS start_us, max(timestamp_us) AS end_us, count(*) AS total FROM messages"


def message_buckets(start_us: int, end_us: int) -> str:
    width = max(1, -(-(end_us - start_us + 1) // BUCKETS))
    return f"""
    SELECT (timestamp_us - {start_us}) // {width} AS bucket, count(*) AS messages
    FROM messages WHERE timestamp_us BETWEEN {start_us} AND {end_us} GROUP BY bucket"""


def rates(since_us: int, until_us: int) -> str:
    between = f"timestamp_us > {since_us} AND timestamp_us <= {until_us}"
    return f"""
    SELECT (SELECT count(*) FROM sent_messages WHERE {between}) AS calls,
           (SELECT count(*) FROM messages WHERE {between}) AS messages"""


def timeline() -> str:
    return """
    SELECT (SELECT min(timestamp_us) FROM actor_status_events) AS first_status_us,
           (SELECT max(timestamp_us) FROM actor_status_events) AS last_status_us,
           (SELECT min(timestamp_us) FROM message_status_events) AS first_message_us,
           (SELECT max(timestamp_us) FROM message_status_events) AS last_message_us,
           (SELECT min(timestamp_us) FROM actor_status_events WHERE lower(new_status) = 'failed') AS failure_onset_us,
           (SELECT count(*) FROM actor_status_events) AS total_status_events,
           (SELECT count(*) FROM message_status_events) AS total_message_events"""


def messages(
    *, of_actor: int | None = None, sender: int | None = None, receiver: int | None = None, limit: int = MOST_MESSAGES
) -> str:
    """The newest messages, ascending, with the state of each."""
    where = [f"(m.from_actor_id = {of_actor} OR m.to_actor_id = {of_actor})"] if of_actor is not None else []
    where += [f"m.from_actor_id = {sender}"] if sender is not None else []
    where += [f"m.to_actor_id = {receiver}"] if receiver is not None else []
    return f"""
    WITH chosen AS (SELECT * FROM messages m {_where(where)} ORDER BY timestamp_us DESC, id DESC LIMIT {limit}),
         s AS (SELECT * FROM ({_states("WHERE message_id IN (SELECT id FROM chosen)")}))
    SELECT m.id, m.timestamp_us, m.from_actor_id, m.to_actor_id, m.endpoint, m.port_index, {_STATE_NAME} AS latest_status,
           s.ended_us - s.active_us AS took_us
    FROM chosen m LEFT JOIN s ON s.message_id = m.id ORDER BY m.timestamp_us, m.id"""


def message_events(message_id: int) -> str:
    return f"""
    SELECT id, timestamp_us, message_id, status FROM message_status_events WHERE message_id = {message_id}
    ORDER BY timestamp_us, CASE status WHEN 'queued' THEN 0 WHEN 'active' THEN 1 ELSE 2 END LIMIT {MOST_EVENTS}"""


def sent_messages(sender: int | None) -> str:
    where = [f"sender_actor_id = {sender}"] if sender is not None else []
    return f"""
    SELECT * FROM (SELECT id, timestamp_us, sender_actor_id, actor_mesh_id, view_json, shape_json FROM sent_messages
    {_where(where)} ORDER BY timestamp_us DESC, id DESC LIMIT {MOST_MESSAGES}) ORDER BY timestamp_us, id"""


def status_events(actor_id: int) -> str:
    return f"""
    SELECT * FROM (SELECT id, timestamp_us, actor_id, new_status, reason FROM actor_status_events
    WHERE actor_id = {actor_id} ORDER BY timestamp_us DESC, {_ORDER_OF_LIFE} DESC LIMIT {MOST_EVENTS})
    ORDER BY timestamp_us, {_ORDER_OF_LIFE}"""


def host_metrics(since_us: int, points: int) -> str:
    """Per host, thinned out to `points` instants."""
    return f"""
    SELECT * FROM host_metrics WHERE timestamp_us >= {since_us}
    QUALIFY (row_number() OVER (PARTITION BY hostname ORDER BY timestamp_us DESC) - 1)
            % greatest(1, count(*) OVER (PARTITION BY hostname) // {points}) = 0
    ORDER BY hostname, timestamp_us LIMIT 50000"""


def gpu_metrics(since_us: int, points: int) -> str:
    return f"""
    SELECT * FROM gpu_metrics WHERE timestamp_us >= {since_us}
    QUALIFY (row_number() OVER (PARTITION BY hostname, gpu_index ORDER BY timestamp_us DESC) - 1)
            % greatest(1, count(*) OVER (PARTITION BY hostname, gpu_index) // {points}) = 0
    ORDER BY hostname, gpu_index, timestamp_us LIMIT 50000"""


def newest_time() -> str:
    """The newest of what was recorded: what a saved file calls now."""
    tables = ("messages", "message_status_events", "actor_status_events", "host_metrics", "sent_messages")
    return "SELECT greatest(" + ", ".join(f"(SELECT max(timestamp_us) FROM {table})" for table in tables) + ") AS us"


def lost() -> str:
    """Rows that were recorded and did not arrive."""
    return (
        "SELECT sum(dropped) AS lost FROM (SELECT max(dropped) AS dropped FROM telemetry_sources GROUP BY process_id)"
    )


def columns() -> str:
    """Tables and their columns, as the side of the SQL page lists them."""
    return (
        "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns "
        "WHERE table_schema NOT IN ('information_schema', 'pg_catalog') ORDER BY table_name, ordinal_position LIMIT 5000"
    )


# --- logs

_FIELDS = (
    "json_extract_string(fields_json, '$.message') AS text, json_extract_string(fields_json, '$.actor_id') AS actor"
)
_ACTORS_OF_LINES = """
    SELECT a.id, any_value(a.rank) AS rank, any_value(m.given_name) AS mesh
    FROM actors a LEFT JOIN meshes m ON m.id = a.mesh_id GROUP BY a.id"""


def log_lines(
    *,
    mesh: str | None = None,
    ranks: tuple[tuple[int, int], ...] = (),
    levels: tuple[str, ...] = (),
    text: str = "",
    before_us: int | None = None,
    after_us: int | None = None,
    limit: int = 300,
) -> str:
    """Lines of the log and failures, the newest first; with `after_us` the oldest ones after that. Only where it is needed
    the fields of all lines are looked into."""
    way = "ASC" if after_us is not None else "DESC"
    times = [f"timestamp_us < {before_us}"] if before_us is not None else []
    times += [f"timestamp_us > {after_us}"] if after_us is not None else []
    of_level = [f"level IN ({', '.join(map(literal, levels))})"] if levels else []
    picks = [f"mesh = {literal(mesh)}"] if mesh is not None else []
    picks += ["(" + " OR ".join(f"rank BETWEEN {first} AND {last}" for first, last in ranks) + ")"] if ranks else []
    picks += [f"contains(lower(text), lower({literal(text)}))"] if text else []
    first = "" if picks else f"ORDER BY timestamp_us {way} LIMIT {limit}"
    return f"""
    WITH chosen AS (
        SELECT * FROM events {_where(["name <> 'event actor status'", *times, *of_level])} {first}),
    said AS (
        SELECT timestamp_us, level, target AS logger, {_FIELDS}, file, line FROM chosen
        UNION ALL
        SELECT timestamp_us, 'FAILED', '', reason, CAST(actor_id AS VARCHAR), NULL, NULL FROM actor_status_events
        {_where(["lower(new_status) = 'failed'", *times])})
    SELECT said.timestamp_us, level, logger, text, TRY_CAST(actor AS UBIGINT) AS actor_id, file, line, p.rank, p.mesh
    FROM said LEFT JOIN ({_ACTORS_OF_LINES}) p ON p.id = TRY_CAST(said.actor AS UBIGINT)
    {_where(picks)} ORDER BY said.timestamp_us {way} LIMIT {limit}"""


def failures(limit: int = 20) -> str:
    """The first failures."""
    return f"""
    SELECT actor_id, min(timestamp_us) AS timestamp_us FROM actor_status_events WHERE lower(new_status) = 'failed'
    GROUP BY actor_id ORDER BY 2, 1 LIMIT {limit}"""


def mesh_names(limit: int = 200) -> str:
    """Names of meshes of actors that people know."""
    return f"""
    SELECT DISTINCT m.given_name AS mesh FROM meshes m JOIN actors a ON a.mesh_id = m.id
    WHERE a.display_name IS NOT NULL ORDER BY 1 LIMIT {limit}"""


# --- services

_SERVICE = "json_extract_string(attributes_json, '$.service')"
_REPLICA = "CAST(json_extract_string(attributes_json, '$.replica') AS INTEGER)"
MOST_REPLICAS = 1_000


def service_replicas() -> str:
    """One row a replica: its last levels, and its latency and batches from the first row on."""
    return f"""
    WITH levels AS (
        SELECT {_SERVICE} AS service, {_REPLICA} AS replica,
               arg_max(value_f64, timestamp_us) FILTER (WHERE name = 'service.outstanding') AS outstanding,
               arg_max(value_f64, timestamp_us) FILTER (WHERE name = 'service.version') AS version
        FROM metric_gauges WHERE name IN ('service.outstanding', 'service.version') GROUP BY ALL),
    times AS (
        SELECT {_SERVICE} AS service, {_REPLICA} AS replica,
               sum(count) FILTER (WHERE name = 'service.latency') AS answered,
               sum(sum_f64) FILTER (WHERE name = 'service.latency') AS latency_sum,
               max(max_f64) FILTER (WHERE name = 'service.latency') AS latency_max,
               sum(count) FILTER (WHERE name = 'service.batch_size') AS calls,
               sum(sum_f64) FILTER (WHERE name = 'service.batch_size') AS requests
        FROM metric_histograms WHERE name IN ('service.latency', 'service.batch_size') GROUP BY ALL)
    SELECT * FROM levels FULL JOIN times USING (service, replica) ORDER BY service, replica LIMIT {MOST_REPLICAS}"""


def service_latencies() -> str:
    """The counts of the buckets of latency, a list for each row, with the ends of the buckets."""
    counts = "from_json(bucket_counts_json, '[\"UBIGINT\"]')"
    return f"""
    SELECT service, replica, place, sum(counted) AS counted, any_value(bounds_json) AS bounds
    FROM (SELECT {_SERVICE} AS service, {_REPLICA} AS replica, bounds_json,
                 unnest({counts}) AS counted, generate_subscripts({counts}, 1) - 1 AS place
          FROM metric_histograms WHERE name = 'service.latency')
    GROUP BY service, replica, place ORDER BY service, replica, place LIMIT {MOST_REPLICAS * 64}"""


def service_refusals() -> str:
    """Counts the requests that were not answered, by service and error."""
    return f"""
    SELECT {_SERVICE} AS service, json_extract_string(attributes_json, '$.error') AS error,
           CAST(sum(coalesce(sum_u64, sum_i64, sum_f64)) AS BIGINT) AS requests
    FROM metric_sums WHERE name = 'service.not_answered' GROUP BY ALL ORDER BY ALL LIMIT {MOST_REPLICAS}"""


# --- the newest snapshot of the tree

NEWEST_SNAPSHOT = "SELECT snapshot_id, snapshot_ts FROM snapshots ORDER BY snapshot_ts DESC LIMIT 1"


def snapshot_nodes(snapshot_id: str) -> str:
    one = f"snapshot_id = {literal(snapshot_id)}"
    return f"""
    SELECT n.node_id, n.node_kind, c.parent_id, coalesce(c.is_system, false) AS child_is_system,
           coalesce(c.is_stopped, false) AS is_stopped, h.addr, p.proc_name, p.is_poisoned, p.failed_actor_count,
           a.actor_status, a.actor_type, a.is_system, e.error_code, e.error_message
    FROM (SELECT * FROM nodes WHERE {one}) n
    LEFT JOIN (SELECT c.*, k.node_kind = 'actor' AS below_actor
               FROM (SELECT * FROM children WHERE {one}) c
               LEFT JOIN (SELECT * FROM nodes WHERE {one}) k ON k.node_id = c.parent_id
               QUALIFY row_number() OVER (PARTITION BY child_id ORDER BY coalesce(below_actor, false), parent_id) = 1) c
           ON c.child_id = n.node_id
    LEFT JOIN (SELECT * FROM host_nodes WHERE {one}) h ON h.node_id = n.node_id
    LEFT JOIN (SELECT * FROM proc_nodes WHERE {one}) p ON p.node_id = n.node_id
    LEFT JOIN (SELECT * FROM actor_nodes WHERE {one}) a ON a.node_id = n.node_id
    LEFT JOIN (SELECT * FROM resolution_errors WHERE {one}) e ON e.node_id = n.node_id
    ORDER BY c.child_sort_key, n.node_id LIMIT {MOST_ACTORS}"""


def _where(conditions: list[str]) -> str:
    return "WHERE " + " AND ".join(conditions) if conditions else ""
