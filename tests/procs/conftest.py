"""Real processes for the tests of this folder. Procs are dear, so the session shares them; actors are cheap.

Tests that need a client of their own (exits, output, `__main__`) run a program through the `scripts` fixture.
"""

from __future__ import annotations

import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch.actor
from monarch.actor import HostMesh, ProcMesh, this_host

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 30


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "procs: starts real processes")


# --- Failures that reach this process's client.


class Faults:
    """Stands in for `unhandled_fault_hook`: keeps what reached the root client."""

    def __init__(self) -> None:
        self._seen: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, failure: Any) -> None:
        self._seen.put(failure)

    def next(self) -> Any:
        """The next failure; waits for it, and fails the test when none comes."""
        try:
            return self._seen.get(timeout=TIMEOUT)
        except queue.Empty:
            pytest.fail(f"no failure reached the root client within {TIMEOUT} s")

    def rest(self) -> list[Any]:
        """The failures not taken yet, without waiting."""
        found = []
        while True:
            try:
                found.append(self._seen.get_nowait())
            except queue.Empty:
                return found


_faults = Faults()


@pytest.fixture(scope="session", autouse=True)
def _faults_are_kept() -> Iterator[None]:
    """For the whole session: the default hook would interrupt pytest itself."""
    before = monarch.actor.unhandled_fault_hook
    monarch.actor.unhandled_fault_hook = _faults
    yield
    monarch.actor.unhandled_fault_hook = before


@pytest.fixture
def faults(_faults_are_kept: None) -> Faults:
    """What reached the root client in this test. A test that does not ask for it must cause no fault."""
    _faults.rest()
    return _faults


@pytest.fixture(autouse=True)
def _no_unexpected_fault(request: pytest.FixtureRequest) -> Iterator[None]:
    _faults.rest()
    yield
    if "faults" not in request.fixturenames:
        assert [str(f) for f in _faults.rest()] == []


# --- Meshes that tests share. Nobody stops or breaks these.


@pytest.fixture(scope="session")
def host() -> HostMesh:
    return this_host()


@pytest.fixture(scope="session")
def proc(host: HostMesh) -> Iterator[ProcMesh]:
    """One process, no dimension."""
    mesh = host.spawn_procs(name="single")
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture(scope="session")
def procs2(host: HostMesh) -> Iterator[ProcMesh]:
    mesh = host.spawn_procs(per_host={"gpus": 2}, name="pair")
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture(scope="session")
def procs4(host: HostMesh) -> Iterator[ProcMesh]:
    mesh = host.spawn_procs(per_host={"a": 2, "b": 2}, name="square")
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def spawn_procs(host: HostMesh) -> Iterator[Any]:
    """`this_host().spawn_procs` whose meshes are stopped when the test ends."""
    meshes: list[ProcMesh] = []

    def spawn(*args: Any, on: HostMesh | None = None, **kwargs: Any) -> ProcMesh:
        mesh = (on or host).spawn_procs(*args, **kwargs)
        meshes.append(mesh)
        return mesh

    yield spawn
    for mesh in meshes:
        mesh.stop().get(timeout=TIMEOUT)


# --- Processes seen from outside.


class Watch:
    """Processes by descriptor: their end is waited for without polling, and a reused pid fools nobody."""

    def __init__(self, pids: list[int]) -> None:
        self._open: dict[int, int] = {}
        for pid in pids:
            try:
                self._open[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                pass

    def survivors(self, seconds: float) -> dict[int, str]:
        """Waits up to `seconds` for all to end; those that have not, with their command lines."""
        deadline = time.monotonic() + seconds
        left = {}
        for pid, fd in self._open.items():
            ended, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ended:
                left[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            os.close(fd)
        self._open = {}
        return left


@pytest.fixture
def watch() -> type[Watch]:
    """`watch([pid, ...])` before, `.survivors(seconds)` after what should end them."""
    return Watch


def _descendants(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, wave = [], {pid}
    while wave:
        wave = {child for child, parent in parents.items() if parent in wave}
        found += sorted(wave)
    return found


@pytest.fixture
def descendants() -> Any:
    """`descendants(pid)`: the pids of all processes below it, now."""
    return _descendants


# --- Programs with a client of their own.


class Scripts:
    """Runs Python source as a program: `run` to its end, `start` to talk to it."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self.runtime = runtime
        self._started: list[subprocess.Popen[str]] = []
        self._watchdogs: list[threading.Timer] = []
        self._count = 0

    def start(
        self, source: str, *args: str, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        self._count += 1
        file = self.folder / f"program{self._count}.py"
        file.write_text(textwrap.dedent(source))
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
        environment = os.environ | {"PYTHONPATH": path, "MONARCH_RUNTIME_DIR": str(self.runtime)} | (env or {})
        settings: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.folder,
            "start_new_session": True,
        } | options
        process = subprocess.Popen([sys.executable, str(file), *args], env=environment, text=True, **settings)
        self._started.append(process)
        # Whoever reads from a program that says nothing more gets an end of file instead of waiting for ever.
        watchdog = threading.Timer(2 * TIMEOUT, process.kill)
        watchdog.daemon = True
        watchdog.start()
        self._watchdogs.append(watchdog)
        return process

    def run(
        self, source: str, *args: str, env: dict[str, str] | None = None, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(source, *args, env=env, **options)
        try:
            out, err = process.communicate(timeout=1.5 * TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=TIMEOUT)
            pytest.fail(f"the program did not end.\n--- stdout\n{out}\n--- stderr\n{err}")
        if check:
            assert process.returncode == 0, f"exit {process.returncode}\n--- stdout\n{out}\n--- stderr\n{err}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def close(self) -> None:
        for watchdog in self._watchdogs:
            watchdog.cancel()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(TIMEOUT)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    # Not below tmp_path: the address of a Unix socket holds about a hundred bytes.
    runtime = Path(tempfile.mkdtemp(prefix="mnr"))
    runner = Scripts(tmp_path, runtime)
    yield runner
    runner.close()
    shutil.rmtree(runtime, ignore_errors=True)
