"""ActorMesh: the same actor in many processes, as one object whose endpoints are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch._mesh.actors.endpoint import Endpoint, EndpointProperty, NotAnEndpoint, check_arguments
from monarch._mesh.casts.plan import Plan
from monarch._mesh.casts.reduce import combiner
from monarch._mesh.failures.ledger import process_failure
from monarch._runtime.context import here
from monarch._runtime.future import Done, Future, Source, Then, make_future
from monarch._runtime.replies import Gather, Target
from monarch._shape import value_mesh
from monarch._shape.extent import Extent, Point
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._shape.view import MeshTrait
from monarch._wire.message import Failure, Probe, ProcEnded
from monarch._wire.peer import PeerEnded

if TYPE_CHECKING:
    from monarch._mesh.meshes.proc_mesh import ProcMesh

A = TypeVar("A")


class ActorSpec:
    """What every view of one actor mesh shares. `addresses[r]` is the process of the actor with rank r."""

    __slots__ = ("addresses", "cls", "creator", "endpoint_restart", "key", "name", "proc_mesh")

    def __init__(self, key: str, name: str, cls: type, proc_mesh: ProcMesh, creator: str) -> None:
        self.key = key
        self.name = name
        self.cls = cls
        self.proc_mesh = proc_mesh
        self.creator = creator
        self.addresses: Sequence[str] = proc_mesh._addresses()
        # Programs from elsewhere may have an endpoint of this name: theirs counts, and ActorMesh.restart(mesh) is ours.
        restart = inspect.getattr_static(cls, "restart", None)
        self.endpoint_restart = restart if isinstance(restart, EndpointProperty) else None

    def display(self, rank: int) -> str:
        """`<root>.<module.Class name{'gpus': 1/2}>`, as reports name an actor."""
        return display_name(self.creator, self.cls, self.name, Point(rank, self.extent))

    @property
    def mesh_name(self) -> str:
        """Unique: the name given to `spawn`, and the mesh's key."""
        return f"{self.name}-{self.key}"

    @property
    def extent(self) -> Extent:
        return self.proc_mesh.extent

    def failure_of(self, address: str, ended: ProcEnded) -> Failure:
        ranks = [rank for rank, there in enumerate(self.addresses) if there == address]
        return process_failure(self, ended, ranks)


def display_name(creator: str, cls: type, name: str, point: Point) -> str:
    shown = f"{cls.__module__}.{cls.__qualname__} {name}"
    if len(point):
        shown += repr(point)
    return f"{creator}.<{shown}>"


