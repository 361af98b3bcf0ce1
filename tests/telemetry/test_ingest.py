"""From what processes send to rows: each table, its values, how they join, and which rows go first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from monarch._mesh.inspection.outgoing_batches import BatchHead
from monarch._mesh.inspection.recording import ClockOffset
from monarch._runtime import recorder
from monarch._wire.message import Call
from monarch.telemetry import batches
from monarch.telemetry import ingest as ingests
from monarch.telemetry.batches import EventColumns
from monarch.telemetry.ingest import Ingest
from monarch.telemetry.retention import Retention, sweep_period, too_old, trim
from monarch.telemetry.store import Store
from monarch.telemetry.tables import TABLES, Table

NOW = 1_000.0  # of the process's monotonic clock
WALL = 1_700_000_000.0
SHIFT = WALL - NOW
VIEW = ('{"labels":["gpus"]}', '{"labels":["gpus"]}')
encode = msgspec.msgpack.Encoder().encode


def us(at: float) -> int:
    return round((at + SHIFT) * 1e6)


def call(seq: int = 1, method: str = "inc", port: int = 7, to: str = "key", sender: str = "client.0") -> Call:
    return Call(to, sender, seq, method, port, "", 0, b"", 0)


def handled(seq: int = 1, *, failed: bool = False, started: float = 2.0, told: int = 0, receiver: str = "key.0") -> Any:
    return (recorder.HANDLED, receiver, call(seq), "unix:x/client", 1.0, started, 3.0, failed, True, told)


def called(seq: int = 1, adverb: int = 0, told: int = 0, failed: bool = False, **changes: Any) -> Any:
    parent, span = changes.get("parent"), changes.get("span", 0)
    sent = ("client.0", "key", "counters", "inc", adverb, seq, VIEW, parent, span)
    return (recorder.CALLED, sent, 7, 0.5, 3.5, failed, told)


def batch(events: list[Any], address: str = "unix:x/m.0", number: int = 1, **changes: Any) -> bytes:
    head = BatchHead(address, "workers-0<m>", "node", 5, NOW, WALL, 0.0, 0.0, number, 0)
    return encode((msgspec.structs.replace(head, **changes), events))


@pytest.fixture(scope="module")
def only_store() -> Iterator[Store]:
    made = Store()
    yield made
    made.close()


@pytest.fixture
def store(only_store: Store) -> Store:
    only_store.write([f"DELETE FROM {table}" for table in TABLES])
    return only_store


@pytest.fixture
def ingest(store: Store) -> Iterator[Ingest]:
    made = Ingest(store)
    yield made
    made.close()


def put(ingest: Ingest, *given: bytes) -> None:
    gathered = EventColumns()
    for one in given:
        gathered.add(*batches.decode(one))
    ingest.insert(gathered)
    ingest.flush()


def rows(store: Store, sql: str) -> list[tuple[Any, ...]]:
    return store.query(sql, timeout=60).rows


# --- messages


def test_a_message_that_was_handled(ingest: Ingest, store: Store) -> None:
    put(ingest, batch([handled()]))
    ((id, at, endpoint, port),) = rows(store, "SELECT id, timestamp_us, endpoint, port_index FROM messages")
    assert (at, endpoint) == (us(2.0), "inc") and port
    events = rows(store, "SELECT message_id, timestamp_us, status FROM message_status_events ORDER BY timestamp_us")
    assert events == [(id, us(1.0), "queued"), (id, us(2.0), "active"), (id, us(3.0), "complete")]
    ((name, process, fields, started),) = rows(store, "SELECT name, process_id, fields_json, timestamp_us FROM spans")
    assert (name, process, json.loads(fields)["name"], started) == ("python_user_span", "workers-0<m>", "inc", us(2.0))
    assert rows(store, "SELECT event_type, timestamp_us FROM span_events ORDER BY 2, 1 DESC") == [
        ("enter", us(2.0)),
        ("exit", us(3.0)),
        ("close", us(3.0)),
    ]


def test_a_message_that_was_refused_was_never_active(ingest: Ingest, store: Store) -> None:
    put(ingest, batch([handled(failed=True, started=0.0)]))
    assert rows(store, "SELECT status FROM message_status_events ORDER BY timestamp_us") == [("queued",), ("failed",)]
    assert rows(store, "SELECT count(*) FROM spans") == [(0,)]


def test_what_is_under_way_is_seen_and_told_once(ingest: Ingest, store: Store) -> None:
    """Waiting at one look, running at the next, done at the third: each row once."""
    waits = (recorder.UNDER_WAY, "key.0", call(), "unix:x/client", 1.0, 0.0, False, 0)
    runs = (recorder.UNDER_WAY, "key.0", call(), "unix:x/client", 1.0, 2.0, True, 1)
    status = "SELECT status FROM message_status_events ORDER BY timestamp_us"
    put(ingest, batch([waits]))
    assert rows(store, status) == [("queued",)]
    assert rows(store, "SELECT timestamp_us FROM messages") == [(us(1.0),)]
    put(ingest, batch([runs], number=2))
    assert rows(store, status) == [("queued",), ("active",)]
    assert rows(store, "SELECT timestamp_us FROM messages") == [(us(2.0),)], "that of its status"
    assert rows(store, "SELECT event_type FROM span_events") == [("enter",)]
    put(ingest, batch([handled(told=2)], number=3))
    assert rows(store, status) == [("queued",), ("active",), ("complete",)]
    assert rows(store, "SELECT count(*) FROM messages") == [(1,)]
    assert rows(store, "SELECT event_type FROM span_events ORDER BY timestamp_us, 1 DESC") == [
        ("enter",),
        ("exit",),
        ("close",),
    ]


def test_a_message_has_the_time_at_which_it_was_taken_and_the_port_of_its_endpoint(
    ingest: Ingest, store: Store
) -> None:
    """First told while it waits, while it runs or when it is done; calls of one endpoint are of one port."""
    waits = (recorder.UNDER_WAY, "key.0", call(1, port=21), "unix:x/client", 1.0, 0.0, False, 0)
    done = (recorder.HANDLED, "key.0", call(1, port=21), "unix:x/client", 1.0, 4.0, 5.0, False, True, 1)
    runs = (recorder.UNDER_WAY, "key.0", call(2, port=22), "unix:x/client", 1.0, 2.0, True, 0)
    others = [
        (recorder.HANDLED, "key.0", call(seq, "dec", 20 + seq), "", 1.0, 2.0, 3.0, False, True, 0) for seq in (3, 4, 5)
    ]
    put(ingest, batch([waits]))
    put(ingest, batch([done, runs, *others], number=2))
    active = (
        "SELECT m.timestamp_us - e.timestamp_us FROM messages m JOIN message_status_events e ON e.message_id = m.id"
    )
    assert rows(store, f"{active} WHERE status = 'active'") == [(0,)] * 5
    ports = "SELECT endpoint, count(*), count(DISTINCT port_index) FROM messages GROUP BY endpoint ORDER BY 1"
    assert rows(store, ports) == [("dec", 3, 1), ("inc", 2, 1)]
    assert rows(store, "SELECT count(DISTINCT port_index) FROM messages") == [(2,)]


def test_a_message_from_before_recording_has_a_time(ingest: Ingest, store: Store) -> None:
    event = list(handled())
    event[4] = 0.0
    put(ingest, batch([event]))
    assert rows(store, "SELECT timestamp_us FROM messages") == [(us(2.0),)]


# --- calls


def test_a_call_and_its_message_correlate(ingest: Ingest, store: Store) -> None:
    put(ingest, batch([called()], address="unix:x/client"), batch([handled()]))
    ((target, fields),) = rows(store, "SELECT target, fields_json FROM spans WHERE name = 'call'")
    assert target == "monarch_hyperactor::telemetry::endpoint"
    known = json.loads(fields)
    assert (known["mesh"], known["method"], known["call_name"]) == ("counters", "inc", "call")
    ((there,),) = rows(store, "SELECT fields_json FROM spans WHERE name = 'python_user_span'")
    assert json.loads(there)["correlation_id"] == known["correlation_id"]
    assert rows(store, "SELECT count(*) FROM messages JOIN sent_messages ON from_actor_id = sender_actor_id") == [(1,)]
    assert rows(store, "SELECT view_json FROM sent_messages") == [(VIEW[0],)]


@pytest.mark.parametrize(
    ("adverb", "name"), list(enumerate(["call", "call_one", "choose", "stream", "broadcast", "send", "rref"]))
)
def test_the_adverb_names_the_span(ingest: Ingest, store: Store, adverb: int, name: str) -> None:
    put(ingest, batch([called(adverb=adverb)]))
    assert rows(store, "SELECT name FROM spans") == [(name,)]


def test_what_the_runtime_measures_of_calls(ingest: Ingest, store: Store) -> None:
    put(ingest, batch([called(1), called(2, failed=True), handled()]))
    sums = dict(rows(store, "SELECT name, sum_u64 FROM metric_sums"))
    assert sums.pop("mailbox.posts") == 1
    assert sums == {
        "actor.messages_sent": 2,
        "actor.messages_received": 1,
        "endpoint_call_throughput": 2,
        "endpoint_call_error": 1,
    }
    histogram = "SELECT count, sum_f64, bucket_counts_json, bounds_json FROM metric_histograms WHERE name = "
    ((count, total, counts, bounds),) = rows(store, f"{histogram}'endpoint_call_latency_us_histogram'")
    assert (count, total) == (2, pytest.approx(6e6))
    assert sum(json.loads(counts)) == 2 and len(json.loads(counts)) == len(json.loads(bounds)) + 1


def test_posts_are_counted_once_for_each_pair_of_actors(ingest: Ingest, store: Store) -> None:
    waits = (recorder.UNDER_WAY, "key.0", call(3), "unix:x/client", 1.0, 0.0, False, 0)
    put(ingest, batch([handled(1), handled(2), handled(1, receiver="key.1"), waits]))
    put(ingest, batch([handled(3, told=1)], number=2))
    found = rows(
        store,
        """SELECT to_id, sum(sum_u64) FROM (
            SELECT sum_u64, json_extract_string(attributes_json, '$.dest_actor_id') AS to_id FROM metric_sums
            WHERE name = 'mailbox.posts' AND temporality = 'delta' AND is_monotonic
            AND json_extract_string(attributes_json, '$.actor_id') IN (SELECT from_actor_id::VARCHAR FROM messages)
            AND json_extract_string(attributes_json, '$.dest_actor_id') IN (SELECT to_actor_id::VARCHAR FROM messages))
        GROUP BY ALL ORDER BY 2""",
    )
    assert [count for _, count in found] == [1, 3]
    told = "SELECT DISTINCT resource_attributes_json FROM metric_sums"
    assert [json.loads(text) for (text,) in rows(store, told)] == [
        {"service.name": "monarch", "telemetry.sdk.name": "opentelemetry"}
    ]


def test_spans_of_the_program_have_parents(ingest: Ingest, store: Store) -> None:
    outer = (recorder.SPAN, 1, "outer", "key.0", call(), 0, 1.0, 3.0, "main", "")
    inner = (recorder.SPAN, 2, "inner", "key.0", call(), 1, 1.5, 2.5, "main", "ValueError: no")
    put(ingest, batch([inner, outer, called(span=2), handled()]))
    called_by = "json_extract_string({0}.fields_json, '$.name')"
    family = dict(
        rows(
            store,
            f"""SELECT coalesce({called_by.format("a")}, a.name), {called_by.format("b")} FROM spans a
            LEFT JOIN spans b ON b.id = a.parent_id AND b.process_id = a.process_id""",
        )
    )
    assert family == {"inner": "outer", "outer": "inc", "call": "inner", "inc": None}
    assert rows(store, "SELECT name, count(*) FROM spans GROUP BY name ORDER BY 2") == [
        ("call", 1),
        ("python_user_span", 3),
    ]
    ((fields,),) = rows(
        store, "SELECT fields_json FROM spans WHERE json_extract_string(fields_json, '$.name') = 'inner'"
    )
    assert json.loads(fields)["error"] == "ValueError: no"


# --- actors, meshes, logs, metrics


def test_actors_and_meshes_are_there_once(ingest: Ingest, store: Store) -> None:
    actor = (
        recorder.ACTOR,
        "key.0",
        "key",
        "counters",
        0,
        "counters<key1111>.p@unix:x",
        "<root>.<C counters>",
        "m.C",
        1.0,
    )
    mesh = (recorder.MESH, "key", "Python<C>", "counters", "counters-key", "{}", "procs", "", 1.0)
    statuses = [
        (recorder.STATUS, "key.0", "Created", "", "", 1.0),
        (recorder.STATUS, "key.0", "Failed", "boom", "Idle", 2.0),
    ]
    put(ingest, batch([actor, mesh, actor, *statuses]))
    put(ingest, batch([actor, mesh], number=2))
    joined = "SELECT a.full_name, m.given_name, a.rank FROM actors a JOIN meshes m ON m.id = a.mesh_id"
    assert rows(store, joined) == [("counters<key1111>.p@unix:x", "counters", 0)]
    status = "SELECT new_status, reason FROM actor_status_events JOIN actors a ON a.id = actor_id ORDER BY timestamp_us"
    assert rows(store, status.replace("timestamp_us", "actor_status_events.timestamp_us")) == [
        ("Created", None),
        ("Failed", "boom"),
    ]
    ((fields,),) = rows(store, "SELECT fields_json FROM events WHERE fields_json LIKE '%Failed%'")
    assert json.loads(fields)["prev_status"] == "Idle"


def test_logs_and_metrics(ingest: Ingest, store: Store) -> None:
    log = (recorder.LOG, "my.logger", "WARNING", 'say "hi"', 5, "main", "mod", "/a/b.py", 12, "key.0", 0, 1.0)
    metrics = [
        (recorder.SUM, "jobs", "1", (("kind", "a"),), True, 3, 0.0, 1.0),
        (recorder.SUM, "open", "1", (), False, -2, 0.0, 1.0),
        (recorder.GAUGE, "level", "%", (), 0.5, 1.0),
        (recorder.HISTOGRAM, "time", "ms", (), 2, 3.0, 1.0, 2.0, [2, 0], 0.0, 1.0),
    ]
    put(ingest, batch([log, *metrics]))
    ((name, target, level, fields, line),) = rows(store, "SELECT name, target, level, fields_json, line FROM events")
    assert (name, target, level, line) == ("event b.py:12", "my.logger", "WARNING", 12)
    assert json.loads(fields)["message"] == 'say "hi"'
    sums = rows(
        store,
        "SELECT name, attributes_json, is_monotonic, sum_i64, sum_u64, temporality FROM metric_sums ORDER BY name",
    )
    assert sums == [
        ("jobs", '{"kind":"a"}', True, None, 3, "delta"),
        ("open", "{}", False, -2, None, "delta"),
    ]
    assert rows(store, "SELECT name, unit, value_f64 FROM metric_gauges") == [("level", "%", 0.5)]
    assert rows(store, "SELECT count, sum_f64, bucket_counts_json FROM metric_histograms") == [(2, 3.0, "[2,0]")]


def test_what_a_program_logs_is_a_row_for_each_value_and_part_of_a_curve(ingest: Ingest, store: Store) -> None:
    store.curves.clear()
    nan = float("nan")
    logged = [
        (recorder.LOGGED, 7, (("loss", 0.5), ("lr", nan if rank else 1)), "trainers", rank, 2.0) for rank in (0, 1)
    ]
    put(ingest, batch(logged))
    found = rows(store, "SELECT name, step, value, mesh, rank, timestamp_us FROM metrics WHERE rank = 0 ORDER BY name")
    assert found == [("loss", 7, 0.5, "trainers", 0, us(2.0)), ("lr", 7, 1.0, "trainers", 0, us(2.0))]
    assert rows(store, "SELECT rank, process_id FROM metrics WHERE isnan(value)") == [(1, "workers-0<m>")]
    loss, rate = store.curves.told()
    assert (loss.mesh, loss.name, loss.steps, loss.mean, loss.count) == ("trainers", "loss", [7], [0.5], [2])
    assert loss.at == [2.0 + SHIFT] and (rate.odd, rate.odd_rank) == ([1], [1])


@pytest.mark.parametrize(
    "event",
    [
        (recorder.LOGGED, 7, (("loss", "0.5x"),), "m", 0, 2.0),
        (recorder.LOGGED, -7, (("loss", 0.5),), "m", 0, 2.0),
        (recorder.LOGGED, 2**63, (("loss", 0.5),), "m", 0, 2.0),
        (recorder.LOGGED, 7, ((5, 0.5),), "m", 0, 2.0),
        (recorder.LOGGED, 7, ((b"loss", 0.5),), "m", 0, 2.0),
        (recorder.LOGGED, 7, (("loss", 0.5),), "m", "first", 2.0),
        (recorder.LOGGED, 7, (("loss", 0.5),), "m", 0, 1e300),
        (recorder.LOGGED, 7, (("loss", 0.5),)),
        (recorder.LOGGED, 7, 8, "m", 0, 2.0),
    ],
)
def test_what_no_process_logs_is_refused_and_nothing_else(ingest: Ingest, store: Store, event: Any) -> None:
    store.curves.clear()
    put(ingest, batch([event, (recorder.LOGGED, 1, (("good", 1.0),), "m", 0, 2.0)]))
    assert rows(store, "SELECT name FROM metrics") == [("good",)]
    assert store.curves.names() == [("m", "good")]


def test_a_measurement_of_a_host(ingest: Ingest, store: Store) -> None:
    row = {column.name: 1 for column in TABLES["host_metrics"].columns} | {"hostname": "node", "timestamp": WALL}
    put(ingest, batch([(recorder.MACHINE, row)], offset=2.0))
    assert rows(store, "SELECT hostname, timestamp_us, cpu_percent FROM host_metrics") == [
        ("node", round((WALL + 2) * 1e6), 1.0)
    ]


# --- clocks, losses, what is wrong


def test_times_are_corrected_by_the_difference_of_clocks(ingest: Ingest, store: Store) -> None:
    put(ingest, batch([handled()], offset=5.0, error=0.001))
    assert rows(store, "SELECT timestamp_us FROM messages") == [(us(7.0),)]
    assert rows(store, "SELECT clock_offset_us, clock_error_us FROM telemetry_sources") == [(5_000_000, 1000)]


def test_the_quickest_exchange_says_how_clocks_differ() -> None:
    clock = ClockOffset()
    assert clock.best == (0.0, 0.0)
    clock.learn(sent=10.0, there=115.0, back=20.0)  # a slow one: 100 s ahead, give or take 5
    clock.learn(sent=30.0, there=130.6, back=31.0)
    offset, error = clock.best
    assert (offset, error) == (pytest.approx(100.1), pytest.approx(0.5))
    for _ in range(8):  # what was learned long ago is forgotten: clocks drift
        clock.learn(sent=40.0, there=143.0, back=42.0)
    assert clock.best == (pytest.approx(102.0), pytest.approx(1.0))


def test_what_was_lost_on_the_way_is_counted(ingest: Ingest, store: Store) -> None:
    put(ingest, batch([handled(1)], number=4), batch([handled(2)], number=7, dropped=9))
    assert rows(store, "SELECT batches, batches_lost, dropped FROM telemetry_sources") == [(2, 2, 9)]
    assert ingest.missing_hosts() == {"node"}
    put(ingest, batch([handled(3)], number=1, pid=6))  # another process took its place
    assert rows(store, "SELECT batches, batches_lost FROM telemetry_sources") == [(1, 0)]
    assert ingest.missing_hosts() == set()


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xc1", encode([1, 2]), encode(("head", [])), batch([[99, "of a later version"]]), batch([[]]), batch([5])],
    ids=["nothing", "no msgpack", "no batch", "no head", "a later version", "an empty event", "no event"],
)
def test_what_cannot_be_read_costs_nobody_else_his_rows(ingest: Ingest, store: Store, garbage: bytes) -> None:
    for one in (garbage, batch([handled()])):
        ingest.take(one)
    assert ingest.flush(60)
    assert rows(store, "SELECT count(*) FROM messages") == [(1,)]


BAD = {
    "a number where a name is": (recorder.SPAN, 1, 5, "key.0", None, 0, 1.0, 3.0, "main", ""),
    "no number": (recorder.SPAN, 1, "part", "key.0", None, 0, float("nan"), 3.0, "main", ""),
    "an endless time": (recorder.STATUS, "key.0", "Idle", "", "", float("inf")),
    "a line beyond its column": (recorder.LOG, "a", "INFO", "t", 5, "main", "m", "/f.py", 2**40, "key.0", 0, 1.0),
    "less than nothing": (recorder.LOG, "a", "INFO", "t", -5, "main", "m", "/f.py", 1, "key.0", 0, 1.0),
    "no name": (recorder.MESH, "key", None, "counters", "counters-key", "{}", "procs", "", 1.0),
    "an adverb that there is not": (
        recorder.CALLED,
        ("client.0", "k", "m", "inc", 99, 1, VIEW, None, 0),
        7,
        1.0,
        2.0,
        False,
        0,
    ),
    "attributes that are none": (recorder.SUM, "jobs", "1", [["a"]], True, 3, 0.0, 1.0),
    "a sum that has too much": (recorder.SUM, "jobs", "1", (), True, 2**63, 0.0, 1.0),
    "too short a call": (recorder.HANDLED, "key.0", [], "unix:x/client", 1.0, 2.0, 3.0, False, True, 0),
    "a measurement of nothing": (recorder.MACHINE, {"timestamp": 1.0, "hostname": "node", "cpu_count": "many"}),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_row_that_does_not_fit_takes_no_other_with_it(ingest: Ingest, store: Store, bad: Any) -> None:
    """Neither of its own process nor of others; and it is counted."""
    host = {column.name: 1 for column in TABLES["host_metrics"].columns} | {"hostname": "node", "timestamp": WALL}
    others = [handled(2), (recorder.STATUS, "key.1", "Idle", "", "", 1.0), (recorder.MACHINE, host)]
    ingest.take(batch([handled(1), bad, handled(3)]))
    ingest.take(batch(others, address="unix:x/m.1", hostname="other"))
    assert ingest.flush(60)
    assert rows(store, "SELECT count(*) FROM messages") == [(3,)]
    assert rows(store, "SELECT count(*) FROM actor_status_events") == [(1,)]
    assert rows(store, "SELECT count(*) FROM host_metrics") == [(1,)]
    dropped = "SELECT dropped FROM telemetry_sources ORDER BY address"
    assert rows(store, dropped) == [(1,), (0,)]
    assert ingest.missing_hosts() == {"node"}


EDGES: list[Any] = [
    *(0, 1, 2, 6, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63), True, None),
    *(0.0, -1.0, 1e10, -9.9e10, 1e300, float("nan"), float("-inf"), 5e-324),
    *("", "\0", "a\nb", "'\"{}", "\U0001f600" * 9, "key.0", [], [["a", "\0"]], [[]], ["ab"], [2**64 - 1], [1], [[]]),
]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fits_a_column_the_engine_takes(ingest: Ingest, store: Store, seed: int) -> None:
    """Shows that what is refused is refused before: no statement fails for a value."""
    random = Random(seed)
    gathered = EventColumns()
    head, _ = batches.decode(batch([]))
    gathered.add(head, [])
    for kind, columns in batches.COLUMNS.items():
        fitting = [[edge for edge in EDGES if batches.fits(column, edge)] for column in columns]
        made = [[random.choice(some) for some in fitting] for _ in range(50)]
        source = [head.address, head.process, head.hostname, SHIFT]
        gathered.rows[batches.NAMES[kind]] += [[*row, *source] for row in made]
    assert gathered.keep_fitting() == 0
    ingest._insert_events(gathered)


def test_a_head_that_no_process_sends_is_refused(ingest: Ingest, store: Store) -> None:
    for changes in ({"wall": float("nan")}, {"offset": 1e300}, {"number": -1}, {"address": "x" * 5_000}):
        ingest.take(batch([handled()], **changes))
    ingest.take(b"\x92" * 100_000)  # lists within lists
    ingest.take(batch([handled()]))
    assert ingest.flush(60)
    assert (ingest.left_out, rows(store, "SELECT count(*) FROM messages")) == (5, [(1,)])


def test_processes_that_are_remembered_are_bounded(
    ingest: Ingest, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingests, "MOST_SOURCES", 2)
    for number in range(4):
        ingest.take(batch([handled()], address=f"unix:x/m.{number}"))
        assert ingest.flush(60)
    ingest.take(batch([handled(9)], address="unix:x/m.1", number=2))
    assert ingest.flush(60)
    assert (len(ingest.sources), ingest.left_out) == (2, 2)
    assert rows(store, "SELECT count(*) FROM messages") == [(3,)]


# --- which rows go


def fill(ingest: Ingest, floods: int, others: int, quiet: int) -> None:
    events = [handled(seq) for seq in range(floods)]
    given = [batch(events, address="unix:x/m.0")]
    for rank in range(1, others + 1):
        receiver = f"key.{rank}"
        given.append(batch([handled(seq, receiver=receiver) for seq in range(quiet)], address=f"unix:x/m.{rank}"))
    put(ingest, *given)


def test_one_that_floods_loses_its_own_rows_first(ingest: Ingest, store: Store) -> None:
    fill(ingest, floods=5_000, others=4, quiet=100)
    table = TABLES["messages"]
    store.write([trim(Table(table.name, table.columns, table.leaves, 1_000), 1_000)])
    counts = rows(store, "SELECT count(*) AS n FROM messages GROUP BY to_actor_id ORDER BY n")
    assert counts == [(100,)] * 4 + [(600,)]


def test_counts_of_posts_go_before_what_the_program_measures(ingest: Ingest, store: Store) -> None:
    own = (recorder.SUM, "jobs", "1", (), True, 3, 0.0, 1.0)
    put(ingest, batch([own, *[handled(1, receiver=f"key.{rank}") for rank in range(50)]]))
    store.write([trim(TABLES["metric_sums"], 10)])
    names = dict(rows(store, "SELECT name, count(*) FROM metric_sums GROUP BY name"))
    assert names == {"jobs": 1, "actor.messages_received": 1, "mailbox.posts": 8}


def test_rows_leave_when_they_are_too_old(ingest: Ingest, store: Store) -> None:
    put(ingest, batch([handled(1)]), batch([handled(2)], wall=WALL + 3600))
    Retention(store.keeper, 1200.0).sweep(WALL + 3600)
    assert rows(store, "SELECT count(*) FROM messages") == [(1,)]
    assert rows(store, "SELECT count(*) FROM message_status_events") == [(3,)]
    assert not any("actors" in statement or "meshes" in statement for statement in too_old(1.0, 0.0))


@pytest.mark.parametrize(("retention", "period"), [(3600, 300), (600, 60), (100, 30), (10, 10), (100_000, 300)])
def test_how_often_old_rows_are_swept(retention: float, period: float) -> None:
    assert sweep_period(retention) == period


def test_the_last_snapshots_stay(store: Store) -> None:
    store.insert("nodes", [(f"s{number}", "root", "root", number) for number in range(125)])
    store.insert("snapshots", [(f"s{number}", number) for number in range(125)])
    Retention(store.keeper, 0.0).sweep(time.time())
    assert rows(store, "SELECT count(*), min(snapshot_ts) FROM snapshots") == [(120, 5)]
    assert rows(store, "SELECT count(*) FROM nodes") == [(120,)]
    store.compact()
    assert rows(store, "SELECT count(*) FROM nodes") == [(120,)]
