"""The tables of telemetry in DuckDB, in this process's memory or in a file: rows come in batches, queries read."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from monarch.telemetry.result import QueryError, QueryTimeout, Result
from monarch.telemetry.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

QUERY_SECONDS = 30.0
MOST_ROWS = 1_000_000  # of a result
_AT_ONCE = 8  # queries; more wait

_ARROW = {
    "u64": "uint64",
    "i64": "int64",
    "u32": "uint32",
    "i32": "int32",
    "f64": "float64",
    "text": "string",
    "bool": "bool",
}
_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "allow_community_extensions": "false",
}


class Store:
    """The tables, empty at first; or those of a file (`open`), which are read only.

    `memory`: bytes that the tables and queries may take; a query that needs more fails.
    """

    def __init__(self, *, memory: int = 2 << 30, _saved: Any = None) -> None:
        duckdb = engine()
        self._errors: type[Exception] = duckdb.Error
        self._interrupted: type[Exception] = duckdb.InterruptException
        self._connection: Any = _saved if _saved is not None else duckdb.connect(":memory:", config=_SETTINGS)
        self._use = "" if _saved is not None else "USE datafusion.public"
        run = self._connection.execute
        if _saved is None:
            # The names that programs written for other engines look for.
            run("ATTACH ':memory:' AS datafusion")
            run("CREATE SCHEMA datafusion.public")
            run(self._use)
            for table in TABLES.values():
                run(table.created_by)
            run(f"SET memory_limit = '{memory // 2**20} MiB'")
            run("SET temp_directory = ''")
        run("SET enable_external_access = false")
        run("SET lock_configuration = true")
        self.missing: list[Callable[[], Iterable[str]]] = []  # each tells of hosts whose rows are not all here
        self._writing = threading.Lock()
        self._slots = threading.BoundedSemaphore(_AT_ONCE)

    @classmethod
    def open(cls, path: str) -> Store:
        """Opens the DuckDB file at `path` for reading. FileNotFoundError; ValueError when it has no telemetry."""
        duckdb = engine()
        if not os.path.isfile(path):
            raise FileNotFoundError(f"no file {path}")
        try:
            saved = duckdb.connect(path, read_only=True)
            rows = saved.execute("SELECT table_name FROM information_schema.tables").fetchall()
        except duckdb.Error as exc:
            raise ValueError(f"{path} is no DuckDB file: {str(exc).splitlines()[0]}") from None
        if missing := {"actors", "meshes", "messages"} - {name for (name,) in rows}:
            saved.close()
            raise ValueError(f"{path} has no telemetry: tables {', '.join(sorted(missing))} are missing")
        return cls(_saved=saved)

    @contextmanager
    def writing(self, reading: Mapping[str, Any] | None = None) -> Iterator[Callable[..., Any]]:
        """Gives what runs statements that write, all of them or none; they may read the Arrow tables `reading`.

        Any thread; one at a time.
        """
        tables = reading or {}
        with self._writing:
            run = self._connection.execute
            try:
                for name, table in tables.items():
                    self._connection.register(name, table)
                run("BEGIN")
                try:
                    yield run
                except BaseException:
                    run("ROLLBACK")
                    raise
                run("COMMIT")
            finally:
                for name in tables:
                    self._connection.unregister(name)

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Rows of one table, each with a value for each column. Any thread; one at a time."""
        import pyarrow as pa

        columns = TABLES[table].columns
        arrays = [
            pa.array([row[at] for row in rows], pa.type_for_alias(_ARROW[column.type]))
            for at, column in enumerate(columns)
        ]
        batch = pa.table(arrays, names=[column.name for column in columns])
        with self.writing({"incoming": batch}) as run:
            run(f'INSERT INTO "{table}" SELECT * FROM incoming')

    def insert_machine(self, table: str, row: Mapping[str, Any]) -> None:
        """A measurement of this machine (`machine.Row`)."""
        whole = {**row, "timestamp_us": round(row["timestamp"] * 1e6)}
        self.insert(table, [tuple(whole.get(column.name) for column in TABLES[table].columns)])

    def query(
        self,
        sql: str,
        *,
        timeout: float | None = None,
        limit: int | None = None,
        running: Callable[[Callable[[], None]], object] | None = None,
    ) -> Result:
        """Runs one statement that reads. Any thread. QueryError for what may not run or fails; QueryTimeout after `timeout`
        seconds. At most `limit` rows. `running` is given, before it runs, what cancels it from another thread: that may be
        called at any time and again, and misses a query that has not quite begun."""
        check_length(sql)
        seconds = QUERY_SECONDS if timeout is None else timeout
        most = min(limit if limit is not None else MOST_ROWS, MOST_ROWS)
        if not self._slots.acquire(timeout=seconds):
            raise QueryTimeout(f"{_AT_ONCE} other queries run, and none ended within {seconds:g} s")
        try:
            cursor = self._connection.cursor()
            with self._limited(cursor, seconds):
                if running is not None:
                    running(cursor.interrupt)
                return self._run(cursor, rewritten(sql), most, seconds)
        finally:
            self._slots.release()

    def _run(self, cursor: Any, sql: str, most: int, seconds: float) -> Result:
        try:
            check(sql, [str(one.type).rpartition(".")[2] for one in cursor.extract_statements(sql)])
            if self._use:
                cursor.execute(self._use)
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            cursor.execute(sql)
            columns = [description[0] for description in cursor.description]
            rows = cursor.fetchmany(most + 1)
        except self._interrupted:
            raise QueryTimeout(f"the query took longer than {seconds:g} s, or was cancelled") from None
        except self._errors as exc:
            raise QueryError(str(exc)) from None
        missing = sorted({host for tell in self.missing for host in tell()})
        return Result(columns, rows[:most], missing, truncated=len(rows) > most)

    @contextmanager
    def _limited(self, cursor: Any, seconds: float) -> Iterator[None]:
        """The cursor's work is interrupted after so long, and the cursor closed at the end."""
        timer = threading.Timer(seconds, cursor.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            cursor.close()

    def store_pyspy_dump(self, dump_id: str, proc_ref: str, pyspy_result_json: str) -> None:
        """Keeps a stack dump, as `/v1/pyspy/{proc}` gives it. ValueError for what is none."""
        for table, rows in dump_rows(dump_id, proc_ref, pyspy_result_json, round(time.time() * 1e6)).items():
            if rows:
                self.insert(table, rows)

    def compact(self) -> None:
        """Gives back the memory of rows that were deleted, unless a query runs: then the next time."""
        with self._writing:
            try:
                self._connection.execute("CHECKPOINT datafusion")
            except self._errors:
                pass

    def close(self) -> None:
        with self._writing:
            self._connection.close()


def engine() -> Any:
    """Returns DuckDB. ImportError as of `check_installed`."""
    check_installed()
    import duckdb

    return duckdb


def check_installed() -> None:
    """ImportError, which says how to get it, when a package is missing. Loads none: that takes half a second."""
    for name in ("duckdb", "pyarrow", "starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(
                f"telemetry needs {name}, which is not installed: pip install 'pymonarch[telemetry]'", name=name
            )


# --- which SQL may run: reading, of the tables here. Decided from what the engine's parser says of it, never from its text

# What `SHOW TABLES` and `DESCRIBE` show, with the columns that other engines have.
_SHOW_TABLES = re.compile(r"\s*SHOW\s+TABLES\s*;?\s*\Z", re.IGNORECASE)
_DESCRIBE = re.compile(r"\s*(?:DESCRIBE|DESC)\s+(?:TABLE\s+)?\"?(\w+)\"?\s*;?\s*\Z", re.IGNORECASE)
_READING = ("SELECT", "EXPLAIN")

LONGEST = 256 * 1024  # characters of a query


def rewritten(sql: str) -> str:
    """`sql` as the engine is to run it."""
    if _SHOW_TABLES.match(sql):
        return "SELECT table_catalog, table_schema, table_name, table_type FROM information_schema.tables ORDER BY table_name"
    described = _DESCRIBE.match(sql)
    if described:
        return (
            "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
            f"WHERE table_name = '{described[1]}' ORDER BY ordinal_position"
        )
    return sql


def check(sql: str, types: Sequence[str]) -> None:
    """`types`: of its statements, as the engine's parser names them. QueryError unless it is one that reads."""
    if not types:
        raise QueryError("SQL query is empty")
    if len(types) > 1:
        raise QueryError(f"one statement at a time: these are {len(types)}")
    if types[0].upper() not in _READING:
        raise QueryError(
            f"telemetry is read, not written: {types[0].upper()} is refused; SELECT, WITH, SHOW TABLES, DESCRIBE and "
            "EXPLAIN run"
        )


def check_length(sql: str) -> None:
    if len(sql) > LONGEST:
        raise QueryError(f"the query has {len(sql):,} characters, more than {LONGEST:,}")


# --- stack dumps, as `/v1/pyspy/{proc}` gives them, as rows of the tables `pyspy_*`


class _DumpLocal(msgspec.Struct):
    name: str
    addr: int = 0
    arg: bool = False
    repr: str | None = None


class _DumpFrame(msgspec.Struct):
    name: str
    filename: str
    module: str | None = None
    short_filename: str | None = None
    line: int = 0
    locals: list[_DumpLocal] | None = None
    is_entry: bool = False


class _DumpThread(msgspec.Struct):
    thread_id: int
    frames: list[_DumpFrame]
    pid: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False


class _Dump(msgspec.Struct):
    pid: int
    stack_traces: list[_DumpThread]
    binary: str = ""
    capture_mode: str = "python_only"
    warnings: list[str] = []


class _DumpAnswer(msgspec.Struct):
    Ok: _Dump


def dump_rows(dump_id: str, proc_ref: str, text: str, now_us: int) -> dict[str, list[tuple[Any, ...]]]:
    """Rows by table. ValueError for what is no successful dump."""
    try:
        dump = msgspec.json.decode(text, type=_DumpAnswer).Ok
    except msgspec.MsgspecError as exc:
        raise ValueError(f"this is no stack dump: {exc}") from None
    rows: dict[str, list[tuple[Any, ...]]] = {
        "pyspy_dumps": [
            (dump_id, now_us, dump.pid, dump.binary, proc_ref, dump.capture_mode, json.dumps(dump.warnings))
        ],
        "pyspy_stack_traces": [],
        "pyspy_frames": [],
        "pyspy_local_variables": [],
    }
    for thread in dump.stack_traces:
        id = thread.thread_id % 2**64
        rows["pyspy_stack_traces"].append(
            (
                dump_id,
                thread.pid or dump.pid,
                id,
                thread.thread_name,
                thread.os_thread_id,
                thread.active,
                thread.owns_gil,
            )
        )
        for depth, frame in enumerate(thread.frames):
            rows["pyspy_frames"].append(
                (
                    dump_id,
                    id,
                    depth,
                    frame.name,
                    frame.filename,
                    frame.module,
                    frame.short_filename,
                    frame.line,
                    frame.is_entry,
                )
            )
            for local in frame.locals or ():
                rows["pyspy_local_variables"].append(
                    (dump_id, id, depth, local.name, local.addr % 2**64, local.arg, local.repr)
                )
    return rows
