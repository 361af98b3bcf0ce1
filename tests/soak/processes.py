"""The cluster of real processes: what a program does is done to processes of this machine, by signals, in real time.

What actors note travels in a file, to which everybody appends; its order is that of the history. Beside the program a thread
stops processes for moments (SIGSTOP, SIGCONT).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import random
import select
import shutil
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from monarch._runtime.context import home
from monarch.actor import context, this_host
from tests.soak.generate import generate
from tests.soak.history import Fact, History, Sent
from tests.soak.program import Calm, Cut, CutHosts, Disturb, KillHost, Lose, Operation, Program, SpawnProcs
from tests.support.processes import descendants

_MOST = 3  # processes of one mesh
_LOOK = 0.01  # seconds
_KNOWN = 10.0  # seconds in which a process that has begun is heard of
_STOPPED = 0.03  # seconds, at most, that the thread beside the program stops a process
_LENGTH = struct.Struct("I")


def program_of(seed: int) -> Program:
    """On one host, with few processes, and without what only a network of our own can do."""
    program = generate(seed)
    while program.hosts or any(type(one) is SpawnProcs and one.size > _MOST for one in program.operations):
        program = generate(program.seed + 1_000_000)
    return dataclasses.replace(program, seed=seed, operations=list(_possible(program)))


def _possible(program: Program) -> Iterator[Operation]:
    for operation in program.operations:
        if isinstance(operation, (Cut, Lose)):
            yield from operation.casts
        elif not isinstance(operation, (Disturb, Calm, CutHosts, KillHost)):
            yield operation


class WallClock:
    """Time goes by itself here."""

    def now(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        time.sleep(min(seconds, _LOOK))


class FileGate:
    """An event that other processes see: set when its file is there."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def value(self) -> FileGate:
        return self

    def set(self) -> None:
        os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))

    def wait(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        while not os.path.exists(self._path) and time.monotonic() < until:
            time.sleep(_LOOK)


class FileHistory(History):
    """In the process that made it, the facts of all; elsewhere (it is sent by name) one only notes."""

    def __init__(self, path: str, ours: bool = False) -> None:
        super().__init__()
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._own: list[Fact] | None = [] if ours else None
        self._read = 0
        self.pids: dict[str, int] = {}  # address of a process -> its number, as last heard

    def __reduce__(self) -> Any:
        return FileHistory, (self._path,)

    @property
    def value(self) -> FileHistory:
        return self

    def note(self, fact: Fact) -> None:
        """In one write, which the kernel keeps whole. Our own facts stay here, for others refer to them."""
        if self._own is None:
            proc = home()
            self._write((os.getpid(), proc.address if proc is not None else "", fact))
            return
        with self._changed:
            self._own.append(fact)
            self._write((0, "", len(self._own) - 1))

    def _write(self, noted: Any) -> None:
        data = pickle.dumps(noted)
        os.write(self._fd, _LENGTH.pack(len(data)) + data)

    @contextlib.contextmanager
    def sending(self, sent: Sent) -> Iterator[None]:
        self.note(sent)
        yield
        self._write((-1, "", (sent.sender, sent.number)))

    def facts(self) -> Sequence[Fact]:
        with self._changed:
            self._take()
            return list(self._facts)

    def close(self) -> None:
        """Says that what is noted from now on is nobody's."""
        with self._changed:
            self._take()
            os.close(self._fd)
            self._fd = os.open(os.devnull, os.O_RDWR)
            self._read = 0

    def _take(self) -> None:
        assert self._own is not None
        data = os.pread(self._fd, os.fstat(self._fd).st_size - self._read, self._read)
        start = 0
        while len(data) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, start)
            if len(data) - start - _LENGTH.size < size:
                break
            pid, address, noted = pickle.loads(data[start + _LENGTH.size : start + _LENGTH.size + size])
            start += _LENGTH.size + size
            if pid < 0:
                for fact in self._facts:
                    if isinstance(fact, Sent) and (fact.sender, fact.number) == noted:
                        fact.left = len(self._facts)
                continue
            fact = noted if pid else self._own[noted]
            fact.at = len(self._facts)
            self._facts.append(fact)
            if pid:
                self.pids[address] = pid
        self._read += start

    def wait_for(self, done: Callable[[Sequence[Fact]], bool], timeout: float) -> bool:
        until = time.monotonic() + timeout
        while not done(self.facts()):
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK)
        return True


class ProcessCluster:
    """A cluster as `run` needs it, in real processes, which write the steps of messages into the folder `messages`."""

    def __init__(self, seed: int, messages: str) -> None:
        self.network = SimpleNamespace(calm=lambda: None)
        self.folder = tempfile.mkdtemp(prefix="mns")
        self.messages = messages
        self.history = FileHistory(os.path.join(self.folder, "history"), ours=True)
        self._rng = random.Random(seed)
        self._held: set[int] = set()  # stopped by the program
        self._open: dict[int, int] = {}  # pid -> its descriptor: a number that is used again fools nobody
        self._over = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> ProcessCluster:
        this_host()
        proc = home()
        assert proc is not None
        self.proc = proc
        self.root = context().actor_instance._instance
        owners = self.proc.mesh.owners
        self._before = owners.fault, owners.handled
        self._thread = threading.Thread(target=self._disturb, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        owners = self.proc.mesh.owners
        owners.fault, owners.handled = self._before
        for fd in self._open.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGCONT)
            os.close(fd)
        self.history.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def gate(self, number: int) -> FileGate:
        return FileGate(os.path.join(self.folder, f"gate{number}"))

    def settle(self) -> None:
        time.sleep(_LOOK)

    def statistics(self) -> dict[str, Any]:
        return {"network": {}, self.proc.address: self.proc.statistics()}

    # --- signals

    def kill(self, procs: Any, rank: int) -> None:
        """Returns when it is dead."""
        fd = self._find(procs, rank)
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        select.select([fd], [], [])

    def stop_process(self, procs: Any, rank: int) -> None:
        fd = self._find(procs, rank)
        self._held.add(fd)
        signal.pidfd_send_signal(fd, signal.SIGSTOP)

    def continue_process(self, procs: Any, rank: int) -> None:
        for fd in self._held:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGCONT)
        self._held = set()

    def _find(self, procs: Any, rank: int) -> int:
        """The descriptor of a process in which something was noted. ValueError when nothing was, or it has ended."""
        address, until = procs._addresses()[rank], time.monotonic() + _KNOWN
        while time.monotonic() < until:
            self.history.facts()
            fd = self._descriptor(self.history.pids.get(address, 0))
            if fd is not None:
                return fd
            time.sleep(_LOOK)
        raise ValueError(f"no simulated process lives at {address}")

    def _descriptor(self, pid: int) -> int | None:
        with self._lock:
            fd = self._open.get(pid)
            if fd is None:
                if pid not in descendants(os.getpid()):
                    return None
                try:
                    fd = self._open[pid] = os.pidfd_open(pid)
                except ProcessLookupError:
                    return None
        return None if select.select([fd], [], [], 0)[0] else fd

    def _disturb(self) -> None:
        while not self._over.wait(self._rng.uniform(0, 2 * _STOPPED)):
            pids = list(self.history.pids.values())
            fd = self._descriptor(self._rng.choice(pids)) if pids else None
            if fd is None or fd in self._held:
                continue
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGSTOP)
                self._over.wait(self._rng.uniform(0, _STOPPED))
                if fd not in self._held:
                    signal.pidfd_send_signal(fd, signal.SIGCONT)
