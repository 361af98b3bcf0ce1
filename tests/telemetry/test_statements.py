"""Tests of what SQL may do: read the tables, and nothing else. Each attack runs on a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.telemetry.result import QueryError, QueryTimeout
from monarch.telemetry.store import Store
from monarch.telemetry.tables import TABLES


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    made = Store()
    made.insert("snapshots", [("a", 1), ("b", 2)])
    yield made
    made.close()


WRITES = [
    "DROP TABLE actors",
    "INSERT INTO snapshots VALUES ('c', 3)",
    "UPDATE snapshots SET snapshot_ts = 0",
    "DELETE FROM snapshots",
    "TRUNCATE snapshots",
    "ALTER TABLE snapshots ADD COLUMN x INT",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE VIEW v AS SELECT 1",
    "CREATE MACRO f(x) AS x",
    "WITH a AS (SELECT 1) INSERT INTO snapshots SELECT 'a', 1",
    "EXPLAIN ANALYZE DELETE FROM snapshots",
    "EXPLAIN ANALYZE INSERT INTO snapshots VALUES ('c', 3)",
    "SET threads = 99",
    "SET enable_external_access = true",
    "RESET memory_limit",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "USE memory",
    "CHECKPOINT",
    "VACUUM",
    "PREPARE p AS DELETE FROM snapshots",
    "EXECUTE p",
    "LOAD httpfs",
    "INSTALL httpfs",
    "ATTACH '{path}/a.db'",
    "DETACH datafusion",
    "EXPORT DATABASE '{path}/out'",
    "IMPORT DATABASE '{path}'",
    "COPY snapshots TO '{path}/out.csv'",
    "COPY snapshots FROM '{path}/secret'",
    "COPY (SELECT 1) TO '{path}/out.parquet'",
    "SELECT 1; DROP TABLE actors",
    "SELECT 1; SELECT 2",
]
FILES = [
    "SELECT * FROM '{path}/secret'",
    "SELECT * FROM read_csv('{path}/secret')",
    "SELECT * FROM read_text('{path}/secret')",
    "SELECT * FROM read_blob('{path}/secret')",
    "SELECT * FROM read_json('{path}/secret')",
    "SELECT * FROM parquet_scan('{path}/secret')",
    "SELECT * FROM sniff_csv('{path}/secret')",
    "SELECT * FROM glob('{path}/*')",
    "SELECT * FROM read_duckdb('{path}/secret')",
    "SELECT * FROM 'https://example.com/x.csv'",
    "SELECT getenv('HOME')",
    "SELECT * FROM query('DELETE FROM snapshots')",
    "SELECT * FROM store",
]


@pytest.mark.parametrize("sql", WRITES + FILES)
def test_whatever_does_not_read_the_tables_is_refused(store: Store, sql: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a,b\n1,2\n")
    with pytest.raises(QueryError):
        store.query(sql.replace("{path}", str(tmp_path)), timeout=60)
    assert store.query("SELECT * FROM snapshots ORDER BY 1").rows == [("a", 1), ("b", 2)]
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_what_writes_is_refused_in_words_that_say_what_runs(store: Store) -> None:
    with pytest.raises(
        QueryError, match="telemetry is read, not written: DELETE is refused; SELECT, WITH, SHOW TABLES"
    ):
        store.query("DELETE FROM snapshots")
    with pytest.raises(QueryError, match="one statement at a time: these are 2"):
        store.query("SELECT 1; SELECT 2")


@pytest.mark.parametrize("sql", ["", "   ", ";", "-- nothing"])
def test_no_statement_is_said(store: Store, sql: str) -> None:
    with pytest.raises(QueryError, match="SQL query is empty"):
        store.query(sql)


def test_the_tables_are_shown_as_other_engines_show_them(store: Store) -> None:
    shown = store.query("show tables;")
    assert shown.columns == ["table_catalog", "table_schema", "table_name", "table_type"]
    assert [row[2] for row in shown.rows] == sorted(TABLES)
    assert set(shown.rows[0][:2] + shown.rows[0][3:]) == {"datafusion", "public", "BASE TABLE"}
    described = store.query('DESCRIBE "snapshots"')
    assert described.columns == ["column_name", "data_type", "is_nullable"]
    assert described.rows == [("snapshot_id", "VARCHAR", "NO"), ("snapshot_ts", "BIGINT", "NO")]
    names = store.query("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'").rows
    assert len(names) == len(TABLES)


def test_every_table_is_there_before_its_first_row(store: Store) -> None:
    counts = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) FROM {name}" for name in TABLES)
    assert {name for name, count in store.query(counts).rows if not count} == set(TABLES) - {"snapshots"}


def test_a_query_that_never_ends_does(store: Store) -> None:
    with pytest.raises(QueryTimeout, match=r"longer than 0\.2 s"):
        store.query("SELECT count(*) FROM range(1000000000) a, range(1000) b", timeout=0.2)
    assert store.query("SELECT 1").rows == [(1,)]


def test_a_result_has_a_bound_and_says_so(store: Store) -> None:
    found = store.query("SELECT * FROM range(1000)", limit=10)
    assert (len(found.rows), found.truncated) == (10, True)
    assert not store.query("SELECT * FROM range(10)", limit=10).truncated


def test_a_query_that_wants_too_much_memory_fails_alone() -> None:
    small = Store(engine_memory=64 << 20)
    try:
        with pytest.raises(QueryError, match="Out of Memory"):
            small.query("SELECT string_agg(range::VARCHAR || repeat('x', 1000), ',') FROM range(10000000)", timeout=60)
        assert small.query("SELECT 1").rows == [(1,)]
    finally:
        small.close()
