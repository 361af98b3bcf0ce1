"""The ranks of a program on hosts: started, followed, ended, and started again.

Each rank is a program of its own below a process of a mesh, one mesh an attempt. So the host agents end what is left
of a rank, whatever becomes of it or of this program.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from monarch._devices import vendors
from monarch._linux.locks import Lock
from monarch._text import first_line, ranges, visible
from monarch.actor import Actor, Future, HostMesh, ProcMesh, context, endpoint
from monarch.actor.lowlevel import when_ready
from monarch.config import configured, settings
from monarch.job.commands.command_actor import CommandActor, CommandEnded, CommandStopped
from monarch.job.commands.command_plan import RankCommand
from monarch.job.commands.printer import CommandPrinter
from monarch.job.commands.run_command import one_by_one, own_folder
from monarch.job.commands.standard_input import InputDoor, sent_to
from monarch.job.torchrun import failures, numa_binding, rank_plan
from monarch.job.torchrun.arguments import TorchrunOptions
from monarch.job.torchrun.event_log import EventLog
from monarch.job.torchrun.failures import RankFailure, Tail
from monarch.job.torchrun.numa_binding import HostLayout
from monarch.job.torchrun.rank_plan import ClientStreams
from monarch.spmd.spmd_actor import host_and_port

logger = logging.getLogger("monarch")
_ASK = 60.0  # seconds for what waits for nobody
_ALIVE = 15.0  # for a host that may be gone
_PROMPT = 0.05  # seconds after which the beginning of a line is one that waits for an answer
_SAID = 1.0  # seconds after a signal until it is said which ranks have not ended
_LOOPBACK = "127.0.0.1"
_NO_STREAMS = ClientStreams()


class HostProbe(Actor):
    """An actor that tells what has to be known of a host before ranks start there."""

    @endpoint
    def look(self) -> tuple[str, int, int]:
        """Its name, and how many devices and processors a program sees there."""
        return os.uname().nodename, vendors.count(), len(os.sched_getaffinity(0))

    @endpoint
    def visible_devices(self) -> str | None:
        """CUDA_VISIBLE_DEVICES, as ranks find it."""
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    @endpoint
    def layout(self, env: dict[str, str]) -> HostLayout:
        """Its processors, and where its devices are for ranks with `env`."""
        return numa_binding.look_here(env)

    @endpoint
    def free_port(self) -> int:
        return host_and_port(0)[1]

    @endpoint
    def temporary(self) -> str:
        return tempfile.gettempdir()

    @endpoint
    def address(self) -> str:
        """At which other hosts reach this one, as far as its own address says."""
        from urllib.parse import urlsplit

        return urlsplit(context().actor_instance.actor_id.addr).hostname or ""


class Passing:
    """The way for signals that other commands of the run were given. One is enough: they often get the same at once, and
    this command as well."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._notes: queue.SimpleQueue[tuple[str, int]] | None = None
        self._number = 0

    def put(self, number: int) -> None:
        with self._lock:
            self._number = number
            if self._notes is not None:
                self._notes.put(("passed", number))

    @contextmanager
    def into(self, notes: queue.SimpleQueue[tuple[str, int]]) -> Iterator[None]:
        """Inside, signals are notes; one that came before is the first."""
        with self._lock:
            self._notes = notes
            if self._number:
                notes.put(("passed", self._number))
        try:
            yield
        finally:
            with self._lock:
                self._notes = None


def run(
    hosts: HostMesh,
    options: TorchrunOptions,
    where: str,
    env: Mapping[str, str] | None = None,
    out: Any = None,
    passing: Passing | None = None,
    printer: Callable[[int], CommandPrinter] | None = None,
    own_streams: bool = False,
) -> int:
    """Runs `options.command` on every rank and returns the exit status of the run: 0 when all ranks ended with 0,
    else that of the rank that failed first, or 128 + n when signal n ended the run. `where` names the job in errors.
    What is told goes to `out`, by default stderr. `passing`: signals of others. `printer` makes what prints the output of so
    many ranks, in each attempt. With `own_streams` rank 0 reads this program's standard input, and what shows the output of
    ranks on a terminal is one to them. ValueError for what the hosts do not have."""
    told = sys.stderr if out is None else out
    with _own_streams(printer is None) if own_streams else nullcontext(_NO_STREAMS) as streams:
        return _TorchrunRun(hosts, options, where, dict(env or {}), told, passing or Passing(), printer, streams).run()


