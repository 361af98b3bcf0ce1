"""Hosts that others have started, as real processes on this machine: attaching, owning, losing and finding them again."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    DeadlockError,
    HostMesh,
    Port,
    ProcMesh,
    RestartPolicy,
    SupervisionError,
    attach_to_workers,
    default_bootstrap_cmd,
    endpoint,
    get_or_spawn_controller,
    run_worker_loop_forever,
    run_worker_loop_until_shutdown,
    start_worker_loop_forever,
    this_host,
    wait_graph,
)
from monarch.config import configure
from tests.support.hosts import LOOP, ROOT, TIMEOUT, TRUST, Hosts
from tests.support.patience import GRACE
from tests.support.process_actors import AsyncPid, Told
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs


class Resident(AsyncPid):
    """Lives on some host."""

    @endpoint
    async def agent(self) -> int:
        """Its host agent leads the session of all processes of its host."""
        return os.getsid(0)

    @endpoint
    async def where(self) -> tuple[str, list[str]]:
        return os.getcwd(), sys.path

    @endpoint
    async def affinity(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    @endpoint
    async def env(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @endpoint
    async def wait(self, port: Port[int]) -> None:
        port.send(os.getpid())
        await asyncio.Event().wait()

    @endpoint
    async def die(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)
        os._exit(3)

    @endpoint
    async def ask(self, other: Any) -> list[int]:
        return list((await other.pid.call()).values())


def pids(procs: ProcMesh) -> list[int]:
    return list(procs.spawn("residents", Resident).pid.call().get(TIMEOUT).values())


# --- attaching


@pytest.mark.parametrize("kind", first_of(["ipc", "tcp"]))
def test_attach_spawn_shut_down(hosts: Hosts, watch: Any, kind: str) -> None:
    start = hosts.start if kind == "ipc" else hosts.start_tcp
    first, second = start(), start()
    mesh = attach_to_workers(workers=[first.address, second.address], ca=TRUST)
    assert mesh.sizes == {"hosts": 2}
    procs = mesh.spawn_procs({"gpus": 2}, name="remote")  # before anybody knows whether they are there
    residents = procs.spawn("residents", Resident)
    assert mesh.initialized.get(TIMEOUT) is True
    agents = residents.agent.call().get(TIMEOUT)
    assert [value for _, value in agents] == [first.agent] * 2 + [second.agent] * 2
    running = watch([*residents.pid.call().get(TIMEOUT).values(), first.agent, second.agent])
    mesh.shutdown().get(TIMEOUT)
    assert (first.status(), second.status()) == (0, 0)
    assert running.survivors(GRACE) == {}


@full
def test_workers_may_start_after_the_client_and_their_addresses_be_futures(hosts: Hosts) -> None:
    address, known = Channel.open()
    mesh = attach_to_workers(workers=[hosts.address("late"), known.recv()], ca=TRUST)
    assert mesh.sizes == {"hosts": 2}
    late, later = hosts.start("late"), hosts.start("later")
    address.send(later.address)
    assert mesh.initialized.get(TIMEOUT) is True
    agents = mesh.spawn_procs().spawn("residents", Resident).agent.call().get(TIMEOUT)
    assert [value for _, value in agents] == [late.agent, later.agent]
    mesh.shutdown().get(TIMEOUT)


@full
def test_the_dial_part_of_an_alias_counts(hosts: Hosts) -> None:
    worker = hosts.start("here")
    mesh = attach_to_workers(workers=[f"{worker.address}@tcp://*:22222"], ca=TRUST)
    assert mesh.initialized.get(TIMEOUT) is True
    mesh.shutdown().get(TIMEOUT)
    assert worker.status() == 0


def test_a_worker_that_is_not_there(hosts: Hosts) -> None:
    configure(mesh_attach_config_timeout="500ms")
    address = hosts.address("nobody")
    mesh = attach_to_workers(workers=[address], ca=TRUST)
    with pytest.raises(Exception, match="attach failed: config push failed during attach") as raised:
        mesh.initialized.get(TIMEOUT)
    assert address.removeprefix("ipc://") in str(raised.value)
    assert "mesh_attach_config_timeout" in str(raised.value)


def test_a_name_that_nobody_knows(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said at once, and the host tried for as long as any: the name may be known later."""
    configure(mesh_attach_config_timeout="1s")
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: said.put(record.getMessage()))
    logger = logging.getLogger("monarch")
    logger.addHandler(handler)
    try:
        mesh = attach_to_workers(workers=["tcp://pod-0.invalid:7"], secret="a-secret-of-both")
        warning = said.get(timeout=TIMEOUT)
        assert "tcp://pod-0.invalid:7 (rank 0 of 1" in warning
        assert "the name 'pod-0.invalid' " in warning and "tried again for up to 1 s" in warning
        with pytest.raises(Exception, match=r"attach failed: .*within 1 s .*the name 'pod-0.invalid' "):
            mesh.initialized.get(TIMEOUT)
    finally:
        logger.removeHandler(handler)


def test_a_mesh_on_a_worker_that_is_not_there(hosts: Hosts, faults: Any) -> None:
    configure(mesh_attach_config_timeout="500ms")
    address = hosts.address("nobody")
    mesh = attach_to_workers(workers=[address], ca=TRUST)
    procs = mesh.spawn_procs()
    call = procs.spawn("residents", Resident).pid.call()
    with pytest.raises(SupervisionError) as raised:
        call.get(TIMEOUT)
    assert address in str(raised.value)
    with pytest.raises(Exception) as raised:
        procs.initialized.get(TIMEOUT)
    assert address in str(raised.value)


