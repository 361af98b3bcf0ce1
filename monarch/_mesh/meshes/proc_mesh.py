"""ProcMesh: processes of ours as an array, on which actors are spawned."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch._errors import SupervisionError
from monarch._mesh import plugins
from monarch._mesh.actors.actor import Actor
from monarch._mesh.failures import restart_policy
from monarch._mesh.meshes import replacements
from monarch._mesh.meshes.handle import MeshHandle
from monarch._mesh.meshes.owned import Acks
from monarch._mesh.meshes.specs import ProcSpec, read_pickle
from monarch._mesh.meshes.system_actors import LogLevel
from monarch._runtime.context import here
from monarch._runtime.coroutine_future import CoroutineFuture
from monarch._runtime.future import (
    All,
    Done,
    Future,
    Slot,
    Source,
    Then,
    check_timeout,
    detach,
    make_future,
    no_value,
    once,
)
from monarch._runtime.replies import shown
from monarch._shape.refusals import called_as
from monarch._shape.region import Shape, received_shape
from monarch._shape.slice import NDSlice
from monarch._wire.address import agent_at, host_of, name_of
from monarch._wire.message import LogOption

if TYPE_CHECKING:
    from monarch._mesh.inspection.stacks_of_program import Stacks
    from monarch._mesh.meshes.owned import OwnedProcs

P = ParamSpec("P")
A = TypeVar("A", bound=Actor)


class ProcMesh(MeshHandle):
    """A mesh of processes, or a view of one.

    The object that `spawn_procs` returned owns the processes and may `stop()` them; slices and copies that were sent are
    references, on which actors can be spawned as well. Dropping every reference does not stop the processes: they live
    until they are stopped, their owner ends, or the client exits. (Nobody knows of references that were sent elsewhere, nor
    whether a broadcast still runs.) A line of a program that leaves 20 meshes alive is named once, in a warning.
    """

    def __init__(self, spec: ProcSpec, shape: Shape, owned: OwnedProcs | None = None, ready: Source | None = None):
        self._spec = spec
        self._shape = shape
        self._owned = owned
        self._ready = ready
        self._forwards_logs = False
        self._entered = False

    # --- shape

    def _new_with_shape(self, shape: Shape) -> ProcMesh:
        return self if shape == self._shape else ProcMesh(self._spec, shape, ready=self._ready)

    def _root(self) -> ProcMesh:
        """The whole mesh that this is a view of, as a reference."""
        spec = self._spec
        return ProcMesh(spec, Shape(spec.labels, NDSlice.new_row_major(spec.sizes)), ready=self._ready)

    def _addresses(self) -> list[str]:
        """The processes of this view, in the order of its ranks."""
        addresses = self._spec.addresses
        return [addresses[rank] for rank in self._shape.ndslice]

    def _places(self) -> list[tuple[str, int]]:
        """Returns for each rank of this view: the prefix of its host's address, and which of the mesh's processes there
        it is."""
        spec = self._spec
        per_host = len(spec.addresses) // len(spec.hosts)
        return [(spec.hosts[rank // per_host], rank % per_host) for rank in self._shape.ndslice]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcMesh) and self._spec.uid == other._spec.uid and self._shape == other._shape

    def __hash__(self) -> int:
        return hash(self._spec.uid)

    def __repr__(self) -> str:
        kind = "owned" if self._owned is not None else "reference"
        state = ", stopped" if self._spec.stopped else ""
        return f"<ProcMesh {self._spec.name!r} {self._shape} ({kind}{state})>"

    def _repr_html_(self) -> str | None:
        """Draws its ranks for a notebook, with the states that this process has heard of. Never waits."""
        from monarch import _html  # loaded when a notebook asks
        from monarch._mesh.meshes import drawings

        return _html.drawn(lambda: drawings.draw_procs(self))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"'ProcMesh' object has no attribute {name!r} (endpoints are called on the mesh that spawn() returns)"
        )

    @property
    def host_mesh(self) -> Any:
        """The HostMesh of a mesh of one process. NotImplementedError for larger meshes."""
        if len(self) != 1:
            raise NotImplementedError(
                f"host_mesh is known for a mesh of one process, and this one has {len(self)}: slice it"
            )
        return here().mesh.host_of(self._addresses()[0], self._spec.executable)

    # --- actors

    def spawn(self, name: str, Class: Callable[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Starts one actor of `Class` in each process of the mesh and returns their ActorMesh, typed as the class.

            counters = procs.spawn("counters", Counter, 10)

        Returns at once: on each rank `__init__(*args, **kwargs)` runs on the actor's own thread before any endpoint. The
        caller (an actor, or the client) owns the mesh and is told of its failures; a constructor that raises is one.

        Raises here: ValueError for a class that is not an Actor or whose endpoint names collide, TypeError for arguments that
        do not fit `__init__`, RuntimeError when the mesh was stopped, and whatever pickling raises.
        """
        self._check_alive()
        if not isinstance(name, str):
            raise TypeError(f'spawn takes a name first, as in procs.spawn("counters", Counter, ...); got {name!r}')
        group = restart_policy.active()
        if group is not None and "torch" in sys.modules:
            self._train()
        return here().mesh.spawning.spawn_actors(  # type: ignore[no-any-return]
            self, name, replacements.replace(Class), args, kwargs, group=group
        )

    if not TYPE_CHECKING:
        spawn = called_as(
            spawn, 'procs.spawn("counters", Counter, ...): a name first, then the class and what it takes'
        )

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs a function in one of the processes; at once an ObjectRef of its result. See `monarch.references.submit`.

        Since 0.2.0.
        """
        return plugins.outer("references.submit")(self, function, *args, **kwargs)

    def _train(self) -> None:
        """See `OwnedProcs.train`. Nothing where they belong to another process."""
        owned = here().mesh.owned.procs.get(self._spec.uid)
        if owned is not None:
            owned.train()

    def _check_alive(self) -> None:
        if self._spec.stopped:
            raise RuntimeError("`ProcMesh` has already been stopped: spawn new processes with spawn_procs()")

    # --- life

    @property
    def initialized(self) -> Future[bool]:
        """True once every process runs and its bootstrap function has returned; raises what went wrong."""
        if self._ready is None:
            return make_future(Done(True))
        return make_future(Then(self._ready, lambda _value: True, f"the start of mesh {self._spec.name!r}"))

    def healthy(self, timeout: float | None = None) -> Future[None]:
        """Resolves when every process of this mesh or slice is up: it runs, its bootstrap function has returned, and it
        answers. Restarts that are under way, or that a RestartPolicy will begin, are waited for.

        Raises TimeoutError after `timeout` seconds, naming the ranks that are not up and why; SupervisionError as soon as one
        will not come back by itself: it failed without a policy, the policy gave up, or the mesh was stopped. Known only to
        the process that spawned the mesh: NotImplementedError elsewhere.
        """
        ranks = list(self._shape.ndslice)
        source = here().mesh.health.of_procs(
            self._spec.uid, ranks, None if timeout is None else check_timeout(timeout), self._ready
        )
        if source is None and self._spec.stopped:
            source = Done(
                SupervisionError(f"the mesh {self._spec.name!r} was stopped: spawn new processes with spawn_procs()")
            )
        if source is None:
            raise NotImplementedError(
                f"whether the mesh {self._spec.name!r} is healthy is known to the process that spawned it: ask there"
            )
        return make_future(source)

    def stacks(
        self,
        *,
        timeout: float = 2.0,
        locals: bool = False,
        native: bool = False,
        all_threads: bool = False,
    ) -> Future[Stacks]:
        """Collects where every thread of the processes of this mesh or slice is now, and every suspended task of their
        actors.

        Processes answer also while their endpoints are stuck; one that cannot, because native code holds its
        interpreter lock, is made by its host agent to write its stacks, and one that is stopped is named as `silent`.
        Each has `timeout` seconds for either. `locals`: with the variables of each frame as text, for which `repr` is
        called there. `native`: with the frames of native code, by py-spy (pip install 'pymonarch[debug]').
        `all_threads`: the runtime's own threads and frames too. `print(mesh.stacks().get())` shows stacks that are the
        same once, with their ranks. Works from the client and from any actor.
        """
        from monarch._mesh.inspection import mesh_stacks  # loaded when first used

        return mesh_stacks.stacks_of(self._addresses(), None, timeout, locals, native, all_threads)

    def profile(self, seconds: float = 5.0, *, rate: float = 100.0, threads: bool = False, idle: bool = False) -> Any:
        """Shows where Python code is in the processes of this mesh or slice, looked at `rate` times a second for
        `seconds`: waits for so long, and gives a `monarch.trace.Flame`, whose `write("train.svg")` is the picture. See
        `monarch.trace.sample`, and docs/tracing.md."""
        return plugins.outer("trace.sample")(seconds, mesh=self, rate=rate, threads=threads, idle=idle)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stops the processes: every actor's `__cleanup__` runs, each interpreter ends in the ordinary way, and what is
        not gone after `process_exit_timeout` is killed. Begins at once; the Future says when it is done. Idempotent.

        ValueError on a reference: only the owner stops a mesh.
        """
        if self._owned is None:
            raise ValueError(
                "ProcMesh is not owned; must be stopped by an owner: slices and meshes that were sent are references"
            )
        return make_future(Then(self._owned.stop(reason), no_value, f"stop() of mesh {self._spec.name!r}"))

    def restart(self, *, failed: bool = False, **selection: Any) -> Future[None]:
        """Puts new processes in the place of some: those at `selection` (as for `slice`; all by default), with `failed` only
        those of them that have ended.

        Processes that still run are stopped first, in order, as by `stop()`. Begins at once; the Future resolves when the new
        processes run and the mesh's bootstrap function has returned there. They hold no actors: `ActorMesh.restart`
        constructs those again. Views, slices and references reach the new processes. Calls that were sent to the old ones
        fail and never reach the new ones.

        ValueError on a reference: only the owner restarts. RuntimeError when the mesh was stopped; TypeError and IndexError
        for a selection it does not have. What keeps a process from starting is raised by the Future.
        """
        if self._owned is None:
            raise ValueError(
                "ProcMesh is not owned; must be restarted by its owner, the object that spawn_procs() returned: restart("
                "gpus=1) selects a part"
            )
        self._check_alive()
        ranks = list(self.slice(**selection)._shape.ndslice)
        if failed:
            ended = set(self._owned.ended_ranks())
            ranks = [rank for rank in ranks if rank in ended]
        which = f"restart() of mesh {self._spec.name!r}, rank(s) {shown(ranks)}"
        return make_future(Then(self._owned.restart(ranks), no_value, which))

    async def __aenter__(self) -> ProcMesh:
        if self._spec.stopped:
            raise RuntimeError("`ProcMesh` has already been stopped: it cannot be entered again")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def __await__(self) -> Any:
        """Older programs await what `proc_mesh()` returns; it waits for the processes and gives the mesh itself."""
        yield from self.initialized.__await__()
        return self

    # --- logs

    def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = logging.INFO,
    ) -> Future[None]:
        """Sets how the output of these processes reaches the client. Begins at once; the Future says when it is in
        force.

        `level`: of the root logger in each process (0..255, else ValueError). A process without a logging handler shows
        only warnings, as Python does: `set_log_level` makes it show what is below. `stream_to_client`: print each line
        on the client with its host and rank. Output from other hosts is streamed whether or not it is asked for, unless
        `configure(stream_remote_output=False)` came before the mesh was spawned; that of the client's own host needs
        `configure(enable_log_forwarding=True)` before it, else a UserWarning and nothing else. `aggregate_window_sec`:
        fold lines that are equal across the ranks of a host over so many seconds; RuntimeError without streaming.

        What comes faster from another host than the client prints it is dropped, and a line says how much.
        """
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= 255:
            raise ValueError(f"Invalid logging level: {level!r} (expected 0..255)")
        if aggregate_window_sec is not None and not stream_to_client:
            raise RuntimeError("cannot set aggregate window without streaming to client")
        if aggregate_window_sec is not None and aggregate_window_sec <= 0:
            raise ValueError(f"aggregate_window_sec must be more than 0 seconds, got {aggregate_window_sec!r}")
        if stream_to_client and not self._forwards_logs:
            warnings.warn(
                "stream_to_client has no effect: log forwarding was off when this mesh was spawned; call "
                "monarch.configure(enable_log_forwarding=True) before spawn_procs()",
                UserWarning,
                stacklevel=2,
            )
            stream_to_client = False
        spec, proc, window = self._spec, here(), aggregate_window_sec or 0.0
        agents = [agent_at(host) for host in spec.hosts]

        def ask(port: int, rank: int) -> None:
            proc.post(agents[rank], LogOption(spec.uid, stream_to_client, window, port, rank))

        acks = Acks(agents, ask)  # what is written from now on may reach an agent before the order does
        proc.ports.add(acks)
        acks.ask(range(len(agents)))
        spawning = proc.mesh.spawning
        mesh = spawning.spawn_actors(self, "log-level", LogLevel, (level,), {})
        level_set, stopped = detach(mesh.apply.call()), Slot()

        def stop() -> None:
            stopping: Source = spawning.stop_actors(mesh._spec, "the log level is set")
            stopping.on_ready(stopped.set)

        level_set.on_ready(once(stop))
        return make_future(Then(All([acks, level_set, stopped]), no_value), CoroutineFuture)

    def set_log_level(self, level: int | str, logger: str = "") -> Future[None]:
        """Sets the level of a logger (the root logger) in these processes, also while their actors are busy. Begins at once.

        `level`: a number from 0 to 255, or a name such as "DEBUG"; ValueError for others. The Future raises RuntimeError when
        a process has not taken it, with the reason. A process that is restarted begins with its old level.
        """
        from monarch._mesh.inspection import small_answers  # loaded when first used

        return small_answers.set_log_level(self._addresses(), level, logger)

    # --- what optional packages bring

    @property
    def _device_mesh(self) -> Any:
        """These processes as a place for distributed tensors; the first use starts the tensor engine of the whole mesh."""
        self._check_alive()
        return plugins.outer("tensor.device_mesh")(self)

    def activate(self) -> Any:
        """Makes torch operations of this thread run on these processes from here on; leaving the `with` block ends
        that.

            with procs.activate() as mesh:      # a monarch.tensor.DeviceMesh
                x = torch.ones(2) * mesh.rank("gpus")

        The first activation of a mesh, or of a slice of it, starts its tensor engine: a worker actor in each process.
        """
        return self._device_mesh.activate()

    def rank_tensor(self, dim: str | Sequence[str]) -> Any:
        """A distributed int64 scalar (`monarch.Tensor`): each process's coordinate along `dim`; of several dimensions
        combined, the first outermost. KeyError for a dim the mesh does not have."""
        return self._device_mesh.rank(dim)

    def rank_tensors(self) -> dict[str, Any]:
        """Returns `rank_tensor` for each dimension."""
        ranks: dict[str, Any] = self._device_mesh.ranks
        return ranks

    async def sync_workspace(self, *args: Any, **kwargs: Any) -> None:
        """NotImplementedError: files belong to hosts, see `HostMesh.sync_workspace`."""
        raise NotImplementedError("sync_workspace is an operation of a HostMesh")

    def __reduce__(self) -> Any:
        return _received, (self._spec.pickled(), *self._shape.parts(), self._forwards_logs)


