"""Actors known by their name: one for the whole program, in the root client's process (`get_or_spawn_controller`), or one for
each process (`process_service`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch._linux.locks import Lock
from monarch._mesh import plugins
from monarch._mesh.actors.actor import Actor, needs_loop
from monarch._mesh.actors.endpoint import concurrent_endpoint
from monarch._mesh.failures.ledger import MeshFailure
from monarch._mesh.meshes.actor_mesh import ActorMesh, check_class
from monarch._mesh.meshes.proc_mesh import proc_mesh_of
from monarch._runtime.context import Current, current, here, root_of
from monarch._runtime.future import Future, future_of_actors
from monarch._text import NAME_LIMIT, sendable
from monarch._wire import codec
from monarch._wire.address import name_of
from monarch._wire.message import Spawn, encode_extent

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

P = ParamSpec("P")
A = TypeVar("A", bound=Actor)
KEY = "controllers"


class Controllers(Actor):
    """Owns the program's controllers and absorbs their failures."""

    _is_system_actor = True

    def __init__(self) -> None:
        self._meshes: dict[str, Any] = {}

    @concurrent_endpoint
    async def get_or_spawn(self, name: str, Class: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = self._meshes.get(name)
        if known is not None:
            end = here().table.end_of(known._spec.key)
            if end is not None and not end.stopped:
                raise RuntimeError(f"Failure on {name}: {end.report}")
        if known is None:
            owned = here().mesh.this_proc().spawn(name, Class, *args, **kwargs)
            self._meshes[name] = owned
        return self._meshes[name]

    def __supervise__(self, failure: MeshFailure) -> bool:
        return True


def get_or_spawn_controller(name: str, Class: Callable[P, A], *args: P.args, **kwargs: P.kwargs) -> Future[A]:
    """The program's actor called `name`, made by the first call from any process; later calls ignore `Class`.

    It lives in the root client's process, as a mesh without dimensions. The Future gives a reference. Its failures end
    nothing else; once it has failed, this raises ActorError naming the failure.
    """
    return future_of_actors(_controllers().get_or_spawn.call_one(name, Class, args, kwargs))


_making = Lock()


def _controllers() -> Any:
    """A reference to the Controllers actor of the root client: its key is fixed, so that any process can name it."""
    proc = here()
    with _making:
        known: ActorMesh[Any] | None = proc.mesh.controllers
        if known is None:
            client = proc.client
            if proc.address == client:
                known = _spawn(proc)
            else:
                known = proc.mesh.spawning.reference(proc_mesh_of(client), KEY, Controllers)
            proc.mesh.controllers = known
    return known


def _spawn(proc: Proc) -> Any:
    owner = root_of(proc)  # the client, whichever actor asks first
    assert owner is not None
    token = current.set(Current(owner, 0, owner.view))
    try:
        return proc.mesh.spawning.spawn_actors(proc.mesh.this_proc(), KEY, Controllers, (), {}, key=KEY)
    finally:
        current.reset(token)


def serve(proc: Proc) -> None:
    """Serves, in the client: another process may be the first to ask for a controller."""

    def make() -> None:
        with _making:
            if proc.mesh.controllers is None and proc.closed is None:
                proc.mesh.controllers = _spawn(proc)

    proc.table.absent[KEY] = make


# --- one a process


def process_service(name: str, Class: Callable[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
    """The actor called `name` of this process, as a mesh of one that may be sent anywhere. The first use here makes it.

    It belongs to the process and lives as long: nobody supervises it, an exception nobody waits for ends it, and calls raise
    SupervisionError then. For parts of a program, or of this package, that serve other processes from every process.
    ValueError for a class that is not an Actor; in a forked child, and once the process closes, the error that says so.
    """
    proc = here()
    proc.check_open(proc.address)
    return _service(proc, name, Class, args, kwargs)  # type: ignore[no-any-return]


def service_of(address: str, name: str, Class: Callable[..., A]) -> A:
    """The actor that is the `process_service` of this name in the process at `address`, which makes it if it is one of
    REFERENCES. For optional packages."""
    proc = here()
    if address == proc.address:
        return process_service(name, Class)
    return proc.mesh.spawning.reference(proc_mesh_of(address), _key(name, address), Class)  # type: ignore[no-any-return]


REFERENCES = "references"  # the service that any process has as soon as another sends to it


def serve_references(proc: Proc) -> None:
    """Makes the service of references when another process sends to it first."""

    def make() -> None:
        if proc.closed is None:
            _service(proc, REFERENCES, plugins.outer("references.service"), (), {})

    proc.table.absent[_key(REFERENCES, proc.address)] = make


def _key(name: str, address: str) -> str:
    return f"{sendable(name, NAME_LIMIT)}@{name_of(address)}"  # senders number their messages by it


def _service(proc: Proc, name: str, Class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    key = _key(name, proc.address)
    known = proc.services.get(key)
    if known is None:
        check_class(Class)
        mesh = proc.mesh.this_proc()
        with _making:
            known = proc.services.get(key)
            if known is None:
                _make_service(proc, mesh, key, Class, args, kwargs)
                known = proc.services[key] = proc.mesh.spawning.reference(mesh, key, Class)
    return known


def _make_service(proc: Proc, mesh: Any, name: str, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    body, buffers = codec.encode((cls, args, kwargs, mesh, None))
    shown = f"{cls.__module__}.{cls.__qualname__}"
    view = encode_extent((), ())
    spawn = Spawn(name, name, 0, view, "", proc.address, "<process>", shown, needs_loop(cls))
    spawn.system = getattr(cls, "_is_system_actor", False)
    proc.loop.call_soon(lambda: proc.post(proc.address, spawn, body, buffers))
