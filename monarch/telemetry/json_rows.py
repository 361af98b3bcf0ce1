"""A query's result as JSON: numbers as numbers, null for NULL, times and other types of the engine as text."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from typing import Any

import msgspec

from monarch.telemetry.result import Result


def encode(result: Result) -> bytes:
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
    """`value` as JSON has it."""
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
