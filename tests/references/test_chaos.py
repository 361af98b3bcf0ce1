"""References at random, with deaths at random: nothing is left."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from monarch.actor import ProcMesh, this_host
from monarch.testing import InProcessCluster
from tests.references.chaos import churn
from tests.support.tiers import full, slow


@pytest.mark.parametrize(
    ("number", "every"),
    [(2_000, 7), pytest.param(100_000, 50, marks=slow)],
)
def test_nothing_is_left_in_memory(number: int, every: int) -> None:
    with InProcessCluster() as cluster:
        cluster.proc.mesh.owners.fault = lambda failure: None
        kills = churn(
            number,
            1,
            lambda: this_host().spawn_procs({"gpus": 2}),
            lambda procs, churners, rank: cluster.kill(procs, rank),
            every,
        )
        assert kills >= 2


@full
@pytest.mark.procs
@pytest.mark.parametrize(
    ("number", "every"),
    [(3_000, 10), pytest.param(100_000, 50, marks=slow)],
)
def test_nothing_is_left_after_kill_9(number: int, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: None)
    made: list[ProcMesh] = []

    def spawn() -> ProcMesh:
        made.append(this_host().spawn_procs({"gpus": 2}))
        return made[-1]

    def kill(procs: ProcMesh, churners: Any, rank: int) -> None:
        os.kill(churners.slice(rank=rank).pid.call_one().get(), signal.SIGKILL)

    assert churn(number, 2, spawn, kill, every) >= 2
    for procs in made[-4:]:
        try:
            procs.stop().get()
        except RuntimeError:
            pass
