"""Tests that what keeps a program from going on is in the error of a long wait."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monarch._mesh.inspection import doctor, stuck_collectives
from monarch._mesh.inspection.diagnosis import Diagnosis, Finding
from monarch._mesh.inspection.stuck_collectives import Explainer
from monarch._mesh.process.mesh_layer import MeshLayer
from monarch._runtime import future as futures
from monarch.actor import this_host
from monarch.testing import InProcessCluster, Local, VirtualClock
from tests.support.actors import TIMEOUT, Gate, Sync

SAID = "rank 1 of w is stopped (SIGSTOP or Ctrl-Z)"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns who looked for the cause."""
    looks: list[str] = []
    monkeypatch.setattr(MeshLayer, "look_for_cause", lambda layer: looks.append("looked"))
    monkeypatch.setattr(MeshLayer, "cause", lambda layer: SAID if looks else "")
    return looks


def held(gate: Gate, seconds: float | None = None) -> Any:
    work = this_host().spawn_procs().spawn("w", Sync).do
    return (work if seconds is None else work.with_timeout(seconds)).call_one(Local(gate.stand))


@pytest.mark.usefixtures("cluster")
def test_of_a_wait_that_is_long(told: list[str], gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures, "LOOKING", 0.0)
    answer = held(gate)
    with pytest.raises(TimeoutError) as short:
        answer.get(timeout=0.0)
    assert SAID not in str(short.value) and not told
    monkeypatch.setattr(futures, "LONG_WAIT", 0.0)
    with pytest.raises(TimeoutError, match=r"no result after 0.0 s from w.do\(\), rank\(s\) 0; .*") as long:
        answer.get(timeout=0.0)
    assert f". {SAID}. print(monarch.actor.wait_graph()" in str(long.value)
    gate.open()
    answer.get(TIMEOUT)


def test_of_a_call_with_a_limit(told: list[str], gate: Gate) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())):
        answer = held(gate, 60.0)
        clock.advance(60.0 - futures.LOOKING - 0.5)
        assert not told
        clock.advance(0.5)
        assert told and "pending" in repr(answer)
        clock.advance(futures.LOOKING)
        with pytest.raises(TimeoutError) as caught:
            answer.get(TIMEOUT)
        assert f"{SAID}. print(monarch.actor.wait_graph()" in str(caught.value)
        gate.open()


def test_it_is_looked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ended = [0.0], threading.Semaphore(0)
    looks: list[float] = []

    class Noted(Explainer):
        def _end(self, ask: Any) -> None:
            super()._end(ask)
            ended.release()

    def examine(ask: Any, seconds: float) -> Diagnosis:
        looks.append(now[0])
        return Diagnosis([Finding("stopped", SAID, [], "")] if now[0] == 0.0 else [], [], 2)

    class Proc:
        class loop:
            virtual = False

    monkeypatch.setattr(doctor, "examine", examine)
    monkeypatch.setattr(stuck_collectives.time, "monotonic", lambda: now[0])
    explainer = Noted(Proc())  # type: ignore[arg-type]
    assert explainer.cause() == ""
    for now[0] in (0.0, 5.0):
        explainer.look()
        if now[0] == 0.0:
            ended.acquire()
        assert explainer.cause() == SAID
    now[0] = 100.0
    assert explainer.cause() == ""
    explainer.look()
    ended.acquire()
    assert explainer.cause() == "" and looks == [0.0, 100.0]
