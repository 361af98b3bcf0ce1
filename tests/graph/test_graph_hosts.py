"""Compiled graphs over several hosts, as real processes: values, errors, deaths, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monarch import graph
from monarch.actor import (
    Actor,
    ActorError,
    HostMesh,
    SupervisionError,
    ValueMesh,
    attach_to_workers,
    current_rank,
    endpoint,
)
from monarch.graph import InputNode, MultiOutput
from monarch.graph.gate import _gates
from monarch.graph.hosts import CLIENT_HOST
from monarch.testing.leaks import check_leaks
from monarch.tools.certs import make_certificates
from tests.support.faults import Faults
from tests.support.hosts import LOOP, Hosts, hosts_in
from tests.support.patience import TIMEOUT
from tests.support.processes import kill
from tests.support.tiers import full

pytestmark = [full, pytest.mark.procs]


class Far(Actor):
    """Works on some host."""

    def __init__(self) -> None:
        self.woken = threading.Event()

    @endpoint
    def add(self, x: int) -> int:
        if x < 0:
            raise ValueError(f"{x} is negative")
        return x + 1

    @endpoint
    def scaled(self, x: int) -> int:
        return x * (current_rank().rank + 1)

    @endpoint
    def total(self, x: ValueMesh[int]) -> int:
        return sum(x.values())

    @endpoint
    def same(self, x: Any) -> Any:
        return x

    @endpoint
    def hang(self, x: int) -> int:
        self.woken.wait(5)
        return x

    @endpoint
    def break_stream(self) -> None:
        """The one to the other host of two."""
        for gate in list(_gates.values()):
            (sock,) = (stream._sock for host, stream in gate.streams.items() if host != CLIENT_HOST)
            assert sock is not None
            sock.shutdown(socket.SHUT_RDWR)

    @endpoint
    def pid(self, x: Any = None) -> int:
        return os.getpid()

    @endpoint
    def descriptors(self) -> list[str]:
        folder = f"/proc/{os.getpid()}/fd"
        links = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder) if os.path.lexists(f"{folder}/{fd}")]
        return sorted(link.split(":")[0] for link in links)

    @endpoint
    def threads(self) -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "monarch-graph"]

    @endpoint
    def mapped(self) -> int:
        with open("/proc/self/maps") as maps:
            return maps.read().count("monarch-graph")


class AsyncFar(Actor):
    """Does the same on an event loop."""

    @endpoint
    async def add(self, x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def threads(self) -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "monarch-graph"]

    @endpoint
    async def mapped(self) -> int:
        with open("/proc/self/maps") as maps:
            return maps.read().count("monarch-graph")


TLS_LOOP = LOOP.replace(', ca="trust_all_connections"', "").replace("argv[1]", "argv[1].replace('tcp:', 'tls:')")


@contextmanager
def tls_hosts(hosts: Hosts, folder: Path, count: int) -> Iterator[HostMesh]:
    """So many, which have certificates, as their client has."""
    pytest.importorskip("cryptography")
    made = make_certificates(folder / "certs")
    env = {"MONARCH_TLS_CA": made.ca, "MONARCH_TLS_CERT": made.certificate, "MONARCH_TLS_KEY": made.private_key}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MONARCH_SECRET", "MONARCH_SECRET_FILE"):
            patch.delenv(name, raising=False)
        workers = [hosts.start_tcp(TLS_LOOP, {name: str(file) for name, file in env.items()}) for _ in range(count)]
        addresses = [worker.address.replace("tcp:", "tls:") for worker in workers]
        mesh = attach_to_workers(
            workers=addresses, ca=made.ca, certificate=made.certificate, private_key=made.private_key
        )
    assert mesh.initialized.get(TIMEOUT) is True
    yield mesh
    mesh.shutdown().get(TIMEOUT)


@pytest.fixture(scope="module", params=["tcp", "tls"])
def two_hosts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Hosts, HostMesh]]:
    folder = tmp_path_factory.mktemp("graphs")
    with hosts_in(folder) as hosts:
        if request.param == "tls":
            with tls_hosts(hosts, folder, 2) as mesh:
                yield hosts, mesh
            return
        mesh = hosts.attach(hosts.start_tcp(), hosts.start_tcp())
        yield hosts, mesh
        mesh.shutdown().get(TIMEOUT)


@pytest.fixture
def far(two_hosts: tuple[Hosts, HostMesh]) -> Iterator[Any]:
    """Two processes on each of two hosts, the client on a third."""
    procs = two_hosts[1].spawn_procs({"gpus": 2})
    yield procs.spawn("far", Far)
    procs.stop().get(TIMEOUT)


def at(far: Any, host: int, gpu: int = 0) -> Any:
    return far.slice(hosts=host, gpus=gpu)


def test_a_chain_over_hosts_gives_what_calls_give_and_leaves_nothing(far: Any) -> None:
    before = [far.descriptors.call().get(TIMEOUT).values() for _ in range(2)][-1]
    with check_leaks():
        for _ in range(2):  # anew after it was closed
            with InputNode() as x:
                last: Any = x
                for host, gpu in ((0, 0), (0, 1), (1, 1), (0, 0), (1, 0)):
                    last = at(far, host, gpu).add.bind(last)
            with graph.compile(last) as compiled:
                futures = [compiled.execute(n) for n in range(30)]
                assert [future.get(TIMEOUT) for future in futures] == [n + 5 for n in range(30)]
                assert at(far, 0).add.call_one(1).get(TIMEOUT) == 2  # between executions
                bad, good = compiled.execute(-1), compiled.execute(1)
                with pytest.raises(ActorError, match="-1 is negative"):
                    bad.get(TIMEOUT)
                assert good.get(TIMEOUT) == 6
    assert far.mapped.call().get(TIMEOUT).values() == [0] * 4
    assert far.threads.call().get(TIMEOUT).values() == [[]] * 4
    assert far.descriptors.call().get(TIMEOUT).values() == before


def test_fan_out_and_fan_in_over_hosts(far: Any) -> None:
    one = at(far, 1, 1)
    with InputNode() as x:
        scaled = far.scaled.bind(x)
        again = far.scaled.bind(scaled.by_rank())
        total = one.total.bind(again)
    with graph.compile(MultiOutput([scaled, total, at(far, 0).total.bind(scaled)])) as compiled:
        futures = [compiled.execute(n) for n in range(40)]
        for n, future in enumerate(futures):
            values, all_ranks, first = future.get(TIMEOUT)
            assert values.values() == [n, 2 * n, 3 * n, 4 * n]
            assert (all_ranks, first) == (n * (1 + 4 + 9 + 16), 10 * n)


def test_large_values_arrive_whole_and_do_not_keep_small_ones_back(far: Any) -> None:
    numpy = pytest.importorskip("numpy")
    with InputNode() as x:
        large = at(far, 1).same.bind(at(far, 0).same.bind(x["large"]))
        small = at(far, 1, 1).add.bind(at(far, 0, 1).add.bind(x["small"]))
    with graph.compile(MultiOutput([large, small]), depth=3, buffer="17MiB") as compiled:
        made = [numpy.random.default_rng(n).integers(0, 255, 16 << 20, dtype=numpy.uint8) for n in range(4)]
        futures = [compiled.execute(large=value, small=n) for n, value in enumerate(made)]
        for n, future in enumerate(futures):
            came, number = future.get(TIMEOUT)
            assert number == n + 2
            assert numpy.array_equal(came, made[n])
        with pytest.raises(ValueError, match="compile it with buffer="):
            compiled.execute(large=bytes(18 << 20), small=1)


def test_a_deadline_names_who_is_late_on_another_host(far: Any) -> None:
    with InputNode() as x:
        last = at(far, 1, 1).hang.bind(at(far, 1).add.bind(at(far, 0).add.bind(x)))
    late = r"more than 2 s: far.hang\(\) of rank 0 has not returned"
    with graph.compile(last) as compiled, pytest.raises(TimeoutError, match=late):
        compiled.execute(1, timeout=2).get(TIMEOUT)


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_killed_process_of_another_host_ends_the_graph_as_a_call_would_say_it(two_hosts: Any, gpu: int) -> None:
    """Number 0 is its host's gate."""
    procs = two_hosts[1].spawn_procs({"gpus": 2})
    far = procs.spawn("far", Far)
    victim = at(far, 1, gpu)
    with InputNode() as x:
        last = at(far, 0).add.bind(victim.hang.bind(at(far, 1, 1 - gpu).add.bind(at(far, 0, 1).add.bind(x))))
    pid = victim.pid.call_one().get(TIMEOUT)
    with check_leaks():
        compiled = graph.compile(last, depth=8)
        waiting = [compiled.execute(1) for _ in range(8)]
        kill(pid)
        errors = [future.exception(TIMEOUT) for future in waiting]
        assert [type(error) for error in errors] == [SupervisionError] * 8
        with pytest.raises(SupervisionError) as of_call:
            victim.add.call_one(1).get(TIMEOUT)
        assert str(errors[0]).replace("hang", "add") == str(of_call.value)
        with pytest.raises(SupervisionError):
            compiled.execute(2)
        compiled.close()
    assert at(far, 0).add.call_one(1).get(TIMEOUT) == 2
    assert far.slice(hosts=0).threads.call().get(TIMEOUT).values() == [[], []]
    assert far.slice(hosts=0).mapped.call().get(TIMEOUT).values() == [0, 0]
    procs.stop().get(TIMEOUT)


