"""The tables of telemetry, kept by a process of their own (`keeper_process`): rows come in batches, queries read."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._linux import private_files
from monarch._text import first_line
from monarch.telemetry import query_process
from monarch.telemetry.curves import Curve, MetricCurves
from monarch.telemetry.keeper import MEMORY, READ, WRITE, Keeper, KeeperLost, WriteFailed
from monarch.telemetry.query_places import QueryPlaces
from monarch.telemetry.result import QueryError, Result
from monarch.telemetry.tables import TABLES

if TYPE_CHECKING:
    from monarch.telemetry.query_places import ResultStream

logger = logging.getLogger("monarch.observer")

QUERY_SECONDS = 30.0
MOST_ROWS = 1_000_000  # of a result
MOST_BYTES = 256 << 20  # of one as JSON that is passed on in parts
MOST_HELD = 64 << 20  # and of one that is held here as a whole ...
MOST_SHOWN = 16 << 20  # ... for a page
SAVING_MEMORY = 256 << 20  # of the engine that writes a file

_ARROW = {
    "u64": "uint64",
    "i64": "int64",
    "u32": "uint32",
    "i32": "int32",
    "f64": "float64",
    "text": "string",
    "bool": "bool",
}


# What was logged, folded over ranks, a row a point: in the order of `Curve`, of the newest 200,000.
FOLDED = """
SELECT mesh, name, step, avg(value) FILTER (fine), min(value) FILTER (fine), max(value) FILTER (fine),
       coalesce(arg_min(rank, value) FILTER (fine), -1), coalesce(arg_max(rank, value) FILTER (fine), -1),
       coalesce(stddev_pop(value) FILTER (fine), 0.0), count(*) FILTER (fine), count(*) FILTER (NOT fine),
       coalesce(min(rank) FILTER (NOT fine), -1), max(timestamp_us) / 1e6
