"""The job that never ran."""

from __future__ import annotations

from examples.simulated_dashboard import FAILED, SimulatedJob
from monarch.telemetry.tables import TABLES


def test_rows_fit_the_tables() -> None:
    for table, rows in SimulatedJob(ranks=16, failure_at=3.0).advance(10_000_000).items():
        assert {len(row) for row in rows} == {len(TABLES[table].columns)}, table


def test_it_does_not_matter_how_often_one_looks() -> None:
    once = SimulatedJob(failure_at=5.0).advance(9_000_000)
    often = SimulatedJob(failure_at=5.0)
    parts = [often.advance(at) for at in range(250_000, 9_000_001, 250_000)]
    for table, columns in (("messages", (1, 4)), ("actor_status_events", (1, 3)), ("host_metrics", (0, 1, 2, 11))):
        seen = [
            sorted(tuple(row[at] for at in columns) for row in rows)
            for rows in (once[table], [row for part in parts for row in part.get(table, [])])
        ]
        assert seen[0] == seen[1], table


def test_nobody_ends_the_step_in_which_one_failed() -> None:
    job = SimulatedJob(failure_at=5.0)
    job.advance(30_000_000)
    assert job.failed
    assert job.statuses[job.actors["trainers"][FAILED]] == "failed"
    assert any("failed" in str(payload["properties"]) for payload in job.payloads())
    assert not any(stack.where == f"trainers {FAILED}" for stack in job.stacks())


def test_thousands_of_ranks_step_less_often() -> None:
    rows = SimulatedJob(ranks=4096, failure_at=None).advance(20_000_000)
    assert len(rows["actors"]) == 1 + 4096 + 512 + 1 + 4096
    assert len(rows["messages"]) < 20_000