def test_a_killed_host_ends_the_graph_which_is_compiled_anew_on_others(tmp_path: Path) -> None:
    with hosts_in(tmp_path) as hosts:
        workers = [hosts.start(), hosts.start(), hosts.start()]
        mesh = hosts.attach(*workers)
        far = mesh.spawn_procs({"gpus": 1}).spawn("far", Far)
        with InputNode() as x:
            last = at(far, 1).hang.bind(at(far, 0).add.bind(x))
            other = at(far, 2).add.bind(at(far, 0).add.bind(x))
        compiled = graph.compile(last)
        waiting = compiled.execute(1)
        kill(workers[1].agent)
        with pytest.raises(SupervisionError, match=workers[1].address):
            waiting.get(TIMEOUT)
        compiled.close()
        with graph.compile(other) as again:
            assert again.execute(1).get(TIMEOUT) == 3
        mesh.shutdown().get(TIMEOUT)


def test_a_stream_that_breaks_where_everybody_lives_ends_the_graph_with_its_words(
    far: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch.graph.compiled._LATER", -59.5)
    with InputNode() as x:
        last = at(far, 1).add.bind(at(far, 0).add.bind(x))
    with graph.compile(last) as compiled:
        assert compiled.execute(1).get(TIMEOUT) == 3
        at(far, 1).break_stream.call_one().get(TIMEOUT)
        said = r"the graph has ended: the connection between tcp\S* and tcp\S* broke .*: compile it anew"
        with pytest.raises(ConnectionError, match=said):
            compiled.execute(1).get(TIMEOUT)
    with graph.compile(last) as compiled:
        assert compiled.execute(1).get(TIMEOUT) == 3


@pytest.mark.parametrize("phase", ["compile", "execute", "close"])
def test_whoever_is_killed_whenever_the_graph_gives_right_results_or_the_error_of_a_call(
    two_hosts: Any, phase: str, faults: Faults
) -> None:
    """Each rank in its turn; two graphs over the same actors, one of which waits in line. Who dies as the graphs close
    may be in no call any more: the client is told of it all the same."""
    for victim in range(4):
        procs = two_hosts[1].spawn_procs({"gpus": 2})
        far = procs.spawn("far", AsyncFar if victim % 2 else Far)
        pids = far.pid.call().get(TIMEOUT).values()
        with InputNode() as x:
            last: Any = x
            for host, gpu in ((1, 0), (0, 1), (1, 1), (0, 0)):
                last = at(far, host, gpu).add.bind(last)
        killer = threading.Thread(target=kill, args=(pids[victim],))
        compiled: list[Any] = []
        with check_leaks():
            try:
                if phase == "compile":
                    killer.start()
                compiled += [graph.compile(last, depth=8), graph.compile(last, depth=1)]
                for number in range(50 if phase == "close" else 100_000):
                    several = [one.execute(number) for one in compiled for _ in range(one._plan.depth)]
                    assert {future.get(TIMEOUT) for future in several} == {number + 4}
                    if number == 5 and phase == "execute":
                        killer.start()
            except SupervisionError:
                assert phase != "close"
            else:
                assert phase == "close"
                killer.start()
            for one in compiled:
                one.close()
            killer.join(TIMEOUT)
        told = faults.next(handled=None)
        assert all(f"pid {pids[victim]} " in str(failure) for failure in [told, *faults.rest()])
        living = far.slice(hosts=1 - victim // 2)
        assert living.mapped.call().get(TIMEOUT).values() == [0, 0]
        assert living.threads.call().get(TIMEOUT).values() == [[], []]
        procs.stop().get(TIMEOUT)
