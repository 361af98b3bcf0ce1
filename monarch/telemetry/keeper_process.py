"""The process that keeps the tables: `python -m monarch.telemetry.keeper_process COMMANDS ASKERS PATH MODE MEMORY ENGINE`.

It runs the statements of who has started it, one command after the other on the descriptor COMMANDS, and no other SQL: for
each socket that comes on ASKERS it makes a copy of itself (fork) that answers queries there. It has one thread, so a copy is
whole; it ends when COMMANDS is closed.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

import msgspec

from monarch._linux import local_socket
from monarch._linux.companion import readable
from monarch.telemetry import query_process
from monarch.telemetry.keeper import LARGEST, MEMORY, READ, WRITE, Write, Wrote
from monarch.telemetry.tables import TABLES, Table

_NEEDED = {"actors", "meshes", "messages"}
_SETTINGS = {
    "threads": "1",
    "async_threads": "0",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "allow_community_extensions": "false",
}
_ATTEMPTS, _BETWEEN = 50, 0.1  # at a file that another has open, and seconds between them
_NAMESPACE = "USE datafusion.public"  # the names that programs written for other engines look for


class KeeperProcess:
    """The tables and the two sockets."""

    def __init__(self, commands: socket.socket, askers: socket.socket, engine_memory: int) -> None:
        self._commands = commands
        self._askers = askers
        self._engine_memory = engine_memory
        self._connection: Any = None
        self._namespace = ""
        self._writes = 0

    def open(self, path: str, mode: str, memory: int) -> str:
        """Opens the tables. Returns what is wrong with the file, "" for nothing."""
        import duckdb

        settings = {**_SETTINGS, "memory_limit": f"{memory >> 20} MiB", "temp_directory": ""}
        try:
            for attempt in range(_ATTEMPTS + 1):
                try:
                    self._connection = duckdb.connect(
                        ":memory:" if mode == MEMORY else path, mode == READ, config=settings
                    )
                    break
                except duckdb.IOException as exc:
                    if "lock" not in str(exc):
                        raise
                    if mode == READ or attempt == _ATTEMPTS:
                        return f"{path} is written by a program that runs: look at it when that has ended"
                    time.sleep(_BETWEEN)  # one that was killed has it for a moment longer
            run = self._connection.execute
            if mode == MEMORY:
                run("ATTACH ':memory:' AS datafusion")
                run("CREATE SCHEMA datafusion.public")
                run(_NAMESPACE)
                self._namespace = _NAMESPACE
            found = {name for (name,) in run("SELECT table_name FROM information_schema.tables").fetchall()}
            if mode != MEMORY and (found or mode == READ) and (missing := _NEEDED - found):
                return f"{path} has no telemetry: tables {', '.join(sorted(missing))} are missing"
            if mode != READ:
                for table in TABLES.values():
                    if table.name not in found:
                        run(table.created_by)
                    elif run(f"DESCRIBE {table.name}").fetchall() != described(run, table):
                        return f"{path} has a table {table.name} of another version: record into another file"
        except (duckdb.Error, UnicodeDecodeError) as exc:  # its own words may have bytes of a damaged file in them
            return f"{path} is no DuckDB file: {str(exc).splitlines()[0]}"
        run("SET enable_external_access = false")
        run(
            "SELECT 1, 'a', 1.5::DECIMAL(3, 1), DATE '2020-01-01', INTERVAL 1 DAY, uuid(), [1], {'a': 1}, 'a'::BLOB"
        ).fetchall()
        return ""

    def close(self) -> None:
        """Puts what was written into the file, if there is one."""
        self._connection.close()

    def run(self) -> None:
        """Does what comes until one of its sockets is closed."""
        while True:
            try:
                self._copies()
                if self._commands.fileno() in readable([self._commands.fileno(), self._askers.fileno()]):
                    order = msgspec.msgpack.decode(local_socket.receive(self._commands, LARGEST), type=Write)
                    tables = {name: local_socket.read_rest(self._commands, size) for name, size in order.tables}
                    done = self._write(order.statements, tables)
                    local_socket.send(self._commands, msgspec.msgpack.encode(done))
            except (EOFError, OSError):
                return

    def _write(self, statements: list[str], tables: dict[str, Any]) -> Wrote:
        run = self._connection.execute
        single = len(statements) == 1 and not tables  # some may not stand in a transaction
        try:
            for name, content in tables.items():
                self._connection.register(name, _arrow(content))
            counts = []
            if not single:
                run("BEGIN")
            try:
                for statement in statements:
                    rows = run(statement).fetchall()  # all: else the engine refuses what comes next
                    counts.append(int(rows[0][0]) if rows else 0)
                    self._copies()  # they see what was there before
            except BaseException:
                if not single:
                    run("ROLLBACK")
                raise
            if not single:
                run("COMMIT")
        except Exception as exc:  # the engine's: no memory is left, the disk is full
            return Wrote(error=str(exc) or type(exc).__name__)
        finally:
            for name in tables:
                self._connection.unregister(name)
        self._writes += 1
        return Wrote(counts, writes=self._writes)

    def _copies(self) -> None:
        """Makes the copies that are asked for. EOFError when who has started this has ended, or wants it to."""
        while readable([self._askers.fileno()], 0):
            _, descriptors, _, _ = socket.recv_fds(self._askers, 1, 1)
            if not descriptors:
                raise EOFError  # not os._exit: what was written is to be put into the file
            with socket.socket(fileno=descriptors[0]) as asking:
                try:
                    child = os.fork()
                except OSError as exc:
                    print(f"no process for a query: {exc}", file=sys.stderr, flush=True)
                    continue
                if child == 0:
                    try:
                        self._commands.close()
                        self._askers.close()
                        query_process.serve(
                            asking, self._connection, self._writes, self._namespace, self._engine_memory
                        )
                    finally:
                        os._exit(0)


def described(run: Any, table: Table) -> Any:
    """Returns how the engine describes the table as it is made today."""
    run(table.created_by.replace("CREATE TABLE", "CREATE TEMP TABLE", 1).replace(f'"{table.name}"', '"as_of_today"', 1))
    try:
        return run("DESCRIBE as_of_today").fetchall()
    finally:
        run("DROP TABLE as_of_today")


def _arrow(content: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(pa.py_buffer(content)).read_all()


def main() -> None:
    commands, askers = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    path, mode, memory, engine_memory = sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
    os.umask(0o077)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the copies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it ends with who has started it
    keeper = KeeperProcess(commands, askers, engine_memory)
    local_socket.send(commands, msgspec.msgpack.encode(Wrote(error=keeper.open(path, mode, memory))))
    keeper.run()
    if mode == WRITE:
        keeper.close()
    os._exit(0)


if __name__ == "__main__":
    main()
