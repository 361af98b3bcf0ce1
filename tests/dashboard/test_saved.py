"""A file with what a program has recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from monarch.dashboard.pages.api import PageData
from monarch.telemetry.result import QueryError, QueryTimeout
from monarch.telemetry.store import Store
from monarch.telemetry.tables import TABLES
from tests.support.tiers import full

pytestmark = full


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, recorded: Any) -> str:
    path = tmp_path_factory.mktemp("saved") / "run.duckdb"
    with duckdb.connect(str(path)) as connection:
        for table in TABLES.values():
            connection.execute(table.created_by)
        for name in ("actors", "meshes", "actor_status_events", "messages"):
            rows = recorded.store.query(f"SELECT * FROM {name} LIMIT 150").rows
            connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return str(path)


def test_the_pages_of_a_file(saved: str) -> None:
    store = Store.open(saved)
    try:
        api = PageData(store, None, None)
        assert api.summary()["actor_counts"]["total"] > 70
        assert api.topology()["meshes"]
        assert api.sql("SHOW TABLES")["rows"]
    finally:
        store.close()


def test_it_is_read_only(saved: str, tmp_path: Path) -> None:
    store = Store.open(saved)
    try:
        for sql in ("DELETE FROM actors", f"COPY actors TO '{tmp_path}/x'", "SELECT * FROM read_csv('/etc/passwd')"):
            with pytest.raises(QueryError):
                store.query(sql)
        with pytest.raises(QueryTimeout):
            store.query("SELECT count(*) FROM range(1000000000) a, range(100000) b", timeout=0.2)
    finally:
        store.close()


def test_what_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file"):
        Store.open(str(tmp_path / "none"))
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(ValueError, match="is no DuckDB file"):
        Store.open(str(tmp_path / "text"))
    with duckdb.connect(str(tmp_path / "other")) as connection:
        connection.execute("CREATE TABLE actors (id INTEGER)")
    with pytest.raises(ValueError, match="tables meshes, messages are missing"):
        Store.open(str(tmp_path / "other"))