def test_a_wrong_secret_is_told_at_once(hosts: Hosts, tmp_path: Path) -> None:
    worker = hosts.start(env={"MONARCH_SECRET": "a-secret-of-theirs"})
    mesh = attach_to_workers(workers=[worker.address], secret="another-secret-of-mine")
    with pytest.raises(Exception, match="attach failed: config push failed during attach") as raised:
        mesh.initialized.get(TIMEOUT)  # the setting says 60 s
    assert "secret" in str(raised.value) and "another-secret" not in str(raised.value)
    right = attach_to_workers(workers=[worker.address], secret="a-secret-of-theirs")
    assert right.initialized.get(TIMEOUT) is True
    right.shutdown().get(TIMEOUT)
    assert worker.status() == 0
    assert "theirs" not in worker.output() and "mine" not in worker.output()


@pytest.mark.parametrize(
    "workers",
    [[], ["nonsense"], ["tcp://host"], ["tcp://*:22222"], ["tcp://127.0.0.1:0"], ["udp://127.0.0.1:1"],
     ["ipc:///tmp/twice", "ipc:///tmp/twice"]],
)  # fmt: skip
def test_what_cannot_be_attached_to(workers: list[str]) -> None:
    with pytest.raises(ValueError):
        attach_to_workers(workers=workers, ca=TRUST)


def test_what_is_no_list_of_addresses() -> None:
    with pytest.raises(TypeError, match="sequence of addresses"):
        attach_to_workers(workers="ipc:///tmp/one", ca=TRUST)


# --- owning hosts


@pytest.fixture
def one(hosts: Hosts) -> HostMesh:
    return hosts.attach(hosts.start())


@full
def test_after_shutdown_every_use_fails(hosts: Hosts, one: HostMesh) -> None:
    procs = one.spawn_procs()
    residents = procs.spawn("residents", Resident)
    assert residents.pid.call().get(TIMEOUT)
    one.shutdown().get(TIMEOUT)
    assert hosts.workers[0].status() == 0
    for use in (lambda: one.initialized, one.shutdown, one.stop, one.spawn_procs):
        with pytest.raises(RuntimeError, match=r"^HostMesh has already been shut down$"):
            use()
    with pytest.raises(SupervisionError, match="stopped"):
        residents.pid.call().get(TIMEOUT)


def test_stop_leaves_the_worker_to_be_attached_again(hosts: Hosts, one: HostMesh, watch: Any) -> None:
    residents = one.spawn_procs({"gpus": 2}).spawn("residents", Resident)
    old = list(residents.pid.call().get(TIMEOUT).values())
    running = watch(old)
    one.stop().get(TIMEOUT)
    assert running.survivors(GRACE) == {}
    with pytest.raises(SupervisionError, match="stopped"):
        residents.pid.call().get(TIMEOUT)
    with pytest.raises(RuntimeError, match=r"^HostMesh has already been stopped$"):
        one.spawn_procs()
    again = hosts.attach(hosts.workers[0])
    assert set(pids(again.spawn_procs())).isdisjoint(old)
    again.shutdown().get(TIMEOUT)
    assert hosts.workers[0].status() == 0


@full
def test_a_stopped_mesh_can_be_shut_down(hosts: Hosts, one: HostMesh) -> None:
    one.stop().get(TIMEOUT)
    one.shutdown().get(TIMEOUT)
    assert hosts.workers[0].status() == 0


class Receiver(Actor):
    @endpoint
    async def end(self, mesh: HostMesh) -> str:
        assert await mesh.initialized is True
        kids = mesh.spawn_procs({"k": 2}).spawn("kids", Resident)
        assert len(await kids.pid.call()) == 2 * len(mesh)
        try:
            mesh.shutdown()
        except RuntimeError as exc:
            return str(exc)
        return "it was shut down"


@full
def test_slices_and_received_meshes_are_references(hosts: Hosts) -> None:
    mesh = hosts.attach(hosts.start(), hosts.start())
    reference = "`HostMesh` that is a reference instead of owned"
    for name in ("shutdown", "stop"):
        with pytest.raises(RuntimeError, match=f"^cannot {name.replace('down', ' down')} {reference}"):
            getattr(mesh.slice(hosts=0), name)()
    receiver = mesh.slice(hosts=1).spawn_procs().spawn("receiver", Receiver)
    assert receiver.end.call_one(mesh).get(TIMEOUT).startswith(f"cannot shut down {reference}")
    mesh.shutdown().get(TIMEOUT)


@full
def test_async_with_shuts_down(hosts: Hosts) -> None:
    worker = hosts.start()

    async def main() -> None:
        async with attach_to_workers(workers=[worker.address], ca=TRUST) as mesh:
            assert await mesh.initialized is True
            assert len(await mesh.spawn_procs().spawn("residents", Resident).pid.call()) == 1
        with pytest.raises(RuntimeError, match="already been shut down"):
            async with mesh:
                pass

    asyncio.run(main())
    assert worker.status() == 0


# --- worker loops


@full
def test_a_worker_that_is_shut_down_exits_in_order(hosts: Hosts) -> None:
    source = LOOP.replace("import sys", "import atexit, sys; atexit.register(print, 'at exit')") + "print('not here')\n"
    worker = hosts.start(source=source)
    hosts.attach(worker).shutdown().get(TIMEOUT)
    assert worker.status() == 0
    assert worker.output().splitlines() == ["at exit"]


