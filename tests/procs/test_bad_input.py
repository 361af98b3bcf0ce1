"""Bad input gets a clear error at the call, and the program goes on."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, HostMesh, ProcMesh, default_bootstrap_cmd, endpoint, this_host
from monarch.config import configured
from tests.support.patience import TIMEOUT
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs


class Thing(Actor):
    def __init__(self, value: int = 0) -> None:
        self.value = value

    @endpoint
    async def get(self) -> int:
        return self.value

    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def lock(self) -> Any:
        return threading.Lock()

    @endpoint
    async def spawn_in_loop(self) -> list[int]:
        procs = this_host().spawn_procs({"k": 2})
        values = (await procs.spawn("kid", Thing, 3).get.call()).values()
        await procs.stop()
        return values

    @endpoint
    def spawn_in_thread(self) -> list[int]:
        procs = this_host().spawn_procs({"k": 2})
        values = procs.spawn("kid", Thing, 3).get.call().get(timeout=TIMEOUT).values()
        procs.stop().get(timeout=TIMEOUT)
        return values


# What is refused before a message is made is proven in tests/_mesh/actors and tests/_shape.
BAD: dict[str, tuple[Callable[[ProcMesh, Any], Any], type[Exception], str]] = {
    "an argument missing": (lambda p, m: m.echo.call(), TypeError, "'value'"),
    "a lock as argument": (lambda p, m: m.echo.call(threading.Lock()), TypeError, "lock"),
    "a lock for a constructor": (lambda p, m: p.spawn("x", Thing, threading.Lock()), TypeError, "lock"),
    "a lock as result": (lambda p, m: m.lock.call().get(timeout=TIMEOUT), ActorError, "lock"),
    "a dimension to rename that is not there": (lambda p, m: m.rename(hosts="x"), ValueError, "hosts"),
    "size 0": (lambda p, m: this_host().spawn_procs({"gpus": 0}), ValueError, "gpus"),
    "a call of the endpoint": (lambda p, m: m.get(), TypeError, "call"),
    "a negative timeout": (lambda p, m: m.get.with_timeout(-1), ValueError, "timeout"),
}


@pytest.mark.parametrize("what", BAD)
def test_the_error_comes_at_the_call_and_the_mesh_goes_on(procs2: ProcMesh, what: str) -> None:
    mesh = procs2.spawn("thing", Thing, 1)
    do, kind, text = BAD[what]
    with pytest.raises(kind, match=re.escape(text)):
        do(procs2, mesh)
    assert mesh.get.call().get(timeout=TIMEOUT).values() == [1, 1]
    assert procs2.spawn("thing", Thing, 2).get.call().get(timeout=TIMEOUT).values() == [2, 2]


@pytest.mark.parametrize("how", ["spawn_in_loop", "spawn_in_thread"])
def test_processes_can_be_spawned_inside_an_actor(proc: ProcMesh, how: str) -> None:
    mesh = proc.spawn("thing", Thing)
    assert getattr(mesh, how).call_one().get(timeout=TIMEOUT) == [3, 3]


# --- classes and modules


@full
def test_a_class_whose_module_fails_to_import_there_is_named(scripts: Any) -> None:
    (scripts.folder / "picky.py").write_text(
        "import os\n"
        "if 'NO_DRIVER' in os.environ:\n"
        "    raise ImportError('no driver on this machine')\n"
        "from monarch.actor import Actor, endpoint\n"
        "class Picky(Actor):\n"
        "    @endpoint\n"
        "    def get(self): return 1\n"
        "class Value:\n"
        "    pass\n"
    )
    scripts.run(
        """
        import monarch.actor
        from monarch.actor import Actor, ActorError, SupervisionError, default_bootstrap_cmd
        from monarch.actor import endpoint, this_host
        import picky

        monarch.actor.unhandled_fault_hook = lambda failure: None

        class A(Actor):
            @endpoint
            def echo(self, value): return value

        command = default_bootstrap_cmd().with_env({"NO_DRIVER": "1"})
        procs = this_host().spawn_procs(bootstrap_command=command)
        try:
            procs.spawn("picky", picky.Picky).get.call_one().get(timeout=300)
        except (SupervisionError, ActorError, ImportError) as exc:
            text = str(exc)
            assert "picky" in text and "no driver on this machine" in text, text
        else:
            raise SystemExit("no error for the class")
        a = procs.spawn("a", A)
        try:
            a.echo.call_one(picky.Value()).get(timeout=300)
        except ActorError as exc:
            text = str(exc)
            assert "picky" in text and "no driver on this machine" in text, text
        else:
            raise SystemExit("no error for the argument")
        assert a.echo.call_one(1).get(timeout=300) == 1
        """
    )


def test_a_class_whose_module_exists_only_here_travels_by_value(scripts: Any) -> None:
    scripts.run(
        """
        import sys, types
        from monarch.actor import Actor, endpoint, this_host

        source = '''
        from monarch.actor import Actor, endpoint
        class Made(Actor):
            @endpoint
            def get(self): return "made at run time"
        '''
        import textwrap
        module = types.ModuleType("made_at_run_time")
        sys.modules["made_at_run_time"] = module
        exec(textwrap.dedent(source), module.__dict__)
        made = this_host().spawn_procs().spawn("made", module.Made)
        assert made.get.call_one().get(timeout=300) == "made at run time"
        """
    )


# --- programs that are not there


def _fails_to_start(mesh: ProcMesh) -> str:
    with pytest.raises(Exception) as caught:
        mesh.initialized.get(timeout=TIMEOUT)
    assert not isinstance(caught.value, TimeoutError)
    return str(caught.value)


def test_a_missing_interpreter_is_named(spawn_procs: Any) -> None:
    missing = this_host().with_python_executable("/no/such/python3")
    try:
        mesh = missing.spawn_procs({"gpus": 2})
    except (OSError, RuntimeError, ValueError) as exc:
        assert "/no/such/python3" in str(exc)
    else:
        assert "/no/such/python3" in _fails_to_start(mesh)
    assert spawn_procs().spawn("thing", Thing, 1).get.call_one().get(timeout=TIMEOUT) == 1


def test_a_bootstrap_command_that_is_not_there_is_named(spawn_procs: Any) -> None:
    command = default_bootstrap_cmd()
    command.program = "/no/such/program"
    try:
        mesh = this_host().spawn_procs(bootstrap_command=command)
    except (OSError, RuntimeError, ValueError) as exc:
        assert "/no/such/program" in str(exc)
    else:
        assert "/no/such/program" in _fails_to_start(mesh)
    assert spawn_procs().spawn("thing", Thing, 1).get.call_one().get(timeout=TIMEOUT) == 1


def test_a_program_that_ends_at_once_is_reported_with_what_it_said(
    spawn_procs: Any, tmp_path: Path, faults: Any
) -> None:
    stub = tmp_path / "stub"
    stub.write_text("#!/bin/sh\necho 'wrong machine' >&2\nexit 9\n")
    stub.chmod(0o755)
    command = default_bootstrap_cmd()
    command.program = str(stub)
    said = _fails_to_start(this_host().spawn_procs(bootstrap_command=command))
    assert "9" in said and "wrong machine" in said
    assert spawn_procs().spawn("thing", Thing, 1).get.call_one().get(timeout=TIMEOUT) == 1


# --- limits of the machine


@full
def test_more_processes_than_the_machine_can_hold_name_the_limit(scripts: Any) -> None:
    scripts.run(
        """
        import re, resource
        from monarch.actor import Actor, endpoint, this_host

        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

        class A(Actor):
            @endpoint
            def get(self): return 1

        try:
            procs = this_host().spawn_procs({"gpus": 10_000})
            procs.initialized.get(timeout=50)
        except TimeoutError:
            raise
        except Exception as exc:
            text = str(exc)
            assert re.search(r"RLIMIT_NOFILE|open files|file descriptors|ulimit", text), text
            assert "10000" in text.replace(",", "").replace("_", ""), text
            assert "256" in text, text
        else:
            raise SystemExit("ten thousand processes with 256 descriptors")
        few = this_host().spawn_procs({"gpus": 2})
        assert few.spawn("a", A).get.call().get(timeout=300).values() == [1, 1]
        """
    )


@pytest.mark.parametrize("folder", ["/proc/no-such-folder/monarch", "a-file/below"])
def test_a_runtime_folder_that_cannot_be_made_is_named(scripts: Any, folder: str) -> None:
    (scripts.folder / "a-file").write_text("")
    place = folder if folder.startswith("/") else str(scripts.folder / folder)
    scripts.run(
        """
        import sys
        from monarch.actor import this_host

        try:
            this_host().spawn_procs().initialized.get(timeout=300)
        except (OSError, RuntimeError) as exc:
            assert not isinstance(exc, TimeoutError)
            text = str(exc)
            assert sys.argv[1] in text and "MONARCH_RUNTIME_DIR" in text, text
        else:
            raise SystemExit("no error")
        """,
        place,
        env={"MONARCH_RUNTIME_DIR": place},
    )


@full
def test_a_runtime_folder_with_a_very_long_name_works_or_is_named(scripts: Any) -> None:
    place = str(scripts.folder / ("x" * 120))
    os.mkdir(place)
    scripts.run(
        """
        from monarch.actor import this_host

        try:
            works = this_host().spawn_procs().initialized.get(timeout=300)
        except (OSError, RuntimeError, ValueError) as exc:
            works = not isinstance(exc, TimeoutError) and "MONARCH_RUNTIME_DIR" in str(exc)
        assert works
        """,
        env={"MONARCH_RUNTIME_DIR": place},
    )


@full
def test_a_disk_without_room_harms_no_large_message_beyond_its_call(scripts: Any) -> None:
    """No process of the program may write a file of more than a page; shared memory counts as a file."""
    scripts.run(
        """
        import resource, signal
        from monarch.actor import Actor, endpoint, this_host

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        class A(Actor):
            @endpoint
            def length(self, value): return len(value)

        a = this_host().spawn_procs().spawn("a", A)
        assert a.length.call_one(b"small").get(timeout=300) == 5
        try:
            assert a.length.call_one(bytes(64_000_000)).get(timeout=300) == 64_000_000
        except OSError as exc:  # clear enough, and nobody is dead
            assert not isinstance(exc, TimeoutError), exc
        assert a.length.call_one(b"small").get(timeout=300) == 5
        """
    )


# --- use after the end


@full
def test_use_after_shutdown_context_is_refused_at_once(scripts: Any) -> None:
    scripts.run(
        """
        from monarch.actor import Actor, context, endpoint, shutdown_context, this_host, this_proc

        class A(Actor):
            @endpoint
            def get(self): return 1

        procs = this_host().spawn_procs({"gpus": 2})
        a = procs.spawn("a", A)
        host = this_host()
        a.get.call().get(timeout=300)
        shutdown_context().get(timeout=300)
        uses = {
            "call": lambda: a.get.call().get(timeout=300),
            "broadcast": lambda: a.get.broadcast(),
            "spawn": lambda: procs.spawn("b", A).get.call().get(timeout=300),
            "spawn_procs": lambda: host.spawn_procs().initialized.get(timeout=300),
            "this_host": lambda: this_host().spawn_procs().initialized.get(timeout=300),
            "this_proc": lambda: this_proc().spawn("c", A).get.call_one().get(timeout=300),
        }
        for what, use in uses.items():
            try:
                use()
            except RuntimeError as exc:
                said = ("shutdown_context", "stopped", "shut down")
                assert any(text in str(exc) for text in said), (what, exc)
            else:
                raise SystemExit(f"{what} was accepted")
        """
    )


# --- fork


FORK = """
    import os, sys
    from monarch.actor import Actor, endpoint, this_host

    class A(Actor):
        @endpoint
        def echo(self, value): return value

    procs = this_host().spawn_procs({"gpus": 2})
    a = procs.spawn("a", A)
    assert a.echo.call(0).get(timeout=300).values() == [0, 0]
    pending = [a.echo.call(n) for n in range(50)]
    child = os.fork()
    if child == 0:
        CHILD
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert [f.get(timeout=300).values() for f in pending] == [[n, n] for n in range(50)]
    for n in range(50):
        assert a.echo.call(n).get(timeout=300).values() == [n, n]
    assert procs.spawn("b", A).echo.call(1).get(timeout=300).values() == [1, 1]
    assert this_host().spawn_procs().spawn("c", A).echo.call_one(1).get(timeout=300) == 1
    print("the parent is well")
