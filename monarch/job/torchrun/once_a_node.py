"""`monarch run` started once on every node, as torchrun is: the commands meet, one leads, and the others lend it their hosts.

Each command starts a worker on its machine, which ends with the command. The leader attaches to all of them and runs the
ranks; what these print is shown there. The others wait for its exit status, which is theirs as well.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing

from monarch._linux import terminal
from monarch._linux.locks import Condition
from monarch._text import bracketed, visible
from monarch.actor import attach_to_workers
from monarch.actor.lowlevel import Secret, load_secret, start_thread
from monarch.job.commands.printer import CommandPrinter
from monarch.job.torchrun import meeting
from monarch.job.torchrun import run as runner
from monarch.job.torchrun.arguments import TorchrunOptions
from monarch.job.torchrun.meeting import Joining, Meeting, MeetingPlace, Met, NotAdmitted, PassedSignal, RunEnded
from monarch.job.torchrun.meeting_sockets import Door, MeetingLine, NotOursError, dial, is_here, listen
from monarch.job.torchrun.run import Passing, noted_signals
from monarch.job.worker_launch import WorkerLaunch, own_tls, start_beside

_AGAIN = 0.2  # seconds between attempts to reach the leader
_LATE = 30.0  # seconds a command waits for the leader's word longer than that may take
_WORKER = 60.0  # for a worker to listen, and to end
_TOLD = 2000  # characters of what a worker said
_ENDING = 10.0  # seconds beyond --shutdown-timeout that the leader has to end the run


def run(
    options: TorchrunOptions,
    place: MeetingPlace,
    env: Mapping[str, str],
    printer: Callable[[int], CommandPrinter] | None = None,
) -> int:
    """Meets the other commands of the run, of which one runs it, and returns the exit status of the run. `printer`: as
    runner.run has it, if that is this one.

    ValueError where there is no secret, and for what the commands do not say alike; TimeoutError when too few come."""
    secret = load_secret(None, os.environ)
    if secret is None:
        raise ValueError(_no_secret(options, place))
    with ExitStack() as stack:
        assert options.nodes is not None
        run_id = options.run_id or "none"
        # Of this run alone, and text whatever the file held.
        of_hosts = secret.mac(b"monarch run\0", run_id.encode()).hex()
        worker = stack.enter_context(closing(_OwnWorker(of_hosts)))
        own = Joining(
            name=os.uname().nodename,
            run_id=run_id,
            least=options.nodes[0],
            most=options.nodes[1],
            node_rank=place.node_rank,
            port=worker.port,
            address=place.local_address,
            same=meeting.digests(
                {
                    "the script or its arguments": options.command,
                    "--nproc-per-node": options.per_node,
                    "--max-restarts": options.max_restarts,
                    "--role": options.role,
                    "-e": sorted(env.items()),
                }
            ),
        )
        found = _leader_or_follower(place, secret)
        if isinstance(found, socket.socket):
            return _Leader(options, place, env, secret, of_hosts, own, found, stack, printer).run()
        stack.callback(found.close)
        return _follow(found, own, place, options)


def _leader_or_follower(place: MeetingPlace, secret: Secret) -> socket.socket | MeetingLine:
    """The socket to lead at, or a connection to the leader. TimeoutError when there is no leader."""
    deadline = time.monotonic() + place.limit
    leads = is_here(place.host) if place.leads is None else place.leads
    while True:
        if leads:
            try:
                return listen(place.host, place.port)
            except OSError:  # another command of this machine leads, or somebody else has the port
                pass
        try:
            return dial(place.host, place.port, secret, max(0.1, deadline - time.monotonic()))
        except OSError as exc:
            if isinstance(exc, NotOursError) and exc.final:
                raise ValueError(f"--rdzv-endpoint {place}: {exc}") from None
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no command leads at --rdzv-endpoint {place} after {place.limit:g} s ({exc}): HOST is the name or the "
                    f"address of one of the nodes on which the command is started, and the others reach the port there; "
                    f"where HOST is another name of that node, say --rdzv-conf is_host=true on it. --rdzv-conf "
                    f"join_timeout=SECONDS waits longer"
                ) from None
        time.sleep(_AGAIN)


# --- the command that leads


class _Leader:
    def __init__(
        self,
        options: TorchrunOptions,
        place: MeetingPlace,
        env: Mapping[str, str],
        secret: Secret,
        of_hosts: str,
        own: Joining,
        listening: socket.socket,
        stack: ExitStack,
        printer: Callable[[int], CommandPrinter] | None,
    ) -> None:
        self._options = options
        self._printer = printer
        self._place = place
        self._env = env
        self._of_hosts = of_hosts
        self._own = own
        self._changed = Condition()
        self._meeting = Meeting(own, place, time.monotonic())
        self._lines: dict[int, MeetingLine] = {}
        self._passing = Passing()
        stack.callback(self._close)
        stack.enter_context(closing(Door(listening, secret, self._visit)))

    def run(self) -> int:
        with self._changed:
            while not self._meeting.over:
                self._changed.wait(max(0.0, self._meeting.due - time.monotonic()))
                self._meeting.passed(time.monotonic())
        if self._meeting.error:
            self._tell(NotAdmitted(self._meeting.error))
            raise ValueError(self._meeting.error)
        status = 1
        try:
            status = self._run()
        finally:
            self._tell(RunEnded(status))
        return status

    def _run(self) -> int:
        order = self._meeting.order or []
        members = [self._meeting.member(number) for number in order]
        reached = next((line.here for line in self._lines.values()), self._place.host)
        seen = {number: line.peer for number, line in self._lines.items()} | {meeting.OWN: ""}
        hosts = meeting.addresses(order, seen, reached)
        scheme = "tls" if own_tls() else "tcp"
        workers = [
            f"{scheme}://{bracketed(member.address or host)}:{member.port}"
            for member, host in zip(members, hosts, strict=True)
        ]
        names = ", ".join(member.name for member in members)
        terminal.note(visible(f"monarch run: {len(order)} nodes have met at {self._place}: {names}"))
        self._tell(Met(self._own.name, len(order)))
        mesh = attach_to_workers(workers=workers, name="nodes", secret=self._of_hosts)
        mesh.initialized.get()
        try:
            where = f"the meeting at {self._place}"
            return runner.run(
                mesh,
                self._options,
                where,
                self._env,
                passing=self._passing,
                printer=self._printer,
                own_streams=True,
            )
        finally:
            try:
                mesh.shutdown().get(_ENDING)
            except Exception:  # of a host that was lost, which the run has told of
                pass

    def _visit(self, number: int, line: MeetingLine) -> None:
        """One connection, on a thread of its own."""
        said = line.read(_WORKER)
        if not isinstance(said, Joining):
            return
        with self._changed:
            refused = self._meeting.came(number, said, time.monotonic())
            if not refused:
                self._lines[number] = line
            self._changed.notify_all()
        if refused:
            line.send(NotAdmitted(refused))
            return
        try:
            while (said := line.read(None)) is not None:
                if isinstance(said, PassedSignal):
                    self._passing.put(said.number)
        finally:
            with self._changed:
                self._meeting.left(number)
                if not self._meeting.over:
                    del self._lines[number]

    def _tell(self, message: NotAdmitted | Met | RunEnded) -> None:
        with self._changed:
            lines = list(self._lines.values())
        for line in lines:
            line.send(message)

    def _close(self) -> None:
        for line in self._lines.values():
            line.close()


# --- the others


def _follow(line: MeetingLine, own: Joining, place: MeetingPlace, options: TorchrunOptions) -> int:
    line.send(own)
    said = line.read(place.limit + place.last_call + _LATE)
    if isinstance(said, NotAdmitted):
        raise ValueError(said.why)
    if not isinstance(said, Met):
        raise ConnectionError(f"the command that led at {place} has gone before all nodes had met; see what it said")
    told = f"monarch run: {said.nodes} nodes have met at {place}; {said.leader} shows what the ranks print"
    notes: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    start_thread(_listen, "monarch-meeting", line, notes)
    asked, deadline = 0, None
    with noted_signals(options.signals, notes):
        terminal.note(visible(told))
        while True:
            try:
                patience = None if deadline is None else max(0.0, deadline - time.monotonic())
                what, number = notes.get(timeout=patience)
            except queue.Empty:
                return 128 + asked
            if what == "ended":
                return number
            if what == "lost":
                if asked:
                    return 128 + asked
                raise ConnectionError(
                    f"the command on {said.leader}, which leads at {place}, has gone: the ranks of this node are ended"
                )
            if asked:  # a second time: at once
                return 128 + number
            asked, deadline = number, time.monotonic() + options.grace + _ENDING
            line.send(PassedSignal(number))


def _listen(line: MeetingLine, notes: queue.SimpleQueue[tuple[str, int]]) -> None:
    try:
        while (said := line.read(None)) is not None:
            if isinstance(said, RunEnded):
                notes.put(("ended", said.status))
                return
    except OSError:
        pass
    notes.put(("lost", 0))


# --- the worker of each


class _OwnWorker:
    """A worker of this machine, at a free port, which ends with this command."""

    def __init__(self, secret: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as listening:
            self.port = int(listening.getsockname()[1])
            tls = own_tls()
            launch = WorkerLaunch(secret, None, tls)
            address = f"{'tls' if tls else 'tcp'}://*:fd{listening.fileno()}"
            self._process = start_beside(
                launch, address, stdout=subprocess.PIPE, stderr=self._log, pass_fds=[listening.fileno()]
            )
        try:
            self._await_listening()
        except BaseException:
            self.close()
            raise

    def _await_listening(self) -> None:
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], _WORKER)[0]
        if not (ready and self._process.stdout.readline()):
            self._log.seek(0)
            said = self._log.read().decode(errors="replace")[-_TOLD:].strip() or "it said nothing"
            raise RuntimeError(f"the worker of this node has not come up: {said}")

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_WORKER)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


def _no_secret(options: TorchrunOptions, place: MeetingPlace) -> str:
    assert options.nodes is not None
    return (
        f"--nnodes {options.nodes[1]} at --rdzv-endpoint {place}: the commands have no secret in common, and who reaches a "
        f"host without one runs code there (--rdzv-id is no secret: others see it). In an sbatch script write `export "
        f"MONARCH_SECRET=$(monarch secret)` before srun; for commands that are started by hand make a file with `monarch "
        f"secret FILE`, copy it to every node, and `export MONARCH_SECRET_FILE=FILE` there. Or name a job: `monarch run "
        f"--job JOB --nnodes {options.nodes[1]} ...` is started once and needs no secret of yours"
    )
