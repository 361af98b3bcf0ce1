"""The handle of a service, and what makes one."""

from __future__ import annotations

import difflib
import functools
import inspect
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from monarch._errors import SupervisionError
from monarch.actor import (
    Actor,
    Channel,
    Future,
    HostMesh,
    NDSlice,
    ProcMesh,
    Shape,
    ValueMesh,
    bind_context,
    returns_future,
    send,
    this_host,
)
from monarch.actor.lowlevel import Sealed, WatchedProgress, explain_unsendable, follow_as, own_process, show_waits
from monarch.service.declared import Declared, blocks_of, declared
from monarch.service.errors import ServiceUnavailableError
from monarch.service.numbers import check_number
from monarch.service.replica import StreamReader, kinds_of
from monarch.service.router import Replied, ServiceCall, ServiceRouter
from monarch.service.routing import NAMED, Policy
from monarch.service.rules import Autoscale, HealthCheck, ServiceRules
from monarch.service.shutdown_block import ShutdownBlock
from monarch.service.status import ServiceStatus, updated
from monarch.service.stream import ServiceStream

T = TypeVar("T")

_LOOK = (
    ". service.status() tells what each replica has; service.options(timeout=...) ends requests for which nobody waits"
)


@dataclass(frozen=True, slots=True)
class ServiceAnswer(Generic[T]):
    """An answer, and who gave it. Since 0.2.0."""

    value: T
    version: int  # of the update that the replica had
    replica: int  # its number


@dataclass(frozen=True, slots=True)
class _Options:
    timeout: float | None = None
    retries: int | None = None
    wait: bool = False
    window: int = 16
    session: str = ""


