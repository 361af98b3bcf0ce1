"""Tests of what processes that have ended leave in those that live, the client, the agent and others: as good as
nothing. And what processes share with the fork server that they come from."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import endpoint, this_host
from tests.support.patience import TIMEOUT
from tests.support.process_actors import Pid
from tests.support.resources import resident
from tests.support.tiers import full

pytestmark = [pytest.mark.procs, full]

A_PROCESS = 100 * 1024  # bytes, so that noise does not count; a connection has a decoder with 256 KiB


class Speaker(Pid):
    @endpoint
    def speak_to(self, others: Any) -> int:
        """This process has a connection of its own to each of them."""
        return sum(others.pid.call().get(TIMEOUT).values())

    @endpoint
    def agent(self) -> int:
        return os.getsid(0)

    @endpoint
    def resident(self) -> int:
        return resident()

    @endpoint
    def collects(self) -> tuple[bool, int]:
        return gc.isenabled(), gc.get_freeze_count()


def test_processes_that_ended_leave_no_memory() -> None:
    speaker = this_host().spawn_procs(name="speaker").spawn("speaker", Speaker)
    agent = speaker.agent.call_one().get(TIMEOUT)

    def live_and_die(times: int) -> None:
        for _ in range(times):
            procs = this_host().spawn_procs({"gpus": 8}, name="mortal")
            speaker.speak_to.call_one(procs.spawn("others", Speaker)).get(TIMEOUT)
            procs.stop().get(TIMEOUT)

    def used() -> list[int]:
        pages = int(Path(f"/proc/{agent}/statm").read_text().split()[1])
        return [resident(), pages * os.sysconf("SC_PAGE_SIZE"), speaker.resident.call_one().get(TIMEOUT)]

    live_and_die(3)
    before = used()
    live_and_die(6)
    left = [(now - then) / 48 for now, then in zip(used(), before, strict=True)]
    assert max(left) < A_PROCESS, left


def test_processes_collect_their_own_garbage_and_leave_alone_what_was_imported_before_them() -> None:
    collects, shared = this_host().spawn_procs().spawn("speaker", Speaker).collects.call_one().get(TIMEOUT)
    assert collects and shared > 10_000
