"""monarch query: where SQL comes from, how rows are printed, what is said when it does not work."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest

from monarch._text import columns
from monarch.tools.durations import duration
from monarch.tools.query_output import shown, table
from monarch.tools.verbs import query_verb
from tests.support.hostile import HOSTILE, fit

ROWS = [{"name": "a\tb", "n": 1, "x": None}, {"name": "\x1b[31m", "n": 22, "x": {"b": [1, True], "a": 1.5}}]


def test_rows_as_a_table() -> None:
    lines = [
        "name     |  n | x",
        "---------+----+-----------------------",
        "a\\tb     |  1 | NULL",
        '\\x1b[31m | 22 | {"a":1.5,"b":[1,true]}',
        "(2 rows)",
    ]
    lines[1] = "-+-".join(["-" * 8, "-" * 2, "-" * 22])
    assert table(ROWS).splitlines() == lines
    assert table([{"n": 1}]) == "n\n-\n1\n(1 row)"
    assert table([]) == "(0 rows)"
    assert table([], ["a", "b"]) == "a | b\n--+--\n(0 rows)"


def test_columns_stand_in_the_order_of_their_first_appearance() -> None:
    assert table([{"b": 1}, {"a": True, "b": 2}]).splitlines()[0].split() == ["b", "|", "a"]


def test_rows_as_json() -> None:
    reply = {"rows": [{"b": 1, "a": None}], "missing_hosts": []}
    assert json.loads(shown(reply, "json")) == reply
    assert shown(reply, "json").startswith('{\n  "missing_hosts": []')
    assert shown(reply, "jsonl") == '{"a": null, "b": 1}'
    assert shown({"rows": []}, "jsonl") == ""


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("10s", 10.0), ("2m", 120.0), ("1h 30m", 5400.0)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10", "duration must be a positive number followed by ms, s, m, or h"),
        ("s", "duration must be a positive number"),
        ("-1s", "duration must be a positive number"),
        ("1x", "duration must be a positive number"),
        ("0s", "duration must be greater than zero"),
    ],
)
def test_what_is_no_duration_is_said(text: str, why: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        duration(text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_sql_comes_from_the_argument_a_file_or_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.sql").write_text("SELECT 2")
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 3"))
    assert query_verb.statement("SELECT 1", None) == "SELECT 1"
    assert query_verb.statement(None, str(tmp_path / "a.sql")) == "SELECT 2"
    assert query_verb.statement("-", None) == "SELECT 3"


@pytest.mark.parametrize(
    ("sql", "path", "stdin", "why"),
    [
        ("SELECT 1", "a.sql", io.StringIO(), "pass SQL or --file, not both"),
        (None, None, Terminal(), "pass SQL, --file PATH, or pipe SQL on stdin"),
        (" ", None, io.StringIO(), "SQL query is empty"),
        ("-", None, io.StringIO("\n"), "SQL query is empty"),
    ],
    ids=["two", "none", "empty", "an empty pipe"],
)
def test_what_is_wrong_with_the_sql_is_said(
    sql: Any, path: Any, stdin: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(ValueError, match=why):
        query_verb.statement(sql, path)


def test_without_anything_that_records_it_says_how_to_get_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MONARCH_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("MONARCH_PROGRAM", raising=False)
    monkeypatch.setattr("monarch.admin.programs.running_programs", list)
    with pytest.raises(ValueError, match="no active job was found in this context; run 'monarch apply' first"):
        query_verb.client_of(None)


def test_a_table_stays_aligned_whatever_is_in_it() -> None:
    names = [*HOSTILE, "中文", "e\u0301", "plain"]
    shown_table = table([{"\x1b[2J": name, "n": 1} for name in names])
    assert fit(shown_table)
    *lines, count = shown_table.splitlines()
    assert count == f"({len(names)} rows)"
    assert {columns(line) for line in lines} == {len(lines[1])}