FROM (SELECT *, isfinite(value) AS fine FROM metrics)
GROUP BY mesh, name, step ORDER BY step DESC LIMIT 200000"""
_FOLDS = 60.0  # seconds


class Store:
    """The tables, empty at first; or those of a file (`open`), which are read only. They are in another process, and each
    query is run by a further one, with bounds: what ends that ends nothing else.

    `memory`: bytes that the tables may take; beyond them rows are refused. `engine_memory`: and the engine for a query.
    `path`: of a file that the rows are written to as well, by a further process; it goes on in one that it has written
    before. ValueError for another file; UntrustedFileError for one that somebody else may write.
    """

    def __init__(
        self,
        *,
        memory: int = 2 << 30,
        engine_memory: int = query_process.ENGINE_MEMORY,
        path: str = "",
        _saved: str = "",
    ) -> None:
        check_installed()
        self.saved: Keeper | None = None
        if path:
            self.saved = Keeper(own_file(path), WRITE, memory=SAVING_MEMORY)
            self._saving = ThreadPoolExecutor(1, "saving")
        try:
            self.keeper = Keeper(_saved, READ if _saved else MEMORY, memory=memory, engine_memory=engine_memory)
        except BaseException:
            if self.saved is not None:
                self.saved.close()
            raise
        self.missing: list[Callable[[], Iterable[str]]] = []  # each tells of hosts whose rows are not all here
        self._places = QueryPlaces(self.keeper)
        self.curves = MetricCurves()  # of what was logged, as it comes: longer than its rows stay
        self.runs = ""  # the folder with runs that were kept, if this one is

    @classmethod
    def open(cls, path: str) -> Store:
        """Opens the DuckDB file at `path` for reading. FileNotFoundError; ValueError when it has no telemetry."""
        if not os.path.isfile(path):
            raise FileNotFoundError(f"no file {path}")
        made = cls(_saved=os.path.abspath(path))
        try:
            made.curves.restore(folded(made.query(FOLDED, timeout=_FOLDS).rows))
        except QueryError as exc:  # a file of an older version has no such table
            logger.info("the file has no metrics: %s", first_line(exc))
        return made

    def write(
        self, statements: Sequence[str], reading: Mapping[str, Any] | None = None, *, at_once: bool = True
    ) -> list[int]:
        """Runs statements that write, all of them or none; they may read the Arrow tables `reading`. Returns the number that
        each gives. Any thread. `at_once`: queries that begin from now on see it; otherwise those that begin in a second.

        WriteFailed in the engine's words; KeeperLost when the process with the tables has ended."""
        saved = self._saving.submit(self._save, statements, reading) if self.saved is not None else None
        try:
            counts = self.keeper.write(statements, reading)
        finally:
            if saved is not None:
                saved.result()
        if at_once:
            self.settle()
        return counts

    def _save(self, statements: Sequence[str], reading: Mapping[str, Any] | None) -> None:
        assert self.saved is not None
        try:
            self.saved.write(statements, reading)
        except (WriteFailed, KeeperLost) as exc:
            logger.warning("the file of telemetry lacks some rows: %s", first_line(exc))

    def settle(self) -> None:
        """Queries that begin from now on see all that was written."""
        self._places.needed = self.keeper.writes

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Rows of one table, each with a value for each column. Any thread; one at a time."""
        self.write([f'INSERT INTO "{table}" SELECT * FROM incoming'], {"incoming": columns_of(table, rows)})

    def insert_machine(self, table: str, row: Mapping[str, Any]) -> None:
        """A measurement of this machine (`machine.Row`)."""
        whole = {**row, "timestamp_us": round(row["timestamp"] * 1e6)}
        rows = [tuple(whole.get(column.name) for column in TABLES[table].columns)]
        reading = {"incoming": columns_of(table, rows)}
        self.write([f'INSERT INTO "{table}" SELECT * FROM incoming'], reading, at_once=False)

    def query(
        self,
        sql: str,
        *,
        timeout: float | None = None,
        limit: int | None = None,
        running: Callable[[Callable[[], None]], object] | None = None,
        typed: bool = True,
        exact: bool = False,
    ) -> Result:
        """Runs one statement that reads. Any thread. QueryError for what may not run or fails; QueryTimeout after `timeout`
        seconds. At most `limit` rows, and MOST_HELD bytes (`exact`: MOST_SHOWN). `running` is given, before it runs, what
        cancels it from another thread: that may be called at any time and again. `typed`: by somebody, not a page's own,
        which have places of their own. `exact`: values as `result.exact` has them, else as `result.plain`."""
        form = query_process.EXACT if exact else query_process.LISTS
        most = MOST_SHOWN if exact else MOST_HELD
        with self._asked(sql, timeout, limit, most, form, running, typed) as stream:
            decode = msgspec.json.Decoder(list[list[Any]]).decode
            rows = [tuple(row) for part in stream.parts() for row in decode(part)]
        return Result(stream.columns, rows, self.missing_hosts(), stream.end.truncated, stream.end.note)

    @contextmanager
    def stream(
        self,
        sql: str,
        *,
        timeout: float | None = None,
        limit: int | None = None,
        running: Callable[[Callable[[], None]], object] | None = None,
    ) -> Iterator[ResultStream]:
        """Gives the result of a query in parts, each a JSON list of rows as objects: at most MOST_BYTES. Its place is taken
        until it is left. Errors as of `query`, the parts raise them as well."""
        with self._asked(sql, timeout, limit, MOST_BYTES, query_process.RECORDS, running, True) as stream:
            yield stream

    @contextmanager
    def _asked(
        self,
        sql: str,
        timeout: float | None,
        limit: int | None,
        most: int,
        form: str,
        running: Callable[[Callable[[], None]], object] | None,
        typed: bool,
    ) -> Iterator[ResultStream]:
        query_process.check_length(sql)
        seconds = QUERY_SECONDS if timeout is None else timeout
        rows = min(limit if limit is not None else MOST_ROWS, MOST_ROWS)
        try:
            asked = query_process.Asked(sql, seconds, rows, most, form, typed)
            msgspec.msgpack.encode(asked)
        except UnicodeEncodeError:
            raise QueryError("the query has a character that is none: a lone surrogate") from None
        with self._places.asked(asked, running) as stream:
            yield stream

    def missing_hosts(self) -> list[str]:
        """Returns the hosts whose rows are not all here."""
        return sorted({host for tell in self.missing for host in tell()})

    def store_pyspy_dump(self, dump_id: str, proc_ref: str, pyspy_result_json: str) -> None:
        """Keeps a stack dump, as `/v1/pyspy/{proc}` gives it. ValueError for what is none."""
        for table, rows in dump_rows(dump_id, proc_ref, pyspy_result_json, round(time.time() * 1e6)).items():
            if rows:
                self.insert(table, rows)

    def compact(self) -> None:
        """Gives back the memory of rows that were deleted."""
        self.keeper.compact()

    def close(self) -> None:
        """Ends the processes. May be called again."""
        self._places.close()
        self.keeper.close()
        if self.saved is not None:
            self._saving.shutdown()
            self.saved.close()


def folded(rows: Iterable[Sequence[Any]]) -> Iterator[Curve]:
    """Yields what FOLDED gives, as curves of one point each."""
    for mesh, name, step, mean, least, most, least_rank, most_rank, spread, count, odd, odd_rank, at in rows:
        yield Curve(
            mesh, name, 1, [step], [mean], [least], [most], [least_rank], [most_rank], [spread], [count], [odd], [odd_rank],
            [-1], [at],
        )  # fmt: skip


def own_file(path: str) -> str:
    """Returns the path, of a file in a folder without links. UntrustedFileError when others may write the file, its log or
    in its folder, or when it is a link."""
    folder = private_files.make_folder(os.path.dirname(os.path.abspath(path)))
    whole = os.path.join(folder, os.path.basename(path))
    for name in (whole, f"{whole}.wal"):
        if os.path.lexists(name):
            file = private_files.open_lock(name)  # no link, of this user alone
            os.fchmod(file, 0o600)
            os.close(file)
    return whole


def columns_of(table: str, rows: Sequence[Sequence[Any]]) -> Any:
    """Returns rows of a table as Arrow has them."""
    import pyarrow as pa

    columns = TABLES[table].columns
    arrays = [
        pa.array([row[at] for row in rows], pa.type_for_alias(_ARROW[column.type])) for at, column in enumerate(columns)
    ]
    return pa.table(arrays, names=[column.name for column in columns])


def check_installed() -> None:
    """ImportError, which says how to get it, when a package is missing. Loads none: that takes half a second."""
    for name in ("duckdb", "pyarrow", "starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(
                f"telemetry needs {name}, which is not installed: pip install 'pymonarch[telemetry]'", name=name
            )


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
