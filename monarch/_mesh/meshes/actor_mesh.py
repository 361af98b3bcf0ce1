"""ActorMesh: the same actor in many processes, as one object whose endpoints are called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from monarch._errors import SupervisionError
from monarch._mesh.actors.actor import Actor, endpoints_of
from monarch._mesh.actors.adverbs import ADVERBS
from monarch._mesh.actors.arity import check_arguments
from monarch._mesh.actors.endpoint import Endpoint, EndpointProperty, Propagate
from monarch._mesh.actors.shown import OfInstances, mesh_doc
from monarch._mesh.casts.plan import ViewReceivers
from monarch._mesh.casts.reduce import combiner
from monarch._mesh.meshes.handle import MeshHandle
from monarch._mesh.meshes.specs import ActorSpec, kept, read_pickle
from monarch._runtime.context import here
from monarch._runtime.functions import attribute_of, is_async
from monarch._runtime.future import Done, Future, Source, Then, check_timeout, make_future, no_value
from monarch._runtime.port import Port
from monarch._runtime.replies import Gather, Target, shown
from monarch._shape import value_mesh
from monarch._shape.region import Shape, received_shape
from monarch._shape.slice import NDSlice
from monarch._wire.message import Probe
from monarch._wire.peer import PeerEnded

if TYPE_CHECKING:
    from monarch._mesh.inspection.stacks_of_program import Stacks

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


def _described(mesh: ActorMesh[Any]) -> str:
    return mesh_doc(mesh._class, len(mesh), (getattr(mesh, name) for name in endpoints_of(mesh._class)))


class ActorMesh(MeshHandle, Generic[A]):
    """A mesh of actors, or a view of one. Endpoints of the class are attributes here, each with the adverbs.

    The object that `spawn` returned owns the mesh and may `stop()` it; slices and copies that were sent elsewhere are
    references. Picklable at any time, also before the actors exist.
    """

    if not TYPE_CHECKING:
        __doc__ = OfInstances(_described, __doc__)

    _spec: ActorSpec
    _shape: Shape
    _owned: bool
    _plan: ViewReceivers
    _stopping: Source | None

    def __init__(self, spec: ActorSpec, shape: Shape, owned: bool = False, plan: ViewReceivers | None = None) -> None:
        if plan is None:
            ranks = shape.ndslice
            plan = ViewReceivers(tuple(shape.labels), tuple(ranks.sizes), list(ranks), spec.addresses)
        attributes = self.__dict__  # past __setattr__, which is for programs
        attributes["_spec"] = spec
        attributes["_shape"] = shape
        attributes["_owned"] = owned
        attributes["_plan"] = plan
        attributes["_stopping"] = None
        attributes["__name__"] = spec.name
        for name, prop in spec.shadowing:
            attributes[name] = Endpoint(self, name, prop)

    # --- shape

    def _new_with_shape(self, shape: Shape) -> ActorMesh[A]:
        return ActorMesh(self._spec, shape)

    # --- facts

    @property
    def _class(self) -> type:
        return self._spec.cls

    @property
    def _proc_mesh(self) -> Any:
        return self.__dict__.get("_proc_mesh", self._spec.proc_mesh)

    @_proc_mesh.setter
    def _proc_mesh(self, mesh: Any) -> None:
        """Libraries give a handle another one to keep beside it. It does not travel with the handle."""
        self.__dict__["_proc_mesh"] = mesh

    @property
    def _mesh_name(self) -> str:
        return self._spec.mesh_name

    @property
    def _name(self) -> Future[str]:
        return make_future(Done(self._mesh_name))

    def __repr__(self) -> str:
        kind = "owned" if self._owned else "reference"
        return f"ActorMesh(class={self._spec.cls}, shape={self._shape}, inner={kind} {self._mesh_name})"

    def _repr_html_(self) -> str | None:
        """Draws its ranks for a notebook, with the states that this process has heard of. Never waits."""
        from monarch import _html  # loaded when a notebook asks
        from monarch._mesh.meshes import drawings

        return _html.drawn(lambda: drawings.draw_actors(self))

    # --- attributes

    def _may_replace(self, name: str) -> bool:
        return isinstance(attribute_of(self._spec.cls, name), EndpointProperty)

    def _as_a_handle(self) -> str:
        return (
            f"the mesh {self._spec.name!r}: the actors are in other processes and would not see it. Set it in an endpoint "
            f"of {self._spec.cls.__qualname__}, or give it to __init__ with spawn"
        )

    # --- endpoints

    def __getattr__(self, name: str) -> Any:
        spec = self.__dict__.get("_spec")
        if spec is None:  # one that is being copied
            raise AttributeError(name)
        cls = spec.cls
        attribute = attribute_of(cls, name)
        if isinstance(attribute, EndpointProperty):
            endpoint: Any = Endpoint(self, name, attribute)
            self.__dict__[name] = endpoint
            return endpoint
        if name.startswith("__"):  # what Python and tools look for by themselves
            raise AttributeError(name)
        if hasattr(cls, name):
            return NotAnEndpoint(self, name)
        raise AttributeError(_no_such_endpoint(cls, name), name=name, obj=None)  # obj: Python would add its own guess

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *endpoints_of(self._spec.cls)})

    def _target(self, method: str) -> Target:
        spec = self._spec
        return Target(f"{spec.name}.{method}", self._plan.addresses, spec.failure_of)

    def _gathered(self, values: list[Any]) -> Any:
        plan = self._plan
        if plan.answers is None:
            plan.answers = value_mesh.dense_shape(self.extent)
        return value_mesh.ValueMesh(plan.answers, values)

    # --- life

    @property
    def initialized(self) -> Future[None]:
        """Resolves when the actors exist in their processes; their constructors may still run, or may have raised."""
        proc = here()
        count = len(self._plan)
        entry = Gather(self._target("initialized"), count, no_value)
        number = proc.ports.add(entry)
        for index, _rank, address in self._plan.receivers:
            try:
                proc.post(address, Probe(self._spec.key, number, index))
            except PeerEnded as exc:
                entry.fail(self._spec.failure_of(address, exc.why))
        return make_future(entry)

    def healthy(self, timeout: float | None = None) -> Future[None]:
        """Resolves when every actor of this mesh or slice is up: its constructor and `__restarted__` have returned, and its
        process is in no collective of a torch group of which a rank has died (for 10 s at most). Restarts that are under way,
        or that a RestartPolicy will begin, are waited for.

        Raises TimeoutError after `timeout` seconds, naming the ranks that are not up and why; SupervisionError as soon as one
        will not come back by itself: it failed without a policy, the policy gave up, or the mesh was stopped. Known only to
        the process that spawned the mesh: NotImplementedError elsewhere.

        If the class has an endpoint `healthy`, that is `mesh.healthy`; this method is `ActorMesh.healthy(mesh)` then.
        """
        source = here().mesh.health.of_actors(
            self._spec.key, list(self._shape.ndslice), None if timeout is None else check_timeout(timeout)
        )
        if source is None and self._stopping is not None:
            source = Done(SupervisionError(f"the mesh {self._mesh_name} was stopped: spawn it anew"))
        if source is None:
            raise NotImplementedError(
                f"whether {self._mesh_name} is healthy is known to the process that spawned it, until it stops it: ask there"
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
        """Collects where the actors of this mesh or slice are now: the thread of each, and its suspended tasks. The arguments
        are those of `ProcMesh.stacks`. `print(mesh.stacks().get())` shows stacks that are the same once, with their ranks.

        If the class has an endpoint `stacks`, that is `mesh.stacks`; this method is `ActorMesh.stacks(mesh)` then.
        """
        from monarch._mesh.inspection import mesh_stacks  # loaded when first used

        addresses = [address for _index, _rank, address in self._plan.receivers]
        return mesh_stacks.of_actors(addresses, self._spec.key, timeout, locals, native, all_threads)

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
            self._stopping = here().mesh.spawning.stop_actors(self._spec, reason)
        return make_future(Then(self._stopping, no_value, f"{self._spec.name}.stop()"))

    def restart(
        self,
        *,
        failed: bool = False,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        **selection: Any,
    ) -> Future[None]:
        """Constructs actors again in their old places: those at `selection` (as for `slice`; all by default), with `failed`
        only those of them that have ended. Their original arguments are used again, unless `args` or `kwargs` are given.

        Actors that still live are stopped first, in order. Begins at once; the Future resolves when every `__init__` and
        `__restarted__` has returned, and raises what went wrong: SupervisionError when one raised, RuntimeError when a
        process is gone (restart that first: `procs.restart(failed=True)`). Calls sent to the old actors fail and never
        reach the new ones; calls made afterwards, through any view or reference anywhere, reach the new ones.

        If the class has an endpoint `restart`, that is `mesh.restart`; this method is `ActorMesh.restart(mesh)` then.

        NotImplementedError on a reference: only the owner restarts. TypeError for arguments that do not fit `__init__`;
        RuntimeError when the mesh was stopped, or its arguments were too large to be kept (`restart_argument_bytes`).
        """
        if not self._owned:
            raise NotImplementedError(
                "Cannot call restart on an ActorMeshRef, requires an owned ActorMesh: restart the object that spawn() "
                "returned; restart(gpus=1) selects a part"
            )
        layer = here().mesh
        owned = layer.owned.actors.get(self._spec.key)
        if owned is None or self._stopping is not None:
            raise RuntimeError(f"the mesh {self._spec.mesh_name} was stopped: spawn it anew")
        ranks = list(self.slice(**selection)._shape.ndslice)
        if failed:
            ended = layer.owned.ended_ranks(self._spec.key)
            ranks = [rank for rank in ranks if rank in ended]
        making = None
        if args is not None or kwargs is not None:
            check_arguments(self._spec.cls, args or (), kwargs or {})
            making = layer.spawning.constructor_args(self._spec, tuple(args or ()), kwargs or {}, owned.creator)
        elif owned.too_large(ranks):
            raise RuntimeError(owned.too_large(ranks))
        restarting = layer.restarter.restart(owned, ranks, making)
        return make_future(Then(restarting, no_value, f"{self._spec.name}.restart(), rank(s) {shown(ranks)}"))

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
        return _received, (self._spec.pickled(), *self._shape.parts())


_RESERVED = ("slice", "split", "flatten", "rename", "size", "sizes", "extent", "stop", "initialized")
_PRIVATE = frozenset(
    ["_spec", "_shape", "_plan", "_owned", "_stopping", "_ndslice", "_labels", "_new_with_shape", "_class", "_proc_mesh",
     "_mesh_name", "_name", "_target", "_gathered", "_at"]
)  # fmt: skip


_METHODS = tuple(name for name in dir(ActorMesh) if not name.startswith("_"))


def check_class(cls: Any) -> None:
    """Raises what `spawn` promises for a class that cannot be an actor."""
    if not isinstance(cls, type):
        raise ValueError(_not_a_class(cls))
    if Actor not in cls.__mro__:  # issubclass asks abc, which has to hash the class
        raise ValueError(
            f"{cls.__qualname__} must subclass monarch.actor.Actor to be spawned: class {cls.__name__}(Actor), with "
            f"@endpoint on the methods that are to be called from other processes"
        )
    if is_async(attribute_of(cls, "__init__")):
        raise ValueError(
            f"{cls.__qualname__}.__init__ is `async def`, and nobody awaits a constructor: make it `def`, and await in an "
            f"`async def` endpoint that is called first"
        )
    if abstract := getattr(cls, "__abstractmethods__", None):
        raise ValueError(
            f"{cls.__qualname__} is abstract and cannot be spawned: a subclass has to define {', '.join(sorted(abstract))}"
        )
    names = endpoints_of(cls)
    taken = [name for name in names if name in _RESERVED or name in _PRIVATE]
    if taken:
        raise ValueError(
            f"ActorMesh has an attribute that collides with an endpoint name: {', '.join(sorted(taken))}; rename the "
            f"endpoint of {cls.__qualname__}"
        )


def _not_a_class(given: Any) -> str:
    if isinstance(given, ActorMesh):
        return (
            f"spawn takes a class that must subclass Actor, and {given!r} is a mesh of actors already: use it as it is"
        )
    if isinstance(given, Actor):
        cls = type(given).__name__
        return (
            f"spawn takes a class that must subclass Actor, and got an instance of {cls}: give the class and then the "
            f'arguments of its constructor, as in spawn("{cls.lower()}", {cls}, ...); each process constructs its own'
        )
    return f"{given!r} must subclass monarch.actor.Actor to be spawned: spawn(name, Class, *args) takes a class"


def _no_such_endpoint(cls: type, name: str) -> str:
    import difflib  # for this alone

    names = sorted(endpoints_of(cls))
    near = [] if name.startswith("_") else difflib.get_close_matches(name, [*names, *_METHODS], 1)
    if near:
        return f"actor class {cls.__qualname__} has no endpoint {name!r}. Did you mean: {near[0]!r}?"
    has = f"it has {', '.join(names)}" if names else "it has none: decorate methods with @endpoint"
    return (
        f"actor class {cls.__qualname__} has no endpoint {name!r}; {has} (attributes set in __init__ live in the actors' "
        f"processes: read them through an endpoint)"
    )


def _received(
    pickled: bytes, labels: tuple[str, ...], offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> ActorMesh[Any]:
    first = _received_first(pickled, labels, offset, sizes, strides)
    return ActorMesh(first._spec, first._shape, plan=first._plan)


@kept
def _received_first(
    pickled: bytes, labels: tuple[str, ...], offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> ActorMesh[Any]:
    """Makes the handle that arrived first. It stays here, for those who receive it may give theirs attributes."""
    return ActorMesh(read_pickle(pickled), received_shape(labels, offset, sizes, strides))


class NotAnEndpoint:
    """A method of an actor class that is not an endpoint, seen on its mesh. `as_endpoint` makes it one."""

    def __init__(self, mesh: ActorMesh[Any], name: str) -> None:
        self._mesh = mesh
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(self._told())

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ADVERBS:
                raise AttributeError(self._told(name))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _told(self, adverb: str = "call") -> str:
        import inspect  # slow to import

        cls, name = self._mesh._class, self._name
        if not callable(inspect.getattr_static(cls, name, self)):
            return (
                f"{cls.__name__}.{name} is not annotated as an endpoint, and is no method: each actor has its own, so read "
                f"it through an endpoint that returns it"
            )
        return (
            f"{cls.__name__}.{name} is not annotated as an endpoint: decorate it with @endpoint, or call it as "
            f"as_endpoint(mesh.{name}).{adverb}(...)"
        )

    def __repr__(self) -> str:
        return f"<{self._mesh._class.__name__}.{self._name}, not an endpoint>"


@overload
def as_endpoint(
    not_an_endpoint: Callable[P, Coroutine[Any, Any, R]],
    *,
    propagate: Propagate = None,
    explicit_response_port: Literal[False] = False,
) -> Endpoint[P, R]: ...
@overload
def as_endpoint(
    not_an_endpoint: Callable[P, R],
    *,
    propagate: Propagate = None,
    explicit_response_port: Literal[False] = False,
) -> Endpoint[P, R]: ...
@overload
def as_endpoint(
    not_an_endpoint: Callable[Concatenate[Port[R], P], Any],
    *,
    propagate: Propagate = None,
    explicit_response_port: Literal[True],
) -> Endpoint[P, R]: ...
def as_endpoint(not_an_endpoint: Any, *, propagate: Propagate = None, explicit_response_port: bool = False) -> Any:
    """An endpoint made of any method of a spawned actor, as in `as_endpoint(mesh.helper).call(1)`.

    Keywords as for `endpoint`. Its arguments are checked in the actor only (ActorError there). ValueError for anything but
    a method seen on a mesh.
    """
    if not isinstance(not_an_endpoint, NotAnEndpoint):
        raise ValueError(f"expected a method of a spawned actor, got {not_an_endpoint!r}")
    mesh, name = not_an_endpoint._mesh, not_an_endpoint._name
    method = getattr(mesh._class, name)
    if not callable(method):
        raise ValueError(f"expected a method of a spawned actor, but {mesh._class.__name__}.{name} is {method!r}")
    prop: EndpointProperty[Any, Any] = EndpointProperty(
        method, propagate=propagate, explicit_response_port=explicit_response_port, checked=False
    )
    made: Endpoint[Any, Any] = Endpoint(mesh, name, prop)
    return made


class Accumulator(Generic[P, A]):
    """Folds the answers of an endpoint: `combine(acc, value)`, beginning with `identity`.

        total = Accumulator(trainers.samples, 0, "sum").accumulate().get()

    Ordinarily this is done here, in order of arrival. `associative=True` promises that `combine(a, combine(b, c))` is the
    same as `combine(combine(a, b), c)` for answers and for what they are folded to; then answers from other hosts are
    folded on their way, in processes there, and the result is that of the order of ranks. `combine` must be picklable for
    that.
    The names "sum", "min", "max" and "concat" stand for functions on numbers, sequences, arrays and tensors (element by
    element), and are associative.

    ValueError for another name.
    """

    def __init__(
        self,
        endpoint: Endpoint[P, R],
        identity: A,
        combine: Callable[[A, R], A] | str,
        *,
        associative: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._given = combine
        self._combine = combiner(combine)
        self._associative = associative or isinstance(combine, str)

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
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
