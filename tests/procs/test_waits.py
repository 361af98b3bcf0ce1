"""Tests of who waits for whom, circles of waits and endpoints that run long, in real processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch
from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    Channel,
    DeadlockError,
    Port,
    ProcMesh,
    WaitGraph,
    endpoint,
    wait_graph,
)
from tests.support.patience import TIMEOUT
from tests.support.process_actors import AsyncPid, Pid
from tests.support.tiers import full


class Plain(Pid):
    """`ask(chain)`: asks the next actor of a chain to ask the one behind it, and waits."""

    @endpoint
    def ask(self, chain: list[ActorMesh[Any]]) -> int:
        return chain[0].ask.call_one(chain[1:]).get() if chain else os.getpid()

    @endpoint
    def hold(self, entered: Port[Port[None]]) -> int:
        """Says how to let go of it, and stands still until then."""
        port, receiver = Channel.open()
        entered.send(port)
        receiver.recv().get(TIMEOUT)
        return os.getpid()

    @endpoint
    def graph(self, awaited: str) -> WaitGraph:
        """Looks until somebody waits for `awaited`: a caller waits only a little after it has sent its call."""
        give_up = time.monotonic() + TIMEOUT / 2
        while True:
            graph = wait_graph().get(TIMEOUT)
            if time.monotonic() > give_up or awaited in {edge.target for edge in graph.edges}:
                return graph


class Looped(AsyncPid):
    @endpoint
    async def ask(self, chain: list[ActorMesh[Any]]) -> int:
        return await chain[0].ask.call_one(chain[1:]) if chain else os.getpid()


@pytest.fixture
def quick(spawn_procs: Any) -> Iterator[ProcMesh]:
    """Two processes that look for circles often."""
    with monarch.configured(deadlock_after="0.2s"):
        yield spawn_procs({"gpus": 2})


def deadlock(future: Any) -> DeadlockError:
    error = future.exception(TIMEOUT)
    while isinstance(error, ActorError):
        error = error.exception
    assert isinstance(error, DeadlockError)
    return error


def edges_of(procs: ProcMesh) -> list[Any]:
    """Returns those of these processes; others may be busy with other tests' leavings."""
    return [edge for edge in wait_graph().get(TIMEOUT).edges if edge.address in procs._addresses()]


def handlers_of(graph: WaitGraph, addresses: list[str]) -> list[Any]:
    return [handler for handler in graph.handlers if handler.address in addresses]


def is_stopped(pid: int) -> bool:
    """Every thread of the process; they stop one after the other."""
    stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_two_actors_in_two_processes(quick: ProcMesh) -> None:
    a = quick.slice(gpus=0).spawn("a", Looped)
    b = quick.slice(gpus=1).spawn("b", Plain)
    error = deadlock(a.ask.call_one([b, a]))
    pids = [mesh.pid.call_one().get(TIMEOUT) for mesh in (a, b)]
    assert len(error.cycle) == 2
    for pid in pids:
        assert sum(f"host {socket.gethostname()}, pid {pid})" in line for line in error.cycle) == 1
    assert a.ask.call_one([b]).get(TIMEOUT) == pids[1]


def test_a_handler_that_is_stuck_is_in_the_graph(spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": 2})
    a = procs.slice(gpus=0).spawn("a", Plain)
    b = procs.slice(gpus=1).spawn("b", Plain)
    port, receiver = Channel.open()
    held = b.hold.call_one(port)
    release = receiver.recv().get(TIMEOUT)
    waiting = a.ask.call_one([b])
    while not edges_of(procs):
        pass
    graph = wait_graph().get(TIMEOUT)
    (edge,) = (edge for edge in graph.edges if edge.address in procs._addresses())
    assert (edge.doing, edge.target, edge.ranks, edge.unanswered) == ("ask", "b.ask", [0], 1)
    assert (edge.file, edge.function) == (__file__, "Plain.ask") and edge.seconds >= 0
    handlers = {handler.endpoint: handler for handler in handlers_of(graph, procs._addresses())}
    assert set(handlers) == {"ask", "hold"} and handlers["hold"].function == "Plain.hold"
    assert handlers["ask"].pid == edge.pid != handlers["hold"].pid
    assert graph.silent.keys().isdisjoint(procs._addresses()) and "in ask(), waits for b.ask(), rank(s) 0, for " in str(
        graph
    )
    c = procs.slice(gpus=0).spawn("c", Plain)
    seen = c.graph.call_one("c.graph").get(TIMEOUT)  # from an actor as well, who sees that the client waits for it
    assert {"b.ask": edge.who, "c.graph": "<root>"}.items() <= {edge.target: edge.who for edge in seen.edges}.items()
    release.send(None)
    pids = {held.get(TIMEOUT), waiting.get(TIMEOUT)}
    assert pids == {handlers["hold"].pid}


def test_a_stopped_process_is_silent_and_the_others_answer(spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": 2})
    mesh = procs.spawn("a", Plain)
    pids = [pid for _, pid in mesh.pid.call().get(TIMEOUT)]
    address = procs._addresses()[1]
    port, receiver = Channel.open()
    held = mesh.slice(gpus=0).hold.call_one(port)
    release = receiver.recv().get(TIMEOUT)
    os.kill(pids[1], signal.SIGSTOP)
    try:
        while not is_stopped(pids[1]):
            pass
        graph = wait_graph(0.5).get(TIMEOUT)
        while procs._addresses()[0] in graph.silent:  # a busy machine, on which that one was slow as well
            graph = wait_graph(0.5).get(TIMEOUT)
    finally:
        os.kill(pids[1], signal.SIGCONT)
    assert address in graph.silent and address in str(graph)
    handlers = handlers_of(graph, procs._addresses())
    assert [(handler.pid, handler.endpoint) for handler in handlers] == [(pids[0], "hold")]
    release.send(None)
    held.get(TIMEOUT)
    give_up = time.monotonic() + TIMEOUT
    while not wait_graph(TIMEOUT).get(TIMEOUT).silent.keys().isdisjoint(procs._addresses()):
        assert time.monotonic() < give_up  # its agent hears a little later that it goes on


@full
def test_every_process_is_asked_also_one_that_this_one_never_spoke_to(spawn_procs: Any) -> None:
    class Nested(Actor):
        @endpoint
        def spawn(self) -> list[str]:
            from monarch.actor import this_host

            self.procs = this_host().spawn_procs({"gpus": 2})
            self.mesh = self.procs.spawn("inner", Plain)
            self.mesh.pid.call().get()
            return list(self.procs._addresses())

        @endpoint
        def hold(self, entered: Port[Any]) -> None:
            self.mesh.hold.broadcast(entered)

    nested = spawn_procs().spawn("nested", Nested)
    addresses = nested.spawn.call_one().get(TIMEOUT)
    port, receiver = Channel.open()
    nested.hold.call_one(port).get(TIMEOUT)
    releases = [receiver.recv().get(TIMEOUT) for _ in addresses]
    handlers = handlers_of(wait_graph().get(TIMEOUT), addresses)
    assert sorted(handler.address for handler in handlers) == sorted(addresses)
    for release in releases:
        release.send(None)
