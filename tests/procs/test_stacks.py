"""Tests of where real processes are: stuck in native code that holds the interpreter lock, in a lock, in an await,
stopped, dead."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._mesh.inspection.stack_records import HOW_NATIVE, HOW_SIGNAL
from monarch.actor import Actor, Diagnosis, Stacks, current_rank, diagnose, endpoint
from tests.support.patience import TIMEOUT
from tests.support.process_actors import Pid
from tests.support.processes import kill, stopped
from tests.support.scripts import ROOT
from tests.support.tiers import first_of, full

SOON = 0.5  # seconds for a process that is not going to answer


class Worker(Pid):
    """Gets stuck as it is told, until a byte comes through the file at `path`."""

    @endpoint
    def hold_the_lock(self, path: str) -> bytes:
        """In native code, as a C library that does not let go of the interpreter lock."""
        return in_native_code(path)

    @endpoint
    def wait(self, path: str) -> bytes:
        """In a system call; rank 0 at another line."""
        with open(path, "rb", buffering=0) as file:
            if current_rank().rank == 0:
                return file.read(1)
            return file.read(1)

    @endpoint
    def look(self, mesh: Any) -> Stacks:
        return mesh.stacks(timeout=TIMEOUT).get(TIMEOUT)  # type: ignore[no-any-return]


class Looped(Actor):
    @endpoint
    async def wait(self, event: str) -> None:
        """Awaits what never comes, until the actor is stopped."""
        import asyncio

        await asyncio.Event().wait()


def in_native_code(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    room = ctypes.create_string_buffer(1)
    ctypes.PyDLL(None).read(file, room, 1)
    os.close(file)
    return room.raw


class Pipe:
    """A named pipe that readers wait at, each for one byte."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "pipe")
        os.mkfifo(self.path)
        self._file = os.open(self.path, os.O_RDWR)

    def release(self, count: int) -> None:
        os.write(self._file, b"x" * count)

    def close(self) -> None:
        os.close(self._file)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with tempfile.TemporaryDirectory() as folder:
        pipe = Pipe(Path(folder))
        yield pipe
        pipe.release(64)  # whoever a failed test has left there
        pipe.close()


def look_until(mesh: Any, there: Callable[[Stacks], bool], **how: Any) -> Stacks:
    """The stacks, once they are as they are going to be."""
    while True:
        found: Stacks = mesh.stacks(**{"timeout": SOON} | how).get(TIMEOUT)
        if there(found):
            return found


def functions(stacks: Stacks, rank: int) -> list[str]:
    return [frame.function for stack in stacks.ranks.get(rank, []) for frame in stack.frames]


def test_native_code_that_holds_the_interpreter_lock(spawn_procs: Any, pipe: Pipe) -> None:
    """The host agent has it write its stacks. What it does is not disturbed: the byte arrives."""
    workers = spawn_procs({"gpus": 2}, name="wedged").spawn("worker", Worker)
    workers.pid.call().get(TIMEOUT)
    answer = workers.slice(gpus=1).hold_the_lock.call_one(pipe.path)
    found = look_until(workers, lambda stacks: any(process.how == HOW_SIGNAL for process in stacks.processes))
    (wedged,) = [process for process in found.processes if process.how == HOW_SIGNAL]
    assert (wedged.rank, wedged.mesh) == (1, "wedged")
    assert functions(found, 1)[-2:] == ["hold_the_lock", "in_native_code"]
    text = str(found)
    assert "by a signal, because it told nothing itself: rank 1 of wedged" in text
    pipe.release(1)
    assert answer.get(TIMEOUT) == b"x"
    assert [p.how for p in workers.stacks(timeout=TIMEOUT).get(TIMEOUT).processes] == ["itself", "itself"]


