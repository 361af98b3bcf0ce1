"""Items spread over real processes that are killed while they run them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, RestartPolicy, SupervisionError, endpoint
from tests.support.faults import Faults
from tests.support.tiers import full

pytestmark = pytest.mark.procs


class Mortal(Actor):
    """Kills its process with SIGKILL at the items it is told to, the first time that one is run anywhere."""

    def __init__(self, folder: Path, deadly: set[int]) -> None:
        self.folder = folder
        self.deadly = deadly

    @endpoint
    def run(self, item: int) -> tuple[int, int]:
        mark = self.folder / str(item)
        if item in self.deadly and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.getpid()


def test_items_of_killed_processes_are_run_by_others(spawn_procs: Any, tmp_path: Path, faults: Faults) -> None:
    mesh = spawn_procs({"gpus": 3}).spawn("mortal", Mortal, tmp_path, {4, 9})
    results = mesh.run.map(range(40), retries=1)
    assert [item for item, _pid in results] == list(range(40))
    assert results.progress.sent_again == 2


@full
def test_processes_restarted_under_a_policy_are_used_again(spawn_procs: Any, tmp_path: Path) -> None:
    with RestartPolicy(max_restarts=5, backoff=0):
        mesh = spawn_procs().spawn("mortal", Mortal, tmp_path, {2, 5})
    found = list(mesh.run.map(range(8), retries=1, in_flight=2))
    assert [item for item, _pid in found] == list(range(8))
    assert len({pid for _item, pid in found}) == 3


def test_without_retries_the_error_names_the_item(spawn_procs: Any, tmp_path: Path, faults: Faults) -> None:
    mesh = spawn_procs({"gpus": 2}).spawn("mortal", Mortal, tmp_path, {3})
    results = mesh.run.map(range(6), return_exceptions=True)
    error = next(result for result in results if isinstance(result, Exception))
    assert isinstance(error, SupervisionError)
    assert "Killed(sig=9)" in str(error)
    assert error.__notes__[0].startswith("item 3 of mortal.run.map(), sent to rank ")