@full
def test_until_shutdown_returns(hosts: Hosts) -> None:
    worker = hosts.start(source=LOOP.replace("forever", "until_shutdown") + "print('went on'); sys.exit(7)\n")
    hosts.attach(worker).shutdown().get(TIMEOUT)
    assert (worker.status(), worker.output()) == (7, "went on\n")


@full
def test_start_worker_loop_in_this_process(hosts: Hosts) -> None:
    address = hosts.address("mine")
    ended = start_worker_loop_forever(address=address, ca=TRUST)
    with pytest.raises(OSError, match="cannot listen at"):
        start_worker_loop_forever(address=address, ca=TRUST)
    mesh = attach_to_workers(workers=[address], ca=TRUST)
    assert mesh.initialized.get(TIMEOUT) is True
    assert len(pids(mesh.spawn_procs())) == 1
    mesh.shutdown().get(TIMEOUT)
    assert ended.get(TIMEOUT) is None


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen at {address}: .*in use"):
            run_worker_loop_forever(address=address, ca=TRUST)


@pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:70000", "udp://x:1", "ipc://"])
def test_where_nothing_can_listen(address: str) -> None:
    with pytest.raises(ValueError, match="not the address of a host"):
        run_worker_loop_forever(address=address, ca=TRUST)


def test_descriptors_that_nothing_can_listen_at(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="descriptor 987 is not open"):
        run_worker_loop_forever(address="tcp://127.0.0.1:fd987", ca=TRUST)
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match=f"fd{file.fileno()}"):
        run_worker_loop_forever(address=f"tcp://127.0.0.1:fd{file.fileno()}", ca=TRUST)


@full
def test_ctrl_c_ends_a_worker_and_its_processes(hosts: Hosts, one: HostMesh, watch: Any, faults: Any) -> None:
    procs = one.spawn_procs({"gpus": 2})
    running = watch([*pids(procs), hosts.workers[0].agent])
    hosts.workers[0].process.send_signal(signal.SIGINT)
    assert hosts.workers[0].status() != 0
    assert running.survivors(GRACE) == {}
    assert "KeyboardInterrupt" in hosts.workers[0].output()


# --- hosts that are lost


class Overseer(Told):
    """Owns actors on processes of others."""

    @endpoint
    async def oversee(self, procs: ProcMesh) -> int:
        self.kids = procs.spawn("kids", Resident)
        return len(await self.kids.pid.call())


@pytest.fixture
def two(hosts: Hosts) -> HostMesh:
    return hosts.attach(hosts.start(), hosts.start())


@pytest.mark.parametrize("victim", first_of(["agent", "worker"]))
def test_a_worker_that_is_killed(
    hosts: Hosts, two: HostMesh, proc: ProcMesh, faults: Any, watch: Any, victim: str
) -> None:
    lost, other = hosts.workers
    procs = two.spawn_procs({"gpus": 2}, name="remote")
    residents = procs.spawn("residents", Resident)
    overseer = proc.spawn("overseer", Overseer)
    assert overseer.oversee.call_one(procs).get(TIMEOUT) == 4
    port, started = Channel.open()
    waiting = residents.slice(hosts=0, gpus=1).wait.call_one(port)
    gone = watch([*residents.slice(hosts=0, gpus=0).pid.call().get(TIMEOUT).values(), started.recv().get(TIMEOUT)])
    os.kill(lost.agent if victim == "agent" else lost.pid, signal.SIGKILL)
    with pytest.raises(SupervisionError) as raised:
        waiting.get(TIMEOUT)
    assert lost.address in str(raised.value)
    assert gone.survivors(GRACE) == {}
    # Who owns something there is told of each rank, once.
    reports = sorted(overseer.next.call_one().get(TIMEOUT) for _ in range(2))
    assert all(lost.address in report for report in reports)
    mine = sorted(faults.next(handled=None).report() for _ in range(2))
    assert all(lost.address in report for report in mine)
    # The other host goes on, and one that is started where the lost one was is a host like any other.
    assert len(residents.slice(hosts=1).pid.call().get(TIMEOUT)) == 2
    assert lost.status() != 0
    again = hosts.start("w0")
    mesh = hosts.attach(again)
    assert len(pids(mesh.spawn_procs({"gpus": 2}))) == 2
    assert overseer.more.call_one().get(TIMEOUT) == 0
    assert faults.rest() == []
    mesh.shutdown().get(TIMEOUT)
    two.shutdown().get(TIMEOUT)
    assert (again.status(), other.status()) == (0, 0)


@full
def test_a_process_of_another_host_that_ends(hosts: Hosts, one: HostMesh, faults: Any) -> None:
    residents = one.spawn_procs({"gpus": 2}, name="remote").spawn("residents", Resident)
    pid = residents.slice(gpus=1).pid.call_one().get(TIMEOUT)
    with pytest.raises(SupervisionError) as raised:
        residents.slice(gpus=1).die.call_one("these are my last words").get(TIMEOUT)
    for text in (str(raised.value), faults.next(handled=True).report()):
        assert "exited with non-zero code 3" in text and "these are my last words" in text
        assert f"pid {pid}" in text and socket.gethostname() in text
    one.shutdown().get(TIMEOUT)