def _received(
    pickled: bytes,
    labels: tuple[str, ...],
    offset: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    forwards_logs: bool,
) -> ProcMesh:
    mesh = ProcMesh(read_pickle(pickled), received_shape(labels, offset, sizes, strides))
    mesh._forwards_logs = forwards_logs
    return mesh


def proc_mesh_of(address: str, executable: str = "") -> ProcMesh:
    """The process at `address` as a mesh of one."""
    spec = ProcSpec("", name_of(address), (host_of(address),), (), (), executable)
    spec.addresses = [address]
    mesh = _OneProc(spec, Shape.unity())
    return mesh


class _OneProc(ProcMesh):
    """A mesh of one process that was made from its address (`this_proc`)."""

    def __reduce__(self) -> Any:
        return proc_mesh_of, (self._spec.addresses[0], self._spec.executable)


# --- callbacks ----------------------------------------------------------------------------------------------

_callbacks: list[Callable[[ProcMesh], Any]] = []


def register_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], Any]) -> None:
    """`callback(mesh)` for each mesh that `spawn_procs` makes in this process, before it is returned."""
    _callbacks.append(callback)


def unregister_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], Any]) -> None:
    """Takes back `register_proc_mesh_spawn_callback`. ValueError when it was not registered."""
    try:
        _callbacks.remove(callback)
    except ValueError:
        raise ValueError(f"{callback!r} is not a registered spawn callback") from None


def announce(mesh: ProcMesh) -> None:
    for callback in list(_callbacks):
        callback(mesh)


def get_active_proc_meshes() -> list[ProcMesh]:
    """The meshes that this process spawned and that were not stopped."""
    return [mesh for mesh in here().mesh.proc_meshes() if not mesh._spec.stopped]
