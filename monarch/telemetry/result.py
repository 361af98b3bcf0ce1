"""The result of a query, and the same as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import math
import uuid
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Result:
    """`rows` are tuples in the order of `columns`. `missing_hosts`: those whose rows are not all here, because they cannot
    be reached or their processes recorded more than was kept. `truncated`: there are more rows than `limit`, or more bytes
    than a result may have; then `note` says how to get less."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    missing_hosts: list[str]
    truncated: bool = False
    note: str = ""

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class QueryError(ValueError):
    """The query was refused or failed; in the engine's words, or ours where it may not run."""


class QueryRefused(QueryError):
    """The query has not begun: as many run and wait as may. Again later it may run."""


class QueryTimeout(QueryError, TimeoutError):
    """The query took longer than it may, or was cancelled."""


def plain(value: Any) -> Any:
    """Returns `value` as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case decimal.Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case list() | tuple() | set():
            return [plain(one) for one in value]
        case dict():
            return {str(key): plain(one) for key, one in value.items()}
        case uuid.UUID() | datetime.timedelta():
            return str(value)
    return str(value)


SAFE = 2**53  # JavaScript reads integers up to here exactly


def exact(value: Any) -> Any:
    """A value of an SQL result as JSON can hold it without loss: large integers, bytes and times as text."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if -SAFE < value < SAFE else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(name): exact(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [exact(item) for item in value]
    return str(value)
