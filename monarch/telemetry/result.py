"""What a query gives, and the same as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import math
import uuid
from typing import Any

import msgspec


@dataclasses.dataclass(frozen=True)
class Result:
    """`rows` are tuples in the order of `columns`. `missing_hosts`: those whose rows are not all here, because they cannot
    be reached or their processes recorded more than was kept. `truncated`: there are more rows than `limit`."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    missing_hosts: list[str]
    truncated: bool = False

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class QueryError(ValueError):
    """The query was refused or failed; in the engine's words, or ours where it may not run."""


class QueryTimeout(QueryError, TimeoutError):
    """The query took longer than it may, or was cancelled."""


def encode(result: Result) -> bytes:
    """Returns JSON: numbers as numbers, null for NULL, times and other types of the engine as text."""
    return msgspec.json.encode(
        {
            "columns": result.columns,
            "rows": [
                {name: plain(value) for name, value in zip(result.columns, row, strict=True)} for row in result.rows
            ],
            "missing_hosts": result.missing_hosts,
            "truncated": result.truncated,
        }
    )


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
