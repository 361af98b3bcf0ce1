"""The place of a lab: its number among those that stand side by side, its folder, its keeper, its names in the hosts file."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.lab import keeper
from tests.lab.machine import Machine

MOST_LABS = 16
SECONDS = 60.0  # how long anything in a lab may take before it counts as stuck


class LabError(RuntimeError):
    """The lab could not be made or changed as asked."""


def why_not(programs: dict[str, str]) -> str | None:
    """Returns why no lab that needs these programs (each with its Debian package) can be here; None if one can."""
    missing = [f"{name} (Debian: {package})" for name, package in programs.items() if find(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}; `make lab` installs what the labs need"
    if os.geteuid() != 0:
        return "needs root, to make UTS namespaces and to name machines in /etc/hosts"
    if not os.access(keeper.HOSTS_FILE, os.W_OK):
        return f"{keeper.HOSTS_FILE} cannot be written"
    made = subprocess.run(["unshare", "--uts", "hostname", "lab"], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"UTS namespaces cannot be made here: {made.stderr.strip()}"
    return None


def find(program: str) -> str | None:
    """Its path; daemons lie where the PATH of ordinary users does not lead."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")


def until(condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Returns when `condition()` is true. For what tells nobody when it happens; LabError after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {seconds:g} s")
        pause.wait(0.05)


def free_port() -> int:
    """Returns one that is free at every address, of those below the ones that the kernel gives away to others by itself."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(end // 2, end)
        with suppress(OSError), socket.create_server(("", port)):
            return port


class Site:
    """The ground of one lab of a kind. `close` takes away everything that was made on it."""

    def __init__(self, kind: str) -> None:
        self.number, self._held = _take_number(kind)
        self.name = f"pymonarch-lab-{kind}-{self.number}"
        self.machines: list[Machine] = []
        self._keeper = subprocess.Popen(
            [sys.executable, keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # signals to our group are not for it
            pass_fds=[self._held.fileno()],  # the number is free when everything of it is gone
        )
        self.folder = Path(tempfile.mkdtemp(prefix=f"mlab-{kind}-"))
        try:
            self._keep("folder", str(self.folder))
            # slurmd, sshd and the user's jobs look for what is theirs in it; secrets in it have modes of their own.
            self.folder.chmod(0o755)
        except BaseException:
            self.close()
            raise

    def address(self, number: int) -> str:
        """Returns the address of a machine: 127.0.0.11 is machine 11 of lab 0."""
        return f"127.0.{self.number}.{number}"

    def machine_name(self, name: str) -> str:
        """`name` in lab 0; in others it tells the lab."""
        return name if self.number == 0 else f"lab{self.number}{name}"

    def machine(self, name: str, number: int) -> Machine:
        """A new one, up, with nothing on it."""
        made = Machine(self.machine_name(name), self.address(number), self.folder)
        try:
            self._keep("namespace", made.namespace)
        except BaseException:
            made.kill()
            raise
        self.machines.append(made)
        return made

    def publish(self, others: dict[str, str] | None = None) -> None:
        """The machines, and `others` by name, can be looked up."""
        self._keep("hosts", self.name)
        names = {machine.name: machine.address for machine in self.machines} | (others or {})
        keeper.change_hosts_file(self.name, [f"{address}\t{name}" for name, address in names.items()])

    def _keep(self, kind: str, thing: str) -> None:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.write(f"{kind} {thing}\n")
        self._keeper.stdin.flush()
        if not self._keeper.stdout.readline():
            raise LabError(f"the keeper of {self.name} ended with status {self._keeper.wait()}")

    def close(self) -> None:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        if self._held.fileno() < 0:
            return
        try:
            self._keeper.stdin.close()
            status = self._keeper.wait(SECONDS)
            self._keeper.stdout.close()
            for machine in self.machines:
                machine.reap()
        finally:
            self._held.close()
        if status:
            raise LabError(f"the keeper of {self.name} could not take everything away (status {status})")

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _take_number(kind: str) -> tuple[int, socket.socket]:
    """The first number that no other lab of this kind has now, and what holds it: a name that the kernel lets one have."""
    for number in range(MOST_LABS):
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0pymonarch-lab-{kind}-{number}")
            return number, held
        except OSError:
            held.close()
    raise LabError(f"{MOST_LABS} labs of kind {kind} are up already; that is the most there can be")
