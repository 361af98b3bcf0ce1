"""The events of a run, for --event-log-handler: torchrun's names and fields, one line of JSON each.

A rank has START in each attempt. At the end of the run it has SUCCEEDED, FAILED, or TERMINATED when it was ended because
of another, and the agent of each host has SUCCEEDED: it did its work, whatever became of the ranks. A run that was ended, or
could not begin, is FAILED for the agent alone. torchrun's RENDEZVOUS and ASSIGN_WORKER_RANKS are not there: the hosts are
known from the beginning.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Sequence
from typing import Any

from monarch.job.commands.command_plan import PYTHON
from monarch.job.torchrun.arguments import TorchrunOptions
from monarch.job.torchrun.failures import RankFailure

_SILENT = ("null", "dynamic_rendezvous")  # where torchrun has a handler that does nothing


def handler(name: str, out: Any) -> logging.Handler | None:
    """Returns the handler of that name, None for one that does nothing. Names beyond torchrun's own are those that somebody
    has registered with torch. ValueError when nobody has."""
    if name in _SILENT:
        return None
    if name == "console":
        return logging.StreamHandler(out)
    try:
        from torch.distributed.elastic.events.handlers import get_logging_handler

        registered: logging.Handler = get_logging_handler(name)
    except (ImportError, KeyError):
        raise ValueError(
            f"--event-log-handler {name}: nobody has registered a handler of this name; console shows the events on stderr, "
            f"null none, and others have to be in torch.distributed.elastic.events.handlers when monarch run starts"
        ) from None
    return registered


class EventLog:
    """Tells a handler of one run."""

    def __init__(self, options: TorchrunOptions, run_id: str, out: Any) -> None:
        self._handler = handler(options.event_log_handler, out)
        self._role = options.role
        self._run_id = run_id
        self._entry = options.command[0].strip("{}") if options.command[0] == PYTHON else options.command[0]
        self._began = time.monotonic()
        self._hosts: Sequence[str] = []
        self._pids: Sequence[int] = []
        self._attempt = 0

    def started(self, hosts: Sequence[str], pids: Sequence[int], attempt: int) -> None:
        """All ranks were started; `pids`: 0 for one that could not be."""
        self._hosts, self._pids, self._attempt = hosts, pids, attempt
        for rank, pid in enumerate(pids):
            if pid:
                self._rank("START", rank)

    def ended(self, failed: Sequence[RankFailure], ended: Collection[int]) -> None:
        """The ranks have ended, and begin no more."""
        failures = {failure.rank: failure for failure in failed}
        for rank in range(len(self._pids)):
            failure = failures.get(rank)
            state = "FAILED" if failure else "TERMINATED" if rank in ended else "SUCCEEDED"
            self._rank(state, rank, failure)
        for number in range(len(self._hosts)):
            self._event("SUCCEEDED", "AGENT", number)

    def broken_off(self, why: str) -> None:
        for number in range(len(self._hosts)) or (None,):
            self._event("FAILED", "AGENT", number, raw_error=why)

    def _rank(self, state: str, rank: int, failure: RankFailure | None = None) -> None:
        per_host = len(self._pids) // len(self._hosts)
        code = None if failure is None else -failure.signal if failure.signal else failure.status
        more = {
            "local_rank": [rank % per_host],
            "role_rank": [rank],
            "role_world_size": [len(self._pids)],
            "exit_code": [code],
            "worker_pid": [failure.pid if failure else None],
        }
        self._event(state, "WORKER", rank // per_host, rank, _error(failure), more)

    def _event(
        self,
        state: str,
        source: str,
        host: int | None,
        rank: int | None = None,
        raw_error: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        if self._handler is None:
            return
        beside = {"group_world_size": len(self._hosts) or None, "entry_point": os.path.basename(self._entry)}
        fields = {
            "run_id": self._run_id,
            "global_rank": rank,
            "group_rank": host,
            "worker_id": None if rank is None else str(self._pids[rank]),
            "role": self._role,
            "hostname": os.uname().nodename if host is None else self._hosts[host],
            "state": state,
            "total_run_time": int(time.monotonic() - self._began),
            "rdzv_backend": "static",
            "raw_error": raw_error,
            "metadata": json.dumps({**beside, **(more or {})}),
            "agent_restarts": self._attempt,
            "duration_ms": None,
        }
        event = {
            "name": f"torchelastic.worker.status.{state}", "source": source, "timestamp": 0, "metadata": fields,
        }  # fmt: skip
        record = {"name": "monarch", "levelno": logging.INFO, "levelname": "INFO", "msg": json.dumps(event)}
        self._handler.handle(logging.makeLogRecord(record))


def _error(failure: RankFailure | None) -> str | None:
    """Returns what the rank recorded, if that is JSON, else how it ended."""
    if failure is None:
        return None
    try:
        return json.dumps(json.loads(failure.report))
    except ValueError:
        return json.dumps({"message": failure.how})
