"""The retention of rows: what is older than the retention goes, and of tables over their bound what is oldest, fairly.

Of tables with ids that say which process recorded a row, the processes with most rows lose theirs first: one that floods
pushes nobody else's out. Queries are never delayed by a sweep for longer than one of its statements.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from monarch.telemetry.expansion import POSTS, SOURCE_BITS
from monarch.telemetry.tables import BY_AGE, BY_DUMP, BY_SNAPSHOT, TABLES, Table

if TYPE_CHECKING:
    from monarch.telemetry.keeper import Keeper

logger = logging.getLogger("monarch.observer")

SNAPSHOTS = 120  # that are kept
DUMPS = 200
_LOOK = 10.0  # seconds between two looks at the bounds
_SHORTEST, _LONGEST = 30.0, 300.0  # seconds between two sweeps
FILE = 2 << 30  # bytes of a file with rows
_FEW = 1000  # rows of a table that a file's size does not come from
_TRIMMED = 0.8  # of its bound is left of a table that was over it

# Tables with a column that has the source in its upper bits.
_SOURCED = {
    "messages": "id",
    "message_status_events": "message_id",
    "sent_messages": "id",
    "spans": "id",
    "span_events": "id",
    "actor_status_events": "id",
}

# Rows that go before all others of a table: one for each pair of actors that talk is no reason to lose the program's own.
_LAST_KEPT = {"metric_sums": f"name = '{POSTS}', "}


def sweep_period(retention: float) -> float:
    """Seconds between two sweeps of what is too old."""
    return min(max(retention / 10, _SHORTEST), _LONGEST, retention)


def too_old(retention: float, now: float) -> Iterator[str]:
    """Statements that delete rows older than `retention` seconds at `now`."""
    before = round((now - retention) * 1e6)
    for table in TABLES.values():
        if table.leaves == BY_AGE:
            yield f"DELETE FROM {table.name} WHERE timestamp_us < {before}"


def too_many(snapshots: int = SNAPSHOTS, dumps: int = DUMPS) -> Iterator[str]:
    """Statements that leave the last snapshots and stack dumps."""
    kept = f"(SELECT snapshot_id FROM snapshots ORDER BY snapshot_ts DESC LIMIT {snapshots})"
    last = f"(SELECT dump_id FROM pyspy_dumps ORDER BY timestamp_us DESC LIMIT {dumps})"
    groups = ((BY_SNAPSHOT, "snapshot_id", kept, "snapshots"), (BY_DUMP, "dump_id", last, "pyspy_dumps"))
    for leaves, key, those, main in groups:
        names = [table.name for table in TABLES.values() if table.leaves == leaves]
        for name in sorted(names, key=lambda name: name == main):  # the one that says which are kept comes last
            yield f"DELETE FROM {name} WHERE {key} NOT IN {those}"


def trim(table: Table, left: int) -> str:
    """The statement that leaves so many rows: the newest, the same number for each source that has more than its share."""
    order = _order(table)
    source = _SOURCED.get(table.name)
    if source is None:
        return f"""DELETE FROM {table.name} WHERE rowid IN (
            SELECT rowid FROM {table.name} ORDER BY {_LAST_KEPT.get(table.name, "")}{order} DESC OFFSET {left})"""
    # In the order of their place among those of their source, the first `left` stay.
    return f"""DELETE FROM {table.name} WHERE rowid IN (
        SELECT rowid FROM (
            SELECT rowid, {order} AS age,
                row_number() OVER (PARTITION BY {source} // {2**SOURCE_BITS} ORDER BY {order} DESC) AS place
            FROM {table.name})
        ORDER BY place, age DESC OFFSET {left})"""


def _order(table: Table) -> str:
    names = {column.name for column in table.columns}
    return "timestamp_us" if "timestamp_us" in names else "rowid"


class Retention:
    """`seconds`: how long rows are kept, 0 for ever. `size`: bytes of the file that they are in, about; 0 for memory."""

    def __init__(self, kept: Keeper, seconds: float, size: int = 0) -> None:
        self._kept = kept
        self._size = size
        self._seconds = seconds
        self._ended = threading.Event()

    def start(self) -> Callable[[], None]:
        """On a thread of its own, until what this returns is called."""
        threading.Thread(target=self._run, name="retention", daemon=True).start()
        return self._ended.set

    def _run(self) -> None:
        swept = time.monotonic()
        while not self._ended.wait(min(_LOOK, self._seconds or _LOOK)):
            try:
                changed = self.bound()
                if time.monotonic() - swept >= (sweep_period(self._seconds) if self._seconds else _LONGEST):
                    swept = time.monotonic()
                    self.sweep(time.time())
                    changed = True
                if changed:
                    self._kept.compact()
            except Exception:
                if not self._ended.is_set():
                    logger.exception("old rows could not be removed")

    def sweep(self, now: float) -> None:
        statements = [*(too_old(self._seconds, now) if self._seconds else ()), *too_many()]
        for statement in statements:
            self._kept.write([statement])

    def bound(self) -> bool:
        """Removes what is over the bound of its table; whether anything was."""
        counts = self._kept.write([f"SELECT count(*) FROM {name}" for name in TABLES])
        left = {
            name: round(TABLES[name].rows * _TRIMMED)
            for name, count in zip(TABLES, counts, strict=True)
            if count > TABLES[name].rows
        }
        if (
            self._size
            and self._kept.write(["SELECT used_blocks * block_size FROM pragma_database_size()"])[0] > self._size
        ):
            left = {
                name: round(count * _TRIMMED) for name, count in zip(TABLES, counts, strict=True) if count > _FEW
            } | left
        for name, rows in left.items():
            self._kept.write([trim(TABLES[name], rows)])
        return bool(left)
