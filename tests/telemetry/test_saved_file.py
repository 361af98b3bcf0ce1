"""The file that rows are written to as well: private, bounded, and there however the program ends."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from monarch._linux.private_files import UntrustedFileError
from monarch.telemetry.keeper import READ
from monarch.telemetry.keeper_process import KeeperProcess
from monarch.telemetry.result import QueryError
from monarch.telemetry.retention import Retention
from monarch.telemetry.store import Store
from tests.support.saved_rows import saved_by_ended_program
from tests.support.scripts import Scripts
from tests.support.tiers import full

COUNT = "SELECT count(*) FROM snapshots"


def rows(path: Path) -> int:
    saved = Store.open(str(path))
    try:
        return int(saved.query(COUNT, timeout=60).rows[0][0])
    finally:
        saved.close()


def test_what_was_written_is_in_the_file_when_its_writers_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "mine" / "run.duckdb"
    for count in (1, 2):  # the second goes on in the file of the first
        store = Store(path=str(path))
        try:
            store.insert("snapshots", [("a", count)])
            assert store.query(COUNT, timeout=60).rows == [(1,)]
            assert store.saved is not None
            with pytest.raises(ValueError, match="is written by a program that runs"):
                Store.open(str(path))
            store.saved.process.kill()
            store.keeper.process.kill()
        finally:
            store.close()
        modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes == {0o600} and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert rows(path) == count


@full
def test_one_that_ends_leaves_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    for count in range(1, 4):  # which of its two ends the writer sees first is not settled
        store = Store(path=str(path))
        store.insert("snapshots", [("a", count)])
        store.close()
        assert os.listdir(tmp_path) == ["run.duckdb"]
        assert rows(path) == count


@full
def test_a_file_that_grows_too_large_keeps_the_newest(tmp_path: Path) -> None:
    store = Store(path=str(tmp_path / "run.duckdb"))
    try:
        assert store.saved is not None
        line = ["x", "y", "INFO", "{}", 0, None, 1, "t", None, None, None]
        store.insert("events", [(*line[:4], at, *line[5:]) for at in range(10_000)])
        store.saved.compact()
        assert not Retention(store.saved, 0.0, 1 << 30).bound()
        assert Retention(store.saved, 0.0, 1).bound()
        first = store.saved.write(["SELECT count(*) FROM events", "SELECT min(timestamp_us) FROM events"])
        assert first == [8_000, 2_000]
        assert store.query("SELECT count(*) FROM events", timeout=60).rows == [(10_000,)], "in memory"
        assert not Retention(store.saved, 0.0, 1 << 30).bound()
        store.insert("snapshots", [("a", 1)])  # the look at the size has not ended the writer
        assert store.saved.write([COUNT]) == [1]
    finally:
        store.close()


@full
def test_a_file_that_others_may_write_or_that_is_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    path.touch()
    path.chmod(0o666)
    with pytest.raises(UntrustedFileError, match=r"run.duckdb may be written by others \(mode 0666\)"):
        Store(path=str(path))
    path.unlink()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run.duckdb.wal").symlink_to(tmp_path / "secret")
    with pytest.raises(UntrustedFileError, match=r"run\.duckdb\.wal is a link"):
        Store(path=str(path))
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(UntrustedFileError, match="open may be written by others"):
        Store(path=str(open_to_all / "run.duckdb"))
    text = tmp_path / "text"
    text.write_text("hello" * 1000)
    with pytest.raises(ValueError, match="is no DuckDB file"):
        Store(path=str(text))


def test_a_file_over_which_the_engine_ends_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.duckdb"
    path.touch()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match=r"run\.duckdb cannot be opened: the engine has ended over it"):
        Store.open(str(path))


def test_the_engine_speaks_of_a_damaged_file_in_bytes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    def connect(*_: object, **__: object) -> None:
        b"no table \xb5".decode()

    monkeypatch.setattr(duckdb, "connect", connect)
    here, there = socket.socketpair()
    with here, there:
        assert "run.duckdb is no DuckDB file: " in KeeperProcess(here, there, 0).open("run.duckdb", READ, 1 << 30)


HARM = {  # of a file, in place of its rows -> what is said of it
    "SELECT content FROM read_text('SECRET')": "file system operations are disabled",
    "SELECT file FROM glob('/etc/*')": "file system operations are disabled",
    "SELECT * FROM read('SECRET')": "file system operations are disabled",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t": "took longer than 0.2 s",
    "SELECT repeat('x', 2000000000) FROM range(100)": "ask for less at a time",
    "SELECT lower('x')": "file system operations are disabled",
}


@full
def test_a_file_that_means_harm_gives_wrong_rows_and_no_more(tmp_path: Path) -> None:
    """Opens a trusted file with views and functions in place of tables: they read no file, end, and harm no other query."""
    import duckdb

    secret, path = tmp_path / "secret", tmp_path / "theirs.duckdb"
    secret.write_text("my secret")
    with duckdb.connect(str(path)) as theirs:
        theirs.execute("CREATE MACRO read(f) AS TABLE SELECT content FROM read_text(f)")
        for number, harm in enumerate(HARM):
            theirs.execute(f"CREATE VIEW harm{number} AS {harm.replace('SECRET', str(secret))}")
        theirs.execute(f"CREATE MACRO lower(x) AS (SELECT content FROM read_text('{secret}'))")
        theirs.execute("CREATE VIEW actors AS SELECT * FROM harm0")
        theirs.execute("CREATE TABLE meshes AS SELECT 7 AS x")
        theirs.execute("CREATE TABLE messages(x INT)")
    saved = Store.open(str(path))
    try:
        for number, said in enumerate(HARM.values()):
            with pytest.raises(QueryError, match=said):
                saved.query(f"SELECT * FROM harm{number}", timeout=0.2 if "longer" in said else 60)
            assert saved.query("SELECT x FROM meshes", timeout=60).rows == [(7,)]
    finally:
        saved.close()


@pytest.mark.procs
@full
def test_a_program_that_is_killed_leaves_what_it_did(scripts: Scripts, tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    scripts.run(
        f"""
        import os, signal
        import monarch.telemetry
        from monarch.actor import Actor, endpoint, this_host

        class Worker(Actor):
            @endpoint
            def work(self):
                return 1

        def main():
            telemetry = monarch.telemetry.start(snapshot_interval_secs=0, host_metrics_interval_secs=0, path={str(path)!r})
            worker = this_host().spawn_procs({{"gpus": 2}}).spawn("worker", Worker)
            worker.work.call().get()
            assert telemetry.flush(60)
            os.kill(os.getpid(), signal.SIGKILL)

        if __name__ == "__main__":
            main()
        """,
        check=False,
    )
    with saved_by_ended_program(path) as saved:
        found = saved.query("SELECT count(*) FROM messages WHERE endpoint = 'work'", timeout=60).rows
        assert found == [(2,)]
