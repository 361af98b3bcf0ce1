"""Costs of large meshes by count, which no load of the machine changes: messages, function calls and bytes a process."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from monarch._runtime.loop import Loop
from monarch._wire.transport.stream import StreamConnection
from monarch.actor import Actor, endpoint, this_host
from monarch.testing import InProcessCluster

FEW, MANY = 4, 12


class Echo(Actor):
    @endpoint
    def echo(self, value: int) -> int:
        return value


def spawned(procs: int) -> tuple[Any, Any]:
    mesh = this_host().spawn_procs({"procs": procs})
    actors = mesh.spawn("echo", Echo)
    actors.echo.call(1).get()
    return mesh, actors


class Frames:
    """Frames that were delivered in a cluster."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self._cluster = cluster
        self._count = 0
        cluster.network.tap(lambda sent: self._add())

    def _add(self) -> None:
        self._count += 1

    def of(self, act: Callable[[], Any]) -> int:
        before = self._count
        act()
        self._cluster.settle()
        return self._count - before


def test_messages_of_a_mesh_grow_with_its_processes_and_no_faster() -> None:
    """Counts what one process more adds to the start with an actor and a first call, to a call, to the end."""
    counted: dict[int, tuple[int, int, int]] = {}
    for procs in (FEW, MANY):
        with InProcessCluster() as cluster:
            frames = Frames(cluster)
            made: list[Any] = []
            up = frames.of(lambda procs=procs, made=made: made.extend(spawned(procs)))
            call = frames.of(lambda made=made: made[1].echo.call(1).get())
            stop = frames.of(lambda made=made: made[0].stop().get())
            counted[procs] = up, call, stop
    each = [(many - few) / (MANY - FEW) for few, many in zip(counted[FEW], counted[MANY], strict=True)]
    assert each[1] == 2  # the call, the answer
    assert each[0] <= 14  # who is faster than the word that a process is there asks once more
    assert each[2] <= 4


@contextmanager
def counting(cluster: InProcessCluster) -> Iterator[list[int]]:
    """Counts calls of the runtime's functions in all threads; those that depend on who waits when are left out."""
    count = [0]
    left_out = ("/testing/", "/loop.py", "/leader.py", "/mailbox.py", "/future.py", "/clock.py", "/waiters.py")

    def seen(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            if "/monarch/" in name and not any(part in name for part in left_out):
                count[0] += 1

    threading.setprofile(seen)
    cluster._on_loop(lambda: sys.setprofile(seen))
    sys.setprofile(seen)
    try:
        yield count
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # as documented
        cluster._on_loop(lambda: sys.setprofile(None))


def test_a_call_runs_few_functions_for_each_process() -> None:
    """In the thread that calls, on both I/O threads and in the actor: what is added to each call is paid a thousand times."""
    counted = {}
    for procs in (FEW, MANY):
        with InProcessCluster() as cluster, counting(cluster) as count:
            _, actors = spawned(procs)
            least = sys.maxsize
            for _ in range(5):
                cluster.settle()
                before = count[0]
                actors.echo.call(1).get()
                cluster.settle()
                least = min(least, count[0] - before)
            counted[procs] = least
    with_torch = 8 if "torch" in sys.modules else 0  # no dispatch mode of the program may see what is unpickled
    assert (counted[MANY] - counted[FEW]) / (MANY - FEW) <= 36 + with_torch


def test_a_connection_takes_little_memory() -> None:
    loop = Loop("test-connections")
    pairs = [socket.socketpair() for _ in range(64)]
    connections: list[StreamConnection] = []
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for ours, _ in pairs:
            connection = StreamConnection(ours, loop, object(), limit=1 << 20)  # type: ignore[arg-type]
            connection.small = lambda *_: True
            connection.start()
            connections.append(connection)
        each = (tracemalloc.get_traced_memory()[0] - before) / len(pairs)
    finally:
        tracemalloc.stop()
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
    loop.epoll.close()
    assert each < 6 * 1024
