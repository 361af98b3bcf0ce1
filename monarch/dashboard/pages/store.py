"""What the dashboard needs of a telemetry store: SQL in, rows out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Result(Protocol):
    """What a query gave. `rows` are tuples or dicts in the order of `columns`."""

    columns: Any
    rows: Any
    missing_hosts: Any


class Store(Protocol):
    """`monarch.telemetry.store.Store`, and the stores of saved and simulated programs."""

    def query(
        self,
        sql: str,
        *,
        timeout: float | None = None,
        limit: int | None = None,
        running: Callable[[Callable[[], None]], object] | None = None,
    ) -> Any:
        """Runs one statement that reads. ValueError for bad SQL and statements that write, TimeoutError after `timeout`.
        `running` is given what cancels it."""


def records(result: Any) -> list[dict[str, Any]]:
    """The rows as dicts by column."""
    rows: Sequence[Any] = result.rows
    if rows and isinstance(rows[0], dict):
        return list(rows)
    return [dict(zip(result.columns, row, strict=True)) for row in rows]


def tuples(result: Any) -> list[list[Any]]:
    """The rows as lists in the order of the columns."""
    rows: Sequence[Any] = result.rows
    if rows and isinstance(rows[0], dict):
        return [[row[column] for column in result.columns] for row in rows]
    return [list(row) for row in rows]
