"""A file with tables of telemetry, read as a store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from monarch.telemetry import statements
from monarch.telemetry.result import QueryError, QueryTimeout, Result
from monarch.telemetry.store import engine

QUERY_SECONDS = 30.0
MOST_ROWS = 1_000_000


class SavedStore:
    """The DuckDB file at `path`, opened for reading. FileNotFoundError; ValueError when it is no such file."""

    def __init__(self, path: str) -> None:
        duckdb = engine()
        if not os.path.isfile(path):
            raise FileNotFoundError(f"no file {path}")
        self._errors: type[Exception] = duckdb.Error
        self._interrupted: type[Exception] = duckdb.InterruptException
        try:
            self._connection: Any = duckdb.connect(path, read_only=True)
            tables = {
                name
                for (name,) in self._connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
            }
        except duckdb.Error as exc:
            raise ValueError(f"{path} is no DuckDB file: {str(exc).splitlines()[0]}") from None
        if missing := {"actors", "meshes", "messages"} - tables:
            self._connection.close()
            raise ValueError(f"{path} has no telemetry: tables {', '.join(sorted(missing))} are missing")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def query(
        self,
        sql: str,
        *,
        timeout: float | None = None,
        limit: int | None = None,
        running: Callable[[Callable[[], None]], object] | None = None,
    ) -> Result:
        """As monarch.telemetry.store.Store.query."""
        statements.check_length(sql)
        seconds = QUERY_SECONDS if timeout is None else timeout
        most = min(limit or MOST_ROWS, MOST_ROWS)
        cursor = self._connection.cursor()
        timer = threading.Timer(seconds, cursor.interrupt)
        timer.daemon = True
        timer.start()
        if running is not None:
            running(cursor.interrupt)
        try:
            statements.check(sql, [str(one.type).rpartition(".")[2] for one in cursor.extract_statements(sql)])
            cursor.execute(statements.rewritten(sql))
            rows = cursor.fetchmany(most + 1)
            return Result([each[0] for each in cursor.description], rows[:most], [], truncated=len(rows) > most)
        except self._interrupted:
            raise QueryTimeout(f"the query took longer than {seconds:g} s") from None
        except self._errors as exc:
            raise QueryError(str(exc)) from None
        finally:
            timer.cancel()
            cursor.close()

    def close(self) -> None:
        self._connection.close()
