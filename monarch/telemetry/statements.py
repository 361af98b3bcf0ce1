"""Which SQL may run: reading, of the tables here. Decided from what the engine's parser says of it, never from its text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from monarch.telemetry.result import QueryError

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
