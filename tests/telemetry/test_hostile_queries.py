"""Tests of what a query may do to the tables and to others who ask: nothing. Each attack runs on a real engine."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from monarch.telemetry import query_places
from monarch.telemetry.query_places import TURN, TYPED, Places
from monarch.telemetry.result import QueryError, QueryTimeout
from monarch.telemetry.store import Store
from tests.support.hostile_queries import attack, levenshtein, nested
from tests.support.processes import Watch
from tests.support.tiers import first_of, full

SEED = int(os.environ.get("MONARCH_SEED", "20261123"))


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    made.insert("snapshots", [("a", 1), ("b", 2)])
    yield made
    made.close()


def hammer(store: Store, count: int, folder: Path) -> None:
    """Sends so many attacks, four at a time; the tables are as before and nothing is left."""
    print(f"seed {SEED}")
    (folder / "secret").write_text("the secret")
    draw = random.Random(SEED)
    attacks = [attack(draw, folder) for _ in range(count)]
    open_before = len(os.listdir("/proc/self/fd"))
    found: list[object] = []

    def send() -> None:
        while attacks:
            try:
                sql = attacks.pop()
            except IndexError:
                return
            try:
                rows = store.query(sql, timeout=0.5, limit=100).rows
                found.append((sql, rows))
            except QueryError:
                pass

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leaked = [sql[:80] for sql, rows in found if "the secret" in str(rows) or "PATH=" in str(rows)]  # type: ignore[misc]
    assert leaked == []
    assert store.query("SELECT * FROM snapshots ORDER BY 1", timeout=60).rows == [("a", 1), ("b", 2)]
    assert [path.name for path in folder.iterdir()] == ["secret"]
    assert copies_of(store) == {}
    assert len(os.listdir("/proc/self/fd")) <= open_before
    peak = memory(store.keeper.process.pid, "VmHWM")
    print(f"the process with the tables had at most {peak >> 20} MiB")
    assert peak < 512 << 20


def copies_of(store: Store) -> dict[int, str]:
    """Returns the processes of queries that do not end."""
    pid = store.keeper.process.pid
    return Watch([int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]).survivors(30)


def memory(pid: int, name: str) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024


@pytest.mark.parametrize("count", first_of([20, 200, 1_000], full=2))
def test_attacks_leave_the_tables_as_they_were(store: Store, tmp_path: Path, count: int) -> None:
    hammer(store, count, tmp_path)


def test_a_query_that_ends_the_engine_ends_its_own_process(store: Store) -> None:
    for _ in range(2):
        with pytest.raises(QueryError):
            store.query(nested(30_000), timeout=60)
        assert store.query("SELECT count(*) FROM snapshots", timeout=60).rows == [(2,)]


def test_a_query_that_does_not_stop_is_killed_at_its_deadline(store: Store) -> None:
    with pytest.raises(QueryTimeout, match="longer than 1 s"):
        store.query(levenshtein(300_000), timeout=1)
    assert copies_of(store) == {}


def test_eight_such_at_once_are_all_answered_by_then_and_pages_go_on(store: Store) -> None:
    answered: list[float] = []

    def ask() -> None:
        began = time.monotonic()
        with pytest.raises(QueryTimeout):
            store.query(levenshtein(300_000), timeout=2)
        answered.append(time.monotonic() - began)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert store.query("SELECT count(*) FROM snapshots", timeout=60, typed=False).rows == [(2,)]
    for thread in threads:
        thread.join(60)
    assert len(answered) == 8
    assert store.query("SELECT count(*) FROM snapshots", timeout=60).rows == [(2,)]


@full
def test_a_result_has_a_bound_in_bytes_and_says_how_to_get_less(store: Store) -> None:
    found = store.query("SELECT repeat('x', 100000) AS text FROM range(2000)", timeout=60)
    assert found.truncated and 600 <= len(found.rows) <= 680
    assert "the result is cut at 64 MiB" in found.note and "Select fewer columns" in found.note
    with pytest.raises(QueryError, match="a row of the result has more than 64 MiB: select fewer columns"):
        store.query("SELECT repeat('x', 70000000)", timeout=60)


@full
def test_a_large_result_passes_in_parts(store: Store) -> None:
    with store.stream("SELECT range, repeat('x', 100000) FROM range(20000)", timeout=60) as result:
        sizes = [len(part) for part in result.parts()]
    assert 256 << 20 >= sum(sizes) > 255 << 20 and max(sizes) < 16 << 20
    assert "the result is cut at 256 MiB" in result.end.note


def test_what_fails_late_is_an_error_and_not_a_short_result(store: Store) -> None:
    with pytest.raises(QueryError, match="late"):
        store.query(
            "SELECT CASE WHEN range = 800000 THEN error('late') ELSE 'a' END FROM range(900000)",
            timeout=60,
            limit=10**6,
        )


def test_a_time_with_a_zone_is_refused_in_words_that_help(store: Store) -> None:
    with pytest.raises(QueryError, match=r"cast it, as in now\(\)::TIMESTAMP"):
        store.query("SELECT now()", timeout=60)
    assert len(store.query("SELECT now()::TIMESTAMP", timeout=60).rows) == 1


def test_a_query_sees_what_was_written_before(store: Store) -> None:
    for count in range(3, 6):
        store.insert("snapshots", [("c", count)])
        assert store.query("SELECT count(*) FROM snapshots", timeout=60, typed=False).rows == [(count,)]


def test_so_many_run_so_many_wait_and_who_runs_for_longest_makes_room() -> None:
    places = Places(2, 3)
    assert places.take("first", 0.0, 60.0) and places.take("second", 1.0, 5.0)
    assert not places.take("third", 2.0, 60.0)
    assert places.wait("third") and places.wait("third")
    assert [places.wait(number) for number in range(3)] == [True, True, False]
    assert places.make_room(4.9) is None
    assert places.make_room(5.0) == "second", "after its time, though nobody has noticed"
    assert places.take("third", 5.0, 60.0)
    assert places.wait("another"), "its place among those who wait is free"
    assert places.make_room(TURN - 0.1) is None
    assert places.make_room(TURN) == "first"


def test_who_does_not_read_a_result_holds_its_place_no_longer_than_asked(store: Store) -> None:
    with ExitStack() as opened:
        for _ in range(TYPED):
            large = store.stream("SELECT repeat('x', 1000) FROM range(1000000)", timeout=1)
            opened.enter_context(large)
        assert store.query("SELECT count(*) FROM snapshots", timeout=60).rows == [(2,)]


@full
def test_who_waits_gets_a_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_places, "TURN", 0.5)
    began = time.monotonic()
    with ExitStack() as opened:
        large = "SELECT repeat('x', 1000) FROM range(1000000)"  # it runs until it is read
        running = [opened.enter_context(store.stream(large, timeout=600)) for _ in range(TYPED)]
        assert store.query("SELECT count(*) FROM snapshots", timeout=60).rows == [(2,)]
        assert time.monotonic() - began >= 0.5
        with pytest.raises(QueryTimeout, match=r"had its place for 0\.5 s and was ended, because others wait"):
            list(running[0].parts())
        assert [bool(each.stopped) for each in running] == [True, *[False] * (TYPED - 1)]