class ActorMesh(MeshTrait, Generic[A]):
    """A mesh of actors, or a view of one. Endpoints of the class are attributes here, each with the adverbs.

    The object that `spawn` returned owns the mesh and may `stop()` it; slices and copies that were sent elsewhere are
    references. Picklable at any time, also before the actors exist.
    """

    def __init__(self, spec: ActorSpec, shape: Shape, owned: bool = False) -> None:
        self._spec = spec
        self._shape = shape
        self._owned = owned
        self._plan = Plan(tuple(shape.labels), tuple(shape.ndslice.sizes), list(shape.ndslice), spec.addresses)
        self._stopping: Source | None = None
        self.__name__ = spec.name
        if spec.endpoint_restart is not None:
            self.__dict__["restart"] = Endpoint(self, "restart", spec.endpoint_restart)

    # --- shape

    @property
    def _ndslice(self) -> NDSlice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self._shape.labels)

    def _new_with_shape(self, shape: Shape) -> ActorMesh[A]:
        return ActorMesh(self._spec, shape)

    # --- facts

    @property
    def _class(self) -> type:
        return self._spec.cls

    @property
    def _proc_mesh(self) -> ProcMesh:
        return self._spec.proc_mesh

    @property
    def _mesh_name(self) -> str:
        return self._spec.mesh_name

    @property
    def _name(self) -> Future[str]:
        return make_future(Done(self._mesh_name))

    def __repr__(self) -> str:
        shape = str(self._shape)
        kind = "owned" if self._owned else "reference"
        return f"ActorMesh(class={self._spec.cls}, shape={shape}), inner={kind} {self._mesh_name})"

    # --- endpoints

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        cls = self._spec.cls
        attribute = inspect.getattr_static(cls, name, None)
        if isinstance(attribute, EndpointProperty):
            endpoint: Any = Endpoint(self, name, attribute)
            self.__dict__[name] = endpoint
            return endpoint
        if hasattr(cls, name):
            return NotAnEndpoint(self, name)
        raise AttributeError(
            f"actor class {cls.__qualname__} has no endpoint {name!r}"
            f" (attributes set in __init__ live in the actors' processes: read them through an endpoint)"
        )

    def _target(self, method: str) -> Target:
        spec = self._spec
        return Target(f"{spec.name}.{method}", self._plan.addresses, spec.failure_of)

    def _gathered(self, values: list[Any]) -> Any:
        return value_mesh.dense(self.extent, values)

    # --- life

    @property
    def initialized(self) -> Future[None]:
        """Resolves when the actors exist in their processes; their constructors may still run, or may have raised."""
        proc = here()
        count = len(self._plan)
        entry = Gather(self._target("initialized"), count, _nothing)
        number = proc.ports.add(entry)
        for index, _rank, address in self._plan.receivers:
            try:
                proc.post(address, Probe(self._spec.key, number, index))
            except PeerEnded as exc:
                entry.fail(self._spec.failure_of(address, exc.why))
        return make_future(entry)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stops every actor of the mesh: what runs finishes (async endpoints are cancelled), what waits is refused, the
        meshes it owns stop, `__cleanup__` runs. Begins at once; the Future says when it is done. Idempotent.

        NotImplementedError on a reference: only the owner stops a mesh.
        """
        if not self._owned:
            raise NotImplementedError(
                "Cannot call stop on an ActorMeshRef, requires an owned ActorMesh: slices and meshes that were sent are "
                "references; stop the object that spawn() returned"
            )
        if self._stopping is None:
            self._stopping = here().mesh.stop_actors(self._spec, reason)
        return make_future(Then(self._stopping, _nothing))

    def restart(
        self,
        *,
        failed: bool = False,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        **selection: Any,
    ) -> Future[None]:
        """Constructs actors again in their old places: those at `selection` (as for `slice`; all by default), with `failed`
        those of them that have ended. Their original arguments serve again, or `args` and `kwargs` if either is given.

        Actors that still live are stopped first, in order. Begins at once; the Future resolves when every `__init__` and
        `__restarted__` has returned, and raises what stood in the way: SupervisionError when one raised, RuntimeError when a
        process is gone (restart that first: `procs.restart(failed=True)`). Calls sent to the old actors fail and never
        reach the new ones; calls made afterwards, through any view or reference anywhere, reach the new ones.

        Of a class with an endpoint called `restart` that endpoint is `mesh.restart`; this is `ActorMesh.restart(mesh)` then.

        NotImplementedError on a reference: only the owner restarts. TypeError for arguments that do not fit `__init__`;
        RuntimeError when the mesh was stopped, or its arguments were too large to be kept (`restart_argument_bytes`).
        """
        if not self._owned:
            raise NotImplementedError(
                "Cannot call restart on an ActorMeshRef, requires an owned ActorMesh: restart the object that spawn() "
                "returned; restart(gpus=1) selects a part"
            )
        layer = here().mesh
        owned = layer.actors.get(self._spec.key)
        if owned is None or self._stopping is not None:
            raise RuntimeError(f"the mesh {self._spec.mesh_name} was stopped: spawn it anew")
        ranks = list(self.slice(**selection)._shape.ndslice)
        if failed:
            with layer.lock:
                ended = set(layer.ledger.ended_ranks(self._spec.key))
            ranks = [rank for rank in ranks if rank in ended]
        making = None
        if args is not None or kwargs is not None:
            check_arguments(self._spec.cls, args or (), kwargs or {})
            making = layer.make(self._spec, tuple(args or ()), kwargs or {}, owned.creator)
        elif owned.too_large(ranks):
            raise RuntimeError(owned.too_large(ranks))
        return make_future(layer.restarter.restart(owned, ranks, making))

    def _at(self, rank: int) -> ActorMesh[A]:
        """The view of one rank of the whole mesh."""
        return ActorMesh(self._spec, Shape([], NDSlice(offset=rank, sizes=[], strides=[])))

    async def __aenter__(self) -> ActorMesh[A]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def __await__(self) -> Any:
        """Older programs await what `spawn` returns; it gives the mesh itself."""
        return self
        yield

    def __reduce__(self) -> Any:
        spec = self._spec
        return _rebuild, (spec.key, spec.name, spec.cls, spec.proc_mesh, spec.creator, self._shape)


def _rebuild(key: str, name: str, cls: type, proc_mesh: Any, creator: str, shape: Shape) -> ActorMesh[Any]:
    return ActorMesh(ActorSpec(key, name, cls, proc_mesh, creator), shape)


def _nothing(_value: Any) -> None:
    return None


def as_endpoint(
    not_an_endpoint: Any, *, propagate: Any = None, explicit_response_port: bool = False
) -> Endpoint[Any, Any]:
    """An endpoint made of any method of a spawned actor, as in `as_endpoint(mesh.helper).call(1)`.

    Its arguments are checked in the actor only (ActorError there). ValueError for anything but a method seen on a mesh.
    """
    if not isinstance(not_an_endpoint, NotAnEndpoint):
        raise ValueError(f"expected an method of a spawned actor, got {not_an_endpoint!r}")
    mesh, name = not_an_endpoint._mesh, not_an_endpoint._name
    method = getattr(mesh._class, name)
    if not callable(method):
        raise ValueError(f"expected an method of a spawned actor, but {mesh._class.__name__}.{name} is {method!r}")
    prop: EndpointProperty[Any, Any] = EndpointProperty(
        method, propagate=propagate, explicit_response_port=explicit_response_port, checked=False
    )
    return Endpoint(mesh, name, prop)


class Accumulator(Generic[A]):
    """Folds the answers of an endpoint: `combine(acc, value)`, beginning with `identity`.

    Ordinarily here, in order of arrival. `associative=True` promises that `combine(a, combine(b, c))` is the same as
    `combine(combine(a, b), c)` for answers and for what they are folded to; then answers from other hosts are folded on
    their way, in processes there, and the result is that of the order of ranks. `combine` must be picklable for that.
    The names "sum", "min", "max" and "concat" stand for functions on numbers, sequences, arrays and tensors (element by
    element), and are associative.

    ValueError for another name.
    """

    def __init__(
        self,
        endpoint: Endpoint[Any, Any],
        identity: A,
        combine: Callable[[A, Any], A] | str,
        *,
        associative: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._given = combine
        self._combine = combiner(combine)
        self._associative = associative or isinstance(combine, str)

    def accumulate(self, *args: Any, **kwargs: Any) -> Future[A]:
        """Sends now. Associative: the Future has the result when all have answered, and raises the exception of the
        lowest rank (an exception of `combine` as an ActorError). Otherwise answers are folded when it is first
        observed, and the first exception is raised."""
        if self._associative:
            return self._endpoint._reduce(args, kwargs, self._fold, self._given)
        from monarch._runtime.returns_future import returns_future  # asyncio: loaded by those who use it

        stream = self._endpoint.stream(*args, **kwargs)

        async def fold() -> A:
            result = self._identity
            for future in stream:
                result = self._combine(result, await future)
            return result

        return returns_future(fold)()

    def _fold(self, values: Sequence[Any]) -> A:
        return functools.reduce(self._combine, values, self._identity)