class Service(ShutdownBlock):
    """The handle of a service: `service.generate.route(x)` for each endpoint of its class. It is small and may be sent to
    actors.

    Made by `serve`. It ends with whoever called that, with `shutdown()`, or with the block of `with serve(...) as service`
    (or `async with`). Since 0.2.0.
    """

    def __init__(self, router: Any, name: str, cls: type, group: bool, options: _Options = _Options()) -> None:
        self._router = router
        self._name = name
        self._class = cls
        self._group = group
        self._options = options
        self._moved: Callable[[int], None] | None = None
        self._procs: ProcMesh | None = None  # of the router, where it was made
        self._ended = threading.Event()  # where it was made: they were stopped by `shutdown`

    def __getattr__(self, name: str) -> ServiceEndpoint:
        if name.startswith("__") or "_class" not in self.__dict__:
            raise AttributeError(name)
        kinds = kinds_of(self._class)
        if name not in kinds:
            raise AttributeError(
                f"the service {self._name!r} of {self._class.__qualname__} has no endpoint {name!r}; it has "
                f"{', '.join(sorted(kinds)) or 'none'}"
            )
        found = self.__dict__[name] = ServiceEndpoint(self, name, kinds[name])
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *kinds_of(self._class)})

    def __reduce__(self) -> Any:
        return Service, (self._router, self._name, self._class, self._group, self._options)

    def __repr__(self) -> str:
        return f"<Service {self._name!r} of {self._class.__qualname__}: {', '.join(sorted(kinds_of(self._class)))}>"

    # --- how requests are made

    def options(
        self,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        wait: bool | None = None,
        window: int | None = None,
    ) -> Service:
        """Returns the same service, whose requests have these options; those that are None stay as they are.

        `timeout`: seconds from their arrival at the router after which they raise ServiceTimeoutError; what has not begun
        by then never does. `retries`: how often they may run again when their replica dies, whatever their endpoint declares.
        `wait`: whether they wait for a place when the service is full, in the order in which they came, instead of raising
        ServiceOverloaded. `window`: how many values of a stream are made before the reader has taken one.
        """
        if timeout is not None:
            check_number("timeout, in seconds,", timeout)
        if retries is not None:
            check_number("retries", retries, whole=True)
        if window is not None:
            check_number("window", window, 1, whole=True)
        given = {"timeout": timeout, "retries": retries, "wait": wait, "window": window}
        return self._with(**{name: value for name, value in given.items() if value is not None})

    def _with(self, **changes: Any) -> Service:
        other = Service(self._router, self._name, self._class, self._group, replace(self._options, **changes))
        other._moved, other._procs, other._ended = self._moved, self._procs, self._ended
        return other

    @property
    def _open_router(self) -> Any:
        if self._ended.is_set():
            raise ServiceUnavailableError(f"the service {self._name!r} was shut down: make another one with serve()")
        return self._router

    def session(self) -> ServiceSession:
        """Begins a session: its requests go to one replica, and begin in the order in which they are made.

            async with service.session() as s:  # or `with`
                await s.generate.route(x)

        When that replica dies, or is left alone for its errors, the session goes on at another one, and `s.moves` counts it.
        It ends with its block; RuntimeError after that.
        """
        return ServiceSession(self)

    # --- the replicas

    def update(self, method: str, *args: Any, **kwargs: Any) -> Future[int]:
        """Calls endpoint `method` with these arguments at one replica after another; the Future gives the new version.

        Each replica first finishes what it has, and takes nothing meanwhile, so no request sees two versions; answers carry
        theirs (`answer`). Requests go to the other replicas, or wait. Replicas that start later get the last update before
        they take a request. Updates run one after the other.

        When the endpoint raises, the update stops there and the Future raises ServiceUpdateError: that replica is replaced by
        one with the version before, those that have the new one keep it. A replica that dies meanwhile is started with the
        new version before the update goes on; when it dies in that too, the update stops as well.
        """
        self._check_updates("update", method, args, kwargs)
        future = self._open_router.update.call_one(method, getattr(self, method)._sealed(args, kwargs))
        of = f"update({method!r}) of service {self._name!r}"
        return self._shown_update(follow_as(of, future, _version, _LOOK))

    def update_in_place(self, prepare: str, *args: Any, then: str, **kwargs: Any) -> Future[int]:
        """Updates without a pause: every replica runs endpoint `prepare` with these arguments beside its requests, which
        makes the new weights next to the old ones and returns them; when all have, each replica gives what it made to
        endpoint `then`, between two requests. The Future gives the new version.

            service.update_in_place("fetch", handle, then="use")

        A `prepare` that is `def` runs in a thread, one that is `async` on the actor's loop: it must not change what requests
        use. No request sees two versions; answers carry theirs. What `prepare` returns stays in its process.

        When `prepare` raises anywhere, or a replica dies twice in it, the update stops with ServiceUpdateError and no replica
        has it. `then` is to do no more than exchange; when it raises, that is as in `update`. Later replicas run both.
        """
        self._check_updates("update_in_place", prepare, args, kwargs)
        self._check_updates("update_in_place", then, (None,), {})
        future = self._open_router.update.call_one(prepare, getattr(self, prepare)._sealed(args, kwargs), then)
        of = f"update_in_place({prepare!r}) of service {self._name!r}"
        return self._shown_update(follow_as(of, future, _version, _LOOK))

    def _shown_update(self, future: Future[int]) -> Future[int]:
        """Shows who waits for an update how many replicas have it."""

        def far() -> tuple[int, int]:
            return updated(self.status().get(_STATUS))

        return show_waits(future, WatchedProgress(f"update of service {self._name!r}, replicas", bind_context(far)))

    def _check_updates(self, caller: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kinds = kinds_of(self._class)
        if kinds.get(method) not in ("plain", "async", "beside"):
            found = ", ".join(sorted(name for name, kind in kinds.items() if kind in ("plain", "async", "beside")))
            raise ValueError(
                f"{caller} calls an endpoint of {self._class.__qualname__}, one of {found}; got {method!r}"
            )
        getattr(self, method)._check(args, kwargs)

    def scale(self, replicas: int) -> Future[None]:
        """Says how many replicas are wanted: more are started; those that go first finish what they have, and what waits for
        them goes to others. With 0, requests wait for a later `scale`. Replicas that were given up are replaced.
        """
        check_number("scale: replicas", replicas, whole=True)
        scaled: Future[None] = self._open_router.scale.call_one(replicas)
        return scaled

    def status(self) -> Future[ServiceStatus]:
        """Asks how the replicas are; `print` shows a table."""
        found: Future[ServiceStatus] = self._open_router.status.call_one()
        return found

    def shutdown(self, grace: float = 30.0) -> Future[None]:
        """Ends the service: it takes no more requests, what it has may go on for `grace` seconds, and its processes stop.

        Later requests raise ServiceUnavailableError. Whoever made it also gets rid of the router's process; those of other
        processes then raise SupervisionError.
        """
        check_number("grace, in seconds,", grace)
        closed = self._router.close.call_one(grace)

        @returns_future
        async def end() -> None:
            try:
                await closed
            except SupervisionError:  # the router has ended, and who made it may say so twice
                if self._procs is None:
                    raise
            if self._procs is not None:
                await self._procs.stop()
                self._ended.set()

        return end()


class ServiceSession:
    """A session of a service, with the endpoints of it: see `Service.session`. Since 0.2.0."""

    def __init__(self, service: Service) -> None:
        self._id = uuid.uuid4().hex
        self._service = service._with(session=self._id)
        self._service._moved = self._count
        self.moves = 0  # how often it was moved, as far as answers have told
        self._ended = False

    def _count(self, moves: int) -> None:
        self.moves = max(self.moves, moves)

    def __getattr__(self, name: str) -> ServiceEndpoint:
        if name.startswith("_"):
            raise AttributeError(name)
        found: ServiceEndpoint = getattr(self._service, name)
        if self._ended:
            raise RuntimeError(
                f"this session of service {self._service._name!r} has ended, with its block: begin another"
            )
        return found

    def options(self, **options: Any) -> Service:
        """Returns the service with options as `Service.options` has them, for requests of this session."""
        return self._service.options(**options)

    def __repr__(self) -> str:
        return f"<session {self._id[:8]} of service {self._service._name!r}, moved {self.moves} times>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended = True
        self._service._router.end_session.broadcast(self._id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__()


_STATUS = 10.0  # seconds for it to tell, where it is asked for progress
_ADVERBS = ("call", "call_one", "choose", "broadcast", "rref")


class ServiceEndpoint:
    """An endpoint of a service. Arguments and results are those of the method; of a group of processes (`per_replica` with
    more than one) each rank runs it, and the answer is a ValueMesh, as that of `call` is. Since 0.2.0.
    """

    def __init__(self, service: Service, name: str, kind: str) -> None:
        self._service = service
        self._name = name
        self._kind = kind
        self._declared, self._signature = _facts_of(service._class, name)

    def __str__(self) -> str:
        return f"{self._name}() of service {self._service._name!r}"

    def __repr__(self) -> str:
        return f"<endpoint {self._name}{_shown(self._signature)} of service {self._service._name!r}>"

    def __getattr__(self, name: str) -> Any:
        if name in _ADVERBS:
            raise AttributeError(
                f"{self._name} is an endpoint of a service, which has no {name}(): route() asks one replica, fanout() all"
            )
        raise AttributeError(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"an endpoint of a service is asked by {self._name}.route(...), fanout(...) or stream(...)")

    def route(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs at one replica; the Future gives what it returned.

        Raises ActorError when the endpoint raised; ServiceOverloaded when the service is full; ServiceTimeoutError;
        ReplicaLostError when its replica died in it and it may not run again; ServiceUnavailableError when no replica is
        left.
        """
        return follow_as(self, self._ask(args, kwargs), self._convert, _LOOK)

    def answer(self, *args: Any, **kwargs: Any) -> Future[ServiceAnswer[Any]]:
        """Does the same as `route`; the Future gives a ServiceAnswer, with the replica that answered and its version."""
        return follow_as(
            self,
            self._ask(args, kwargs),
            lambda replied: ServiceAnswer(self._convert(replied), replied.version, replied.replica),
            _LOOK,
        )

    def cancellable(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, ServiceAnswer[Any]]:
        """Does the same as `answer`, as a coroutine whose cancellation gives the request up: what has not begun never does,
        the answer of what runs is dropped.

            async with asyncio.timeout(2):
                answer = await service.generate.cancellable(prompt)
        """
        self._callable("cancellable")
        asked = self._asked(args, kwargs)._replace(ticket=uuid.uuid4().hex)

        async def ask() -> ServiceAnswer[Any]:
            try:
                replied: Replied = await self._service._open_router.ask.call_one(asked)
            except BaseException as exc:
                if not isinstance(exc, Exception):
                    self._cancel(asked)
                raise
            return ServiceAnswer(self._convert(replied), replied.version, replied.replica)

        return ask()

    def _cancel(self, asked: ServiceCall) -> None:
        self._service._router.cancel.broadcast(asked.ticket)

    def fanout(self, *args: Any, **kwargs: Any) -> Future[list[Any]]:
        """Runs at every replica that is up; the Future gives the list of what they returned, in their order. Raises what the
        first of them raised; ServiceOverloaded, and none has run, when one has no room.
        """
        self._callable("fanout")
        replied = self._service._open_router.ask_all.call_one(self._asked(args, kwargs))
        return follow_as(self, replied, self._convert_all, _LOOK)

    def stream(self, *args: Any, **kwargs: Any) -> ServiceStream:
        """Runs a generator at one replica; an iterator, async or not, of the values, each as soon as it is made.

            async for token in service.generate.stream(prompt): ...

        Values go from the replica to the reader and not through the router. The replica makes `window` values (16) at most
        that the reader has not taken, and waits then. It stops when the reader leaves: when the iterator is closed or
        dropped, or the reader's process ends. A stream is not retried when its replica dies, but raises.
        """
        if self._kind not in ("makes", "makes_async"):
            raise TypeError(f"{self._name}() is no generator, and has no stream: call {self._name}.route()")
        if self._service._group:
            raise TypeError(
                f"{self._name}(): streams are of replicas with one process, and those of service "
                f"{self._service._name!r} have more"
            )
        port, receiver = Channel[Any].open()
        port.return_undeliverable = False
        options = self._service._options
        reader = StreamReader(port, options.window, own_process())
        asked = self._asked(args, kwargs)._replace(reader=reader, max_batch=0, ticket=uuid.uuid4().hex)
        send(self._service._open_router.ask, (asked,), {}, port=port)
        return ServiceStream(receiver, options.window, self._convert, lambda: self._cancel(asked))

    # --- on the way there

    def _callable(self, adverb: str) -> None:
        if self._kind in ("makes", "makes_async"):
            raise TypeError(f"{self._name}() is a generator: its values come from stream(), not {adverb}()")
        if self._kind == "port":
            raise TypeError(
                f"{self._name}() answers through a port, and a service has no use for it: return the answer"
            )

    def _ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Replied]:
        self._callable("route")
        asked: Future[Replied] = self._service._open_router.ask.call_one(self._asked(args, kwargs))
        return asked

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments, by their places where they have one. TypeError for those that do not fit."""
        try:
            bound = self._signature.bind(None, *args, **kwargs)
            return bound.args[1:], bound.kwargs
        except TypeError as exc:
            raise TypeError(f"{self._service._name}.{self._name}{_shown(self._signature)}: {exc}") from None

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ServiceCall:
        args, kwargs = self._check(args, kwargs)
        rules, options = self._declared, self._service._options
        key: Any = None
        if rules.max_batch:  # those that are passed alike go together
            key = (len(args), tuple(sorted(kwargs)), rules.key(*args, **kwargs) if rules.key else None)
        blocks = blocks_of(rules.prefix(*args, **kwargs), rules.block) if rules.prefix else ()
        retries = rules.retries if options.retries is None else options.retries
        return ServiceCall(
            self._name, self._sealed(args, kwargs), options.timeout, retries, options.wait, options.session, blocks,
            rules.max_batch, rules.max_wait, key,
        )  # fmt: skip

    def _sealed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sealed:
        """Raises what pickling raises, with a note of the argument that cannot be sent."""
        try:
            return _carried((args, kwargs))
        except Exception as exc:
            by_name = dict([*self._signature.bind(None, *args, **kwargs).arguments.items()][1:])
            explain_unsendable(exc, f"the arguments of {self._service._name}.{self._name}()", by_name, _carried)
            raise

    # --- on the way back

    def _convert(self, replied: Replied) -> Any:
        moved = self._service._moved
        if moved is not None:
            moved(replied.moves)
        return _value(replied)

    def _convert_all(self, replied: Replied | list[Replied]) -> list[Any]:
        if isinstance(replied, Replied):
            raise _error(replied)
        return [_value(one) for one in replied]


def _carried(value: Any) -> Sealed:
    return Sealed(value, carried=True)


@functools.cache
def _facts_of(cls: type, name: str) -> tuple[Declared, inspect.Signature]:
    """Returns what an endpoint declares, and its parameters."""
    method: Any = inspect.getattr_static(cls, name)
    return declared(method), inspect.signature(method.__wrapped__)


def _shown(signature: inspect.Signature) -> str:
    """Returns the parameters, without types, which may be texts, and without `self`."""
    parameters = [one.replace(annotation=one.empty) for name, one in signature.parameters.items() if name != "self"]
    return str(inspect.Signature(parameters))


def _error(replied: Replied) -> BaseException:
    error, cause = replied.result.open()
    error.__cause__ = cause
    made: BaseException = error
    return made


def _version(replied: Replied) -> int:
    _value(replied)
    return replied.version


def _value(replied: Replied) -> Any:
    if not replied.ok:
        raise _error(replied)
    result = replied.result
    if isinstance(result, ValueMesh):
        shape = Shape(list(result.extent.labels), NDSlice.new_row_major(list(result.extent.sizes)))
        return ValueMesh(shape, [part.open() for part in result.values()])
    return result.open() if isinstance(result, Sealed) else result


def serve(
    hosts: HostMesh,
    cls: type,
    *args: Any,
    name: str | None = None,
    replicas: int = 1,
    per_replica: Mapping[str, int] | None = None,
    routing: str | Policy = "least_outstanding",
    concurrency: int = 1,
    queue: int = 16,
    limit: int | None = None,
    wait: bool = False,
    timeout: float | None = None,
    restarts: int = 5,
    within: float = 60.0,
    backoff: float = 0.1,
    breaker: int = 5,
    pause: float = 5.0,
    health: HealthCheck | None = None,
    autoscale: Autoscale | None = None,
    spares: int = 0,
    waiting: int = 10_000,
    **kwargs: Any,
) -> Service:
    """Starts a service: `replicas` of an actor class on these hosts, behind one handle, which it returns at once.

        service = serve(this_host(), Generator, "weights.pt", replicas=4)
        text = await service.generate.route(prompt)

    Each replica is a mesh of its own of `cls(*args, **kwargs)`: one process, or a group, with the dimensions `per_replica`.
    They go to the hosts that have the fewest; the last `spares` hosts are kept for replicas whose host is gone. With 0
    replicas requests wait for a `scale`.
    A router, an actor in a process beside the caller's, owns them; it ends, and they with it, when its owner does, who
    called this.

    Bounds: a replica runs `concurrency` calls at a time, and `queue` requests wait for it; the service has `limit` requests
    (by default as many as fit all replicas). Beyond that a request raises ServiceOverloaded, or with `wait` waits for a
    place, as one of `waiting` at most. `wait` and `timeout` are those of all requests: see `Service.options`. Calls of one
    replica run beside each other only if its endpoint is a `@concurrent_endpoint`; others queue in the actor.

    `routing`: "least_outstanding", "round_robin", "two_choices", "by_prefix", or a function of a RouteRequest and the list of
    ReplicaViews that have room, which returns the `number` of one. It runs in the router for each request: be quick.

    Failures: a replica that dies is started anew, after `backoff` seconds, twice as many each further time, at most
    `restarts` times within `within` seconds, each said by a line in the log; then it is given up, as it is at once when its
    constructor raises and no replica was ever up. Its requests that had not begun go to others; so do those that ran and are
    `@retried`; the others raise ReplicaLostError. A replica that has only raised for `breaker` requests on end gets none for
    `pause` seconds, then one, whose answer decides. `health` asks an endpoint of each, `autoscale` says how many there are.
    Since 0.2.0.
    """
    if isinstance(hosts, ProcMesh):
        raise TypeError(
            "serve takes hosts, such as this_host(), and got a mesh of processes: a service starts and replaces the "
            "processes of its replicas itself; per_replica says how many each has"
        )
    if not isinstance(hosts, HostMesh):
        raise TypeError(f"serve takes a mesh of hosts, such as this_host(), and an actor class; got {hosts!r}")
    _check_class(cls, args, kwargs)
    for label, size in _sizes(per_replica):
        check_number(f"per_replica: {label}", size, 1, whole=True)
    policy = NAMED.get(routing) if isinstance(routing, str) else routing
    if not callable(policy):
        raise ValueError(f"routing is one of {', '.join(NAMED)}, or a function; got {routing!r}")
    named = name or cls.__name__.lower()
    kinds = kinds_of(cls)
    if taken := sorted(kinds.keys() & set(dir(Service))):
        raise ValueError(
            f"{cls.__qualname__} has an endpoint {', '.join(taken)}, and a service has a method of that name: "
            "rename the endpoint"
        )
    if isinstance(health, HealthCheck) and kinds.get(health.endpoint) not in ("plain", "async", "beside"):
        raise ValueError(f"health: {cls.__qualname__} has no endpoint {health.endpoint!r} that returns")
    rules = ServiceRules(
        named, replicas, policy, concurrency, queue, limit, restarts, within, backoff, breaker, pause, autoscale, health,
        isinstance(health, HealthCheck) and kinds[health.endpoint] == "beside", len(hosts), spares, waiting,
    )  # fmt: skip
    procs = this_host().spawn_procs(name=f"{named}_router")
    router: Any = procs.spawn(named, ServiceRouter, rules, hosts, per_replica, cls, args, kwargs)
    router.begin.broadcast()
    group = any(size != 1 for size in (per_replica or {}).values())
    service = Service(router, named, cls, group, _Options(wait=wait)).options(timeout=timeout)
    service._procs = procs
    return service


def _check_class(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not isinstance(cls, type) or not issubclass(cls, Actor):
        name = type(cls).__name__
        advice = f": give the class and its arguments, serve(hosts, {name}, ...)" if isinstance(cls, Actor) else ""
        raise TypeError(f"serve takes a subclass of monarch.actor.Actor, and got {cls!r}{advice}")
    try:
        inspect.signature(cls).bind(*args, **kwargs)
    except TypeError as exc:
        options = inspect.signature(serve).parameters
        unknown = [name for name in kwargs if name not in inspect.signature(cls).parameters]
        meant = [found for name in unknown for found in difflib.get_close_matches(name, options, 1, 0.7)]
        advice = f"; serve has an option {meant[0]!r}" if meant else ""
        raise TypeError(f"{cls.__qualname__}{_shown(inspect.signature(cls))}: {exc}{advice}") from None


def _sizes(per_replica: Any) -> Any:
    if per_replica is None:
        return ()
    if not isinstance(per_replica, Mapping):
        raise TypeError(f'per_replica names the processes of a replica, such as {{"gpus": 2}}, got {per_replica!r}')
    return per_replica.items()
