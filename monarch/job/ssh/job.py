"""Jobs on machines where one can log in: a worker a host, started over ssh.

job = SSHJob(python_exe="/opt/venv/bin/python")
job.add_mesh("trainers", ["node1", "node2"])
trainers = job.state().trainers
"""

from __future__ import annotations

import atexit
import ipaddress
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from monarch._text import bracketed
from monarch.job import detached_sessions
from monarch.job.detached_sessions import DetachedSession
from monarch.job.log_file import end_of
from monarch.job.progress import job_logger
from monarch.job.scheduled import Ended, Poll, Ready, ScheduledJob, SchedulerError, Waiting
from monarch.job.worker_launch import WorkerLaunch

_CONNECT = 10  # seconds for ssh to connect, where the user's configuration says nothing
_REMOTE = 30.0  # seconds for a command on a host
_GOING = 10.0  # seconds for workers that lost their stdin to end
_MOST_READ = 64 << 10  # bytes that a login may print before the worker's line
_SAID = 4 << 10  # bytes of the end of a log that are quoted
_AT_ONCE = 32  # hosts that are asked at the same time

# On a host, with the pid and a word of the command line: is it there still; end it. By sh, which every host has.
_IS_THERE = "ps -o args= -p {pid} 2>/dev/null | grep -qF -- {word}"
_END_IT = """
there() {{ {is_there}; }}
there && kill -TERM {pid}
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do there || exit 0; sleep 0.2; done
kill -KILL {pid}
"""


class Worker(msgspec.Struct):
    """A host's worker, as this job knows it."""

    host: str
    address: str
    login: DetachedSession | None = None  # the process of this machine that leads there
    pid: int | None = None  # of the worker, on the host; once it listens


class _WorkerLine(msgspec.Struct):
    """A line that a worker prints when it listens."""

    listening: str
    pid: int


