"""Compiled graphs of real processes: values in place, deaths, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

from monarch import graph
from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.graph import InputNode
from monarch.testing.leaks import check_leaks
from tests.support.tiers import full

pytestmark = [full, pytest.mark.procs]


class Worker(Actor):
    """Works on bytes."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    @endpoint
    def add(self, x: int) -> int:
        return x + 1

    @endpoint
    def pid(self, x: Any = None) -> int:
        return os.getpid()

    @endpoint
    def keep(self, x: bytearray) -> bytearray:
        self.kept.append(memoryview(x))
        x[0] += 1
        return x

    @endpoint
    def first_bytes(self) -> list[int]:
        return [view[0] for view in self.kept]

    @endpoint
    def hang(self, x: int) -> int:
        threading.Event().wait(60)
        return x

    @endpoint
    def descriptors(self) -> list[str]:
        folder = f"/proc/{os.getpid()}/fd"
        return [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder) if os.path.lexists(f"{folder}/{fd}")]

    @endpoint
    def mapped(self) -> int:
        with open("/proc/self/maps") as maps:
            return maps.read().count("monarch-graph")


def test_a_chain_of_processes_and_nothing_is_left() -> None:
    procs = this_host().spawn_procs({"gpus": 3})
    workers = procs.spawn("workers", Worker)
    ranks = [workers.slice(gpus=rank) for rank in range(3)]
    before = [sorted(found) for found in workers.descriptors.call().get(20).values()]
    with check_leaks():
        for _ in range(2):  # anew after it was closed
            with InputNode() as x:
                last: Any = x
                for rank in ranks:
                    last = rank.add.bind(last)
            with graph.compile(last) as compiled:
                futures = [compiled.execute(n) for n in range(30)]
                assert [future.get(20) for future in futures] == [n + 3 for n in range(30)]
    assert workers.mapped.call().get(20).values() == [0] * 3
    assert [sorted(found) for found in workers.descriptors.call().get(20).values()] == before
    procs.stop().get(20)


def test_what_an_endpoint_keeps_of_an_argument_is_its_own() -> None:
    pytest.importorskip("numpy")
    import numpy

    procs = this_host().spawn_procs()
    worker = procs.spawn("worker", Worker)
    with graph.compile(worker.keep.bind(InputNode()), depth=2) as compiled:
        results = []
        for number in range(6):
            given: Any = numpy.full(100_000, number, dtype=numpy.uint8)
            results.append(compiled.execute(given).get(20))
            assert given[0] == number
        assert [result[0] for result in results] == list(range(1, 7))
        assert worker.first_bytes.call_one().get(20) == list(range(1, 7))
        results[0][1] = 99
    assert (results[0][1], results[1][1]) == (99, 1)
    assert worker.first_bytes.call_one().get(20) == list(range(1, 7))
    procs.stop().get(20)


def test_a_killed_process_ends_the_graph_which_is_compiled_anew_after_a_restart() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    workers = procs.spawn("workers", Worker)
    first, second = workers.slice(gpus=0), workers.slice(gpus=1)
    with InputNode() as x:
        last = second.add.bind(first.add.bind(x))
        hanging = second.add.bind(first.hang.bind(x))
    workers.add.call(1).get(20)
    with check_leaks():
        pid = first.pid.call_one().get(20)
        compiled = graph.compile(hanging)
        waiting = [compiled.execute(1) for _ in range(3)]
        os.kill(pid, signal.SIGKILL)
        errors = [future.exception(20) for future in waiting]
        assert [type(error) for error in errors] == [SupervisionError] * 3
        with pytest.raises(SupervisionError) as of_call:
            first.hang.call_one(1).get(20)
        assert str(errors[0]) == str(of_call.value)
        assert "rank 0 of workers" in str(errors[0])
        with pytest.raises(SupervisionError):
            compiled.execute(1)
        compiled.close()
    assert second.mapped.call_one().get(20) == 0
    procs.restart(failed=True).get(20)
    workers.restart(failed=True).get(20)
    with graph.compile(last) as compiled:
        assert compiled.execute(1).get(20) == 3
    procs.stop().get(20)


def test_a_killed_client_leaves_nothing() -> None:
    program = """
    import os, signal, time
    from monarch import graph
    from monarch.actor import this_host
    from tests.graph.test_graph_processes import Worker, InputNode
    worker = this_host().spawn_procs().spawn("worker", Worker)
    compiled = graph.compile(worker.pid.bind(InputNode()))
    print(compiled.execute(1).get(20), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    descriptor = os.pidfd_open(int(done.stdout)) if os.path.exists(f"/proc/{int(done.stdout)}") else -1
    if descriptor >= 0:
        import select

        assert select.select([descriptor], [], [], 20)[0], "the actor's process lives on"
        os.close(descriptor)


def test_a_forked_child_cannot_use_the_graph_of_its_parent() -> None:
    program = """
    import os, asyncio
    from monarch import graph
    from monarch.actor import ForkedClientError, this_host
    from tests.graph.test_graph_processes import Worker, InputNode
    worker = this_host().spawn_procs().spawn("worker", Worker)
    with graph.compile(worker.add.bind(InputNode()), depth=2) as compiled:
        waiting = compiled.execute(1)
        child = os.fork()
        if not child:
            refused = 0
            for use in (lambda: compiled.execute(5), lambda: asyncio.run(compiled.execute_async(5)), waiting.get):
                try:
                    use()
                except ForkedClientError:
                    refused += 1
            compiled.close()
            os._exit(refused)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(waiting.get(20), *(compiled.execute(n).get(20) for n in (2, 3, 4)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["3", "2", "3", "4", "5"]
