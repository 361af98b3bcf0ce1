"""A network of hosts on one machine: a network namespace each, joined by a switch.

    with Lab(hosts=3) as lab:
        server = lab.hosts[1].popen(lab.hosts[1].python("-m", "http.server", "--bind", lab.hosts[1].address))
        lab.hosts[0].run(lab.hosts[0].program("client.py", lab.hosts[1].address))
        lab.cut(1, how="drop")
        lab.heal(1)

            monarch-<pid>-<id>-switch: bridge br0, 10.77.0.254
              │ p0            │ p1            │ p2
              │ veth          │               │
            eth0            eth0            eth0
       monarch-<pid>-<id>-0      ...-1           ...-2
       10.77.0.1           10.77.0.2       10.77.0.3
       fd00:77::1          fd00:77::2      fd00:77::3

The switch is a namespace too, so nothing appears among the machine's own interfaces, and every lab can use the same
addresses. There is no way out: the default route ends in the switch, which forwards nothing and answers nothing.
Neighbour entries are permanent, so that a cut is silent: without them a host would be told after some seconds that
nobody answers for an address, which no router between real hosts would tell it.

Hosts share the file system, process ids and the host name; only their networks are apart. Each has a folder of its own,
and MONARCH_RUNTIME_DIR names it.

A lab leaves nothing behind. A keeper, one shell process, waits for a line or the end of its standard input, which come
when the lab is closed and when the process with the lab dies of whatever; then it kills what runs in the namespaces (in
sessions of their own or not) and removes them. What a killed keeper left is removed by the next lab.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
NAMESPACES = Path("/run/netns")

MOST_HOSTS = 200
GATEWAY, GATEWAY6 = "10.77.0.254", "fd00:77::fe"
NOBODY = "02:00:00:00:ff:ff"  # a link address that no host has
SECONDS = 30.0  # how long anything here may take before it counts as stuck

_PREFIX = "monarch"
_NAMESPACE = re.compile(rf"{_PREFIX}-(\d+)-[0-9a-f]+-(?:switch|\d+)")
_FOLDER = re.compile(r"mnl-(\d+)-[0-9a-f]+")
_KEEPER = """
read -r line
folder=$1; shift
for name; do
    while pids=$(ip netns pids "$name") && [ -n "$pids" ]; do kill -9 $pids; sleep 0.01; done
    ip netns del "$name"
done 2>/dev/null
rm -rf -- "$folder"
"""


class LabError(RuntimeError):
    """The network could not be made or changed as asked; the text has what `ip` said."""


def why_not() -> str | None:
    """Returns why no lab can be made here; None if one can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    for program in ("ip", "nsenter"):
        if shutil.which(program) is None:
            return f"needs the program {program} (packages iproute2 and util-linux)"
    try:
        with Lab(hosts=1):
            return None
    except (LabError, OSError) as error:
        return f"network namespaces cannot be made here: {error}"