CLIENT = """
    import os, signal, sys, threading
    from monarch.actor import Actor, attach_to_workers, endpoint

    class Resident(Actor):
        @endpoint
        async def pid(self): return os.getpid()

    mesh = attach_to_workers(workers=sys.argv[2:], ca="trust_all_connections")
    residents = mesh.spawn_procs({"gpus": 2}).spawn("residents", Resident)
    print(*residents.pid.call().get(300).values(), flush=True)
    sys.stdin.readline()
    match sys.argv[1]:
        case "return": pass
        case "raise": raise RuntimeError("of the client")
        case "os._exit": os._exit(0)
        case signal_name: os.kill(os.getpid(), signal.Signals[signal_name]); threading.Event().wait()
"""


@pytest.mark.parametrize("way", first_of(["return", "raise", "os._exit", "SIGTERM", "SIGKILL"]))
def test_a_client_that_leaves(hosts: Hosts, scripts: Any, watch: Any, way: str) -> None:
    workers = [hosts.start(), hosts.start_tcp()]
    client = scripts.start(CLIENT, way, *(worker.address for worker in workers))
    running = watch([int(pid) for pid in client.stdout.readline().split()])
    client.communicate("go on\n", timeout=TIMEOUT)
    assert running.survivors(GRACE) == {}
    mesh = hosts.attach(*workers)
    assert len(pids(mesh.spawn_procs())) == 2
    mesh.shutdown().get(TIMEOUT)
    assert [worker.status() for worker in workers] == [0, 0]


@full
@pytest.mark.parametrize("number", first_of([signal.SIGKILL, signal.SIGSTOP]))
def test_a_client_whose_machine_is_gone(
    hosts: Hosts, scripts: Any, watch: Any, descendants: Any, number: signal.Signals
) -> None:
    """Its agent says nothing more, and nobody says goodbye."""
    short = {"HYPERACTOR_SERVER_HEARTBEAT_INTERVAL": "100ms", "HYPERACTOR_MESH_ORPHAN_TIMEOUT": "300ms"}
    worker = hosts.start_tcp(env=short)
    client = scripts.start(CLIENT, "return", worker.address, env=short)
    running = watch([int(pid) for pid in client.stdout.readline().split()])
    for pid in [*descendants(client.pid), client.pid]:
        with suppress(ProcessLookupError):  # some end with others
            os.kill(pid, number)
    assert running.survivors(GRACE) == {}
    mesh = hosts.attach(worker)
    assert len(pids(mesh.spawn_procs())) == 1
    mesh.shutdown().get(TIMEOUT)
    assert worker.status() == 0
    for pid in descendants(client.pid):
        os.kill(pid, signal.SIGKILL)


# --- programs


class Talker(AsyncPid):
    def __init__(self) -> None:
        self.singleton: Any = None

    @endpoint
    async def ask(self, others: Any) -> list[int]:
        return sorted((await others.pid.call()).values())

    @endpoint
    async def tell(self, port: Port[int], values: range) -> None:
        for value in values:
            port.send(value)

    @endpoint
    async def sibling(self) -> int:
        kids = this_host().spawn_procs().spawn("kids", Resident)
        return await kids.agent.call_one()

    @endpoint
    async def count(self) -> int:
        counter = await get_or_spawn_controller("counter", Counter)
        return await counter.add.call_one()


class Counter(Actor):
    def __init__(self) -> None:
        self.value = 0

    @endpoint
    async def add(self) -> int:
        self.value += 1
        return self.value


def test_actors_talk_across_hosts(hosts: Hosts, two: HostMesh) -> None:
    procs = two.spawn_procs({"gpus": 2})
    talkers, residents = procs.spawn("talkers", Talker), procs.spawn("residents", Resident)
    expected = sorted(residents.pid.call().get(TIMEOUT).values())
    assert [value for _, value in talkers.ask.call(residents).get(TIMEOUT)] == [expected] * 4
    port, received = Channel.open()
    talkers.tell.broadcast(port, range(100))
    values = [received.recv().get(TIMEOUT) for _ in range(400)]
    assert sorted(values) == sorted([*range(100)] * 4)
    agents = [value for _, value in talkers.sibling.call().get(TIMEOUT)]
    assert agents == [worker.agent for worker in hosts.workers for _ in range(2)]
    assert sorted(talkers.count.call().get(TIMEOUT).values()) == [1, 2, 3, 4]
    two.shutdown().get(TIMEOUT)


class Large(Actor):
    @endpoint
    async def turn(self, data: bytes) -> bytes:
        return data[::-1]


@full
def test_200_megabytes_there_and_back(hosts: Hosts) -> None:
    mesh = hosts.attach(hosts.start_tcp())
    data = os.urandom(1 << 20) * 200
    result = mesh.spawn_procs().spawn("large", Large).turn.call_one(data).get(2 * TIMEOUT)
    assert result == data[::-1]
    mesh.shutdown().get(TIMEOUT)


@full
def test_environment_comes_from_the_worker_then_attach_then_spawn(hosts: Hosts) -> None:
    worker = hosts.start(env={"FROM_A": "worker", "FROM_B": "worker", "FROM_C": "worker", "FROM_D": "worker"})
    os.environ["FROM_CLIENT"] = "not to be seen"
    try:
        mesh = hosts.attach(worker, env={"FROM_B": "attach", "FROM_C": "attach"})
        procs = mesh.spawn_procs(env={"FROM_C": "spawn", "FROM_D": None})
        names = ["FROM_A", "FROM_B", "FROM_C", "FROM_D", "FROM_CLIENT"]
        found = procs.spawn("residents", Resident).env.call_one(*names).get(TIMEOUT)
    finally:
        del os.environ["FROM_CLIENT"]
    assert found == ["worker", "attach", "spawn", None, None]
    mesh.shutdown().get(TIMEOUT)


