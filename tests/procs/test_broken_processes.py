"""Processes that lose what the runtime needs: its I/O thread, its descriptors. They end at once, and everybody is told."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest

from monarch._runtime.context import here
from monarch._runtime.internal_errors import LOOP_ENDED
from monarch.actor import SupervisionError, endpoint
from tests.support.patience import TIMEOUT
from tests.support.process_actors import Pid
from tests.support.scripts import Scripts

pytestmark = pytest.mark.procs


class Breaking(Pid):
    @endpoint
    def close_every_descriptor(self) -> None:
        """Does as programs do that make a daemon of themselves."""
        os.closerange(3, 65536)
        threading.Event().wait()

    @endpoint
    def end_the_io_thread(self) -> None:
        here().loop.call_soon(sys.exit)
        threading.Event().wait()

    @endpoint
    def report_errors_without_stderr(self, how: str) -> int:
        """Errors on the I/O thread while nobody can be told."""
        if how == "None":
            sys.stderr = None
        else:
            sys.stderr.close()
        loop, done = here().loop, threading.Event()
        for _ in range(1000):
            loop.call_soon(lambda: 1 / 0)
        loop.call_soon(done.set)
        assert done.wait(TIMEOUT)
        return os.getpid()


def test_a_process_whose_io_thread_ended_ends_at_once(spawn_procs: Any) -> None:
    actors = spawn_procs(name="broken").spawn("breaking", Breaking)
    with pytest.raises(SupervisionError) as caught:
        actors.end_the_io_thread.call_one().get(timeout=TIMEOUT)
    assert f"exited with non-zero code {LOOP_ENDED}" in str(caught.value)
    assert "this process ends: its I/O thread has ended, unasked: SystemExit" in str(caught.value)


def test_a_process_that_closed_every_descriptor_ends(spawn_procs: Any) -> None:
    actors = spawn_procs(name="closed").spawn("breaking", Breaking)
    with pytest.raises(SupervisionError, match=f"exited with non-zero code {LOOP_ENDED}|it was killed"):
        actors.close_every_descriptor.call_one().get(timeout=TIMEOUT)


@pytest.mark.parametrize("how", ["None", "closed"])
def test_errors_of_a_process_without_stderr_harm_nothing(spawn_procs: Any, how: str) -> None:
    actors = spawn_procs(name="silent").spawn("breaking", Breaking)
    pid = actors.report_errors_without_stderr.call_one(how).get(timeout=TIMEOUT)
    assert actors.pid.call_one().get(timeout=TIMEOUT) == pid


def test_a_client_whose_io_thread_ended_is_told_wherever_it_waits(scripts: Scripts) -> None:
    done = scripts.run(
        """
        import os, threading
        import monarch.actor
        from monarch.actor import Actor, Channel, SupervisionError, endpoint, this_host

        monarch.actor.unhandled_fault_hook = lambda failure: None

        class Waiting(Actor):
            @endpoint
            def pid(self) -> int:
                return os.getpid()

            @endpoint
            def wait(self) -> None:
                threading.Event().wait()

        procs = this_host().spawn_procs({"gpus": 2})
        actors = procs.spawn("waiting", Waiting)
        pids = actors.pid.call().get().values()
        call = actors.wait.call()
        port, receiver = Channel[int].open()
        waiting = receiver.recv()
        held = [os.pidfd_open(pid) for pid in pids]
        kept = {fd: os.dup2(fd, 1000 + fd) for fd in held}
        os.closerange(3, 1000)
        for future in (call, waiting, actors.pid.call()):
            try:
                future.get(timeout=300)
            except Exception as exc:
                print(type(exc).__name__, "the I/O thread of this program has ended" in str(exc))
        import select
        for fd in kept.values():
            print(bool(select.select([fd], [], [], 10)[0]))
        """
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stdout + done.stderr
    assert all(line.endswith("True") for line in lines), done.stdout
