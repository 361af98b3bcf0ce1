"""Endpoints: methods that other processes can call, and how they are called (the adverbs).

`@endpoint` makes a descriptor (EndpointProperty) on the class; the same name on an ActorMesh is an Endpoint with the
adverbs. Arguments are checked and encoded, and the message is sent, before an adverb returns.

Over 600 lines because what people and type checkers read of endpoints stands beside what is done: overloads and docstrings.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from monarch._mesh import plugins
from monarch._mesh.actors.adverb_codes import (
    BROADCAST,
    CALL,
    CALL_ONE,
    CHOOSE,
    HOLD,
    KEEP,
    KEEP_COUNTED,
    SEND,
    STREAM,
    TO_ONE,
    few,
)
from monarch._mesh.actors.adverbs import ADVERBS, as_local_method, no_adverb, not_callable, on_the_class
from monarch._mesh.actors.arity import Arity, arity_of, check_takes_self, named, values_taken
from monarch._mesh.actors.endpoint_mesh import EndpointMesh
from monarch._mesh.actors.map_adverb import MapAdverb
from monarch._mesh.actors.receivers import Receivers, ReceiversUnknown, encode_for, explain, warn_if_large
from monarch._mesh.actors.shown import OfInstances, endpoint_doc, signature_of
from monarch._mesh.actors.value_stream import ValueStream
from monarch._mesh.casts.plan import RemoteReceivers
from monarch._mesh.casts.sender import fill_places, stamp
from monarch._mesh.failures.ledger import process_failure
from monarch._runtime import recorder as recording
from monarch._runtime.context import current, root
from monarch._runtime.event_loops import running_loop
from monarch._runtime.functions import is_async
from monarch._runtime.future import Future, check_timeout, make_future
from monarch._runtime.ordering import RankKey, Stamped, expand
from monarch._runtime.port import Port
from monarch._runtime.queue import Arrival, Queue
from monarch._runtime.replies import Entry, Gather, OneReply, Target
from monarch._shape.as_json import one_json, shape_json, whole_json
from monarch._wire import codec
from monarch._wire.frame import SMALL
from monarch._wire.message import FAILED, Answer, Call, Cast, encode
from monarch._wire.peer import PeerEnded

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._shape.value_mesh import ValueMesh

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)  # what the caller gets: of `async def`, what the coroutine returns
Raw_co = TypeVar("Raw_co", covariant=True)  # what the method itself returns
Method_co = TypeVar("Method_co", covariant=True)  # the method without `self`, as Callable[P, R]

# Broadcasts to one process that follow each other within this time (seconds) are written several at once: nobody waits
# for them. For calls it does not pay (docs/log.md).
_FLOOD = 0.0003

_getframe = sys._getframe


class EndpointProperty(Generic[Method_co, Raw_co]):
    """The attribute that `@endpoint` leaves on the class. On `self` it is the plain method, callable here and now.

    Type checkers see the method and what it returns; on an instance a BoundEndpoint, because they take the mesh that
    `spawn` returns for an instance. Here the two differ: a mesh gives an Endpoint, an instance its method.
    """

    _local: Callable[..., Any] | None = None  # the method as instances have it, once one was asked for it

    def __init__(
        self,
        method: Callable[..., Any],
        *,
        propagate: Any = None,
        explicit_response_port: bool = False,
        instrument: bool = True,
        concurrent: bool = False,
        checked: bool = True,
    ) -> None:
        check_takes_self(method)
        self._method = method
        self._propagator = propagate
        self._explicit_response_port = explicit_response_port or concurrent
        self._user_port = explicit_response_port  # whether the method itself takes the port
        self._instrument = instrument
        self._concurrent = concurrent
        self._values = values_taken(method)  # the parameters that take values of references
        self._checked = checked  # whether callers check arguments against the method's signature
        functools.update_wrapper(self, method)  # type: ignore[arg-type]  # any object will do
        # Python 3.14 has it copied as well. It refers to all of the class's namespace, which would be sent with the endpoint.
        self.__dict__.pop("__annotate__", None)

    @overload
    def __get__(self, obj: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: EndpointProperty[Callable[P, Coroutine[Any, Any, R]], Raw_co], obj: object, owner: Any = None
    ) -> BoundEndpoint[P, R, Raw_co]: ...
    @overload
    def __get__(
        self: EndpointProperty[Callable[P, R], Any], obj: object, owner: Any = None
    ) -> BoundEndpoint[P, R, R]: ...
    def __get__(self, obj: object | None, owner: Any = None) -> Any:
        if obj is None:
            return self
        if self._local is None:
            self._local = as_local_method(self._method)
        return types.MethodType(self._local, obj)

    if not TYPE_CHECKING:  # to a checker the class has no adverbs either

        def __getattr__(self, name: str) -> Any:
            if name in ADVERBS:
                raise AttributeError(on_the_class(self._method, name))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __repr__(self) -> str:
        return f"<endpoint {getattr(self._method, '__qualname__', self._method)}>"


Propagate = Callable[..., Any] | str | None


@overload
def endpoint(method: Callable[Concatenate[Any, P], R], /) -> EndpointProperty[Callable[P, R], R]: ...
@overload
def endpoint(
    *, propagate: Propagate = None, explicit_response_port: Literal[False] = False, instrument: bool = True
) -> EndpointDecorator: ...
@overload
def endpoint(
    *, propagate: Propagate = None, explicit_response_port: Literal[True], instrument: bool = True
) -> PortEndpointDecorator: ...
def endpoint(
    method: Any = None,
    *,
    propagate: Propagate = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Makes a method of an Actor callable from other processes. Written `@endpoint`, or with keywords.

        class Counter(Actor):
            @endpoint
            def add(self, n: int) -> int: ...

    On the mesh that `spawn` returns, the name is an Endpoint: `counters.add.call(1)`. In the actor, `self.add(1)` is the
    plain method. It runs on the actor's thread (`async def`: as a task of its loop, to the end before the next message), on
    copies of its arguments; what it returns is pickled for the caller. An exception is raised in the caller as an ActorError,
    and the actor goes on; after a `broadcast`, where nobody waits, it ends the actor.

    `explicit_response_port`: the method's first parameter after `self` is a Port for the answer, and its return value is
    ignored. `propagate`: how `rref` knows what it returns, see `Endpoint.rref`. `instrument`: record a span for each call.
    TypeError for what is not a function, and for one without `self`.
    """

    def decorate(function: Callable[..., Any]) -> EndpointProperty[Any, Any]:
        if not callable(function):
            raise TypeError(f"@endpoint decorates a method, got {function!r}")
        return EndpointProperty(
            function,
            propagate=propagate,
            explicit_response_port=explicit_response_port,
            instrument=instrument,
        )

    return decorate if method is None else decorate(method)


