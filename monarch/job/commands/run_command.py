"""exec_command: one command on hosts of a job."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch.actor import ActorError, Future, HostMesh, Point, ProcMesh, Promise
from monarch.actor.lowlevel import when_ready
from monarch.job.commands import command_plan
from monarch.job.commands.command_actor import CommandActor, CommandEnded, CommandNews, OutputPiece
from monarch.job.commands.command_plan import RankCommand, Sink
from monarch.job.commands.printer import CommandPrinter
from monarch.spmd.main_program import is_python


def exec_command(
    host_mesh: HostMesh,
    cmd: Sequence[str] | str,
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    output_dir: str | None = None,
    rank: int | None = None,
    point: Mapping[str, int] | None = None,
    per_host: Mapping[str, int] | None = None,
    *,
    script: bytes | None = None,
) -> Future[int]:
    """Runs a command in one process on each host, or in `per_host` of them. The Future gives the largest exit status.

    `cmd`: a program and its arguments. One word with characters that mean something to a shell is a line for bash. A file
    `*.py`, or `-m` and a module, runs as `__main__` in a process of the mesh itself, with sys.exit's status; anything else
    is started there, in `workdir`, or else in this program's working directory if the host has it. A status is
    as in a shell: 127 for no such program, 128 + n for one that signal n ended. `rank` (a number) or `point` ({"hosts": 1})
    chooses hosts; by default all of the mesh. `script`: text for bash, of which `cmd` is then the name and the arguments; it
    is sent as a message, so it may be long, and other users of the hosts do not see it in the list of processes.

    Where the mesh has an interpreter of its own (`with_python_executable`, a mount), its folder goes first on PATH. Each
    process finds its place in MONARCH_RANK_<dim> and MONARCH_SIZE_<dim>, and `env`. What it prints is printed here as it
    comes: as it is for one process, with the place before each line for several. With `output_dir` it goes into stdout.txt
    and stderr.txt there instead, on its own host, for this user's eyes alone (0600, in folders that are made 0700); of
    several processes each has its own folder, named as `$SUBDIR` in `output_dir` would be: `hosts_0_gpu_3`.

    Begins at once, and goes on whether or not anybody waits for the Future; a program that ends waits for it. Ctrl-C at
    `get()` therefore does not end it; the end of the program's client does. Processes are stopped afterwards, before the
    Future resolves, with what the command left running. Raises here what is wrong with the arguments (TypeError,
    ValueError) and what keeps processes from starting; the Future raises SupervisionError when a process was lost.
    """
    return CommandRun(host_mesh, cmd, env, workdir, output_dir, rank, point, per_host, script=script).begin()


def printer_of(places: Sequence[Mapping[str, int]]) -> CommandPrinter:
    """Prints what one process writes as it comes, and lines of several with their places before them."""
    return CommandPrinter([None if len(places) == 1 else command_plan.prefix(place) for place in places])


class CommandRun:
    """A command on hosts, as `exec_command` has it. `passing`: the files of its output go with the run of their host;
    `printer` makes what prints it, of the places of its processes."""

    def __init__(
        self,
        host_mesh: HostMesh,
        cmd: Sequence[str] | str,
        env: Mapping[str, str] | None,
        workdir: str | None,
        output_dir: str | None,
        rank: int | None,
        point: Mapping[str, int] | None,
        per_host: Mapping[str, int] | None,
        *,
        script: bytes | None = None,
        passing: bool = False,
        printer: Callable[[Sequence[Mapping[str, int]]], CommandPrinter] = printer_of,
    ) -> None:
        words = command_plan.words_of(cmd) if script is None else list(cmd)
        self._hosts, self._fixed = chosen_hosts(host_mesh, rank, point)
        self._sizes = dict(zip(host_mesh.extent.labels, host_mesh.extent.sizes, strict=True)) | dict(per_host or {})
        self._per_host = per_host
        self._words = words
        self._env = {str(name): str(value) for name, value in (env or {}).items()}
        self._workdir = workdir
        self._output_dir = output_dir
        self._script = script
        self._passing = passing
        self._printer = printer
        self._promise: Promise[int] = Promise(f"the command {words[0] if words else cmd!r}")
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def begin(self) -> Future[int]:
        """Starts it; see `exec_command`."""
        # Not a daemon: a program that ends waits for what it has begun. The caller's context goes along, so processes have
        # the caller as their owner.
        threading.Thread(target=contextvars.copy_context().run, args=(self._run,), name="monarch-exec-command").start()
        error = self._started.get()
        if error is not None:
            raise error
        return self._promise.future

    def _run(self) -> None:
        try:
            procs = self._hosts.spawn_procs(self._per_host, name="exec")
        except BaseException as exc:
            self._started.put(exc)
            return
        status, error = 1, None
        try:
            try:
                procs.initialized.get()
            except BaseException as exc:
                self._started.put(exc)
                return
            self._started.put(None)
            status = self._follow(procs)
        except BaseException as exc:
            error = exc
        finally:
            try:
                procs.stop().get()
            except BaseException as exc:
                exc.__cause__ = error
                error = exc
        if error is not None:
            self._promise.fail(error)
        else:
            self._promise.set(status)

    def _follow(self, procs: ProcMesh) -> int:
        places = self._places(procs)
        commands = [self._command(place, len(places)) for place in places]
        actors: Any = procs.spawn("exec", CommandActor)
        ranks = one_by_one(actors)
        starting = [one.start.call_one(command) for one, command in zip(ranks, commands, strict=True)]
        for answer in starting:
            try:
                answer.get()
            except ActorError as error:
                if isinstance(error.exception, OSError):
                    raise error.exception from None
                raise
        printer = self._printer(places)
        return follow(ranks, printer.write, printer.end)

    def _places(self, procs: ProcMesh) -> list[dict[str, int]]:
        labels = list(self._sizes)
        points = [Point(rank, procs.extent) for rank in range(len(procs))]
        return [command_plan.coordinates(self._fixed, dict(point), labels) for point in points]

    def _command(self, place: Mapping[str, int], processes: int) -> RankCommand:
        out, err, folder = Sink(), Sink(), ""
        if self._output_dir is not None:
            folder = command_plan.output_folder(self._output_dir, place, processes)
            out = Sink(os.path.join(folder, command_plan.STDOUT), shown=False)
            err = Sink(os.path.join(folder, command_plan.STDERR), shown=False)
        environment = {**command_plan.rank_environment(place, self._sizes), **self._env}
        python = self._hosts._executable  # of with_python_executable, and of a mount that brings one
        return RankCommand(
            self._words,
            environment,
            self._script is None and is_python(self._words),
            self._workdir,
            own_folder(),
            stdout=out,
            stderr=err,
            path_first=os.path.dirname(python),
            script=self._script,
            passing=folder if self._passing else "",
        )


def chosen_hosts(
    host_mesh: HostMesh, rank: int | None, point: Mapping[str, int] | None
) -> tuple[HostMesh, dict[str, int]]:
    """The hosts that `rank` or `point` chooses, and the coordinates that all of them have. ValueError for both, and
    for a rank that there is not; what `slice` raises for a point that there is not."""
    if rank is not None and point is not None:
        raise ValueError("give rank or point, not both: each chooses hosts")
    if rank is not None:
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise TypeError(f"rank is the number of a host, got {rank!r}")
        if not 0 <= rank < len(host_mesh):
            raise ValueError(
                f"rank {rank} is not one of the {len(host_mesh)} host(s) of this mesh, 0 to {len(host_mesh) - 1}"
            )
        point = dict(Point(rank, host_mesh.extent))
    if not point:
        return host_mesh, {}
    return host_mesh.slice(**point), {label: at for label, at in point.items() if isinstance(at, int)}


def one_by_one(actors: Any) -> list[Any]:
    """Each actor of a mesh as a mesh of its own, in the order of ranks."""
    if not actors.extent.labels:
        return [actors]
    return [actors.slice(**dict(Point(rank, actors.extent))) for rank in range(len(actors))]


def follow(actors: Sequence[Any], write: Any, end: Any) -> int:
    """Reads what each of these commands writes until all have ended: the largest exit status. `write(rank, stream, data)` and
    `end(rank, status)` are called on this thread."""
    ready: queue.SimpleQueue[int] = queue.SimpleQueue()
    waiting: dict[int, Future[list[CommandNews]]] = {}
    worst = 0

    def ask(rank: int) -> None:
        waiting[rank] = actors[rank].read.call_one()
        when_ready(waiting[rank], lambda: ready.put(rank))

    for rank in range(len(actors)):
        ask(rank)
    while waiting:
        rank = ready.get()
        future = waiting.pop(rank, None)
        if future is None:  # told of twice
            continue
        over = False
        for piece in future.get():
            if isinstance(piece, CommandEnded):
                worst, over = max(worst, piece.status), True
                end(rank, piece.status)
            elif isinstance(piece, OutputPiece):
                write(rank, piece.stream, piece.data)
        if not over:
            ask(rank)
    return worst


def own_folder() -> str:
    """The working directory of this program, where it has one."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"
