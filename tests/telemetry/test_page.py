"""docs/telemetry.md: its queries run on the tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.telemetry.store import Store
from monarch.telemetry.tables import TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
QUERIES = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    made = Store()
    for table in TABLES.values():
        values = {"text": "{}", "f64": 0.5, "bool": True}
        made.insert(table.name, [tuple(values.get(column.type, 1) for column in table.columns)])
    yield made
    made.close()


def test_there_are_twenty() -> None:
    assert len(QUERIES) == 20


@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_each_runs(store: Store, number: int) -> None:
    assert store.query(QUERIES[number], timeout=60).columns


def test_every_table_is_told_of() -> None:
    assert [name for name in TABLES if f"`{name}`" not in PAGE] == []