@contextmanager
def _own_streams(shown_here: bool) -> Iterator[ClientStreams]:
    with InputDoor() as door:
        if not shown_here:
            yield ClientStreams(door.name)
            return
        out, err = (_terminal_size(stream) for stream in (rank_plan.STDOUT, rank_plan.STDERR))
        yield ClientStreams(door.name, door.terminal, (out, err))


def _terminal_size(descriptor: int) -> tuple[int, int]:
    """Rows and columns; zeros where it is no terminal."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        return 0, 0
    return rows or 24, columns or 80


class _TorchrunRun:
    def __init__(
        self,
        hosts: HostMesh,
        options: TorchrunOptions,
        where: str,
        env: dict[str, str],
        out: Any,
        passing: Passing,
        printer: Callable[[int], CommandPrinter] | None,
        streams: ClientStreams,
    ) -> None:
        self._given = hosts
        self._options = options
        self._where = where
        self._env = env
        self._out = out
        self._passing = passing
        self._printer = printer
        self._streams = streams
        self._run_id = options.run_id or uuid.uuid4().hex[:12]
        self._unique = uuid.uuid4().hex[:8]
        self._per_host = 1  # ranks, in the attempt that is the last
        self._events = EventLog(options, self._run_id, out)

    def run(self) -> int:
        try:
            return self._run()
        except BaseException as exc:
            self._events.broken_off(first_line(exc))
            raise

    def _run(self) -> int:
        if self._options.unused:
            self._say(f"no meaning here, the job connects its hosts: {', '.join(self._options.unused)}")
        hosts = one_by_one(self._given)
        attempts = self._options.max_restarts + 1
        for attempt in range(attempts):
            taking = hosts[: rank_plan.chosen(self._options.nodes, len(hosts), self._where)]
            outcome = self._attempt(taking, attempt)
            if isinstance(outcome, int):
                if outcome:
                    self._events.broken_off(f"{signal.Signals(outcome - 128).name}: all ranks are ended")
                else:
                    self._events.ended([], [])
                return outcome
            failed, ended = outcome
            self._say(failures.told(self._options.name, failed, ended, attempt, attempts))
            if attempt + 1 == attempts:
                self._events.ended(failed, ended)
                return failures.first(failed).status or 1
            lost = {failure.rank // self._per_host for failure in failed if failure.lost}
            if lost:
                hosts = self._without(hosts, lost)
            self._say(f"all ranks begin anew: restart {attempt + 1} of {attempts - 1}")
        raise AssertionError("an attempt is the last")

    # --- one attempt

    def _attempt(self, hosts: Sequence[HostMesh], attempt: int) -> int | tuple[list[RankFailure], list[int]]:
        """The exit status of the run, or who failed and who was ended for it."""
        facts = _ask(hosts, "look", _ASK)
        visible = _ask(hosts, "visible_devices", _ASK) if self._options.virtual_local_rank else []
        names = [fact[0] for fact in facts]
        count = rank_plan.count_of(self._options.per_node, facts)
        self._per_host = count
        sizes = len(hosts), count
        master, temporary = self._master(hosts)
        folder = rank_plan.log_folder(self._options, self._run_id, self._unique, temporary)
        if attempt == 0 and rank_plan.writes_files(self._options):
            self._say(f"output of the ranks is in {folder}/attempt_N/RANK on each host")
        commands = rank_plan.commands(
            self._options, sizes, self._run_id, attempt, master, folder, own_folder(), self._env, self._streams, visible
        )
        # A single rank has its host to itself, and as many threads as it likes, as under torchrun.
        # What starts a rank may be stopped as well as the rank itself.
        timeout = f"{self._options.suspect_timeout:g}s"
        with configured(share_threads=settings.share_threads() and count > 1, suspect_timeout=timeout):
            meshes = [
                host.spawn_procs({"local_rank": count}, name=self._options.role, proc_bind=bind)
                for host, bind in zip(hosts, self._binds(hosts, names, count), strict=True)
            ]
        try:
            return _TorchrunAttempt(self, meshes, commands, names, attempt).follow()
        finally:
            stopping = [mesh.stop() for mesh in meshes]
            for one in stopping:
                one.get()

    def _binds(
        self, hosts: Sequence[HostMesh], names: Sequence[str], count: int
    ) -> Sequence[list[dict[str, str]] | None]:
        """Returns the processors of the ranks of each host; None for all."""
        mode = self._options.numa_binding
        if not mode:
            return [None] * len(hosts)
        layouts = _ask(hosts, "layout", _ASK, self._env)
        return [numa_binding.binds(mode, count, name, layout) for name, layout in zip(names, layouts, strict=True)]

    def _master(self, hosts: Sequence[HostMesh]) -> tuple[tuple[str, int], str]:
        """Returns where rank 0 opens the store at which all meet; and the first host's folder for temporary files."""
        with _facts(hosts[0]) as first:
            address, port = self._options.master_addr, self._options.master_port
            if address is None:
                address = (first.address.call_one().get(_ASK) if len(hosts) > 1 else "") or _LOOPBACK
            if port is None:
                port = first.free_port.call_one().get(_ASK)
            return (address, port), first.temporary.call_one().get(_ASK)

    def _without(self, hosts: Sequence[HostMesh], lost: Collection[int]) -> list[HostMesh]:
        """The hosts to go on with, when ranks of those at `lost` were lost with their processes: without those that
        do not start processes any more while there are enough others, else with new hosts in their place."""
        sure = [host for number, host in enumerate(hosts) if number not in lost]
        if len(sure) < (self._options.nodes or (1, 1))[0]:
            self._say("too few hosts may be left: those that have died are replaced")
            self._given.replace(failed=True).get()  # what it raises says who was tried
            return one_by_one(self._given)
        found = []
        for number, host in enumerate(hosts):
            try:
                if number in lost:
                    _ask([host], "look", _ALIVE)
            except Exception as exc:
                self._say(f"a host is gone, and the run goes on without it: {first_line(exc)}")
            else:
                found.append(host)
        return found

    def _say(self, text: str) -> None:
        print(visible(f"monarch run: {text}"), file=self._out, flush=True)


