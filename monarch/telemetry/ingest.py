"""Puts what processes have recorded into the tables: batches wait here and are taken together, by one thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._linux.locks import Condition
from monarch._text import first_line
from monarch.telemetry import batches
from monarch.telemetry.batches import COLUMNS, KINDS, SOURCE, EventColumns, MeasuredRow
from monarch.telemetry.expansion import STATEMENTS
from monarch.telemetry.store import columns_of
from monarch.telemetry.tables import TABLES

if TYPE_CHECKING:
    from monarch._mesh.inspection.outgoing_batches import BatchHead
    from monarch.telemetry.store import Store

logger = logging.getLogger("monarch.observer")

MOST_WAITING = 64 << 20  # bytes that wait; who brings more waits as well
MOST_SOURCES = 200_000  # processes, those that have ended included
_TOGETHER = 100_000  # events that are taken at a time
_PAUSE = 0.1  # seconds between two turns, in which more comes: many rows at a time cost less

_FLOATS = "arrived started ended began happened shift sum least most value"
_WHOLES = "seq port serial told adverb rank step parent_seq parent_span thread_id line count"
_FLAGS = "failed spans is_monotonic"


class Ingest:
    """`take` from any thread; may wait for room."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._taken = self._done = 0  # batches
        self._changed = Condition()
        self._closed = False
        self.sources: dict[str, RecordingProcess] = {}
        self.left_out = 0  # batches that could not be read
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)
        self._thread.start()

    def take(self, batch: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < MOST_WAITING or self._closed)
            self._waiting.append(batch)
            self._bytes += len(batch)
            self._taken += 1
            self._changed.notify_all()

    def flush(self, timeout: float = 30.0) -> bool:
        """Returns when what was taken before is in the tables; False when that takes too long."""
        with self._changed:
            wanted = self._taken
            done = self._changed.wait_for(lambda: self._done >= wanted or self._closed, timeout)
        self._store.settle()
        return done

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(5.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
            time.sleep(_PAUSE)
            self._turn()

    def _turn(self) -> None:
        gathered, count, size = EventColumns(), 0, 0
        while gathered.count < _TOGETHER:
            try:
                batch = self._waiting.popleft()
            except IndexError:
                break
            count += 1
            size += len(batch)
            try:
                head, events = batches.decode(batch)
                if len(self.sources) >= MOST_SOURCES and head.address not in self.sources:
                    raise ValueError(f"rows of {MOST_SOURCES:,} processes are kept, and this is of another one")
                gathered.add(head, events)
            except (ValueError, RecursionError) as exc:  # of another version
                self.left_out += 1
                logger.warning("a batch could not be read: %s", exc)
        try:
            self.insert(gathered)
        except Exception:  # the engine's: no memory is left
            logger.exception("%d events are lost", gathered.count)
        with self._changed:
            self._bytes -= size
            self._done += count
            self._changed.notify_all()

    def insert(self, gathered: EventColumns) -> None:
        """Puts all of them into the tables. A row that does not fit takes no other with it: where some do not, each is looked
        at. Raises what the engine does for other reasons; then what it was given last is counted as refused."""
        try:
            for put in (self._insert_events, self._insert_host_metrics, self._insert_gpu_metrics):
                try:
                    put(gathered)
                except Exception as exc:
                    count = gathered.keep_fitting()
                    if not count:
                        gathered.refuse_all()
                        raise
                    logger.warning("%d events do not fit the tables: %s", count, first_line(exc))
                    put(gathered)
        finally:
            self._note(gathered)

    def _insert_events(self, gathered: EventColumns) -> None:
        kinds = [name for name, rows in gathered.rows.items() if rows]
        if kinds:
            statements = [statement for name in kinds for statement in STATEMENTS[name]]
            tables = {f"in_{name}": arrow(name, gathered.rows[name]) for name in kinds}
            self._store.write(statements, tables, at_once=False)
            self._store.curves.add_rows(gathered.rows.get("logged", ()))

    def _insert_host_metrics(self, gathered: EventColumns) -> None:
        self._insert_measured("host_metrics", gathered.machine)

    def _insert_gpu_metrics(self, gathered: EventColumns) -> None:
        self._insert_measured("gpu_metrics", gathered.devices)

    def _insert_measured(self, table: str, measured: list[MeasuredRow]) -> None:
        names = [column.name for column in TABLES[table].columns]
        if measured:
            self._insert(table, [tuple(row.get(name) for name in names) for _, row in measured])

    def missing_hosts(self) -> set[str]:
        """Returns the hosts of which something was dropped, on the way or where it was recorded."""
        return {source.head.hostname for source in list(self.sources.values()) if source.lost or source.dropped}

    def _note(self, gathered: EventColumns) -> None:
        heads = gathered.heads
        for head in heads:
            known = self.sources.get(head.address)
            if known is None:
                known = self.sources[head.address] = RecordingProcess(head)
            known.note(head)
        for address, count in gathered.refused.items():
            self.sources[address].refused += count
        rows = [source.row() for source in {head.address: self.sources[head.address] for head in heads}.values()]
        if rows:
            self._insert(
                "telemetry_sources",
                rows,
                "DELETE FROM telemetry_sources WHERE address IN (SELECT address FROM incoming)",
            )

    def _insert(self, table: str, rows: list[tuple[Any, ...]], *before: str) -> None:
        statements = [*before, f"INSERT INTO {table} SELECT * FROM incoming"]
        self._store.write(statements, {"incoming": columns_of(table, rows)}, at_once=False)


class RecordingProcess:
    """A process that records, as far as it is known here."""

    def __init__(self, head: BatchHead) -> None:
        self.head = head
        self.first = head.number
        self.batches = 0
        self.refused = 0  # events that came and are not in the tables

    def note(self, head: BatchHead) -> None:
        if head.pid != self.head.pid:  # another process took its place
            self.first, self.batches, self.refused = head.number, 0, 0
        self.head = head
        self.batches += 1

    @property
    def lost(self) -> int:
        """Batches that were sent and did not come."""
        return max(0, self.head.number - self.first + 1 - self.batches)

    @property
    def dropped(self) -> int:
        """Events that it left out, or that were left out here."""
        return self.head.dropped + self.refused

    def row(self) -> tuple[Any, ...]:
        head = self.head
        return (
            head.process,
            head.hostname,
            head.address,
            round((head.wall + head.offset) * 1e6),
            self.batches,
            self.lost,
            self.dropped,
            round(head.offset * 1e6),
            round(head.error * 1e6),
        )


def arrow(name: str, rows: list[list[Any]]) -> Any:
    """The events of a kind as columns."""
    import pyarrow as pa

    types = {
        **dict.fromkeys(_FLOATS.split(), pa.float64()),
        **dict.fromkeys(_WHOLES.split(), pa.uint64()),
        **dict.fromkeys(_FLAGS.split(), pa.bool_()),
        "amount": pa.int64(),
    }
    columns = (*COLUMNS[KINDS[name]], *SOURCE)
    values = list(zip(*rows, strict=True))
    arrays = []
    for column, given in zip(columns, values, strict=True):
        if column in ("attributes", "counts"):  # lists, which are JSON in the tables
            arrays.append(pa.array([as_json(value) if value else None for value in given], pa.string()))
        else:
            arrays.append(pa.array(given, types.get(column, pa.string())))
    return pa.table(arrays, names=list(columns))


def as_json(value: Any) -> str:
    """Attributes, which come as pairs, and counts."""
    return msgspec.json.encode(dict(value) if value and isinstance(value[0], list) else value).decode()
