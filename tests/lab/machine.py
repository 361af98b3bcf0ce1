"""A machine of a lab: a UTS namespace with a host name and a loopback address of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.lab import keeper


class Machine:
    """Up from its making to `kill`. Programs started on it log to a file of theirs in the lab's folder."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        # It holds the namespace while nothing else runs there.
        self._anchor = subprocess.Popen(
            ["unshare", "--uts", "--", "sh", "-c", f"hostname {name} && echo && exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._anchor.stdout is not None
        up = self._anchor.stdout.readline()
        self._anchor.stdout.close()
        if not up:
            raise RuntimeError(f"machine {name} did not come up: unshare ended with status {self._anchor.wait()}")
        self.namespace = f"/proc/{self._anchor.pid}/ns/uts"
        self._id = os.readlink(self.namespace)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, program: str, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Runs `command` here, in a session of its own. `program` names its log."""
        with open(self.log(program), "ab") as log:
            started = subprocess.Popen(
                self.inside(command),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(started)
        return started

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` here."""
        return ["nsenter", f"--uts={self.namespace}", "--", *command]

    def log(self, program: str) -> Path:
        return self.folder / f"{program}-{self.name}.log"

    def processes(self) -> dict[int, str]:
        """Returns what runs here, with command lines, whatever its session or parent; without what holds the machine."""
        found = {}
        for pid in keeper.inhabitants({self._id}):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if pid != self._anchor.pid:
                found[pid] = line
        return found

    def kill_processes(self, which: Callable[[str], bool] = lambda line: True) -> None:
        """Everything on it, or what has such a command line, at once, as when a machine loses power; its name stays."""
        while left := [pid for pid, line in self.processes().items() if which(line)]:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.reap()

    def kill(self) -> None:
        self.kill_processes()
        self._anchor.kill()
        self._anchor.wait()

    def reap(self) -> None:
        """Reaps all that was started here and has ended: nothing of it stays in the process table."""
        self._started = [started for started in self._started if started.poll() is None]
        self._anchor.poll()