@overload
def concurrent_endpoint(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
) -> EndpointProperty[Callable[P, Coroutine[Any, Any, R]], Coroutine[Any, Any, R]]: ...
@overload
def concurrent_endpoint(
    *, propagate: Propagate = None, explicit_response_port: Literal[False] = False, instrument: bool = True
) -> AsyncEndpointDecorator: ...
@overload
def concurrent_endpoint(
    *, propagate: Propagate = None, explicit_response_port: Literal[True], instrument: bool = True
) -> PortEndpointDecorator: ...
def concurrent_endpoint(
    method: Any = None,
    *,
    propagate: Propagate = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """An `async def` endpoint whose calls overlap: each runs as a task of the actor's loop.

        class Model(Actor):
            @concurrent_endpoint
            async def answer(self, prompt: str) -> str: ...  # many at a time, each at its own `await`

    Calls of one sender start in order; they end in any order. All run on the actor's one thread: code between two `await`s is
    never interrupted, and code that does not await holds up all. When the actor stops, tasks still running are cancelled and
    awaited before `__cleanup__`. Keywords as for `endpoint`. ValueError when it is not async, or stacked with `@endpoint`.
    """

    def decorate(function: Callable[..., Any]) -> EndpointProperty[Any, Any]:
        if isinstance(function, EndpointProperty):
            raise ValueError("concurrent_endpoint does not wrap @endpoint: use it alone")
        if not is_async(function):
            raise ValueError(f"concurrent_endpoint can only wrap async endpoints, and {function!r} is not async")
        return EndpointProperty(
            function,
            propagate=propagate,
            explicit_response_port=explicit_response_port,
            instrument=instrument,
            concurrent=True,
        )

    return decorate if method is None else decorate(method)


class Kept(Protocol[P]):
    """An endpoint whose results stay where they are made: see `Endpoint.keep`."""

    def call(self, *args: P.args, **kwargs: P.kwargs) -> ValueMesh[Any]:
        """Runs on every rank; a reference a rank."""
        ...

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Runs on the only rank of a mesh of one; a reference."""
        ...


class Endpoint(MapAdverb, Generic[P, R_co]):
    """One endpoint of an actor mesh (or of a view of it), with the adverbs.

    All adverbs: raise TypeError when the arguments do not fit, whatever pickling raises, MessageTooLargeError; nothing is
    sent then. Messages from one actor to another are handled in the order they were sent, whatever adverb or view.
    Beyond the bounds `outgoing_queue_bytes` and `mailbox_messages` a sender waits (BackpressureTimeout after
    `message_delivery_timeout`); on the thread of a running event loop only `broadcast` and `send` wait, because awaiting
    the Future of the others waits for delivery anyway.
    """

    __slots__ = ("_arity", "_mesh", "_method", "_name", "_property", "_target", "_timeout")

    def __init__(self, mesh: EndpointMesh, name: str, prop: EndpointProperty[Any, Any], timeout: float | None = None):
        if not name.isascii():
            name.encode()  # UnicodeEncodeError here, where no message has been numbered yet
        self._mesh = mesh
        self._name = name
        self._property = prop
        self._timeout = timeout
        self._arity: Arity | None = None
        self._target: Target | None = None
        self._method = prop._method

    if not TYPE_CHECKING:  # what `?` and help() show: the method's own, without `self`
        __name__ = OfInstances(lambda endpoint: endpoint._name)
        __doc__ = OfInstances(lambda endpoint: endpoint_doc(endpoint._method, len(endpoint._mesh)), __doc__)
        __signature__ = OfInstances(lambda endpoint: (endpoint._arity or endpoint._find_arity()).signature)
        __wrapped__ = OfInstances(lambda endpoint: endpoint._method)

    def __repr__(self) -> str:
        return f"<Endpoint {self._mesh._spec.name}.{self._name}{signature_of(self)} of {len(self._mesh)} actors>"

    if not TYPE_CHECKING:  # BoundEndpoint says what a checker should think of `self.add(1)`

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            raise TypeError(not_callable(self._name))

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(no_adverb(self._name, name))

    def __reduce__(self) -> Any:
        raise TypeError(f"endpoint {self._name!r} cannot be sent: send the mesh and take its endpoint there")

    # --- adverbs

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R_co]]:
        """Runs on every rank; the Future gives a ValueMesh of the results once every rank has answered.

        Raises ActorError of the lowest rank that raised, after all have answered; SupervisionError as soon as a rank
        is known to have failed or stopped.
        """
        mesh = self._mesh
        entry = Gather(self._target or self._make_target(), len(mesh._plan), mesh._gathered)
        caller = _getframe(1)
        entry.code, entry.instruction = caller.f_code, caller.f_lasti
        self._cast(entry, CALL, args, kwargs)
        return make_future(entry)

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R_co]:
        """Runs on the only rank of a mesh of one; the Future gives its result, and raises as that of `call` does.

        ValueError for a mesh of any other size.
        """
        count = len(self._mesh._plan)
        if count != 1:
            raise ValueError(
                f"call_one requires exactly 1 actor, but mesh has {count}: use call(), choose(), or slice the mesh"
            )
        entry = OneReply(self._target or self._make_target())
        caller = _getframe(1)
        entry.code, entry.instruction = caller.f_code, caller.f_lasti
        self._cast(entry, CALL_ONE, args, kwargs)
        return make_future(entry)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R_co]:
        """Runs on one rank, uniformly at random for each call; the Future gives its result, and raises as that of `call`.

        Also where a rank of the mesh has failed that was not drawn: slice to those that live. `map` sends to whichever rank
        is free, and goes on without those that died.
        """
        rank = _any_of(len(self._mesh._plan))
        entry = OneReply(self._target or self._make_target(), rank)
        caller = _getframe(1)
        entry.code, entry.instruction = caller.f_code, caller.f_lasti
        self._cast(entry, CHOOSE, args, kwargs, only=rank)
        return make_future(entry)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> ValueStream[R_co]:
        """Runs on every rank; an iterator of as many Futures, the i-th observed gets the i-th answer that arrives.

            for future in trainers.step.stream():
                print(future.get())

        A Future raises the ActorError that arrives in its turn; when a rank has failed, all that are left raise
        SupervisionError. Also an async iterator. `Channel.open_ranked` and `send` say which rank an answer is of.
        """
        count = len(self._mesh._plan)
        entry = Queue(self._target or self._make_target(), count)
        caller = _getframe(1)
        entry.code, entry.instruction = caller.f_code, caller.f_lasti
        # First: its end closes the port, also if this is interrupted.
        answers: ValueStream[R_co] = ValueStream(entry, count)
        self._cast(entry, STREAM, args, kwargs)
        return answers

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Runs on every rank; nobody waits, and nothing comes back.

        An exception there is a failure of that actor: it ends, and its owner is told.
        """
        self._cast(None, BROADCAST, args, kwargs)

    def _reduce(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fold: Callable[[list[Any]], Any],
        combine: Callable[[Any, Any], Any] | str,
    ) -> Future[Any]:
        """`call` whose answers may be folded on their way; `fold` gets what is left of them in the order of ranks."""
        mesh = self._mesh
        entry = Gather(self._target or self._make_target(), len(mesh._plan), fold)
        caller = _getframe(1)
        entry.code, entry.instruction = caller.f_code, caller.f_lasti
        self._cast(entry, CALL, args, kwargs, combine=codec.encode(combine)[0])
        return make_future(entry)

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Runs on every rank; at once gives what the endpoint's `propagate` says of the results, with distributed
        tensors in place of its tensors: each rank's own result, where it was made.

        `propagate` is a function that gets the same arguments, with fake tensors among them, and returns what a call
        returns; or "inspect", for what returns no tensor: then this is None. The actors have to be in the processes of
        the tensors (of the active mesh, without any): ValueError otherwise. NotImplementedError without `propagate`. An
        exception of the endpoint is raised, as RemoteException, by any fetch of something that depends on the results.
        """
        propagate = self._property._propagator
        if self._property._user_port:
            raise NotImplementedError(
                f"rref of {self._name!r}, which answers through a port: its result is not known here. Return it from an "
                f"ordinary endpoint"
            )
        if propagate != "inspect" and not callable(propagate):
            raise NotImplementedError(
                f"rref has to know what {self._name!r} returns, and its propagate is {propagate!r}: decorate it with "
                f"@endpoint(propagate=fn), or call as_endpoint(mesh.method, propagate=fn).rref(...). fn gets the same "
                f"arguments with fake tensors and returns tensors like those of the result; propagate='inspect' says "
                f"that there are none"
            )
        return plugins.outer("tensor.rref")(self, args, kwargs)  # type: ignore[no-any-return]

    @property
    def keep(self) -> Kept[P]:
        """Calls whose results stay where they are made: `counters.total.keep.call_one(x)` gives an ObjectRef of it at once,
        `keep.call(x)` a ValueMesh of them, one a rank. See `monarch.references`.

        Since 0.2.0.
        """
        return plugins.outer("references.kept")(self)  # type: ignore[no-any-return]

    def _keep(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[str, str, int], list[Future[tuple[int, None]]]]:
        """Runs on every rank, where the result stays under the name this gives; and as many Futures, each of a rank that
        has it (and None)."""
        count = len(self._mesh._plan)
        entry = Queue(self._target or self._make_target(), count)
        self._cast(entry, KEEP, args, kwargs)
        running = current.get()
        sender: Instance = root() if running is None else running.instance
        reader: ValueStream[Any] = ValueStream(entry, count)
        answers = [make_future(Arrival(entry, ranked=True, reader=reader)) for _ in range(count)]
        return (sender.proc.address, sender.unique, entry.number), answers

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """A node of a graph to be compiled, which runs this endpoint on every rank: see `monarch.graph`. Sends nothing.

        Arguments are values, or nodes whose results they stand for. Since 0.2.0.
        """
        return plugins.outer("graph.bind")(self, args, kwargs)

    def _keep_counted(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], rank: int
    ) -> tuple[tuple[str, str, int], Future[None]]:
        """Runs on that rank of the view, where the result stays under the name this gives, and the rank; and a Future that is
        done when it is there, and raises what a `call` raises."""
        entry = OneReply(self._target or self._make_target(), rank)
        self._cast(entry, KEEP_COUNTED, args, kwargs, only=rank)
        running = current.get()
        sender: Instance = root() if running is None else running.instance
        return (sender.proc.address, sender.unique, entry.number), make_future(entry)

    def with_timeout(self, seconds: float) -> Endpoint[P, R_co]:
        """The same endpoint, whose calls end after `seconds` with a TimeoutError that names the silent ranks."""
        return Endpoint(self._mesh, self._name, self._property, check_timeout(seconds))

    def _send(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        port: Port[Any] | None = None,
        selection: str = "all",
    ) -> None:
        if selection not in ("all", "choose"):
            raise ValueError(f"Invalid selection: {selection!r} (expected 'all' or 'choose')")
        only = _any_of(len(self._mesh._plan)) if selection == "choose" else None
        self._cast(port, SEND, args, kwargs, only=only)

    # --- one message a receiver

    def _make_target(self) -> Target:
        target = self._target = self._mesh._target(self._name)
        target.key, target.ranks = self._mesh._spec.key, self._mesh._plan.ranks
        target.in_turn = not self._property._explicit_response_port  # which concurrent ones have as well
        return target

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        (self._arity or self._find_arity()).check(args, kwargs)

    def _find_arity(self) -> Arity:
        self._arity = arity_of(self._method, 2 if self._property._user_port else 1)
        return self._arity

    def _views(self, only: int | None) -> tuple[str, str]:
        """The receivers in the mesh, and their shape, as tables have them; of the whole view made once."""
        plan = self._mesh._plan
        if only is not None:
            return one_json(plan.ranks[only])
        if plan.shown is None:
            plan.shown = shape_json(self._mesh._shape), whole_json(self._mesh._shape.extent)
        return plan.shown

    def _receivers(self, only: int | None) -> Receivers:
        spec, addresses = self._mesh._spec, self._mesh._plan.addresses
        return Receivers(
            spec.key, f"{spec.name}.{self._name}", addresses if only is None else addresses[only : only + 1]
        )

    def _cast(
        self,
        reply: Entry | Port[Any] | None,
        adverb: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        only: int | None = None,
        combine: bytes = b"",
    ) -> None:
        """Encodes once and sends to every receiver of the view (to the `only` one)."""
        body, buffers = self._encode(args, kwargs, only)
        running = current.get()
        sender: Instance = root() if running is None else running.instance
        proc = sender.proc
        if proc.closed is not None:
            raise proc.closed
        size = len(body)
        if buffers or size >= proc.checked_from:
            size = proc.check_size(body, buffers)
            if size >= proc.large_argument:
                count = len(self._mesh._plan) if only is None else 1
                warn_if_large(
                    size, proc.large_argument, f"the arguments of {self._mesh._spec.name}.{self._name}()", count
                )
        spec, plan = self._mesh._spec, self._mesh._plan
        if sender.watcher is not None:
            from monarch._runtime.watcher import tell  # few actors have one

            if tell(sender, self._mesh, self._name, adverb, only, reply, body, buffers):
                return
        parted = plan.parted(proc.host) if only is None else None
        if parted is not None and not combine and len(parted.remote) < few(adverb):
            parted = None
        if parted is not None:
            receivers = parted.local
        else:
            receivers = plan.receivers if only is None else plan.receivers[only : only + 1]
        sent: recording.Sent | None = None
        began = 0.0
        if recording.active is not None:
            began = monotonic()
            sent = recording.active.sent(sender, spec.key, spec.name, spec.cls, self._name, adverb, self._views(only))
        entry: Entry | None = None
        number, back, alone = 0, "", False
        try:
            if isinstance(reply, Port):
                number, back = reply._number, "" if reply._address == proc.address else reply._address
                if not back:
                    self._expect(number, sender, plan.receivers if only is None else receivers)
            elif reply is not None:
                entry = reply
                entry.caller = sender
                entry.record = sent
                # `choose` addresses the mesh, whichever rank it falls on; `map` one rank after another.
                known = proc.hooks.check(spec.key, receivers if adverb in TO_ONE else plan.receivers)
                if known is not None:
                    entry.fail(known)
                    return
                alone = entry.sending = parted is None and len(receivers) == 1
                number = proc.ports.add(entry)
                if self._timeout is not None:
                    entry.expire_after(proc, self._timeout)
            if parted is not None:
                gather = HOLD.get(adverb, -1.0) if not self._property._user_port else -1.0
                cast = Cast(
                    0, 0, proc.address, spec.key, sender.unique, self._name, number, back, plan.view, adverb, 0, 0, gather,
                    combine=combine,
                )  # fmt: skip
                self._cast_remote(parted, cast, sender, entry, body, buffers, entry is None or running_loop() is None)
            if (
                size < SMALL
                and len(receivers) > 1
                and not buffers
                and receivers is plan.receivers
                and not proc.incarnations
            ):
                self._post_alike(sender, entry, number, back, adverb, body)
            else:
                self._post(receivers, sender, entry, alone, number, back, adverb, body, buffers, size)
        except BaseException:  # a handler of signals raised, at any step; or room was waited for in vain
            if entry is not None:  # nobody will observe this call: its late answers find no port
                entry.close()
            raise
        if sent is not None and entry is None and recording.active is not None:
            recording.active.cast(sent, began, number)

    def _encode(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], only: int | None
    ) -> tuple[bytes, Sequence[memoryview]]:
        """Returns the message's body and what travels beside it; an argument that cannot be sent is named."""
        if self._property._checked:
            self._check(args, kwargs)
        try:
            try:
                return codec.encode_call(args, kwargs)
            except ReceiversUnknown:
                return encode_for(self._receivers(only), (args, kwargs))
        except Exception as exc:
            by_name = named(self._method, 2 if self._property._user_port else 1, args, kwargs)
            explain(exc, self._receivers(only), f"the arguments of {self._mesh._spec.name}.{self._name}()", by_name)
            raise

    def _expect(self, number: int, sender: Instance, receivers: Sequence[tuple[int, int, str]]) -> None:
        """Expects at a port of this process an answer of each receiver, or the failure of who ends before."""
        ports = sender.proc.ports
        ports.used_by(number, sender)
        if isinstance(queue := ports.get(number), Queue):
            queue.expect(receivers, self._mesh._spec.failure_of)

    def _post(
        self,
        receivers: Sequence[tuple[int, int, str]],
        sender: Instance,
        entry: Entry | None,
        alone: bool,
        number: int,
        back: str,
        adverb: int,
        body: bytes,
        buffers: Sequence[memoryview],
        size: int,
        place: int = 0,
    ) -> None:
        """Sends a message to each receiver, numbered in that order; what is large lies once in shared memory. `alone`: the
        entry waits for this one receiver. `place`: of the message to the only receiver, where it is numbered already."""
        proc = sender.proc
        key, unique, method, view = self._mesh._spec.key, sender.unique, self._name, self._mesh._plan.view
        must_wait = proc.backpressure.must_wait
        coalesce_within = _FLOOD if entry is None else 0.0
        number_next = sender.numbering.next
        restarts = proc.incarnations if proc.incarnations else None
        incarnation = 0
        message: Call | None = None
        receiver_at = ""
        placement = None
        try:
            if size >= SMALL and len(receivers) > 1:
                placement = proc.place([address for _, _, address in receivers], body, buffers, size)
            for index, rank, address in receivers:
                if must_wait(address, key) and sender.key != key and (entry is None or running_loop() is None):
                    proc.backpressure.wait_room(address, key)
                receiver: RankKey = rank
                if restarts is not None:
                    incarnation = restarts.of(key, rank, address)
                    if incarnation:
                        receiver = (rank, incarnation)
                message = Call(key, unique, 0, method, number, back, index, view, adverb, incarnation)
                receiver_at = address
                if place:
                    message.seq = place
                else:
                    number_next(message, key, receiver)
                try:
                    taken = proc.post(address, message, body, buffers, coalesce_within, placement)
                    if alone:
                        entry.sent(taken)  # type: ignore[union-attr]
                except PeerEnded as exc:
                    failure = process_failure(self._mesh._spec, exc.why, [rank])
                    if entry is not None:
                        entry.fail(failure)
                    elif number:
                        proc.answer(back or proc.address, Answer(number, index, FAILED), encode(failure), ())
                message = None
        except BaseException:
            if message is not None and message.seq:  # numbered, and who knows whether it was sent
                proc.fill_place(receiver_at, message)
            raise
        finally:
            if placement is not None:
                placement.close()

    def _post_alike(
        self, sender: Instance, entry: Entry | None, number: int, back: str, adverb: int, body: bytes
    ) -> None:
        """Sends a small message to every receiver of the view: numbered together, and encoded once."""
        proc, plan, key = sender.proc, self._mesh._plan, self._mesh._spec.key
        unique, method, view = sender.unique, self._name, plan.view
        stamped = Stamped(unique, key)
        try:
            sender.numbering.next_many(stamped, key, plan.ranks)
            places = expand(stamped.seqs, len(plan))
            left: Sequence[tuple[int, int, str]] = plan.receivers
            if type(stamped.seqs) is int:
                call = Call(key, unique, stamped.seqs, method, number, back, 0, view, adverb)
                left = proc.post_alike(call, left, body, _FLOOD if entry is None else 0.0)
            for receiver in left:
                place = places[receiver[0]]
                self._post((receiver,), sender, entry, False, number, back, adverb, body, (), len(body), place)
        except BaseException:
            if stamped.seqs:  # numbered, and who knows to whom it was sent
                places = expand(stamped.seqs, len(plan))
                for index, _, address in plan.receivers:
                    proc.fill_place(address, Call(key, unique, places[index], method, 0, "", index, view, adverb))
            raise

    def _cast_remote(
        self,
        parted: RemoteReceivers,
        cast: Cast,
        sender: Instance,
        entry: Entry | None,
        body: bytes,
        buffers: Sequence[memoryview],
        may_wait: bool,
    ) -> None:
        """One message for all receivers on other hosts. `cast` lacks what the sender numbers it with."""
        proc = sender.proc
        spec = self._mesh._spec
        if may_wait and sender.key != spec.key:
            proc.backpressure.wait_room_for_all(parted.addresses, spec.key)
        try:
            stamp(cast, sender.numbering, parted, proc.incarnations or None)
            proc.mesh.casting.cast(
                parted, cast, body, buffers, _FLOOD if entry is None else 0.0, entry if cast.gather >= 0 else None
            )
        except BaseException:
            if cast.seqs:
                fill_places(cast, proc, parted)
            raise
        if proc.processes.ended_remote and not proc.processes.ended_remote.isdisjoint(parted.addresses):
            for index, rank, address in parted.remote:
                ended = proc.processes.end_of(address)
                if ended is None:
                    continue
                failure = process_failure(spec, ended, [rank])
                if entry is not None:
                    entry.fail(failure)
                elif cast.port:
                    back = cast.back or proc.address
                    proc.answer(back, Answer(cast.port, index, FAILED), encode(failure), ())


if TYPE_CHECKING:
    # For checkers only: at run time there are none of these.

    class BoundEndpoint(Endpoint[P, R_co], Generic[P, R_co, Raw_co]):
        """`counters.add` on the mesh, which has adverbs, and `self.add` in the actor, which is called."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Raw_co: ...

    class BoundPortEndpoint(Endpoint[P, R]):
        """The same of an endpoint that answers through a port: the adverbs leave the port out, `self.add` takes it."""

        def __call__(self, port: Port[R], /, *args: P.args, **kwargs: P.kwargs) -> Any: ...

    class PortEndpointProperty(Generic[P, R]):
        @overload
        def __get__(self, obj: None, owner: Any = None) -> Self: ...
        @overload
        def __get__(self, obj: object, owner: Any = None) -> BoundPortEndpoint[P, R]: ...
        def __get__(self, obj: object | None, owner: Any = None) -> Any: ...

    class EndpointDecorator(Protocol):
        def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> EndpointProperty[Callable[P, R], R]: ...

    class AsyncEndpointDecorator(Protocol):
        def __call__(
            self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
        ) -> EndpointProperty[Callable[P, Coroutine[Any, Any, R]], Coroutine[Any, Any, R]]: ...

    class PortEndpointDecorator(Protocol):
        def __call__(self, method: Callable[Concatenate[Any, Port[R], P], Any], /) -> PortEndpointProperty[P, R]: ...


def _any_of(count: int) -> int:
    from random import randrange  # slow to import, and few programs choose

    return randrange(count)


def send(
    endpoint: Endpoint[Any, R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[R] | None = None,
    selection: str = "all",
) -> None:
    """Sends to every rank ("all") or one ("choose"); answers, or ActorErrors, go to `port`, one for each rank, unordered.

    A port of this process also gets a SupervisionError for each rank that ends before it has answered. `endpoint` may be a
    function of `monarch.remote` as well, which runs on the active mesh.
    """
    endpoint._send(args, kwargs, port, selection)