class _TorchrunAttempt:
    def __init__(
        self,
        run: _TorchrunRun,
        meshes: Sequence[ProcMesh],
        commands: Sequence[RankCommand],
        names: Sequence[str],
        attempt: int,
    ) -> None:
        self._attempt = attempt
        self._events = run._events
        self._options = run._options
        self._passing = run._passing
        self._say = run._say
        self._names = names
        self._count = len(commands) // len(meshes)
        self._commands = commands
        self._ranks: list[Any] = []
        for mesh in meshes:
            self._ranks += one_by_one(mesh.spawn("rank", CommandActor))
        sizes = len(meshes), self._count
        prefixes = rank_plan.prefixes(self._options, sizes)
        self._printer = CommandPrinter(prefixes) if run._printer is None else run._printer(len(prefixes))
        self._interactive = run._streams.interactive and len(commands) > 1
        self._prompt: float | None = None  # when the line that rank 0 has begun counts as a prompt
        self._tails = [Tail() for _ in commands]
        self._pids = [0] * len(commands)
        self._ready: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._reads: dict[int, Future[Any]] = {}
        self._failures: list[RankFailure] = []
        self._ended: list[int] = []  # because another one failed
        self._ending = 0  # the signal that was sent to all
        self._deadline: float | None = None
        self._said: float | None = None  # when it is said who has not ended
        self._asked = 0  # the signal that asked for the end of the run

    def follow(self) -> int | tuple[list[RankFailure], list[int]]:
        with noted_signals(self._options.signals, self._ready), self._passing.into(self._ready):
            starting = [one.start.call_one(command) for one, command in zip(self._ranks, self._commands, strict=True)]
            for rank, started in enumerate(starting):
                try:
                    self._pids[rank] = started.get()
                except Exception as exc:
                    self._lost(rank, exc)
                else:
                    self._read(rank)
            self._events.started(self._names, self._pids, self._attempt)
            with sent_to(self._ranks[0]) if self._commands[0].stdin else nullcontext():
                while self._reads:
                    self._next()
        if self._asked:
            return 128 + self._asked
        if self._failures:
            return self._failures, self._ended
        return 0

    def _read(self, rank: int) -> None:
        self._reads[rank] = future = self._ranks[rank].read.call_one()
        when_ready(future, lambda: self._ready.put(("read", rank)))

    def _next(self) -> None:
        now = time.monotonic()
        if self._prompt is not None and now >= self._prompt:
            self._printer.show_partial(0)
            self._prompt = None
        if self._said is not None and now >= self._said:
            self._say_who_is_left()
        due = [moment for moment in (self._deadline, self._prompt, self._said) if moment is not None]
        try:
            what, number = self._ready.get(timeout=max(0.0, min(due) - now) if due else None)
        except queue.Empty:
            if self._deadline is None or time.monotonic() < self._deadline:
                return
            self._say(f"not ended within {self._options.grace:g} s, killed: ranks {ranges(list(self._reads))}")
            self._deadline = self._said = None
            self._signal(signal.SIGKILL)
            return
        if what == "passed" and self._asked:
            return
        if what in ("signal", "passed"):
            self._say(f"{signal.Signals(number).name}: all ranks are ended")
            if self._asked:
                self._said = None
                self._signal(signal.SIGKILL)
            self._asked = number
            self._end(number)
            return
        future = self._reads.pop(number, None)
        if future is None:  # told of twice
            return
        try:
            pieces = future.get()
        except Exception as exc:
            self._lost(number, exc)
            return
        for piece in pieces:
            if isinstance(piece, CommandEnded):
                self._on_end(number, piece)
                return
            if isinstance(piece, CommandStopped):
                self._say(
                    f"rank {number} (pid {self._pids[number]}) is {failures.stopped_by(piece.signal)}: it is killed and has "
                    f"failed unless it goes on within {self._options.suspect_timeout:g} s (--suspect-timeout); "
                    f"`kill -CONT {self._pids[number]}` on {self._names[number // self._count]} lets it"
                )
                continue
            if piece.stream == rank_plan.STDERR:
                self._tails[number].add(piece.data)
            self._printer.write(number, piece.stream, piece.data)
        if self._interactive and not number:
            self._prompt = time.monotonic() + _PROMPT if self._printer.has_partial(0) else None
        self._read(number)

    def _on_end(self, rank: int, ended: CommandEnded) -> None:
        self._printer.end(rank, ended.status)
        if self._ending and (not ended.status or ended.signal in (self._ending, signal.SIGKILL)):
            self._ended.append(rank)
        elif ended.status:
            stderr = self._commands[rank].stderr
            self._failures.append(
                RankFailure(
                    rank, rank % self._count, self._names[rank // self._count], ended.pid, ended.status, ended.signal,
                    ended.at, self._tails[rank].value(), ended.report, file=stderr.file,
                    stopped=ended.stopped, limit=self._options.suspect_timeout,
                )
            )  # fmt: skip
            self._end(signal.SIGTERM)

    def _lost(self, rank: int, exc: Exception) -> None:
        """Its process, or its host. A status of its own it has none."""
        if self._ending:
            self._ended.append(rank)
            return
        self._failures.append(
            RankFailure(
                rank, rank % self._count, self._names[rank // self._count], self._pids[rank], 1, 0, time.time(),
                self._tails[rank].value(), lost=first_line(exc),
            )
        )  # fmt: skip
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        """All ranks are told to end, and killed when they have not after --shutdown-timeout."""
        if not self._ending:
            self._ending = number
            self._deadline = time.monotonic() + self._options.grace
            self._said = time.monotonic() + _SAID
            self._signal(number)

    def _say_who_is_left(self) -> None:
        self._said = None
        again = "; Ctrl-C again kills them now" if self._asked == signal.SIGINT else ""
        self._say(
            f"waits for ranks {ranges(list(self._reads))} to end: they clean up, or are in native code, such as a "
            f"collective, in which Python sees no signal. They are killed {self._options.grace:g} s after the signal "
            f"(--shutdown-timeout){again}"
        )

    def _signal(self, number: int) -> None:
        for rank in list(self._reads):
            self._ranks[rank].send_signal.broadcast(number)


@contextmanager
def noted_signals(numbers: Sequence[int], notes: queue.SimpleQueue[tuple[str, int]]) -> Iterator[None]:
    """Inside, these signals are notes. Elsewhere than on the main thread nothing can be done, and nothing is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda got, _frame: notes.put(("signal", got))) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _facts(host: HostMesh) -> Iterator[Any]:
    procs = host.spawn_procs(name="run")
    try:
        yield procs.spawn("facts", HostProbe)
    finally:
        stopping = procs.stop()
        try:
            # Ranks that start meanwhile would share the processors with it.
            stopping.get(_ALIVE)
        except Exception:  # of a host that is gone, which whoever asks there is told
            pass


def _ask(hosts: Sequence[HostMesh], question: str, patience: float, *given: Any) -> list[Any]:
    """Returns what the probe of each says; all are asked before the first has to answer."""
    with ExitStack() as stack:
        asked = [getattr(stack.enter_context(_facts(host)), question).call_one(*given) for host in hosts]
        return [answer.get(patience) for answer in asked]