@full
def test_folders_and_import_paths(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.mkdir()
    monkeypatch.setattr(sys, "path", [str(there), str(gone), *sys.path])
    monkeypatch.chdir(there)
    mesh = hosts.attach(hosts.start())
    cwd, path = mesh.spawn_procs().spawn("residents", Resident).where.call_one().get(TIMEOUT)
    assert (cwd, path[0]) == (str(there), str(there))
    assert str(gone) not in path and str(ROOT) in path
    mesh.shutdown().get(TIMEOUT)


@full
def test_commands_executables_bindings_bootstraps(hosts: Hosts, one: HostMesh) -> None:
    names = ["IN_COMMAND", "IN_WORKER", "IN_BOOTSTRAP"]
    command = default_bootstrap_cmd().with_env({"IN_COMMAND": "yes"})

    def bootstrap() -> None:
        os.environ["IN_BOOTSTRAP"] = "yes"

    procs = one.spawn_procs({"gpus": 2}, bootstrap=bootstrap, bootstrap_command=command, proc_bind=[{"cpus": "0"}] * 2)
    residents = procs.spawn("residents", Resident)
    assert [value for _, value in residents.env.call(*names).get(TIMEOUT)] == [["yes", None, "yes"]] * 2
    assert [value for _, value in residents.affinity.call().get(TIMEOUT)] == [[0]] * 2
    assert [value for _, value in residents.agent.call().get(TIMEOUT)] == [hosts.workers[0].agent] * 2
    python = hosts.folder / "another-python"
    python.write_text(f'#!/bin/sh\nexport IN_COMMAND=wrapped\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    other = one.with_python_executable(str(python)).spawn_procs().spawn("residents", Resident)
    assert other.env.call_one("IN_COMMAND").get(TIMEOUT) == ["wrapped"]
    with pytest.raises(Exception, match="does not exist") as raised:
        one.with_python_executable("/no/such/python").spawn_procs().initialized.get(TIMEOUT)
    assert "/no/such/python" in str(raised.value)
    one.shutdown().get(TIMEOUT)


class Reborn(Resident):
    def __init__(self, port: Port[int]) -> None:
        self.port = port

    def __restarted__(self, failure: Any) -> None:
        self.port.send(os.getpid())


@full
def test_a_policy_restarts_on_another_host_but_not_on_a_lost_one(hosts: Hosts, two: HostMesh, faults: Any) -> None:
    port, reborn = Channel.open()
    procs = two.spawn_procs(name="policed")
    with RestartPolicy(max_restarts=9, backoff=0.01):
        residents = procs.spawn("residents", Reborn, port)
    os.kill(residents.slice(hosts=1).pid.call_one().get(TIMEOUT), signal.SIGKILL)
    pid = reborn.recv().get(TIMEOUT)
    assert residents.slice(hosts=1).pid.call_one().get(TIMEOUT) == pid
    lost = hosts.workers[1]
    os.kill(lost.agent, signal.SIGKILL)
    assert lost.address in faults.next().report()
    with pytest.raises(RuntimeError, match=f"its host {lost.address} is gone"):
        procs.restart(failed=True).get(TIMEOUT)
    assert len(residents.slice(hosts=0).pid.call().get(TIMEOUT)) == 1
    assert faults.rest() == []
    two.shutdown().get(TIMEOUT)


class Chained(Actor):
    @endpoint
    def ask(self, chain: list[Any]) -> int:
        return chain[0].ask.call_one(chain[1:]).get() if chain else os.getpid()

    @endpoint
    def hold(self, entered: Port[Port[None]]) -> None:
        port, receiver = Channel.open()
        entered.send(port)
        receiver.recv().get(TIMEOUT)


@full
def test_a_circle_of_waits_across_hosts(hosts: Hosts) -> None:
    configure(deadlock_after="200ms")
    mesh = hosts.attach(hosts.start(), hosts.start())
    chained = mesh.spawn_procs().spawn("chained", Chained)
    a, b = chained.slice(hosts=0), chained.slice(hosts=1)
    error = a.ask.call_one([b, a]).exception(TIMEOUT)
    while isinstance(error, ActorError):
        error = error.exception
    assert isinstance(error, DeadlockError)
    assert a.ask.call_one([b]).get(TIMEOUT)
    mesh.shutdown().get(TIMEOUT)


@full
def test_the_wait_graph_shows_other_hosts(two: HostMesh) -> None:
    chained = two.spawn_procs().spawn("chained", Chained)
    a, b = chained.slice(hosts=0), chained.slice(hosts=1)
    port, entered = Channel.open()
    held = b.hold.call_one(port)
    release = entered.recv().get(TIMEOUT)
    asked = a.ask.call_one([b])
    while not (edges := [edge for edge in wait_graph().get(TIMEOUT).edges if edge.target == "chained.ask"]):
        pass
    assert edges[0].address.startswith(two._hosts[0])
    handlers = {handler.endpoint: handler.address for handler in wait_graph().get(TIMEOUT).handlers}
    assert handlers["hold"].startswith(two._hosts[1])
    release.send(None)
    held.get(TIMEOUT)
    assert asked.get(TIMEOUT)
    two.shutdown().get(TIMEOUT)


@full
def test_a_module_that_is_missing_on_a_host(hosts: Hosts, one: HostMesh, tmp_path: Path, faults: Any) -> None:
    """Runs as on another machine, whose files are not ours: the folder has another name there."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "only_on_the_client.py").write_text(
        "from monarch.actor import Actor, endpoint\nclass Local(Actor):\n    @endpoint\n    def pid(self): return 1\n"
    )
    procs = one.spawn_procs()
    assert procs.initialized.get(TIMEOUT)
    sys.path.insert(0, str(tmp_path / "mine"))
    try:
        from only_on_the_client import Local  # type: ignore[import-not-found]

        with pytest.raises(SupervisionError) as raised:
            procs.spawn("local", Local).pid.call().get(TIMEOUT)
    finally:
        sys.path.remove(str(tmp_path / "mine"))
        sys.modules.pop("only_on_the_client", None)
    report = faults.next(handled=True).report()
    for part in (
        "only_on_the_client",
        socket.gethostname(),
        sys.executable,
        "Install it",
        "PYTHONPATH",
        "sync_workspace",
    ):
        assert part in str(raised.value) and part in report
    one.shutdown().get(TIMEOUT)


LOGGING = """
    import asyncio, os, sys
    from monarch.actor import Actor, attach_to_workers, endpoint
    from monarch.config import configure

    class Talker(Actor):
        @endpoint
        def say(self, line):
            print(line)
            print(line.upper(), file=sys.stderr)

    mesh = attach_to_workers(workers=sys.argv[1:], ca="trust_all_connections")
    procs = mesh.spawn_procs(name="remote")
    talkers = procs.spawn("talker", Talker)
    talkers.say.call("before").get(300)
    procs.logging_option(stream_to_client=True, aggregate_window_sec=600).get(300)
    talkers.say.call("folded").get(300)
    asyncio.run(procs.logging_option())
    talkers.say.call("after").get(300)
    mesh.shutdown().get(300)
"""


def test_output_of_other_hosts_comes_to_the_client(hosts: Hosts, scripts: Any) -> None:
    workers = [hosts.start(), hosts.start()]
    done = scripts.run(LOGGING, *(worker.address for worker in workers))
    name = socket.gethostname()
    for rank in (0, 1):
        for word in ("before", "after"):
            assert f"[{name} remote] [{rank}] {word}\n" in done.stdout
            assert f"[{name} remote] [{rank}] {word.upper()}\n" in done.stderr
    assert done.stdout.count("[1 similar log lines]") == 2  # each host folds the lines of its own ranks
    assert [worker.status() for worker in workers] == [0, 0]
    assert not any("after" in worker.output() for worker in workers)


@full
def test_or_stays_with_their_workers(hosts: Hosts, scripts: Any) -> None:
    worker = hosts.start()
    program = LOGGING.replace("    mesh = attach", "    configure(stream_remote_output=False)\n    mesh = attach")
    done = scripts.run(program, worker.address)
    assert "before" not in done.stdout
    assert "logging_option" not in done.stdout and "no effect" in done.stderr
    assert worker.status() == 0
    assert worker.output().splitlines().count("before") == 1
    assert worker.output().splitlines().count("BEFORE") == 1


AT_EXIT = """
    import sys
    from monarch.actor import Actor, attach_to_workers, endpoint

    class Talker(Actor):
        @endpoint
        def say(self, line):
            print(line)

    mesh = attach_to_workers(workers=sys.argv[1:], ca="trust_all_connections")
    mesh.spawn_procs(name="remote").spawn("talker", Talker).say.call("the last words").get(300)
"""


@full
def test_a_program_that_ends_has_printed_what_they_wrote(hosts: Hosts, scripts: Any) -> None:
    done = scripts.run(AT_EXIT, hosts.start().address)
    assert done.stdout.splitlines() == [f"[{socket.gethostname()} remote] [0] the last words"]


FLOOD = """
    import sys
    from monarch.actor import Actor, attach_to_workers, endpoint

    class Talker(Actor):
        @endpoint
        def flood(self, lines):
            for number in range(lines):
                print(f"{number:0100}")
            return "written"

    mesh = attach_to_workers(workers=sys.argv[1:], ca="trust_all_connections")
    talker = mesh.spawn_procs(name="remote").spawn("talker", Talker)
    print(talker.flood.call(200_000).get(300).values()[0], file=sys.stderr)
    sys.stdin.readline()
    mesh.shutdown().get(300)
"""


@full
def test_what_the_client_does_not_print_is_dropped_with_a_note(hosts: Hosts, scripts: Any) -> None:
    """20 MB, of which nobody reads a byte: the actor goes on, nothing grows, and it is said how much is missing."""
    client = scripts.start(FLOOD, hosts.start().address)
    assert client.stderr.readline() == "written\n"
    out, err = client.communicate("\n", timeout=60)
    lines = out.splitlines()
    assert len(out) < 4 << 20
    notes = re.findall(r"^\[\S+ remote\] \[0\] \[(\d+) lines, \d+ characters were dropped", err, re.M)
    assert notes
    assert len(lines) + sum(map(int, notes)) == 200_000
    assert [line.split()[-1] for line in lines] == sorted(line.split()[-1] for line in lines)


SLOW = """
    import os, sys, threading
    from pathlib import Path
    from monarch.actor import Actor, Channel, attach_to_workers, endpoint

    class Slow(Actor):
        def __init__(self): self.seen = []
        @endpoint
        def block(self, port):
            resume, go_on = Channel.open()
            port.send(resume)
            go_on.recv().get(300)
        @endpoint
        def take(self, number, data): self.seen.append((number, len(data)))
        @endpoint
        def taken(self): return self.seen

    def peak(pid):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) >> 10

    class Sender(Actor):
        @endpoint
        def send(self, slow, count):
            for number in range(count):
                slow.take.broadcast(number, bytes(1 << 20))

    mesh = attach_to_workers(workers=sys.argv[1:3], ca="trust_all_connections")
    slow = mesh.slice(hosts=1).spawn_procs().spawn("slow", Slow)
    sender = mesh.slice(hosts=0).spawn_procs().spawn("sender", Sender)
    port, blocked = Channel.open()
    slow.block.broadcast(port)
    resume = blocked.recv().get(300)
    sending = sender.send.call_one(slow, 300)
    try:
        sending.get(2)  # more than 300 MiB need, were they taken
    except TimeoutError:
        print("held")
    peaks = [peak(int(pid)) for pid in sys.argv[3:]]
    resume.send(None)
    sending.get(300)
    assert slow.taken.call_one().get(300) == [(number, 1 << 20) for number in range(300)]
    print(*peaks)
    mesh.shutdown().get(300)
"""


@full
def test_a_slow_receiver_holds_the_sender_and_nothing_is_lost(hosts: Hosts, scripts: Any) -> None:
    small = {"MONARCH_OUTGOING_QUEUE_BYTES": str(4 << 20), "MONARCH_MAILBOX_MESSAGES": "20"}
    workers = [hosts.start_tcp(env=small), hosts.start_tcp(env=small)]
    first = hosts.attach(*workers)  # they are there: their agents can be named
    first.stop().get(TIMEOUT)
    named = [str(worker.agent) for worker in workers]
    done = scripts.run(SLOW, *(worker.address for worker in workers), *named, env=small)
    lines = done.stdout.splitlines()
    assert lines[0] == "held"
    assert all(int(peak) < 200 for peak in lines[1].split()), lines[1]


# --- clients that reach others in other ways

GATEWAY = """
    import sys
    from monarch.actor import Actor, Channel, attach, attach_to_workers, endpoint, this_host

    class Teller(Actor):
        @endpoint
        def pid(self): return 1
        @endpoint
        def tell(self, port): port.send("told")

    attach(sys.argv[1])
    attach(sys.argv[1])
    try:
        attach(sys.argv[2])
    except RuntimeError as exc:
        print("another:", exc)
    mesh = attach_to_workers(workers=sys.argv[1:3], ca="trust_all_connections")
    tellers = mesh.spawn_procs({"gpus": 2}).spawn("tellers", Teller)
    print(*tellers.pid.call().get(300).values())
    port, received = Channel.open()
    tellers.tell.broadcast(port)
    print(*(received.recv().get(300) for _ in range(4)))
    assert this_host()._hosts[0].startswith("unix:")
    print("ready", flush=True)
    sys.stdin.readline()
    mesh.shutdown().get(300)
    try:
        attach(sys.argv[2])
    except RuntimeError as exc:
        print("late:", exc)
"""


@full
def test_everything_goes_through_the_worker_that_was_attached(hosts: Hosts, scripts: Any, descendants: Any) -> None:
    workers = [hosts.start_tcp(), hosts.start_tcp()]
    client = scripts.start(GATEWAY, *(worker.address for worker in workers))
    lines = []
    while not lines or lines[-1] != "ready\n":
        lines.append(client.stdout.readline())
        assert lines[-1], client.stderr.read()
    assert workers[0].address in lines[0] and workers[1].address in lines[0]
    assert lines[1:3] == ["1 1 1 1\n", "told told told told\n"]
    ports = [int(worker.address.rpartition(":")[2]) for worker in workers]
    ours = {inode for pid in (client.pid, *descendants(client.pid)) for inode in sockets_of(pid)}
    reached = {remote for inode, remote in tcp_connections() if inode in ours}
    assert reached == {ports[0]}
    out, err = client.communicate("end\n", timeout=TIMEOUT)
    assert client.returncode == 0, err
    assert "late: " in out
    assert [worker.status() for worker in workers] == [0, 0]


OTHER_GATEWAY = """
    import sys
    from monarch.actor import Actor, attach, attach_to_workers, endpoint

    class Teller(Actor):
        @endpoint
        def pid(self): return 1

    attach(sys.argv[1], secret="known to both, and long enough")
    mesh = attach_to_workers(workers=sys.argv[2:], secret="known to both, and long enough")
    print(mesh.spawn_procs().spawn("tellers", Teller).pid.call_one().get(300))
    mesh.shutdown().get(300)
"""


@full
def test_a_worker_that_is_no_host_of_the_mesh_is_shown_the_secret_too(hosts: Hosts, scripts: Any) -> None:
    env = {"MONARCH_SECRET": "known to both, and long enough"}
    gateway, other = hosts.start_tcp(env=env), hosts.start_tcp(env=env)
    assert scripts.run(OTHER_GATEWAY, gateway.address, other.address).stdout == "1\n"
    assert other.status() == 0


def sockets_of(pid: int) -> set[int]:
    links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def tcp_connections() -> list[tuple[int, int]]:
    """(inode, remote port) of each established connection over IPv4."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [(int(row[9]), int(row[2].partition(":")[2], 16)) for row in rows if row[3] == "01"]


TRANSPORT = """
    import sys
    from monarch.actor import Actor, attach_to_workers, enable_transport, endpoint, this_host

    class Resident(Actor):
        @endpoint
        def pid(self): return 1

    class Spawner(Actor):
        @endpoint
        async def spawn(self, host):
            return len(await host.spawn_procs({"k": 2}).spawn("kids", Resident).pid.call())

    enable_transport("tcp://127.0.0.1:0")
    enable_transport("tcp://127.0.0.1:0")
    try:
        enable_transport("ipc")
    except RuntimeError as exc:
        assert "Only one transport type" in str(exc), exc
    mesh = attach_to_workers(workers=sys.argv[1:2], secret="a-secret-of-both")
    print(this_host()._hosts[0])
    spawner = mesh.spawn_procs().spawn("spawner", Spawner)
    print(spawner.spawn.call_one(this_host()).get(300))
    try:
        enable_transport("ipc")
    except RuntimeError as exc:
        assert "must be called before any other calls" in str(exc), exc
    mesh.shutdown().get(300)
"""


@full
def test_a_client_with_an_address_is_a_host_for_others(hosts: Hosts, scripts: Any) -> None:
    secret = {"MONARCH_SECRET": "a-secret-of-both"}
    worker = hosts.start_tcp(env=secret)
    address, count = scripts.run(TRANSPORT, worker.address, env=secret).stdout.splitlines()
    assert address.startswith("tcp://127.0.0.1:")
    assert count == "2"
    assert worker.status() == 0


@full
def test_hosts_from_config(scripts: Any) -> None:
    done = scripts.run(
        """
        import os
        from monarch._mesh.meshes.attach import hosts_from_config
        from monarch.actor import Actor, endpoint

        class Resident(Actor):
            @endpoint
            def agent(self): return os.getsid(0)

        mesh = hosts_from_config("mine")
        assert mesh.initialized.get(300) is True
        agents = mesh.spawn_procs({"gpus": 2}).spawn("residents", Resident).agent.call().get(300)
        print(mesh.sizes, len(set(agents.values())))
        """
    )
    assert done.stdout == "{'hosts': 2} 2\n"
    assert list(scripts.runtime.iterdir()) == []


@full
def test_a_host_that_falls_silent_is_suspected_then_lost(hosts: Hosts, faults: Any, watch: Any) -> None:
    configure(server_heartbeat_interval="100ms", channel_reconnect_timeout="500ms")
    silent, other = hosts.start_tcp(), hosts.start_tcp()
    mesh = hosts.attach(silent, other)
    residents = mesh.spawn_procs().spawn("residents", Resident)
    gone = watch([residents.slice(hosts=0).pid.call_one().get(TIMEOUT)])
    agent = silent.agent
    os.kill(agent, signal.SIGSTOP)
    port, _ = Channel.open()
    with pytest.raises(SupervisionError) as raised:
        residents.slice(hosts=0).wait.call_one(port).get(TIMEOUT)
    assert silent.address in str(raised.value) and "channel_reconnect_timeout" in str(raised.value)
    assert silent.address in faults.next(handled=True).report()
    assert len(residents.slice(hosts=1).pid.call().get(TIMEOUT)) == 1
    os.kill(agent, signal.SIGCONT)  # the host lives, and hears that it was given up when it is attached again
    again = hosts.attach(silent)
    assert gone.survivors(GRACE) == {}
    assert len(pids(again.spawn_procs())) == 1
    again.shutdown().get(TIMEOUT)
    mesh.shutdown().get(TIMEOUT)
    assert (silent.status(), other.status()) == (0, 0)


# --- leases


LEASED = """
import sys
from monarch.actor import run_worker_loop_until_shutdown
run_worker_loop_until_shutdown(address=sys.argv[1], ca="trust_all_connections", lease={lease!r})
print("the loop returned")
"""


def test_a_worker_without_a_client_ends_when_its_lease_is_over(hosts: Hosts) -> None:
    worker = hosts.start(source=LEASED.format(lease="100ms"))
    assert worker.status() == 0
    (why,) = [line for line in worker.output().splitlines() if "no client" in line]
    assert why.endswith("ends: no client for 0.1 s (setting worker_lease, MONARCH_WORKER_LEASE, --lease)")
    assert "the loop returned" in worker.output()


@full
def test_the_lease_begins_anew_when_the_last_client_is_lost(hosts: Hosts) -> None:
    worker = hosts.start(env={"MONARCH_WORKER_LEASE": "15s"})
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT_THAT_STAYS, worker.address], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        assert client.stdout is not None and client.stdout.readline() == b"attached\n"
        attached = time.monotonic()
        client.kill()
        assert worker.status() == 0
        assert time.monotonic() - attached >= 15
        assert "no client for 15 s" in worker.output()
    finally:
        client.kill()
        client.communicate()


CLIENT_THAT_STAYS = """
import sys
from monarch.actor import attach_to_workers
attach_to_workers(workers=[sys.argv[1]], ca="trust_all_connections").initialized.get(300)
print("attached", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("lease", ["soon", -1, "-1s", True, float("inf")])
def test_a_lease_that_is_no_time(lease: Any) -> None:
    with pytest.raises(ValueError, match="lease must be seconds"):
        run_worker_loop_until_shutdown(address="ipc:///nowhere", ca=TRUST, lease=lease)
