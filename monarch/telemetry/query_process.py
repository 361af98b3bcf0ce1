"""The process that answers queries: a copy of the keeper of the tables as it was (fork), which nothing waits for when
it ends.

The kernel holds its bounds: its address space, no file can be opened or written, an alarm ends it soon after the deadline of
a query. So SQL that brings down the engine, or that the engine does not stop, costs the one who asked an answer, and nobody
else anything.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from monarch._linux import local_socket
from monarch.telemetry.result import QueryError, exact, plain

ENGINE_MEMORY = 512 << 20  # bytes that the engine may take for a query, beside the tables
MEMORY = 1 << 30  # and the process in all
IDLE = 2.0  # seconds that one waits for its next query
_GRACE = 2.0  # seconds beyond the deadline, at which the process is killed from outside
_THREADS = 4  # of the engine, at most
_NICE = 5  # of queries that people type: what the pages ask, and what is recorded, go first
_CHUNK = 1 << 20  # bytes of rows that are sent together
_MOST_TOGETHER = 5_000  # rows
_LARGEST_QUESTION = 2 << 20  # bytes
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

HEAD = struct.Struct("!cI")  # kind of a frame, and bytes of its body
HELLO = struct.Struct("!Q")  # how many writes it has seen
COLUMNS, ROWS, DONE, FAILED = b"C", b"R", b"D", b"F"
LARGEST = 300 << 20  # bytes of a frame

# How the rows of a result are written, all as JSON.
RECORDS = "records"  # objects, as `plain` has values
LISTS = "lists"  # the same as lists
EXACT = "exact"  # lists, as `exact` has values


class Asked(msgspec.Struct, frozen=True):
    """A query. `rows`, `bytes`: of its result, at most."""

    sql: str
    seconds: float
    rows: int
    bytes: int
    form: str = LISTS
    typed: bool = True  # by somebody; otherwise a page's own


class End(msgspec.Struct, frozen=True):
    """The end of a result. `truncated`: there was more; `note`: what to do about it."""

    truncated: bool = False
    note: str = ""


def serve(asking: socket.socket, connection: Any, writes: int, namespace: str, engine_memory: int) -> None:
    """Answers what comes, in a forked child of the keeper; then it ends. `namespace`: what chooses the tables."""
    if not _bounded():
        return
    descriptor = os.pidfd_open(os.getpid())
    socket.send_fds(asking, [HELLO.pack(writes)], [descriptor])
    os.close(descriptor)
    tables = connection.cursor()
    (used,) = tables.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchone()
    tables.execute(f"SET memory_limit = '{((used or 0) + engine_memory) // 2**20 + 1} MiB'")
    tables.execute(f"SET threads = {min(_THREADS, len(os.sched_getaffinity(0)))}")
    tables.execute("SET lock_configuration = true")
    tables.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, 1))  # descriptor 0 is taken; what is open stays
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(IDLE), 0))

    def send(kind: bytes, body: bytes) -> None:
        asking.sendall(HEAD.pack(kind, len(body)) + body)

    try:
        while True:
            asked = msgspec.msgpack.decode(local_socket.receive(asking, _LARGEST_QUESTION), type=Asked)
            if asked.typed:
                os.nice(_NICE)
            signal.setitimer(signal.ITIMER_REAL, asked.seconds + _GRACE)
            cursor = connection.cursor()
            try:
                answer(cursor, namespace, asked, send)
            except OSError:
                raise
            except MemoryError:
                send(FAILED, f"the query needs more than the {MEMORY >> 20} MiB that one may take".encode())
            except Exception as exc:  # the engine's, mostly
                send(FAILED, _words(exc).encode(errors="replace"))
            cursor.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (OSError, EOFError):  # nobody asks
        pass


def _words(exc: Exception) -> str:
    text = str(exc)
    if "'pytz'" in text:  # of times with a zone, which need a package that nothing else does
        return "a time with a time zone cannot be given: cast it, as in now()::TIMESTAMP"
    if type(exc).__name__ != "OutOfMemoryException":
        return text
    # What the engine advises is settings, which are locked.
    return f"{text.partition(chr(10))[0]}: ask for less at a time, fewer rows or shorter texts"


def _bounded() -> bool:
    """Sets what needs no engine. False when the keeper has ended."""
    parent = os.getppid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent or parent == 1:
        return False
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return True


def answer(cursor: Any, namespace: str, asked: Asked, send: Callable[[bytes, bytes], None]) -> None:
    """Runs one statement that reads and sends its result in parts. QueryError for one that may not run."""
    check(asked.sql, [str(one.type).rpartition(".")[2] for one in cursor.extract_statements(asked.sql)])
    if namespace:
        cursor.execute(namespace)
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    cursor.execute(rewritten(asked.sql))
    columns = [description[0] for description in cursor.description]
    parts = _Parts(columns, asked)
    waiting: list[tuple[bytes, bytes]] = []
    # The first part goes when the second is there: what fails early has no rows.
    while (part := parts.next(cursor)) is not None:
        if not waiting:
            waiting = [(COLUMNS, msgspec.json.encode(columns)), (ROWS, part)]
            continue
        for kind, body in waiting:
            send(kind, body)
        waiting = [(ROWS, part)]
    for kind, body in waiting or [(COLUMNS, msgspec.json.encode(columns))]:
        send(kind, body)
    send(DONE, msgspec.json.encode(parts.end))


class _Parts:
    """The rows of a result as JSON, some at a time, within its bounds."""

    def __init__(self, columns: list[str], asked: Asked) -> None:
        self._columns = columns
        self._asked = asked
        self._rows = self._bytes = 0
        self._together = 64  # adapted to the size of rows
        self.end: End | None = None

    def next(self, cursor: Any) -> bytes | None:
        """Returns rows, a JSON list; None at the end."""
        if self.end is not None:
            return None
        found = cursor.fetchmany(min(self._together, self._asked.rows + 1 - self._rows))
        left = self._asked.rows - self._rows
        if not found:
            self.end = End()
            return None
        if len(found) > left:
            self.end = End(True, "")
            found = found[:left]
        part = msgspec.json.encode(self._written(found))
        if self._bytes + len(part) > self._asked.bytes:
            part = self._cut(found)
        self._rows += len(found)
        self._bytes += len(part)
        self._together = max(1, min(_MOST_TOGETHER, self._together * 4, self._together * _CHUNK // len(part)))
        return part

    def _cut(self, found: Sequence[Any]) -> bytes:
        """Returns as many of these rows as there is room for."""
        room = self._asked.bytes - self._bytes
        kept: list[bytes] = []
        for row in found:
            one = msgspec.json.encode(self._written([row]))[1:-1]
            if room < len(one):
                break
            room -= len(one) + 1
            kept.append(one)
        if not kept and not self._rows:
            raise QueryError(
                f"a row of the result has more than {self._asked.bytes / 2**20:,.0f} MiB: select fewer columns, or "
                "shorten them, as in left(text, 1000)"
            )
        bound = f"{self._asked.bytes / 2**20:,.0f} MiB"
        self.end = End(
            True,
            f"the result is cut at {bound}: it has more. Select fewer columns, add a WHERE or a LIMIT, or aggregate "
            "(GROUP BY)",
        )
        return b"[" + b",".join(kept) + b"]"

    def _written(self, rows: Sequence[Any]) -> list[Any]:
        match self._asked.form:
            case "records":
                names = self._columns
                return [{name: plain(value) for name, value in zip(names, row, strict=True)} for row in rows]
            case "exact":
                return [exact(row) for row in rows]
        return [[plain(value) for value in row] for row in rows]


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
