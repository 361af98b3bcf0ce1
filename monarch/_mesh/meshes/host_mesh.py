"""HostMesh: machines as an array, on which processes are spawned."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch._mesh import plugins
from monarch._mesh.meshes import replacements
from monarch._mesh.meshes.handle import MeshHandle
from monarch._mesh.meshes.owned import OwnedProcs
from monarch._mesh.meshes.proc_mesh import ProcMesh, announce
from monarch._mesh.meshes.specs import ProcSpec
from monarch._mesh.meshes.system_actors import SetupActor
from monarch._mesh.start.launch_spec import BootstrapCommand, commands_for, launch_spec
from monarch._runtime.context import here
from monarch._runtime.future import All, Done, Future, Source, Then, detach, make_future, no_value
from monarch._shape.extent import Extent, Point
from monarch._shape.refusals import called_as
from monarch._shape.region import Region, Shape
from monarch._shape.slice import NDSlice
from monarch._wire import os_text
from monarch._wire.address import UNNAMED
from monarch._wire.ids import new_id
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._mesh.inspection.stacks_of_program import Stacks
    from monarch._mesh.meshes.attach import AttachedHosts

_REFERENCE = (
    "`HostMesh` that is a reference instead of owned: this host, slices and meshes that were sent belong to others"
)
_BINDINGS = ("cpunodebind", "membind", "physcpubind", "cpus")


class HostMesh(MeshHandle):
    """A mesh of hosts, or a view of one. `this_host()` is the mesh of this machine."""

    stream_logs = False
    is_fake_in_process = False
    _ended_by = "shutdown"

    def __init__(
        self,
        hosts: Sequence[str],
        shape: Shape,
        executable: str = "",
        session: AttachedHosts | None = None,
        sliced: bool = False,
    ) -> None:
        self._given = hosts
        self._shape = shape
        self._executable = executable
        self._session = session  # of hosts that this process has attached
        self._sliced = sliced  # the hosts belong to another mesh of this process

    @property
    def _hosts(self) -> tuple[str, ...]:
        return tuple(self._given)

    # --- shape

    @property
    def region(self) -> Region:
        """The ranks of the mesh that `attach_to_workers` returned which this mesh or slice has, with its labels."""
        return self._shape.region

    def _new_with_shape(self, shape: Shape) -> HostMesh:
        return self if shape == self._shape else HostMesh(self._given, shape, self._executable, self._session, True)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, HostMesh)
            and (self._hosts, self._executable) == (other._hosts, other._executable)
            and self._shape == other._shape
        )

    def __hash__(self) -> int:
        return hash(self._hosts)

    def __repr__(self) -> str:
        return f"<HostMesh {self._shape} of {len(self)} host(s)>"

    def _repr_html_(self) -> str | None:
        """Draws its ranks for a notebook, with the states that this process has heard of. Never waits."""
        from monarch import _html  # loaded when a notebook asks
        from monarch._mesh.meshes import drawings

        return _html.drawn(lambda: drawings.draw_hosts(self))

    def __getattr__(self, name: str) -> Any:
        hint = (
            ' (actors live in processes: host.spawn_procs({"gpus": 4}).spawn("name", Class))' if name == "spawn" else ""
        )
        raise AttributeError(f"'HostMesh' object has no attribute {name!r}{hint}")

    # --- processes

    def with_python_executable(self, path: str) -> HostMesh:
        """The same hosts, whose processes run under the interpreter at `path`; `this_host()` in them inherits it."""
        return HostMesh(self._given, self._shape, os.fspath(path), self._session, self._sliced)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | None = None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None = None,
        *,
        env: Mapping[str, str | None] | None = None,
    ) -> ProcMesh:
        """Starts processes on each host and returns their mesh at once: the hosts' dimensions, then those of `per_host`.

        Without `per_host`, one process on each host. Children inherit this process's environment as it is now, `env` over it
        (None removes a variable) before they import anything, its working directory and `sys.path`; their stdin is
        /dev/null. `bootstrap`: a sync or async function run once in each process before any actor is constructed there;
        if it raises, `initialized` and every call on the mesh's actors raise ActorError. `proc_bind`: one dict for each
        process of a host, with `cpus` or numactl's `cpunodebind`, `membind`, `physcpubind`. `bootstrap_command`: what to
        execute in place of forking, one for all or a function of the process's Point.

        Raises ValueError for labels that repeat, sizes below 1, more processes than the setting `max_procs` and `proc_bind`
        of another length. What goes wrong later
        (no such program, too many processes) is raised by `initialized`, and by calls on its actors.
        """
        sizes = _sizes_of(per_host)
        if self._session is not None:
            self._session.check()
        self._check_sizes(sizes)
        extent = self.extent
        labels = [*extent.labels, *sizes]
        count = len(NDSlice.new_row_major(list(sizes.values())))
        binds = self._check_binds(proc_bind, count)
        if bootstrap is not None and not callable(bootstrap):
            raise TypeError(f"bootstrap must be a function without parameters, got {bootstrap!r}")
        whole = [*extent.sizes, *sizes.values()]
        hosts = [self._hosts[rank] for rank in self._shape.ndslice]
        spec = ProcSpec(new_id(), name or UNNAMED, hosts, labels, whole, self._executable)
        layer = here().mesh
        commands = commands_for(bootstrap_command, Extent(labels, whole), len(spec.addresses))
        replaced = replacements.active()
        gated = bootstrap is not None or bool(replaced)
        launches = []
        for index, host in enumerate(hosts):
            launch = launch_spec(
                spec.name,
                env or {},
                self._executable,
                gated=gated,
                remote=host != here().host,
                commands=commands[index * count : (index + 1) * count],
                binds=binds,
                labels=labels,
            )
            launches.append(os_text.encode(launch))
        owned = layer.spawning.spawn_procs(spec, launches, count)
        if self._session is not None:
            self._session.spawned(owned)
        shape = Shape(labels, NDSlice.new_row_major(whole))
        mesh = ProcMesh(spec, shape, owned, owned.started)
        far = settings.stream_remote_output() and any(host != here().host for host in hosts)
        mesh._forwards_logs = settings.enable_log_forwarding() or far
        if gated:
            mesh._ready = self._run_bootstrap(mesh, bootstrap, replaced, owned)
        layer.remember(mesh)
        announce(mesh)
        return mesh

    if not TYPE_CHECKING:
        spawn_procs = called_as(spawn_procs, 'host.spawn_procs({"gpus": 4})')

    def _run_bootstrap(
        self,
        mesh: ProcMesh,
        bootstrap: Callable[[], Any] | None,
        replaced: list[replacements.Pair],
        owned: OwnedProcs,
    ) -> Source:
        layer = here().mesh
        actors = layer.spawning.spawn_actors(mesh, "setup", SetupActor, (bootstrap, replaced), {}, True)
        done = actors.setup.call()

        def prepare(rank: int) -> Source:
            return layer.restarter.prepare(layer.owned.actors[actors._spec.key], actors, rank)  # type: ignore[no-any-return]

        owned.prepare = prepare
        return All([owned.started, detach(done)])

    def _check_sizes(self, sizes: dict[str, int]) -> None:
        mine = self.extent.labels
        overlap = [label for label in sizes if label in mine]
        if overlap:
            raise ValueError(f"per_host labels {overlap} overlap with host labels ({', '.join(mine)})")
        for label, size in sizes.items():
            if not isinstance(label, str):
                raise TypeError(f"per_host labels are strings, got {label!r}")
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"per_host dimension {label!r} must have a size of 1 or more, got {size!r}")
        count, limit = math.prod(sizes.values()) * len(self), settings.max_procs()
        if count > limit:
            raise ValueError(
                f"per_host={sizes} on {len(self)} host(s) asks for {count} processes, and the limit is {limit} (setting "
                f"max_procs, MONARCH_MAX_PROCS)"
            )

    def _check_binds(self, binds: Sequence[Mapping[str, str]] | None, count: int) -> list[dict[str, str]] | None:
        if binds is None:
            return None
        if len(binds) != count:
            raise ValueError(f"proc_bind length ({len(binds)}) must equal procs_per_host ({count})")
        for bind in binds:
            unknown = [key for key in bind if key not in _BINDINGS]
            if unknown:
                raise ValueError(f"unknown proc_bind keys {unknown} (known: {', '.join(_BINDINGS)})")
        return [{key: str(value) for key, value in bind.items()} for bind in binds]

    # --- life

    @property
    def initialized(self) -> Future[bool]:
        """True once every host of the mesh, also those that a slice leaves out, is attached; raises what went wrong.
        RuntimeError after `shutdown`."""
        if self._session is None:
            return make_future(Done(True))
        self._session.check()
        return make_future(Then(self._session.attached, lambda _value: True, f"attaching {len(self._hosts)} host(s)"))

    def stacks(
        self,
        *,
        timeout: float = 2.0,
        locals: bool = False,
        native: bool = False,
        all_threads: bool = False,
    ) -> Future[Stacks]:
        """Collects where every process of this program on these hosts is now, as `ProcMesh.stacks` does."""
        from monarch._mesh.inspection import mesh_stacks  # loaded when first used

        hosts = [self._hosts[rank] for rank in self._shape.ndslice]
        return mesh_stacks.of_hosts(hosts, timeout, locals, native, all_threads)

    def _owning(self, what: str) -> AttachedHosts:
        if self._session is None or self._sliced:
            raise RuntimeError(f"cannot {what} {_REFERENCE}")
        return self._session

    def shutdown(self) -> Future[None]:
        """Stops every process on the hosts; then their worker loops end. Begins at once; the Future says when it is done.

        RuntimeError on a reference (`this_host()`, slices, and meshes that were sent), and when it was shut down already.
        Afterwards every use of the mesh raises RuntimeError.
        """
        session = self._owning("shut down")
        return make_future(Then(session.shutdown(), no_value, f"shutdown() of {len(self._hosts)} host(s)"))

    def stop(self) -> Future[None]:
        """Stops the processes that were spawned through this mesh and its slices. The worker loops go on and can be attached
        again, as a new mesh; this one and its slices cannot spawn any more. Begins at once; the Future says when it is done.
        RuntimeError on a reference.
        """
        session = self._owning("stop")
        return make_future(Then(session.stop(), no_value, "stop() of what was spawned on a host mesh"))

    def replace(
        self,
        *,
        failed: bool = False,
        workers: Sequence[str] | Callable[[list[int]], Sequence[str]] | None = None,
        **selection: Any,
    ) -> Future[list[int]]:
        """Puts other hosts in the place of those that have died: with `failed` of all that have, else of those at `selection`
        (as for `slice`). Begins at once; the Future gives the ranks that were replaced, once everybody knows of it.

        Who takes a place: a worker of `workers` (addresses in the order of the ranks; further ones are tried when one cannot
        be reached; or a function that is given the ranks and returns them); else who the job of the mesh finds; else a spare
        (`attach_to_workers(spares=...)`); else a worker that listens at the same address again, for which it waits as long as
        attaching may take. Up to 64 hosts are replaced side by side; a function that looks for workers is called on a thread
        of this process, never on two at once.

        Every handle and slice of the mesh reaches the new host by the old one's name. It runs nothing: `ProcMesh.restart(
        failed=True)` starts the processes there again that were lost, and `ActorMesh.restart(failed=True)` the actors;
        those under a RestartPolicy come back by themselves if that has not given up. Should the old host have been cut off
        only, nobody listens to it any more.

        RuntimeError on a reference, of a mesh that was stopped or shut down, for a host that is not dead, and for `workers`
        while it is being replaced already (without, that is waited for). ValueError for fewer workers than hosts and for what
        is no address. The Future raises RuntimeError when hosts were not replaced, naming for each who was tried and why in
        vain; the others have been.
        """
        session = self._owning("replace hosts of")
        ranks = None if failed and not selection else list(self.slice(**selection)._shape.ndslice)
        if failed and ranks is not None:
            ranks = [rank for rank in ranks if rank in session.lost()]
        return make_future(Then(session.replace(ranks, workers), lambda replaced: replaced, "the replacing of hosts"))

    async def __aenter__(self) -> HostMesh:
        if self._session is not None:
            self._session.check()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown()

    async def sync_workspace(self, workspace: Any, conda: bool = False, auto_reload: bool = False) -> None:
        """Makes `$WORKSPACE_DIR/<dst>` on each host hold what the local directories of `workspace.dirs` hold, {local: dst}.

        Only what differs is sent, once a host; what is gone here is removed there. `conda`: the active conda
        environment as well. `auto_reload`: modules whose files changed are reloaded in the processes this program has
        spawned. See docs/workspace.md. RuntimeError on a mesh that `attach_to_workers` has not returned; WorkspaceError
        naming host and path for what could not be done; ValueError for a dst that is not below WORKSPACE_DIR.
        """
        if self._session is None or self._sliced:
            raise RuntimeError(
                "cannot call sync_workspace on a sliced host mesh or one that was sent over an actor endpoint; this host "
                "shares its files with its processes anyway"
            )
        await plugins.outer("workspace.sync")(self, workspace, conda, auto_reload)

    def __reduce__(self) -> Any:
        return HostMesh, (self._hosts, self._shape, self._executable)


def _sizes_of(per_host: Any) -> dict[str, int]:
    try:
        return dict(per_host or {})
    except (TypeError, ValueError):
        example = per_host if isinstance(per_host, int) else 4
        raise TypeError(
            f"per_host has the dimensions of the processes of each host by name, as in "
            f'spawn_procs({{"gpus": {example}}}); got {per_host!r}'
        ) from None


def host_mesh_of(host: str, executable: str = "") -> HostMesh:
    return HostMesh((host,), Shape.unity(), executable)


def this_host() -> HostMesh:
    """The host of the running process, as a mesh without dimensions. A reference: it cannot be shut down."""
    proc = here()
    return host_mesh_of(proc.host, proc.mesh.executable)


def _spawn_admin(
    hosts: Sequence[HostMesh], admin_addr: str | None = None, telemetry_url: str | None = None
) -> Future[Any]:
    """`monarch.admin.spawn_admin`, where older programs look for it."""
    return plugins.outer("admin.spawn_admin")(hosts, admin_addr, telemetry_url)  # type: ignore[no-any-return]


def this_proc() -> ProcMesh:
    """The process that runs the current actor (or the client's), as a mesh without dimensions."""
    return here().mesh.this_proc()  # type: ignore[no-any-return]
