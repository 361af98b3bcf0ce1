"""Every way a process can die: told once to each owner, with the rank, the process, how it ended and its last words."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Channel,
    Port,
    ProcMesh,
    SupervisionError,
    current_rank,
    endpoint,
)
from monarch.config import configured
from tests.support.patience import GRACE, TIMEOUT
from tests.support.process_actors import AsyncPid, Told
from tests.support.tiers import every_nth, first_of, full

pytestmark = pytest.mark.procs


def sleep_for_ever() -> None:
    threading.Event().wait()


def exit_in_a_thread() -> None:
    threading.Thread(target=os._exit, args=(5,)).start()
    sleep_for_ever()


def abort_in_a_thread_of_c() -> None:
    """Ends as an exception does that nobody catches in a thread of a C++ library; the interpreter knows nothing of it."""
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(thread), None, libc.abort, None)
    sleep_for_ever()


WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "exit 1": (lambda: os._exit(1), "exited with non-zero code 1"),
    "exit 255": (lambda: os._exit(255), "exited with non-zero code 255"),
    "exit in a thread": (exit_in_a_thread, "exited with non-zero code 5"),
    "SIGSEGV": (lambda: ctypes.string_at(0), "Killed(sig=11)"),
    "SIGABRT": (os.abort, "Killed(sig=6)"),
    "abort in a thread of C": (abort_in_a_thread_of_c, "Killed(sig=6)"),
    "SIGBUS": (lambda: os.kill(os.getpid(), signal.SIGBUS), "Killed(sig=7)"),
    "SIGFPE": (lambda: os.kill(os.getpid(), signal.SIGFPE), "Killed(sig=8)"),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), "Killed(sig=15)"),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "Killed(sig=9)"),
}


class Mortal(AsyncPid):
    def __init__(self, dies_on: int | None = None) -> None:
        if current_rank().rank == dies_on:
            os._exit(9)

    @endpoint
    async def wait(self, port: Port[int]) -> None:
        port.send(os.getpid())
        await asyncio.Event().wait()

    @endpoint
    async def die(self, how: str, words: str) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        print(words, file=sys.stderr, flush=True)
        WAYS[how][0]()
        sleep_for_ever()  # a signal may take a moment

    @endpoint
    async def close_everything(self) -> None:
        os.closerange(0, 65536)
        sleep_for_ever()

    @endpoint
    async def leave_behind(self) -> int:
        """A child in this process's group."""
        return subprocess.Popen(["sleep", "1000"]).pid

    @endpoint
    async def take_memory(self, size: int) -> None:
        bytearray(size)[::4096] = b"x" * (size // 4096)


class Owner(Told):
    """Spawns on processes of somebody else."""

    @endpoint
    async def spawn(self, procs: ProcMesh) -> str:
        self.kids = procs.spawn("theirs", Mortal)
        await self.kids.pid.call()
        return await self.kids._name


def name(mesh: Any) -> str:
    return str(mesh._name.get(timeout=TIMEOUT))


# --- how a process ends


@pytest.mark.parametrize("how", every_nth(WAYS, 3))
def test_a_death_is_told_once_for_each_mesh_with_all_that_is_known(own: Any, faults: Any, how: str) -> None:
    meshes = {name(mesh): mesh for mesh in (own.spawn("first", Mortal), own.spawn("second", Mortal))}
    mesh = next(iter(meshes.values()))
    pids = mesh.pid.call().get(timeout=TIMEOUT).values()
    words = f"the last words before {how}"
    with pytest.raises(SupervisionError) as caught:
        mesh.slice(gpus=1).die.call_one(how, words).get(timeout=TIMEOUT)
    told = [faults.next(handled=True), faults.next(handled=True)]
    assert {failure.mesh_name for failure in told} == set(meshes)
    for failure in told:
        assert failure.crashed_ranks == [1]
        for part in (
            f"failed: {WAYS[how][1]}",
            f"rank 1 of {failure.mesh_name}, pid {pids[1]} on {socket.gethostname()}, at unix:",
            f"the last lines it wrote to stderr:\n      {words}",
        ):
            assert part in failure.report()
    assert next(failure for failure in told if failure.mesh_name == name(mesh)).report() in str(caught.value)
    assert [mesh.slice(gpus=0).pid.call_one().get(timeout=TIMEOUT) for mesh in meshes.values()] == [pids[0]] * 2
    own.stop().get(timeout=TIMEOUT)
    assert faults.rest() == []


def test_as_many_last_lines_are_shown_as_the_setting_says(spawn_procs: Any, faults: Any) -> None:
    lines = "\n".join(f"line {number}" for number in range(30))
    for given, count in (({}, 20), ({"tail_log_lines": 2}, 2), ({"tail_log_lines": 0}, 0)):
        with configured(**given):
            mesh = spawn_procs(name=f"keeps{count}").spawn("mortal", Mortal)
            with pytest.raises(SupervisionError):
                mesh.die.call_one("exit 1", lines).get(timeout=TIMEOUT)
        report = faults.next(handled=True).report()
        shown = [line.strip() for line in report.splitlines() if line.strip().startswith("line ")]
        assert shown == [f"line {number}" for number in range(30 - count, 30)]
        assert ("the last lines it wrote" in report) is bool(count)


@full
def test_a_process_that_closes_all_its_descriptors_is_out_of_reach_and_ended(own: Any, faults: Any, watch: Any) -> None:
    # Its I/O thread sleeps in what was closed, and hears nothing; or it looks just then, and ends the process.
    ended = "closed its connection to the host agent|exited with non-zero code 4"
    mesh = own.spawn("mortal", Mortal)
    there = watch([mesh.slice(gpus=1).pid.call_one().get(timeout=TIMEOUT)])
    with pytest.raises(SupervisionError, match=ended):
        mesh.slice(gpus=1).close_everything.call_one().get(timeout=TIMEOUT)
    assert re.search(ended, faults.next(handled=True).report())
    assert there.survivors(GRACE) == {}
    with pytest.raises(SupervisionError, match=ended):
        mesh.pid.call().get(timeout=TIMEOUT)
    assert faults.rest() == []


def test_a_process_killed_for_its_memory_is_told_as_that(own: Any, faults: Any, small: Callable[[int], None]) -> None:
    mesh = own.spawn("mortal", Mortal).slice(gpus=1)
    small(mesh.pid.call_one().get(timeout=TIMEOUT))
    with pytest.raises(
        SupervisionError, match=r"killed by the kernel.*: out of memory \(limit 128 MiB of control group"
    ):
        mesh.take_memory.call_one(512 << 20).get(timeout=TIMEOUT)
    assert "out of memory" in faults.next().report()


@pytest.fixture
def small() -> Iterator[Callable[[int], None]]:
    """`small(pid)` puts a process into a control group with 128 MiB of memory.

    Control groups belong to whoever manages the machine, so one in which tests may make others has to be named.
    """
    given = os.environ.get("MONARCH_TEST_MEMORY_GROUP", "")
    if not given:
        pytest.skip("MONARCH_TEST_MEMORY_GROUP does not name a memory control group in which tests may make groups")
    group = Path(given) / f"monarch-test-{os.getpid()}"
    group.mkdir()
    limit = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
    try:
        (group / limit).write_text(str(128 << 20))
        yield lambda pid: (group / "cgroup.procs").write_text(str(pid)) and None
    finally:
        group.rmdir()


# --- when it ends


def test_a_process_that_dies_in_a_constructor(own: Any, faults: Any) -> None:
    other = own.spawn("other", Mortal)
    other.pid.call().get(timeout=TIMEOUT)
    mesh = own.spawn("mortal", Mortal, dies_on=1)
    for failing in (mesh, other):
        with pytest.raises(SupervisionError, match="exited with non-zero code 9"):
            failing.pid.call().get(timeout=TIMEOUT)
        assert failing.slice(gpus=0).pid.call_one().get(timeout=TIMEOUT) > 0
    told = [faults.next(handled=True), faults.next(handled=True)]
    assert {failure.mesh_name for failure in told} == {name(mesh), name(other)}
    assert [failure.crashed_ranks for failure in told] == [[1], [1]]
    own.stop().get(timeout=TIMEOUT)
    assert faults.rest() == []


def test_a_process_that_dies_in_the_bootstrap_function(spawn_procs: Any, faults: Any) -> None:
    def prepare() -> None:
        if current_rank()["gpus"] == 1:
            os._exit(9)

    procs = spawn_procs({"gpus": 2}, bootstrap=prepare)
    mesh = procs.spawn("mortal", Mortal)
    with pytest.raises(RuntimeError, match="exited with non-zero code 9"):
        procs.initialized.get(timeout=TIMEOUT)
    with pytest.raises(SupervisionError, match="exited with non-zero code 9"):
        mesh.pid.call().get(timeout=TIMEOUT)
    assert mesh.slice(gpus=0).pid.call_one().get(timeout=TIMEOUT) > 0
    failure = faults.next(handled=True)
    assert (failure.mesh_name, failure.crashed_ranks) == (name(mesh), [1])
    procs.stop().get(timeout=TIMEOUT)
    assert faults.rest() == []


@pytest.mark.parametrize("ranks", first_of([[1, 2], [0, 1, 2, 3]]), ids=["two of four", "all"])
def test_processes_that_die_at_once_are_told_of_one_by_one(spawn_procs: Any, faults: Any, ranks: list[int]) -> None:
    procs = spawn_procs({"gpus": 4})
    mesh = procs.spawn("mortal", Mortal)
    pids = mesh.pid.call().get(timeout=TIMEOUT).values()
    port, receiver = Channel[int].open()
    whole = mesh.wait.call(port)
    each = [mesh.slice(gpus=rank).wait.call_one(port) for rank in range(4)]
    assert {receiver.recv().get(timeout=TIMEOUT) for _ in range(4)} == set(pids)
    for rank in ranks:
        os.kill(pids[rank], signal.SIGKILL)
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        whole.get(timeout=TIMEOUT)
    for rank in ranks:
        with pytest.raises(SupervisionError, match=rf"\(sig=9\)\n    rank {rank} of mortal-\w+, pid {pids[rank]} on "):
            each[rank].get(timeout=TIMEOUT)
    told = [faults.next(handled=True) for _ in ranks]
    assert sorted(failure.crashed_ranks for failure in told) == [[rank] for rank in ranks]
    assert {failure.mesh_name for failure in told} == {name(mesh)}
    procs.stop().get(timeout=TIMEOUT)
    assert faults.rest() == []


def test_each_owner_of_actors_in_a_process_is_told_once_of_its_own(proc: ProcMesh, own: Any, faults: Any) -> None:
    ours = own.spawn("ours", Mortal)
    owner = proc.spawn("owner", Owner)
    theirs = owner.spawn.call_one(own).get(timeout=TIMEOUT)
    pid = ours.slice(gpus=1).pid.call_one().get(timeout=TIMEOUT)
    os.kill(pid, signal.SIGKILL)
    said = owner.next.call_one().get(timeout=TIMEOUT)
    assert f"rank 1 of {theirs}, pid {pid} on " in said and "Killed(sig=9)" in said
    failure = faults.next()
    assert failure.mesh_name == name(ours) and f"rank 1 of {name(ours)}, pid {pid} on " in failure.report()
    own.stop().get(timeout=TIMEOUT)
    assert owner.more.call_one().get(timeout=TIMEOUT) == 0
    owner.stop().get(timeout=TIMEOUT)
    assert faults.rest() == []


# --- what it leaves behind


def test_what_a_process_has_started_dies_with_it(own: Any, faults: Any, watch: Any) -> None:
    mesh = own.spawn("mortal", Mortal).slice(gpus=1)
    child = watch([mesh.leave_behind.call_one().get(timeout=TIMEOUT)])
    mesh.die.broadcast("SIGKILL", "")
    faults.next()
    assert child.survivors(GRACE) == {}


RUNAWAY = """
import os, sys, time
held = os.open(sys.argv[1], os.O_WRONLY)
os.write(held, b"x")
while True:  # a new process in a new session every few milliseconds, its parent gone
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.003)
"""


@pytest.mark.parametrize("end", first_of(["pass", "os.kill(os.getpid(), 9)"]), ids=["return", "SIGKILL"])
def test_what_has_left_its_process_dies_with_the_client(scripts: Any, tmp_path: Path, end: str) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # readable at its end when no descendant has it open any more
    program = scripts.start(
        f"""
        import os, subprocess, sys
        import monarch.actor
        from monarch.actor import Actor, endpoint, this_host

        monarch.actor.unhandled_fault_hook = lambda failure: None

        class Parent(Actor):
            @endpoint
            def leave(self):
                subprocess.Popen([sys.executable, "-c", {RUNAWAY!r}, {str(fifo)!r}], start_new_session=True)
            @endpoint
            def die(self):
                os._exit(1)

        parent = this_host().spawn_procs().spawn("parent", Parent)
        parent.leave.call_one().get(timeout=300)
        sys.stdin.readline()
        assert parent.die.call_one().exception(timeout=300) is not None
        print("dead", flush=True)
        sys.stdin.readline()
        {end}
        """
    )
    assert select.select([held], [], [], TIMEOUT)[0] and os.read(held, 1) == b"x", "it never ran"
    program.stdin.write("go on\n")
    program.stdin.flush()
    while (line := program.stdout.readline()) != "dead\n":
        assert line, program.communicate(timeout=TIMEOUT)[1]
    with pytest.raises(BlockingIOError):
        os.read(held, 1)  # it outlives its process
    program.communicate("end\n", timeout=TIMEOUT)
    assert select.select([held], [], [], GRACE)[0] and os.read(held, 1) == b"", "it outlives the client"
    os.close(held)


# --- the host agent


AGENT = """
    import os, signal, sys, threading
    import monarch.actor
    from monarch.actor import Actor, Channel, SupervisionError, endpoint, this_host

    class Kid(Actor):
        @endpoint
        def wait(self, port):
            port.send(os.getppid())
            threading.Event().wait()
        @endpoint
        async def pid(self): return os.getpid()

    class Parent(Actor):
        @endpoint
        def grow(self):
            self.kids = this_host().spawn_procs({"k": 2}).spawn("kid", Kid)
            return self.kids.pid.call().get(timeout=300).values()

    def error(operation):
        try:
            operation()
        except Exception as exc:
            assert f"the host agent (pid {agent}) was killed by signal 9" in str(exc), repr(exc)
            return type(exc).__name__
        return "none"

    procs = this_host().spawn_procs({"gpus": 2})
    kids, idle = procs.spawn("kids", Kid), procs.spawn("idle", Kid)
    procs.spawn("parent", Parent).grow.call().get(timeout=300)
    port, receiver = Channel.open()
    waiting = [kids.wait.call(port), *kids.wait.stream(port)]
    agents = {receiver.recv().get(timeout=300) for _ in range(2)}
    (agent,) = agents
"""


def test_every_caller_is_told_when_the_host_agent_is_killed(scripts: Any, descendants: Any, watch: Any) -> None:
    program = scripts.start(
        AGENT
        + """
    told = threading.Semaphore(0)
    def hook(failure):
        assert f"the host agent (pid {agent}) was killed by signal 9" in failure.report(), failure.report()
        told.release()
    monarch.actor.unhandled_fault_hook = hook  # nobody waits, and no Future is waited for: it is a fault
    early = this_host().spawn_procs({"gpus": 2})  # not up yet, or just so
    print(agent, flush=True)
    sys.stdin.readline()
    for _ in range(3):  # each rank of each mesh of the program
        assert told.acquire(timeout=30) and told.acquire(timeout=30)
    from monarch._mesh.failures.main_thread import faults
    assert faults.drain(30) and not told.acquire(blocking=False)
    calls = [error(lambda: call.get(timeout=300)) for call in waiting]
    assert calls == ["SupervisionError"] * 3, calls
    assert error(lambda: receiver.recv().get(timeout=300)) != "none"
    for again in (lambda: idle.pid.call(), lambda: procs.spawn("more", Kid).pid.call(), this_host().spawn_procs):
        assert error(lambda: again().get(timeout=300)) == "ClientClosedError"
    assert error(lambda: early.initialized.get(timeout=300)) in ("RuntimeError", "none")
    for mesh in (procs, early):
        assert error(lambda: mesh.stop().get(timeout=300)) == "none"
    """
    )
    agent = int(program.stdout.readline() or pytest.fail(program.communicate(timeout=TIMEOUT)[1]))
    below = descendants(program.pid)
    assert agent in below and len(below) >= 8
    everyone = watch(below)
    os.kill(agent, signal.SIGKILL)
    left = everyone.survivors(GRACE)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == {}
    _, err = program.communicate("go on\n", timeout=TIMEOUT)
    assert program.returncode == 0, err
    assert list(Path(scripts.runtime).rglob("*")) == []


@full
@pytest.mark.parametrize("how", ["forked", "executed"])
@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_process_that_notices_nothing_is_ended_with_its_agent_unless_told_not_to(
    scripts: Any, watch: Any, how: str, by_kernel: bool
) -> None:
    program = scripts.start(
        """
        import ctypes, os, sys
        import monarch
        from monarch.actor import Actor, default_bootstrap_cmd, endpoint, this_host

        class Deaf(Actor):
            def __init__(self):
                sys.setswitchinterval(1000)  # no thread takes the interpreter lock from another
            @endpoint
            async def hang(self):
                c = ctypes.PyDLL(None)  # its calls keep the lock: no other thread runs any more
                ready = b"%d %d\\n" % (os.getpid(), os.getppid())
                c.write(1, ready, len(ready))
                c.pause()

        how, by_kernel = sys.argv[1:]
        monarch.configure(mesh_bootstrap_enable_pdeathsig=by_kernel == "True")
        command = default_bootstrap_cmd() if how == "executed" else None
        this_host().spawn_procs(bootstrap_command=command).spawn("deaf", Deaf).hang.call_one().get()
        """,
        how,
        str(by_kernel),
    )
    line = program.stdout.readline() or pytest.fail(program.communicate(timeout=TIMEOUT)[1])
    pid, agent = map(int, line.split())
    process = watch([pid])
    os.kill(agent, signal.SIGSTOP)
    program.kill()  # it would see to what a killed agent leaves
    program.wait(TIMEOUT)
    os.kill(agent, signal.SIGKILL)
    try:
        assert list(process.survivors(GRACE if by_kernel else 0.2)) == ([] if by_kernel else [pid])
    finally:
        if not by_kernel:
            os.kill(pid, signal.SIGKILL)
    program.communicate(timeout=TIMEOUT)


@pytest.mark.parametrize(
    "wait",
    first_of(["waiting[0].get()", "receiver.recv().get()", "procs.spawn('more', Kid).wait.call(port).get()",
     "asyncio.run(awaited())", "this_host().spawn_procs().initialized.get()"]),
    ids=["call", "recv", "a new mesh", "asyncio", "spawn"],
)  # fmt: skip
def test_what_waits_when_the_host_agent_is_killed_raises_it_and_nothing_else_does(scripts: Any, wait: str) -> None:
    done = scripts.run(
        AGENT
        + f"""
    import asyncio
    from monarch._mesh.failures.main_thread import faults
    from monarch._mesh.process.client import client
    owners = client().layer.owners
    def kill():
        while not owners._root_waits():
            os.sched_yield()
        os.kill(agent, signal.SIGKILL)
    os.kill(agent, signal.SIGSTOP)
    threading.Thread(target=kill, daemon=True).start()
    async def awaited(): await asyncio.gather(*(call.as_asyncio() for call in waiting[:1]))
    assert error(lambda: {wait}) in ("SupervisionError", "ClientClosedError", "RuntimeError")
    assert faults.drain(30)
    print("survived")
    """,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "survived\n", "")


@full
def test_a_program_that_owns_nothing_is_told_when_the_host_agent_is_killed(scripts: Any) -> None:
    source = """
    import os, signal, threading
    from monarch._mesh.process.client import client
    from monarch.actor import this_host
    this_host().spawn_procs().initialized.get(timeout=300)
    os.kill(client().agent.pid, signal.SIGKILL)
    threading.Event().wait()
    """
    done = scripts.run(source, check=False)
    assert done.returncode == 1, done.stderr
    assert "was killed by signal 9, and its processes with it; this client cannot go on" in done.stderr


def test_a_program_whose_host_agent_is_killed_says_so_and_ends(scripts: Any) -> None:
    done = scripts.run(AGENT + "    os.kill(agent, signal.SIGKILL)\n    threading.Event().wait()\n", check=False)
    assert done.returncode == 1, done.stderr
    assert "Unhandled monarch error on the root actor" in done.stderr
    assert "the host agent (pid " in done.stderr and "was killed by signal 9, and its processes with it" in done.stderr


# --- the fork servers


FORK_SERVERS = """
    import os, signal, sys, time
    from monarch.actor import Actor, SupervisionError, endpoint, this_host

    class A(Actor):
        @endpoint
        async def pid(self): return os.getpid(), os.getppid()
        @endpoint
        def loaded(self): return "torch" in sys.modules

    def fork_servers():
        while True:  # for a moment a process's threads may name different parents: who forked it has ended just now
            parents = dict(before.pid.call().get(timeout=300).values())
            agent = next(iter(parents.values()))
            try:
                with open(f"/proc/{agent}/task/{agent}/children") as file:
                    children = {int(pid) for pid in file.read().split()}
            except FileNotFoundError:
                continue
            if parents.keys() <= children:
                return children - parents.keys()

    def kill(pid):
        os.kill(pid, signal.SIGKILL)
        while os.path.exists(f"/proc/{pid}"):  # until the agent has reaped it
            before.pid.call().get(timeout=300)

    procs = this_host().spawn_procs({"gpus": 2})
    before = procs.spawn("a", A)
"""


@pytest.mark.slow
@pytest.mark.parametrize("which", ["loaded", "servers - loaded", "servers"])
def test_processes_with_torch_are_started_when_a_fork_server_is_killed(scripts: Any, which: str) -> None:
    pytest.importorskip("torch")
    scripts.run(
        "    import torch\n"
        + FORK_SERVERS
        + f"""
    def has_torch(pid):
        with open(f"/proc/{{pid}}/maps") as file:
            return "libtorch" in file.read()

    assert before.loaded.call().get(timeout=300).values() == [True, True]
    servers = fork_servers()
    loaded = {{pid for pid in servers if has_torch(pid)}}
    assert len(servers) == 2 and len(loaded) == 1, (servers, loaded)
    for pid in {which}:
        kill(pid)
    after = this_host().spawn_procs({{"gpus": 2}}).spawn("a", A)
    assert len(after.pid.call().get(timeout=300).values()) == 2
    assert len(before.pid.call().get(timeout=300).values()) == 2
    """
    )


@pytest.mark.parametrize("how", first_of(["SIGKILL", "SIGSTOP"]))
def test_what_a_fork_server_has_not_forked_is_forked_by_another(scripts: Any, how: str) -> None:
    scripts.run(
        FORK_SERVERS
        + f"""
    (server,) = fork_servers()
    os.kill(server, signal.{how})
    mesh = this_host().spawn_procs({{"gpus": 2}}).spawn("b", A)
    assert len(mesh.pid.call().get(timeout=300).values()) == 2
    assert fork_servers() and server not in fork_servers()
    after = this_host().spawn_procs({{"gpus": 2}}).spawn("a", A)
    assert len(after.pid.call().get(timeout=300).values()) == 2
    """,
        env={"HYPERACTOR_HOST_SPAWN_READY_TIMEOUT": "1h"},  # nothing waits until this is over
    )
