"""Telemetry of a job: kept beside it, over the programs that use it; and nothing that goes wrong with it fails the job."""

from __future__ import annotations

import pytest

from tests.support.saved_rows import saved_by_ended_program
from tests.support.scripts import Scripts
from tests.support.tiers import full

pytestmark = [pytest.mark.procs, full]

FIRST = """
from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob

class Counter(Actor):
    @endpoint
    def inc(self):
        return 1

if __name__ == "__main__":
    job = ProcessJob({"trainers": 2})
    job.enable_telemetry(include_dashboard=True, dashboard_port=0, mesh_admin_config=None, snapshot_interval_secs=0.5)
    state = job.state()
    counters = state.trainers.spawn_procs({"gpus": 1}).spawn("counters", Counter)
    for _ in range(3):
        counters.inc.call().get()
    import monarch.telemetry
    monarch.telemetry.running().flush(60)
    rows = state.query_engine_client.query("SELECT count(*) AS n FROM messages WHERE endpoint = 'inc'", timeout=60)
    assert rows["rows"] == [{"n": 6}], rows
    assert state.dashboard_url and state.admin_url and state.telemetry_url
    import urllib.request
    tree = urllib.request.urlopen(state.admin_url + "/v1/root", timeout=60).read()
    assert b'"Root"' in tree, tree
    again = job.state()
    assert (again.telemetry_url, again.admin_url) == (state.telemetry_url, state.admin_url)
    print("done")
"""

SECOND = """
import subprocess, sys
from tests.support import json_lines
from monarch.job import job_load

job = job_load()
client = job.telemetry_query_client()
assert client.query("SELECT count(*) AS n FROM messages WHERE endpoint = 'inc'", timeout=60)["rows"] == [{"n": 6}]
command = [sys.executable, "-m", "monarch", "query", "--format", "jsonl", "--timeout", "1m"]
sql = "SELECT class, given_name FROM meshes WHERE class LIKE 'Python%'"
shown = subprocess.run([*command, sql], capture_output=True, text=True, timeout=60)
assert shown.stdout == '{"class": "Python<Counter>", "given_name": "counters"}\\n', shown
told = subprocess.run([*command, "--json", sql], capture_output=True, text=True, timeout=60)
[found] = json_lines.read(told.stdout, 0)
assert found.rows == [{"class": "Python<Counter>", "given_name": "counters"}], found
assert sorted(found.columns) == ["class", "given_name"], found
refused = subprocess.run([*command, "DELETE FROM actors"], capture_output=True, text=True, timeout=60)
assert refused.returncode == 1 and "telemetry is read, not written: DELETE is refused" in refused.stderr, refused
job.kill()
try:
    job.telemetry_query_client()
except RuntimeError as exc:
    assert "not active" in str(exc)
ended = subprocess.run([*command, sql], capture_output=True, text=True, timeout=60)
assert ended.returncode == 1 and "monarch query: " in ended.stderr, ended
print("done")
"""


def test_what_one_program_did_the_next_one_asks_for(scripts: Scripts) -> None:
    first = scripts.run(FIRST)
    try:
        assert first.stdout.endswith("done\n")
        assert first.stdout.count("Monarch Dashboard: http://localhost:") == 1
        assert first.stdout.count("Mesh admin server listening on http://localhost:") == 1
    finally:
        second = scripts.run(SECOND)
    assert second.stdout.endswith("done\n")


def test_a_local_jobs_telemetry_ends_with_the_program(scripts: Scripts) -> None:
    done = scripts.run(
        """
        from monarch.job import LocalJob

        import monarch.telemetry
        from monarch.job import LocalJob

        job = LocalJob().enable_telemetry(snapshot_interval_secs=0, path="runs/job.duckdb")
        state = job.state(cached_path=None)
        assert state.query_engine_client.query("SELECT count(*) AS n FROM actors", timeout=60)["rows"]
        assert monarch.telemetry.running().flush(60)
        print(state.telemetry_url)
        """
    )
    assert done.stdout.splitlines()[-1].startswith("http://localhost:")
    with saved_by_ended_program(scripts.folder / "runs/job.duckdb") as saved:
        assert saved.query("SELECT count(*) > 0 FROM actors", timeout=60).rows == [(True,)]


def test_an_observer_that_cannot_start_fails_no_job(scripts: Scripts) -> None:
    done = scripts.run(
        """
        import sys
        from monarch.job import LocalJob
        from monarch._linux import companion

        companion.sys = type(sys)("sys")
        companion.sys.executable, companion.sys.path = "/nowhere/python", []
        job = LocalJob().enable_telemetry()
        state = job.state(cached_path=None)
        assert state.telemetry_url is state.admin_url is state.dashboard_url is state.query_engine_client is None
        """
    )
    assert "telemetry disabled for this job" in done.stderr
