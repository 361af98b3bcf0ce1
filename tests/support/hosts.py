"""Hosts that others have started, as real processes on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from monarch.actor import HostMesh, attach_to_workers
from tests.support.patience import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]
TRUST = "trust_all_connections"

LOOP = """
import sys
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1], ca="trust_all_connections")
"""

# A worker does not outlive a test run that is killed: PR_SET_PDEATHSIG, SIGKILL.
MORTAL = "import ctypes; ctypes.CDLL(None).prctl(1, 9)\n"


class Worker:
    """A program that serves `address`; `source` gets what it is to listen at as its first argument."""

    def __init__(
        self, address: str, hosts: Hosts, source: str, env: Mapping[str, str], listening: socket.socket | None = None
    ) -> None:
        self.address = address
        at = address if listening is None else f"tcp://127.0.0.1:fd{listening.fileno()}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self.process = subprocess.Popen(
            [sys.executable, "-c", MORTAL + source, at],
            env=os.environ | {"PYTHONPATH": str(ROOT), "MONARCH_RUNTIME_DIR": str(hosts.runtime)} | dict(env),
            cwd=hosts.cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=() if listening is None else (listening.fileno(),),
            start_new_session=True,
        )
        self.pid = self.process.pid

    @property
    def agent(self) -> int:
        """The pid of its host agent; there once a client was attached."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def output(self) -> str:
        """Returns what the program and the processes of its host have written."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def status(self) -> int:
        """Waits for its end."""
        return self.process.wait(TIMEOUT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(TIMEOUT)
            finally:
                self.process.kill()
                self.process.wait()
        self._log.close()


class Hosts:
    """Starts workers; `close` ends those that have not ended."""

    def __init__(self, folder: Path, cwd: Path) -> None:
        self.folder = folder
        self.cwd = cwd
        self.runtime = folder / "run"
        self.runtime.mkdir()
        self.workers: list[Worker] = []

    def address(self, name: str) -> str:
        return f"ipc://{self.folder}/{name}"

    def start(self, name: str = "", source: str = LOOP, env: Mapping[str, str] | None = None) -> Worker:
        """One that listens at a Unix socket; the same name again is the same address."""
        return self._keep(Worker(self.address(name or f"w{len(self.workers)}"), self, source, env or {}))

    def start_tcp(self, source: str = LOOP, env: Mapping[str, str] | None = None) -> Worker:
        """One that listens at a port of this machine, which is its own before it starts."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
            return self._keep(Worker(address, self, source, env or {}, listening))

    def _keep(self, worker: Worker) -> Worker:
        self.workers.append(worker)
        return worker

    def attach(self, *workers: Worker, env: Mapping[str, str] | None = None) -> HostMesh:
        """The mesh of these, complete."""
        mesh = attach_to_workers(workers=[worker.address for worker in workers], ca=TRUST, env=env)
        assert mesh.initialized.get(TIMEOUT) is True
        return mesh

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


@contextmanager
def hosts_in(cwd: Path) -> Iterator[Hosts]:
    """Workers that run in `cwd`. What was started is gone at the end, and so are its folders."""
    folder = Path(tempfile.mkdtemp(prefix="mnh"))  # short: the address of a Unix socket holds about a hundred bytes
    hosts = Hosts(folder, cwd)
    try:
        yield hosts
        hosts.close()
        assert list(hosts.runtime.iterdir()) == []
    finally:
        hosts.close()
        shutil.rmtree(folder, ignore_errors=True)
