"""Programs that endpoints start: however their process or its agent ends, nobody waits for them, and none stays."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import SupervisionError, endpoint
from tests.support.patience import GRACE, TIMEOUT
from tests.support.process_actors import Pid
from tests.support.scripts import Scripts
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs


class Parent(Pid):
    @endpoint
    def leave_writers(self, own_session: bool) -> list[int]:
        """Programs that write to our stderr for ever."""
        return [subprocess.Popen(["yes"], stdout=2, start_new_session=own_session).pid for _ in range(3)]

    @endpoint
    def die(self) -> None:
        os._exit(7)


@pytest.mark.parametrize("own_session", first_of([True, False]))
def test_children_that_go_on_writing_hold_nobody_up(spawn_procs: Any, own_session: bool) -> None:
    parents = spawn_procs(name="left").spawn("parent", Parent)
    pids = parents.leave_writers.call_one(own_session).get(timeout=TIMEOUT)
    try:
        with pytest.raises(SupervisionError, match="non-zero code 7"):
            parents.die.call_one().get(timeout=TIMEOUT)
        assert spawn_procs(name="next").spawn("parent", Parent).pid.call_one().get(timeout=TIMEOUT)
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


LEAVING = """
    import os, signal, subprocess, sys
    import monarch.actor
    from monarch.actor import Actor, endpoint, this_host

    monarch.actor.unhandled_fault_hook = lambda failure: None

    class Parent(Actor):
        @endpoint
        def leave(self, fifo):
            for session, env in ((False, None), (True, None), (False, {})):
                subprocess.Popen(
                    ["/bin/sh", "-c", f'echo x; while :; do sleep 1000; done'],
                    stdout=open(fifo, "w"), start_new_session=session, env=env, process_group=None if session else 0,
                )
            return os.getppid()
        @endpoint
        def die(self): os._exit(1)

    def leave():
        parents = this_host().spawn_procs({"gpus": 2}).spawn("parent", Parent)
        return parents, parents.slice(gpus=0).leave.call_one(sys.argv[1]).get(timeout=300)
"""


class Held:
    """A FIFO that everybody has open whose end is waited for."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._read = b""

    def wait_started(self, count: int) -> None:
        while self._read.count(b"x") < count:
            assert select.select([self._fd], [], [], TIMEOUT)[0], "they never ran"
            self._read += os.read(self._fd, 100)

    def all_ended(self, seconds: float) -> bool:
        return bool(select.select([self._fd], [], [], seconds)[0]) and os.read(self._fd, 100) == b""

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def held(tmp_path: Path) -> Any:
    made = Held(tmp_path / "held")
    yield made
    made.close()


def test_programs_of_endpoints_end_with_a_killed_agent(scripts: Scripts, held: Held) -> None:
    program = scripts.start(LEAVING + """
    parents, agent = leave()
    sys.stdin.readline()
    os.kill(agent, signal.SIGKILL)
    try:
        parents.die.call().get(timeout=300)
    except Exception as exc:
        print(type(exc).__name__, flush=True)
    sys.stdin.readline()
    """, str(held.path))  # fmt: skip
    held.wait_started(3)
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write("go on\n")
    program.stdin.flush()
    assert program.stdout.readline() in ("SupervisionError\n", "ClientClosedError\n"), program.communicate()[1]
    assert held.all_ended(GRACE), "they outlive their agent"
    program.communicate("\n", timeout=TIMEOUT)


@full
def test_programs_of_endpoints_end_with_the_next_run_when_all_was_killed(scripts: Scripts, held: Held) -> None:
    program = scripts.start(LEAVING + """
    parents, agent = leave()
    print(agent, flush=True)
    sys.stdin.readline()
    """, str(held.path))  # fmt: skip
    assert program.stdout is not None
    agent = int(program.stdout.readline())
    held.wait_started(3)
    os.kill(agent, signal.SIGSTOP)  # it would see to them
    program.kill()
    program.wait(TIMEOUT)
    os.kill(agent, signal.SIGKILL)
    assert not held.all_ended(0)
    scripts.run("from monarch.actor import this_host; this_host().spawn_procs().initialized.get()")
    for line in subprocess.check_output(["ps", "-eo", "pid,args"], text=True).splitlines():
        pid, _, command = line.strip().partition(" ")
        if command.startswith("/bin/sh -c echo x; while"):  # the one that had no environment, in no session of ours
            os.kill(int(pid), signal.SIGKILL)


@full
def test_a_worker_whose_agent_is_killed_leaves_nothing(scripts: Scripts, held: Held, tmp_path: Path) -> None:
    worker = scripts.start(
        f"""
        from monarch.actor import run_worker_loop_forever
        run_worker_loop_forever(address="ipc://{scripts.runtime}/host", secret="hush-hush-hush-hush")
        """
    )
    program = scripts.start(LEAVING.replace("this_host()", "host") + f"""
    from monarch.actor import attach_to_workers
    host = attach_to_workers(workers=["ipc://{scripts.runtime}/host"], secret="hush-hush-hush-hush")
    parents, agent = leave()
    print(agent, flush=True)
    sys.stdin.readline()
    """, str(held.path))  # fmt: skip
    assert program.stdout is not None
    agent = int(program.stdout.readline() or pytest.fail(program.communicate()[1]))
    held.wait_started(3)
    os.kill(agent, signal.SIGKILL)
    assert held.all_ended(GRACE), "they outlive their agent"
    assert "was killed by signal 9" in worker.communicate(timeout=TIMEOUT)[1]
    program.communicate("\n", timeout=TIMEOUT)


# --- standard descriptors


@pytest.mark.parametrize("missing", [(2,), pytest.param((0, 1, 2), marks=full)])
def test_a_program_without_standard_descriptors_can_start_processes(
    scripts: Scripts, tmp_path: Path, missing: tuple[int, ...]
) -> None:
    done = tmp_path / "done"
    scripts.run(
        f"""
        import os, sys
        for fd in {missing}:
            os.close(fd)
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def look(self):
                print("to stdout"); print("to stderr", file=sys.stderr)
                return [os.readlink(f"/proc/self/fd/{{fd}}").partition(":")[0] for fd in range(3)]

        for forward in (False, True):
            found = this_host().spawn_procs({{"gpus": 2}}).spawn("a", A).look.call().get(timeout=300).values()
        open({str(done)!r}, "w").write(str(found))
        """
    )
    assert "socket" not in done.read_text()
