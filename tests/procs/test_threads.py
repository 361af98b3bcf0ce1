"""Real processes get their share of the processors as OMP_NUM_THREADS, unless somebody says otherwise."""

from __future__ import annotations

import os
from typing import Any

import pytest

import monarch
from monarch._mesh.start.threads import VARIABLES, processors, share
from monarch.actor import Actor, HostMesh, endpoint, this_host
from tests.support.patience import TIMEOUT
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs


class Rank(Actor):
    @endpoint
    def variable(self) -> str:
        return os.environ.get("OMP_NUM_THREADS", "")

    @endpoint
    def of_torch(self) -> int:
        """Returns it as an actor's own thread sees it."""
        import torch

        return torch.get_num_threads()

    @endpoint
    def below(self, count: int) -> list[str]:
        """Returns what processes get that this one spawns."""
        procs = this_host().spawn_procs({"gpus": count})
        try:
            return procs.spawn("ranks", Rank).variable.call().get(TIMEOUT).values()
        finally:
            procs.stop().get(TIMEOUT)


@pytest.fixture(autouse=True)
def nobody_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def given(procs: Any) -> list[str]:
    found: list[str] = procs.spawn("ranks", Rank).variable.call().get(TIMEOUT).values()
    return found


def test_each_process_gets_a_share_and_children_one_of_their_own(spawn_procs: Any) -> None:
    least = share(processors(), 10_000)
    procs = spawn_procs({"gpus": 2 * processors()})
    assert given(procs) == [str(least)] * len(procs)
    assert procs.spawn("ranks", Rank).slice(gpus=0).below.call_one(1).get(TIMEOUT) == [str(least)]


@full
def test_the_program_and_the_environment_come_first(spawn_procs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(spawn_procs({"gpus": 2}, env={"OMP_NUM_THREADS": "7"})) == ["7", "7"]
    assert given(spawn_procs({"gpus": 2}, env={"OMP_NUM_THREADS": None})) == ["", ""]
    assert given(spawn_procs({"gpus": 2}, env={"MKL_NUM_THREADS": "7"})) == ["", ""]
    with monarch.configured(share_threads=False):
        assert given(spawn_procs({"gpus": 2})) == ["", ""]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert given(spawn_procs()) == ["5"]


@full
def test_replacements_get_what_those_before_had(spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": 2})
    before = given(procs)
    spawn_procs({"gpus": 20}).initialized.get(TIMEOUT)
    procs.restart(gpus=0).get(TIMEOUT)
    assert given(procs) == before


@full
@pytest.mark.parametrize("executed", first_of([False, True], full=1))
def test_torch_takes_no_more(host: HostMesh, spawn_procs: Any, executed: bool) -> None:
    """Also where the fork server had loaded it before, as many as there are processors."""
    import sys

    pytest.importorskip("torch")
    on = host.with_python_executable(sys.executable) if executed else host
    procs = spawn_procs({"gpus": 2 * processors()}, on=on)
    ranks = procs.spawn("ranks", Rank)
    assert set(ranks.of_torch.call().get(TIMEOUT).values()) == {1}