class LoginJob(ScheduledJob):
    """Hosts where one can log in: whatever runs a command on a host and passes stdin on. A kind of login says `_login`, and
    `_address_of` where hosts are reached by other names.

    Everything secret goes over stdin. Workers stay until `kill`, or until nobody has used them for a lease (setting
    `job_lease`), and the next run of the program finds them. With `outlive=False` a worker ends when its stdin does, so all
    end with this program, however it ends.
    """

    def __init__(
        self,
        python_exe: str = "python",
        monarch_port: int = 22222,
        *,
        outlive: bool = True,
        bind_to: str | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        super().__init__()
        if not 1 <= monarch_port <= 65535:
            raise ValueError(f"monarch_port is a number from 1 to 65535, got {monarch_port!r}")
        self._python_exe = python_exe
        self._port = monarch_port
        self._outlive = outlive
        self._bind_to = bind_to if bind_to is None else str(ipaddress.ip_address(bind_to.strip("[]")))
        self.start_timeout = start_timeout
        self.poll_interval = 0.1
        self._hosts: dict[str, list[str]] = {}
        self._workers: dict[str, Worker] = {}
        self._folder: str | None = None  # of the logs, 0700, on this machine
        self._processes: dict[str, subprocess.Popen[bytes]] = {}  # of this program, with the workers' stdins

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_processes": {}}

    def add_mesh(self, name: str, hosts: Sequence[str]) -> None:
        """These hosts as a mesh, before the job is started; a host is in one mesh."""
        if self.active:
            raise RuntimeError("the job is running: meshes are added before it is started")
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!r} is not a name of a mesh")
        if isinstance(hosts, str) or not hosts:
            raise ValueError(f"the hosts of mesh {name!r} are a list of names, got {hosts!r}")
        known = [host for mesh, there in self._hosts.items() if mesh != name for host in there] + list(hosts)
        for host in hosts:
            if not isinstance(host, str) or not host or host.startswith("-"):
                raise ValueError(f"{host!r} is not the name of a host")
            if known.count(host) > 1:
                raise ValueError(f"host {host} is there twice; a host has one worker, and is in one mesh")
        self._hosts[name] = list(hosts)

    # --- what a kind of login says

    @abstractmethod
    def _login(self, host: str, command: str) -> list[str]:
        """The words of a local command that runs `command` (a line for a shell) on `host`: stdin, stdout, stderr and the
        status are the command's, and it asks nothing."""

    def _address_of(self, host: str) -> str:
        """The name or address at which this program and the other hosts reach `host`."""
        return host

    def _failure(self, host: str, status: int, said: str) -> str:
        """Returns why a login, or the worker behind it, has ended."""
        return ssh_failure(host, status, said, self._python_exe, self._port)

    # --- asking

    def _submit(self, launch: WorkerLaunch, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError(f"{type(self).__name__} cannot run batch-mode scripts")
        if not self._hosts:
            raise ValueError("the job has no hosts: add_mesh names them")
        names = [host for hosts in self._hosts.values() for host in hosts]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            reached = dict(zip(names, pool.map(self._address_of, names), strict=True))
        self._folder = tempfile.mkdtemp(prefix="monarch_ssh_job_")
        self._workers = {
            host: Worker(host, f"{launch.scheme}://{bracketed(at)}:{self._port}") for host, at in reached.items()
        }
        try:
            for worker in self._workers.values():
                self._start(worker, launch)
        except BaseException:
            self._cancel()
            raise
        if not self._outlive:
            _held.append(self)

    def _start(self, worker: Worker, launch: WorkerLaunch) -> None:
        listen = worker.address
        if self._bind_to is not None:
            listen += f"@{launch.scheme}://{bracketed(self._bind_to)}:{self._port}"
        command = [*launch.command(self._python_exe, listen), "--stdin"]
        words = self._login(worker.host, f"exec {shlex.join(command)}")
        with open(os.open(self._log(worker.host), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
            process = _popen(words, log)
        self._processes[worker.host] = process
        worker.login = detached_sessions.session_of(process.pid)
        assert process.stdin is not None
        try:
            process.stdin.write(launch.stdin(outlive=self._outlive))
            process.stdin.flush()
        except BrokenPipeError:  # it has ended; `_poll` says why
            pass
        threading.Thread(
            target=_read_line, args=(process, worker, self._outlive), name=f"monarch-{worker.host}", daemon=True
        ).start()

    # --- looking

    def _poll(self) -> Poll:
        for worker in self._workers.values():
            if (why := self._ended(worker)) is not None:
                return Ended(why)
        coming = [worker.host for worker in self._workers.values() if worker.pid is None]
        if coming:
            return Waiting(
                f"workers start on {', '.join(coming[:3])}" + (f" and {len(coming) - 3} more" * (len(coming) > 3))
            )
        return Ready({name: [self._workers[host].address for host in hosts] for name, hosts in self._hosts.items()})

    def _ended(self, worker: Worker) -> str | None:
        """Returns why its worker is not there any more; None while it is, or is coming."""
        process = self._processes.get(worker.host)
        if process is not None:
            status = process.poll()
            return None if status is None else self._failure(worker.host, status, self._said(worker.host))
        if worker.login is not None and worker.login.alive():
            return None
        if self._outlive and worker.pid is not None and self._is_there(worker):
            return None
        return f"host {worker.host}: its worker has ended"

    def _too_late(self, why: str) -> str:
        late = [worker.host for worker in self._workers.values() if worker.pid is None]
        said = "; ".join(f"{host} said {text!r}" for host in late[:3] if (text := self._said(host).strip()))
        return f"no worker listens on {', '.join(late)} after {self.start_timeout:g} s" + (f"; {said}" if said else "")

    def _is_there(self, worker: Worker) -> bool:
        return self._run_there(worker, _IS_THERE.format(**_of(worker))) == 0

    def _run_there(self, worker: Worker, script: str) -> int | None:
        """Status of a script on the host, bounded in time; None when the host cannot be reached."""
        process = _popen(self._login(worker.host, "sh -s"), subprocess.DEVNULL)
        try:
            process.communicate(script.encode(), _REMOTE)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        return None if process.returncode == SSH_FAILED else process.returncode

    # --- ending

    def _cancel(self) -> None:
        if self in _held:
            _held.remove(self)
        unreached = self._end_workers()
        self._wait_for_logins()
        detached_sessions.end([worker.login for worker in self._workers.values() if worker.login is not None])
        for process in self._processes.values():
            process.wait()
        self._processes = {}
        self._workers = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if unreached:
            raise SchedulerError(
                f"workers may be left on {', '.join(unreached)}, which could not be reached; they end by themselves when "
                f"nobody has used them for a lease"
            )

    def _end_workers(self) -> list[str]:
        """Ends them; the names of hosts where that is not known to have worked."""
        for process in self._processes.values():
            _close(process)
        if not self._outlive:
            return []
        left = [worker for worker in self._workers.values()
                if worker.pid is not None and (self._login_ended(worker) is not True)]  # fmt: skip
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            done = list(pool.map(self._end_worker, left))
        return [worker.host for worker, well in zip(left, done, strict=True) if not well]

    def _end_worker(self, worker: Worker) -> bool:
        script = _END_IT.format(is_there=_IS_THERE.format(**_of(worker)), pid=worker.pid)
        return self._run_there(worker, script) is not None

    def _login_ended(self, worker: Worker) -> bool:
        """True if the login has ended because the worker has, and not on the way."""
        process = self._processes.get(worker.host)
        return process is not None and process.poll() not in (None, SSH_FAILED)

    def _wait_for_logins(self) -> None:
        """A worker whose stdin has ended goes, and its login with it. Logins that have not got so far are not waited for."""
        deadline = time.monotonic() + _GOING
        for worker in self._workers.values():
            process = self._processes.get(worker.host)
            if process is not None and worker.pid is not None:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass

    def _hosts_outlive_program(self) -> bool:
        return self._outlive

    def _same(self, spec: LoginJob) -> bool:
        return self._asked() == spec._asked()

    def _asked(self) -> tuple[Any, ...]:
        return (list(self._hosts.items()), self._python_exe, self._port, self._outlive, self._bind_to)

    def _cleanup_log_context(self) -> dict[str, Any]:
        return {"hosts": sorted(self._workers), "folder": self._folder}

    def _log(self, host: str) -> str:
        return f"{self._folder}/{host.replace('/', '_')}.log"

    def _said(self, host: str) -> str:
        try:
            return end_of(self._log(host), _SAID)
        except OSError:
            return ""


class SSHJob(LoginJob):
    """Hosts that OpenSSH's client reaches, by the names and with the keys of the user's own ~/.ssh/config.

    `ssh_args`: further options of ssh, before all others (`["-p", "2222"]`). ssh must not have to ask: keys, an agent, or a
    connection that is shared. `python_exe`: an interpreter on the hosts that has this package. Workers listen at port
    `monarch_port` of the address that ssh connects to, at `bind_to` instead where that is given ("0.0.0.0" behind NAT);
    this program and all hosts have to reach it. `use_tls` encrypts what goes between them; `transport` is "tcp".
    `outlive`: see LoginJob. `start_timeout`: seconds until every worker has to listen.
    """

    def __init__(
        self,
        python_exe: str = "python",
        ssh_args: Sequence[str] = (),
        monarch_port: int = 22222,
        transport: str = "tcp",
        *,
        outlive: bool = True,
        bind_to: str | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        super().__init__(python_exe, monarch_port, outlive=outlive, bind_to=bind_to, start_timeout=start_timeout)
        if transport != "tcp":
            raise ValueError(f"transport is 'tcp', got {transport!r}; use_tls(...) makes it encrypted")
        if isinstance(ssh_args, str):
            raise TypeError(f"ssh_args is a sequence of words, got the text {ssh_args!r}")
        self._ssh_args = tuple(ssh_args)
        self._timeouts: dict[str, bool] = {}  # by host: whether the user's configuration has one for connecting

    def _login(self, host: str, command: str) -> list[str]:
        # ssh takes the first value that it is given for an option: the user's, then ours.
        words = ["ssh", *self._ssh_args, "-T", "-o", "BatchMode=yes", "-o", "ControlMaster=no"]
        words += ["-o", "ClearAllForwardings=yes", "-o", "ServerAliveInterval=15"]
        if not self._timeouts.get(host):
            words += ["-o", f"ConnectTimeout={_CONNECT}"]
        return [*words, "--", host, command]

    def _address_of(self, host: str) -> str:
        """Returns what ~/.ssh/config makes of the name: `HostName`, or the name itself."""
        process = _popen(["ssh", *self._ssh_args, "-G", "--", host], subprocess.PIPE)
        try:
            out, err = process.communicate(None, _REMOTE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise SchedulerError(f"host {host}: `ssh -G` did not end within {_REMOTE:g} s") from None
        if process.returncode:
            raise SchedulerError(self._failure(host, process.returncode, err.decode(errors="replace")))
        said = out.decode(errors="replace")
        self._timeouts[host] = has_connect_timeout(said)
        return host_name(said) or host

    def _asked(self) -> tuple[Any, ...]:
        return (*super()._asked(), self._ssh_args)


def _popen(words: list[str], stderr: Any) -> subprocess.Popen[bytes]:
    """Nothing of this program's input and output is the command's: a pipe that it held open would never end."""
    try:
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
    except OSError as exc:
        raise SchedulerError(
            f"{words[0]} cannot be run here: {exc.strerror or exc}. It has to be installed, on PATH"
        ) from None


def _read_line(process: subprocess.Popen[bytes], worker: Worker, outlive: bool) -> None:
    """Reads what the login prints, up to the worker's line; a login may greet first. A worker that is to outlive this program
    is then let go; before, nobody would know of it."""
    assert process.stdout is not None and process.stdin is not None
    read = 0
    with process.stdout as lines:
        for line in lines:
            read += len(line)
            try:
                pid = msgspec.json.decode(line, type=_WorkerLine).pid
            except msgspec.DecodeError:
                if read > _MOST_READ:
                    return
                continue
            try:
                if outlive:
                    process.stdin.write(b"\n")
                    process.stdin.close()
            except (OSError, ValueError):  # it has ended, or was given up
                return
            worker.pid = pid
            return


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
    except OSError:
        pass


def _of(worker: Worker) -> dict[str, Any]:
    return {"pid": worker.pid, "word": shlex.quote(f"--address {worker.address}")}


# Jobs whose workers end with this program. They are held here: a program may keep the meshes alone, and workers end with
# the pipes that the job has.
_held: list[LoginJob] = []


@atexit.register
def _program_ends() -> None:
    for job in list(_held):
        if not job._maker.is_here:
            continue
        try:
            job._cancel()
        except Exception as exc:
            job_logger().warning("%s", exc)


SSH_FAILED = 255  # ssh's own status for what goes wrong on the way
NOT_FOUND = (126, 127)  # a shell's, for a program that is not there or cannot be run

_MOST_QUOTED = 6  # lines that are quoted

# What was said, in any letter case -> what to do.
_ADVICE = {
    "no module named": "this package is not installed for {python} there: install pymonarch, or give python_exe the "
    "interpreter that has it",
    "address already in use": "port {port} is taken there: end what listens at it (workers of another job, or of this one "
    "in another folder, stay until `monarch kill` there), or give another monarch_port",
    "cannot assign requested address": "the host has not that address itself (it may be behind NAT): give "
    "bind_to='0.0.0.0'",
    "permission denied": "the host does not accept the key: see that `ssh {host} true` works without a question",
    "host key verification failed": "the host's key is not the one that is known, or none is: see that `ssh {host} true` "
    "works without a question",
    "could not resolve hostname": "the name cannot be looked up: see the spelling, or name it in ~/.ssh/config",
    "connection refused": "nothing listens at its ssh port: see that sshd runs there",
    "timed out": "it does not answer: see that it is up and can be reached from here",
    "no route to host": "it cannot be reached from here",
}


def ssh_failure(host: str, status: int, said: str, python: str, port: int) -> str:
    """Returns why there is no worker on `host`: ssh ended with `status` (negative: by a signal) after `said` on stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("Warning: Permanently")]
    words = (
        " / ".join(lines if len(lines) <= _MOST_QUOTED else [*lines[:2], "...", *lines[2 - _MOST_QUOTED :]]).rstrip(".")
        or "it said nothing"
    )
    if status == SSH_FAILED:
        what = "ssh could not get there"
    elif status in NOT_FOUND:
        what = f"{python} could not be run there"
    elif status < 0:
        what = f"ssh was killed by signal {-status}"
    else:
        what = f"the worker ended with status {status}"
    if status in NOT_FOUND:
        advice: str | None = f"give python_exe the path of an interpreter on {host} that has pymonarch"
    else:
        found = next((text for sign, text in _ADVICE.items() if sign in words.lower()), None)
        advice = found and found.format(host=host, python=python, port=port)
    return f"host {host}: {what}: {words}" + (f". {advice[0].upper()}{advice[1:]}" if advice else "")


def host_name(configuration: str) -> str | None:
    """The name or address that `ssh -G host` says ssh would connect to."""
    return _option(configuration, "hostname")


def has_connect_timeout(configuration: str) -> bool:
    """True if the user's configuration bounds the time for connecting."""
    return _option(configuration, "connecttimeout") not in (None, "none", "0")


def _option(configuration: str, name: str) -> str | None:
    for line in configuration.splitlines():
        key, _, value = line.partition(" ")
        if key.lower() == name:
            return value.strip()
    return None