"""


@pytest.mark.parametrize(
    "child",
    first_of(["os._exit(0)", "sys.exit(0)", "os.execv(sys.executable, [sys.executable, '-c', ''])"]),
    ids=["_exit", "exit", "exec"],
)
def test_a_fork_of_the_client_does_not_disturb_it(scripts: Any, child: str) -> None:
    done = scripts.run(FORK.replace("CHILD", child))
    assert done.stdout.split("\n")[-2] == "the parent is well"


@full
def test_a_forked_child_that_uses_the_runtime_is_told_why_it_cannot(scripts: Any) -> None:
    body = """
        import asyncio, traceback
        from monarch.references import put
        uses = [lambda: a.echo.call(1).get(timeout=10), lambda: a.echo.broadcast(1)]
        uses.append(lambda: procs.spawn("x", A))
        uses.append(pending[-1].get)
        uses.append(lambda: asyncio.run(observe()))
        uses += [lambda: put(1), lambda: procs.submit(len, []), lambda: a.echo.keep.call(1)]
        async def observe():
            await pending[-1]
        for use in uses:
            try:
                use()
            except RuntimeError as exc:
                if "fork" not in str(exc):
                    traceback.print_exc()
                    os._exit(1)
            else:
                os._exit(2)
        os._exit(0)
    """
    scripts.run(FORK.replace("        CHILD", body))


@full
@pytest.mark.parametrize("end", ["return os.getpid()", "raise ValueError"])
def test_a_child_that_comes_back_from_an_endpoint_handles_no_message_of_its_parent(scripts: Any, end: str) -> None:
    program = """
        import os
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def fork(self):
                child = os.fork()
                if child == 0:
                    END
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

            @endpoint
            def note(self, n): os.write(1, f"noted {n}".encode() + bytes([10]))

        a = this_host().spawn_procs().spawn("a", A)
        pending = [a.fork.call_one(), *[a.note.call_one(n) for n in range(20)]]
        assert [f.get(timeout=300) for f in pending] == [1] + [None] * 20
    """
    done = scripts.run(program.replace("END", end))
    said = (done.stdout + done.stderr).split()
    assert sorted(said[i + 1] for i, word in enumerate(said) if word == "noted") == sorted(map(str, range(20)))
    assert "came back from it" in done.stdout + done.stderr


def test_multiprocessing_by_fork_works_beside_a_client(scripts: Any) -> None:
    done = scripts.run(
        """
        import multiprocessing
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def echo(self, value): return value

        def double(n): return 2 * n

        a = this_host().spawn_procs().spawn("a", A)
        assert a.echo.call_one(1).get(timeout=300) == 1
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(double, range(10)) == [2 * n for n in range(10)]
        assert a.echo.call_one(2).get(timeout=300) == 2
        print("well")
        """
    )
    assert done.stdout.strip() == "well"


# --- two at once


@full
def test_two_clients_on_one_machine_do_not_meet(scripts: Any) -> None:
    source = """
        import os, sys
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def who(self): return os.getppid(), sys.argv

        a = this_host().spawn_procs({"gpus": 2}, name="same").spawn("same", A)
        assert len(a.who.call().get(timeout=300).values()) == 2
        print("ready", flush=True)
        sys.stdin.readline()
        assert len(a.who.call().get(timeout=300).values()) == 2
        assert len(this_host().spawn_procs().spawn("more", A).who.call_one().get(timeout=300)) == 2
        print("done", flush=True)
        sys.stdin.readline()
    """
    first, second = scripts.start(source), scripts.start(source)

    def say(process: Any, text: str) -> None:
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == text, process.communicate(timeout=TIMEOUT)[1]

    for process in (first, second):
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=TIMEOUT)[1]
    say(first, "done\n")
    _, err = first.communicate("\n", timeout=TIMEOUT)
    assert first.returncode == 0, err
    say(second, "done\n")  # after the other and all that belonged to it are gone
    _, err = second.communicate("\n", timeout=TIMEOUT)
    assert second.returncode == 0, err


def test_two_threads_may_be_the_first_to_use_the_runtime(scripts: Any) -> None:
    scripts.run(
        """
        import concurrent.futures, threading
        from monarch.actor import this_proc

        gate = threading.Barrier(8)

        def first():
            gate.wait()
            return this_proc()

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = [wait.result(30) for wait in [pool.submit(first) for _ in range(8)]]
        assert all(one is found[0] for one in found)
        """
    )


def test_more_processes_than_the_limit_are_refused_at_the_call(host: HostMesh) -> None:
    with pytest.raises(ValueError, match=r"for 1000000000 processes, and the limit is 65536 \(setting max_procs"):
        host.spawn_procs({"gpus": 10**9})
    with configured(max_procs=7), pytest.raises(ValueError, match="asks for 8 processes, and the limit is 7"):
        host.spawn_procs({"a": 2, "b": 4})
