"""Loops that spawn and do not stop are named."""

from __future__ import annotations

import logging

import pytest

from monarch._mesh.process import spawning
from monarch._mesh.process.spawning import MANY, SpawnSites
from monarch.actor import Actor, endpoint, this_host


class Idle(Actor):
    @endpoint
    def nothing(self) -> None:
        return None


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "monarch")
    return caplog


@pytest.mark.usefixtures("no_leaks", "cluster")
def test_a_loop_that_spawns_processes_is_named_once(said: pytest.LogCaptureFixture) -> None:
    for _ in range(MANY + 5):
        this_host().spawn_procs()
    (line,) = said.messages
    assert f"{MANY} meshes of processes that were spawned at {__file__}:" in line
    assert "in test_a_loop_that_spawns_processes_is_named_once run at the same time" in line
    assert "mesh.stop().get()" in line


@pytest.mark.usefixtures("no_leaks", "cluster")
def test_and_one_that_spawns_actors(said: pytest.LogCaptureFixture) -> None:
    procs = this_host().spawn_procs()
    for number in range(MANY):
        procs.spawn(f"idle{number}", Idle)
    (line,) = said.messages
    assert f"{MANY} meshes of actors that were spawned at {__file__}:" in line


@pytest.mark.usefixtures("no_leaks", "cluster")
def test_loops_that_stop_what_they_spawned_are_not(said: pytest.LogCaptureFixture) -> None:
    for _ in range(MANY + 5):
        procs = this_host().spawn_procs()
        procs.spawn("idle", Idle).nothing.call_one().get(300)
        procs.stop().get(300)
    assert said.messages == []


def test_what_is_kept_is_bounded_by_what_lives(said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = SpawnSites("meshes")
    lines = iter([("program.py", number, "main") for number in range(200) for _ in range(MANY)])
    monkeypatch.setattr(spawning.stacks, "caller", lambda: next(lines))
    for number in range(200 * MANY):
        sites.spawned(str(number))
    assert len(said.messages) == 100
    for number in range(200 * MANY):
        sites.gone(str(number))
    assert not sites._site_of and not sites._living