class Host:
    """One host of a lab. Programs run in its network as this user, in sessions of their own, until the lab closes."""

    def __init__(self, index: int, namespace: str, folder: Path) -> None:
        self.index = index
        self.namespace = namespace
        self.folder = folder
        """Its own folder, short enough for Unix sockets, removed with the lab. MONARCH_RUNTIME_DIR of its programs."""
        self.address = f"10.77.0.{index + 1}"
        self.address6 = f"fd00:77::{index + 1:x}"
        self.link_address = f"02:00:00:00:00:{index + 1:02x}"
        self.log = folder / "log"
        """What its programs wrote to stderr, unless `popen` was told otherwise."""
        self._started: list[subprocess.Popen[str]] = []

    def __repr__(self) -> str:
        return f"<Host {self.index} {self.address}>"

    def python(self, *arguments: str) -> list[str]:
        """A command: this Python with `arguments`. `monarch` and `tests` can be imported."""
        return [sys.executable, *arguments]

    def program(self, name: str, *arguments: str) -> list[str]:
        """A command: the file `name` of tests/netns/programs, run by this Python."""
        return [sys.executable, str(PROGRAMS / name), *arguments]

    def popen(
        self, command: Sequence[str], *, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Starts `command` here. The Popen's pid is the program's own, and its process group.

        stdin and stdout are pipes, stderr goes to `log`; `options` are Popen's. `env` is added to this environment.
        """
        path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
        added = {"PYTHONPATH": path, "MONARCH_RUNTIME_DIR": str(self.folder), "PYTHONUNBUFFERED": "1"} | (env or {})
        with self.log.open("a") as log:
            settings: dict[str, Any] = {
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "stderr": log,
                "cwd": self.folder,
                "text": True,
                "start_new_session": True,
            } | options
            # nsenter sets the namespace and becomes the command: there is no process between.
            entering = ["nsenter", f"--net={NAMESPACES / self.namespace}", "--", *command]
            process = subprocess.Popen(entering, env=os.environ | added, **settings)
        self._started.append(process)
        return process

    def run(
        self,
        command: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        input: str | None = None,  # as subprocess.run has it
        timeout: float = SECONDS,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `command` here to its end and returns its output.

        AssertionError with all it wrote, when it does not end within `timeout` seconds or, unless ``check=False``, when
        it ends with another code than 0. After a timeout its process group is killed.
        """
        process = self.popen(command, env=env, stderr=subprocess.PIPE)
        late = False
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            late = True
            _kill_group(process.pid)
            out, err = process.communicate(timeout=SECONDS)
        self._started.remove(process)
        if late or (check and process.returncode != 0):
            ended = f"did not end within {timeout} s" if late else f"ended with {process.returncode}"
            raise AssertionError(f"{list(command)} on {self} {ended}\n--- stdout\n{out}\n--- stderr\n{err}")
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def pids(self) -> list[int]:
        """The processes in this host's network, now."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """SIGKILL to every process here, until there is none. The network stays: peers see connections closed."""
        deadline = time.monotonic() + SECONDS
        while pids := self.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if time.monotonic() > deadline:
                raise LabError(f"processes {pids} on {self} outlive SIGKILL")
        for process in self._started:
            process.wait(SECONDS)

    def _forget(self) -> None:
        """After their end: nothing of them is left in this process."""
        for process in self._started:
            process.wait(SECONDS)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:  # what was never flushed to it
                        pass
        self._started.clear()


class Lab:
    """A context manager: `hosts` hosts (1 to 200) and the network between them. Raises LabError if it cannot be made."""

    def __init__(self, hosts: int = 3) -> None:
        if not 1 <= hosts <= MOST_HOSTS:
            raise ValueError(f"a lab has 1 to {MOST_HOSTS} hosts, not {hosts}")
        own = f"{os.getpid()}-{secrets.token_hex(3)}"
        self._switch = f"{_PREFIX}-{own}-switch"
        self._folder = Path(tempfile.gettempdir()) / f"mnl-{own}"
        self._cuts: dict[int, str] = {}
        self._keeper: subprocess.Popen[bytes] | None = None
        self.hosts = tuple(Host(i, f"{_PREFIX}-{own}-{i}", self._folder / str(i)) for i in range(hosts))

    @property
    def namespaces(self) -> list[str]:
        return [*(host.namespace for host in self.hosts), self._switch]

    def __enter__(self) -> Lab:
        remove_leftovers()
        # It knows the names before there is anything to remove.
        self._keeper = _keeper(self._folder, self.namespaces, subprocess.PIPE)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills all processes of the lab and removes it. Again: nothing."""
        if self._keeper is None:
            return
        keeper, self._keeper = self._keeper, None
        try:
            keeper.communicate(b"\n", SECONDS)
        finally:
            if keeper.poll() != 0:  # it was killed, or it is stuck
                _remove(self._folder, self.namespaces)
        for host in self.hosts:
            host._forget()

    def reset(self) -> None:
        """Makes it as new: kills all processes, ends all trouble, empties the hosts' folders. Quicker than another lab."""
        for host in self.hosts:
            host.kill()
            host._forget()
            shutil.rmtree(host.folder)
            host.folder.mkdir()
        for i in list(self._cuts):
            self.heal(i)
        for host in self.hosts:
            self._configure(host)

    # --- Trouble.

    def cut(self, i: int, how: str = "down") -> None:
        """Takes host `i` off the network, at once. What its processes say to each other over loopback goes on.

        "down": its interface goes down; its programs are told (network unreachable), the others notice only silence.
        "drop": all packets from and to it vanish without a word; its interface stays up.
        """
        if i in self._cuts:
            raise LabError(f"host {i} is already cut ({self._cuts[i]})")
        if how == "down":
            _batch(self.hosts[i].namespace, ["link set eth0 down"])
        elif how == "drop":
            _batch(self._switch, [f"link set p{i} nomaster"])
        else:
            raise ValueError(f"how={how!r}; known: 'down', 'drop'")
        self._cuts[i] = how

    def heal(self, i: int) -> None:
        """Undoes `cut(i)`. TCP connections go on with their next try, which the kernel makes at most about as late
        again as the cut was long. Returns when the host's port forwards."""
        how = self._cuts.pop(i, None)
        if how is None:
            raise LabError(f"host {i} is not cut")
        if how == "down":
            self._configure(self.hosts[i])
        else:
            _batch(self._switch, [f"link set p{i} master br0"])
        self._wait_for_ports([i])

    def separate(self, i: int, j: int) -> None:
        """Packets between hosts `i` and `j` vanish without a word, both ways; both go on with all others."""
        self._neighbours(i, j, known=False)

    def rejoin(self, i: int, j: int) -> None:
        """Undoes `separate(i, j)`."""
        self._neighbours(i, j, known=True)

    def proxy(self, on: int, target: str, *, delay: float) -> str:
        """Starts a proxy on host `on` that passes on to `target` (host:port) with `delay` seconds each way; returns where
        it listens. Network emulation in the kernel (tc netem) is not everywhere; this is."""
        host = self.hosts[on]
        process = host.popen(host.python("-m", "tests.netns.delay", f"{host.address}:0", target, "--delay", str(delay)))
        assert process.stdout is not None
        return process.stdout.readline().removeprefix("listening ").rstrip("\n")

    # --- Making it.

    def _make(self) -> None:
        self._folder.mkdir(mode=0o700)
        for host in self.hosts:
            host.folder.mkdir()
            _ip("netns", "add", host.namespace)
        _ip("netns", "add", self._switch)
        # Every host is known to every other beforehand, so nothing needs to be learnt, and no flood is snooped.
        lines = ["link add br0 type bridge mcast_snooping 0"]
        for host in self.hosts:
            peer = f"eth0 address {host.link_address} netns {host.namespace}"
            lines += [f"link add p{host.index} type veth peer name {peer}", f"link set p{host.index} master br0 up"]
        lines += [f"addr add {GATEWAY}/24 dev br0", f"addr add {GATEWAY6}/64 dev br0 nodad", "link set br0 up"]
        _batch(self._switch, lines)
        for host in self.hosts:
            self._configure(host)
        self._wait_for_ports([host.index for host in self.hosts])

    def _configure(self, host: Host) -> None:
        """All of a host's own network. Also after its interface was down, which takes addresses and routes with it."""
        lines = [
            "link set lo up",
            "link set eth0 up",
            f"addr replace {host.address}/24 dev eth0",
            f"addr replace {host.address6}/64 dev eth0 nodad",
            f"route replace default via {GATEWAY}",
            f"route replace default via {GATEWAY6} dev eth0",
        ]
        for other in self.hosts:
            if other is not host:
                lines += _neighbour(other, other.link_address)
        _batch(host.namespace, lines)

    def _neighbours(self, i: int, j: int, *, known: bool) -> None:
        for here, there in ((self.hosts[i], self.hosts[j]), (self.hosts[j], self.hosts[i])):
            _batch(here.namespace, _neighbour(there, there.link_address if known else NOBODY))

    def _wait_for_ports(self, ports: Sequence[int]) -> None:
        """The kernel enables a port of a bridge a moment after its link is up; packets before that would be lost."""
        wanted = {f"p{port}" for port in ports}
        deadline = time.monotonic() + SECONDS
        while True:
            links = json.loads(_ip("-n", self._switch, "-d", "-j", "link", "show", "master", "br0"))
            states = {link["ifname"]: link["linkinfo"]["info_slave_data"]["state"] for link in links if link}
            if all(states.get(port) == "forwarding" for port in wanted):
                return
            if time.monotonic() > deadline:
                raise LabError(f"the ports {sorted(wanted)} of the switch do not forward: {states}")


def remove_leftovers() -> None:
    """Removes what labs left whose process is gone and whose keeper was killed with it."""
    for name in _gone(NAMESPACES, _NAMESPACE):
        _remove(Path(os.devnull) / "none", [name])
    for name in _gone(Path(tempfile.gettempdir()), _FOLDER):
        _remove(Path(tempfile.gettempdir()) / name, [])


def _gone(folder: Path, names: re.Pattern[str]) -> list[str]:
    """The entries of `folder` that name a process which is not there any more, and are ours."""
    if not folder.is_dir():
        return []

    def left(entry: os.DirEntry[str]) -> bool:
        match = names.fullmatch(entry.name)
        if match is None or os.path.exists(f"/proc/{match[1]}"):
            return False
        try:
            return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
        except FileNotFoundError:  # another lab was quicker
            return False

    return [entry.name for entry in os.scandir(folder) if left(entry)]


def _remove(folder: Path, namespaces: list[str]) -> None:
    _keeper(folder, namespaces, subprocess.DEVNULL).wait(SECONDS)


def _keeper(folder: Path, names: list[str], until: int) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for the tests. No stdout or stderr: whoever reads ours should not wait for it.
    command = ["sh", "-c", _KEEPER, "keeper", str(folder), *names]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=until, stdout=null, stderr=null, start_new_session=True)


def _neighbour(host: Host, link_address: str) -> list[str]:
    both = (host.address, host.address6)
    return [f"neigh replace {address} lladdr {link_address} dev eth0 nud permanent" for address in both]


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _ip(*arguments: str, input: str | None = None) -> str:
    done = subprocess.run(["ip", *arguments], input=input, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        raise LabError(f"ip {' '.join(arguments)}: {done.stderr.strip()}" + (f", of\n{input}" if input else ""))
    return done.stdout


def _batch(namespace: str, lines: list[str]) -> None:
    _ip("-n", namespace, "-batch", "-", input="\n".join(lines) + "\n")