def test_ranks_at_two_lines(spawn_procs: Any, pipe: Pipe) -> None:
    workers = spawn_procs({"gpus": 3}, name="readers").spawn("worker", Worker)
    answer = workers.wait.call(pipe.path)

    def at(stacks: Any) -> dict[int, int]:
        return {rank: found[0].frames[-1].line for rank, found in stacks.ranks.items() if found and found[0].frames}

    def stand(stacks: Any) -> bool:
        """Each at its own line: before that they import this module, and open the pipe."""
        lines = at(stacks)
        there = all(functions(stacks, rank)[-1:] == ["Worker.wait"] for rank in range(3))
        return there and lines[0] + 1 == lines[1] == lines[2]

    found = look_until(workers, stand, timeout=TIMEOUT)
    lines = at(found)
    assert f"worker: 2 of 3 ranks at test_stacks.py:{lines[1]} in Worker.wait(), rank 0 at" in str(found)
    assert "ranks 1-2, in wait()" in str(found)
    pipe.release(3)
    answer.get(TIMEOUT)


def test_an_await_and_what_an_actor_sees_of_others(spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": 1}, name="mixed")
    looped, worker = procs.spawn("looped", Looped), procs.spawn("worker", Worker)
    looped.wait.broadcast("never")
    look_until(looped, lambda stacks: "Looped.wait" in functions(stacks, 0), timeout=TIMEOUT)
    found = worker.look.call_one(procs).get(TIMEOUT)
    text = str(found)
    assert "looped: awaiting at test_stacks.py" in text
    assert "worker: at test_stacks.py" in text


@full
def test_a_stopped_process_is_named_and_a_dead_one_too(spawn_procs: Any, faults: Any) -> None:
    workers = spawn_procs({"gpus": 3}, name="gone").spawn("worker", Worker)
    pids = workers.pid.call().get(TIMEOUT).values()
    kill(pids[2])
    faults.next(handled=None)
    with stopped(pids[1]):
        found = look_until(workers, lambda stacks: any("is stopped" in why for why in stacks.silent.values()))
        assert "rank 1 of gone: it is stopped (SIGSTOP or Ctrl-Z); `kill -CONT` lets it run again" in str(found)
        for _ in range(100):  # a client that has much to do may not have told of the failure within so short a time
            diagnosis = diagnose(SOON).get(TIMEOUT)
            ours = [finding for finding in diagnosis.findings if finding.mesh.startswith(("gone", "worker-"))]
            kinds = {finding.kind: finding for finding in reversed(ours)}
            if "failed" in kinds and "stopped" in kinds:
                break
    assert kinds["stopped"].ranks == [1]
    assert f"kill -CONT {pids[1]}" in kinds["stopped"].advice
    assert kinds["failed"].ranks == [2]


@full
def test_native_frames(spawn_procs: Any, pipe: Pipe) -> None:
    workers = spawn_procs({"gpus": 1}, name="native").spawn("worker", Worker)
    answer = workers.hold_the_lock.call(pipe.path)
    look_until(workers, lambda stacks: any(process.how == HOW_SIGNAL for process in stacks.processes))
    found = workers.stacks(timeout=SOON, native=True).get(TIMEOUT)
    if any("permission" in why or "trace" in why for why in found.silent.values()):
        pytest.skip(str(found.silent))
    assert found.processes[0].how == HOW_NATIVE
    assert "read" in functions(found, 0)
    assert "holds the interpreter lock" in str(found)
    pipe.release(1)
    answer.get(TIMEOUT)


@full
def test_a_py_spy_that_is_not_there(spawn_procs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch._mesh.inspection import agent_stacks

    assert agent_stacks.find_pyspy("/nowhere/py-spy")[1].startswith(
        "'/nowhere/py-spy' (setting pyspy_bin) is no program"
    )
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "pip install 'pymonarch[debug]'" in agent_stacks.find_pyspy()[1]


@full
def test_a_program_that_is_well_has_no_findings(spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": 2}, name="well")
    workers = procs.spawn("worker", Worker)
    workers.pid.call().get(TIMEOUT)
    diagnosis = diagnose(TIMEOUT).get(TIMEOUT)
    assert isinstance(diagnosis, Diagnosis)
    assert not any(finding.mesh in ("well", "worker") for finding in diagnosis.findings)


# --- from outside

STUCK = """
    import ctypes, sys, threading
    from monarch.actor import Actor, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def wait(self):
            threading.Event().wait()

    def hold_the_lock():
        room = ctypes.create_string_buffer(1)
        ctypes.PyDLL(None).read(0, room, 1)

    def wait_for(answer):
        answer.get()

    if __name__ == "__main__":
        workers = this_host().spawn_procs({"gpus": 2}, name="procs").spawn("workers", Worker)
        workers.initialized.get()
        answer = workers.wait.call()
        print("stuck", flush=True)
        hold_the_lock() if "native" in sys.argv else wait_for(answer)
"""


def monarch(*words: str, runtime: Path, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "monarch", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "MONARCH_RUNTIME_DIR": str(runtime), "COLUMNS": "120"},
        cwd=runtime,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == status, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_a_program_that_waits_for_ever_is_seen_from_outside(scripts: Any) -> None:
    program = scripts.start(STUCK)
    assert program.stdout.readline() == "stuck\n"
    while "2 of 2 ranks" not in (text := monarch("stacks", runtime=scripts.runtime)):
        assert program.poll() is None
    assert "the program (pid" in text
    assert "in wait_for()" in text
    assert "workers: 2 of 2 ranks at program1.py:" in text


@full
def test_other_words_about_it(scripts: Any) -> None:
    program = scripts.start(STUCK)
    assert program.stdout.readline() == "stuck\n"
    folder = scripts.runtime
    while "workers.wait() of rank 1" not in (page := monarch("status", runtime=folder)):
        assert program.poll() is None
    assert "procs 0  pid" in page
    found = json.loads(monarch("stacks", "1", "--mesh", "workers", "--locals", "--json", runtime=folder))
    assert [process["rank"] for process in found["processes"]] == [1]
    assert "self" in found["processes"][0]["threads"][0]["frames"][0]["locals"]
    assert "there is no mesh 'nobody' here; there are: procs, workers" in monarch(
        "stacks", "--mesh", "nobody", runtime=folder, status=66
    )
    assert "no process or actor is rank 9" in monarch("stacks", "9", runtime=folder, status=66)
    told = json.loads(monarch("status", "--json", runtime=folder))
    assert [process["mesh"] for process in told["hosts"][0]["processes"]] == ["procs", "procs"]
    assert "nothing is wrong" in monarch("doctor", "--apart", "0.1", runtime=folder)


@full
def test_a_client_whose_interpreter_is_held_is_seen_from_outside(scripts: Any) -> None:
    program = scripts.start(STUCK, "native")
    assert program.stdout.readline() == "stuck\n"
    while "in hold_the_lock" not in (text := monarch("stacks", "--timeout", "0.2", runtime=scripts.runtime)):
        assert program.poll() is None
    assert "native code holds its interpreter lock" in text
    assert "only its client could ask it; --native looks at it with py-spy" in text
    assert program.poll() is None


@pytest.mark.parametrize("verb", first_of(["stacks", "doctor", "status"]))
def test_without_a_program_it_says_how_to_get_one(verb: str, tmp_path: Path) -> None:
    text = monarch(verb, runtime=tmp_path, status=66)
    assert "no program of yours that uses monarch runs on this machine: start one (python my_script.py)" in text


@pytest.mark.parametrize(
    "words",
    first_of([["stacks", "x"], ["stacks", "3-1"], ["stacks", "--timeout", "-1"], ["doctor", "--apart", "x"]]),
)
def test_wrong_words(words: list[str], tmp_path: Path) -> None:
    assert "usage: monarch" in monarch(*words, runtime=tmp_path, status=2)
