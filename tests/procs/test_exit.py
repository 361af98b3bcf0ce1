"""However a program ends, nothing of it stays: no process, no file."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, this_host
from monarch.config import configured
from tests.support.patience import GRACE, TIMEOUT
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs

PROGRAM = """
    import atexit, os, signal, sys, threading
    from monarch.actor import Actor, Channel, endpoint, this_host

    class Kid(Actor):
        @endpoint
        def pid(self): return os.getpid()
        @endpoint
        def spin(self, port):
            port.send(None)
            while True: pass
        @endpoint
        def wait(self, port):
            port.send(None)
            threading.Event().wait()

    class Parent(Actor):
        @endpoint
        def grow(self):
            self.kids = this_host().spawn_procs({"k": 2}).spawn("kid", Kid)
            return [os.getpid(), *self.kids.pid.call().get(timeout=300).values()]

    def occupied(how):
        port, receiver = Channel.open()
        kid = this_host().spawn_procs().spawn("occupied", Kid)
        getattr(kid, how).call_one(port)
        receiver.recv().get(timeout=300)
        return kid

    parents = this_host().spawn_procs({"p": 2}).spawn("parent", Parent)
    pids = sum(parents.grow.call().get(timeout=300).values(), [])
    print(*pids, flush=True)
"""


@pytest.fixture
def ending(scripts: Any, watch: Any, descendants: Any) -> Any:
    """Runs PROGRAM and then `body`; `end(process)` ends it from outside. Checks that nothing is left."""

    def run(body: str, end: Any = None, **options: Any) -> tuple[subprocess.Popen[str], str, str]:
        process = scripts.start(PROGRAM + "\n    " + body.strip() + "\n", **options)
        line = process.stdout.readline()
        pids = [int(word) for word in line.split()]
        if len(pids) != 6:
            pytest.fail(f"the program did not start: {line!r}\n{process.communicate(timeout=TIMEOUT)[1]}")
        if "ready" in body:
            assert process.stdout.readline() == "ready\n"
        below = descendants(process.pid)
        assert set(pids) <= set(below), "a process of the program is not below it"
        everyone = watch([process.pid, *below])
        if end is None:
            process.stdin.write("go on\n")
            process.stdin.flush()
        else:
            end(process)
        assert process.wait(TIMEOUT) is not None
        left = everyone.survivors(GRACE)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == {}
        out, err = process.communicate(timeout=TIMEOUT)
        assert [str(path) for path in Path(scripts.runtime).rglob("*")] == []
        return process, out, err

    return run


def test_return(ending: Any) -> None:
    process, _, err = ending("sys.stdin.readline()")
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_an_exception(ending: Any) -> None:
    process, _, err = ending("sys.stdin.readline(); raise ValueError('the end')")
    assert process.returncode == 1
    assert err.rstrip().endswith("ValueError: the end")


@full
def test_sys_exit(ending: Any) -> None:
    process, _, _ = ending("sys.stdin.readline(); sys.exit(3)")
    assert process.returncode == 3


@full
def test_os_exit(ending: Any) -> None:
    process, _, _ = ending("sys.stdin.readline(); os._exit(4)")
    assert process.returncode == 4


@pytest.mark.parametrize("number", first_of([signal.SIGTERM, signal.SIGKILL, signal.SIGHUP]))
def test_a_signal(ending: Any, number: signal.Signals) -> None:
    process, _, _ = ending("sys.stdin.readline()", lambda process: process.send_signal(number))
    assert process.returncode == -number


def test_ctrl_c(ending: Any) -> None:
    process, _, err = ending("sys.stdin.readline()", lambda process: process.send_signal(signal.SIGINT))
    assert process.returncode in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in err


@full
def test_ctrl_c_in_a_waiting_call(ending: Any) -> None:
    body = "kid = occupied('wait'); print('ready', flush=True); kid.pid.call_one().get()"
    process, _, err = ending(body, lambda process: process.send_signal(signal.SIGINT))
    assert process.returncode in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in err


@full
@pytest.mark.parametrize("how", ["spin", "wait"])
@pytest.mark.parametrize("number", first_of([None, signal.SIGKILL]), ids=["return", "SIGKILL"])
def test_an_actor_that_is_busy_keeps_nobody_alive(ending: Any, how: str, number: signal.Signals | None) -> None:
    body = f"kid = occupied({how!r}); print('ready', flush=True); sys.stdin.readline()"
    ending(body, None if number is None else lambda process: process.send_signal(number))


@full
def test_an_abort(ending: Any) -> None:
    process, _, _ = ending("sys.stdin.readline(); os.abort()")
    assert process.returncode == -signal.SIGABRT


@full
def test_a_closed_terminal(ending: Any) -> None:
    master, slave = os.openpty()

    def take_terminal() -> None:  # in the child, which leads its session already
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    try:
        process, _, _ = ending("sys.stdin.readline()", lambda _: os.close(master), preexec_fn=take_terminal)
    finally:
        os.close(slave)
    assert process.returncode == -signal.SIGHUP


@full
def test_a_stopped_process_does_not_outlive_the_client(ending: Any, descendants: Any) -> None:
    def end(process: subprocess.Popen[str]) -> None:
        os.kill(descendants(process.pid)[-1], signal.SIGSTOP)
        process.kill()

    ending("sys.stdin.readline()", end)


def test_a_program_that_never_used_the_runtime_leaves_no_file(scripts: Any) -> None:
    scripts.run("import monarch.actor")
    assert list(Path(scripts.runtime).rglob("*")) == []


class Ending(Actor):
    """Leaves everywhere what only an orderly end carries out."""

    @endpoint
    def begin(self, folder: str) -> int:
        import colorsys

        module = types.ModuleType("of_the_program")
        module.file = open(f"{folder}/file", "w")  # type: ignore[attr-defined]  # noqa: SIM115
        module.file.write("written")
        sys.modules[module.__name__] = module

        class Closing:
            def __del__(self, open: Any = open, folder: str = folder) -> None:
                with open(f"{folder}/object", "w"):
                    pass

        Closing.last = Closing()  # type: ignore[attr-defined]  # found by the last collection alone

        def last() -> None:
            import colorsys as again

            with open(f"{folder}/atexit", "w") as file:
                file.write(f"{again is colorsys} {os.path.exists(f'{folder}/thread')}")

        def late() -> None:
            threading.main_thread().join()
            with open(f"{folder}/thread", "w"):
                pass

        atexit.register(last)
        threading.Thread(target=late, daemon=False).start()
        libc = ctypes.CDLL(None)
        libc.freopen(f"{folder}/c".encode(), b"w", ctypes.c_void_p.in_dll(libc, "stdout"))
        libc.puts(b"by C")
        return os.getpid()


@full
@pytest.mark.parametrize("preload", ["none", "colorsys,sqlite3"])
def test_a_process_of_a_mesh_ends_as_interpreters_do_whatever_is_preloaded(
    tmp_path: Path, watch: Any, preload: str
) -> None:
    with configured(preload=preload):
        procs = this_host().spawn_procs(name="ending")
    process = watch([procs.spawn("ending", Ending).begin.call_one(str(tmp_path)).get(timeout=TIMEOUT)])
    procs.stop().get(timeout=TIMEOUT)
    assert not process.survivors(TIMEOUT)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"file": "written", "atexit": "True True", "thread": "", "c": "by C\n", "object": ""}


class Finalizers(Actor):
    @endpoint
    def of_torch(self) -> set[bool]:
        """Returns whether those run at the end of the process."""
        known = [(entry, entry.peek()) for entry in list(weakref.finalize._registry)]  # type: ignore[attr-defined]
        return {entry.atexit for entry, found in known if found and found[1].__module__ == "torch.library"}


@full
def test_what_torch_has_registered_is_not_taken_apart_again_in_each_process() -> None:
    pytest.importorskip("torch")
    with configured(preload="torch"):
        procs = this_host().spawn_procs(name="ending")
    assert procs.spawn("ending", Finalizers).of_torch.call_one().get(timeout=TIMEOUT) == {False}
    procs.stop().get(timeout=TIMEOUT)
