"""--event-log-handler: the events of a run, with torchrun's names."""

from __future__ import annotations

import argparse
import io
import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.job.torchrun import arguments
from monarch.job.torchrun.event_log import EventLog, handler
from monarch.job.torchrun.failures import RankFailure


def events_of(*words: str) -> tuple[EventLog, io.StringIO]:
    parser = argparse.ArgumentParser()
    arguments.add_arguments(parser)
    out = io.StringIO()
    return EventLog(arguments.options(parser.parse_args([*words, "a.py"]), {}), "run1", out), out


def read(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def short(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    fields = [event["metadata"] for event in events]
    return [(one["state"], one["global_rank"], one["group_rank"], one["agent_restarts"]) for one in fields]


def test_a_run_that_ends_well() -> None:
    log, out = events_of("--event-log-handler", "console", "--role", "trainer")
    log.started(["node1", "node2"], [11, 12], 0)
    log.ended([], [])
    found = read(out)
    assert short(found) == [
        ("START", 0, 0, 0), ("START", 1, 1, 0), ("SUCCEEDED", 0, 0, 0), ("SUCCEEDED", 1, 1, 0),
        ("SUCCEEDED", None, 0, 0), ("SUCCEEDED", None, 1, 0),
    ]  # fmt: skip
    assert [event["source"] for event in found] == ["WORKER"] * 4 + ["AGENT"] * 2
    first = found[0]
    assert first["name"] == "torchelastic.worker.status.START" and first["timestamp"] == 0
    fields = first["metadata"]
    assert (fields["run_id"], fields["role"], fields["hostname"]) == ("run1", "trainer", "node1")
    assert (fields["worker_id"], fields["raw_error"], fields["rdzv_backend"]) == ("11", None, "static")
    assert json.loads(fields["metadata"]) == {
        "group_world_size": 2, "entry_point": "python", "local_rank": [0], "role_rank": [0], "role_world_size": [2],
        "exit_code": [None], "worker_pid": [None],
    }  # fmt: skip


def test_a_run_that_fails_says_who_and_why() -> None:
    log, out = events_of("--event-log-handler", "console", "--no-python")
    log.started(["node1"], [1, 2, 3, 0], 0)
    log.started(["node1"], [4, 5, 6, 7], 1)
    report = b'{"message": {"message": "bad"}}'
    failed = [
        RankFailure(1, 1, "node1", 5, 3, 0, 0.0, report=report),
        RankFailure(2, 2, "node1", 6, 137, 9, 0.0, report=b"\xff"),
    ]
    log.ended(failed, [0])
    found = read(out)
    assert short(found)[:3] == [("START", 0, 0, 0), ("START", 1, 0, 0), ("START", 2, 0, 0)]
    assert short(found)[7:] == [
        ("TERMINATED", 0, 0, 1), ("FAILED", 1, 0, 1), ("FAILED", 2, 0, 1), ("SUCCEEDED", 3, 0, 1), ("SUCCEEDED", None, 0, 1),
    ]  # fmt: skip
    errors = [event["metadata"]["raw_error"] for event in found[8:10]]
    assert [json.loads(text) for text in errors] == [json.loads(report), {"message": "was killed by SIGKILL (9)"}]
    told = [json.loads(event["metadata"]["metadata"]) for event in found[8:10]]
    assert [(one["exit_code"], one["worker_pid"]) for one in told] == [([3], [5]), ([-9], [6])]
    assert told[0]["entry_point"] == "a.py"


def test_a_run_that_was_broken_off_is_the_agents() -> None:
    log, out = events_of("--event-log-handler", "console")
    log.broken_off("no hosts")
    log.started(["node1"], [1], 0)
    log.broken_off("SIGTERM: all ranks are ended")
    found = read(out)
    assert short(found) == [("FAILED", None, None, 0), ("START", 0, 0, 0), ("FAILED", None, 0, 0)]
    assert found[0]["metadata"]["raw_error"] == "no hosts" and found[0]["source"] == "AGENT"


def test_by_default_nothing_is_shown() -> None:
    for words in ((), ("--event-log-handler", "null"), ("--event-log-handler", "dynamic_rendezvous")):
        log, out = events_of(*words)
        log.started(["node1"], [1], 0)
        assert out.getvalue() == ""


def test_a_handler_that_somebody_registered_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Mine(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    registry = {"mine": Mine()}
    name = "torch.distributed.elastic.events.handlers"
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = SimpleNamespace(get_logging_handler=registry.__getitem__)
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), module)
    log, _ = events_of("--event-log-handler", "mine")
    log.started(["node1"], [1], 0)
    assert json.loads(seen[0])["metadata"]["state"] == "START"
    with pytest.raises(
        ValueError, match=r"--event-log-handler yours: nobody has registered .* console shows the events"
    ):
        handler("yours", None)
