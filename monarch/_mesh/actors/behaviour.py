"""The behaviour of a running actor, which handles its messages: the actor's half of `_runtime.instance`.

It decodes a message on the actor's own thread, finds the method, runs it and answers. Actors with an event loop have the
twin of this in `async_behaviour`.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from monarch._errors import MessageTooLargeError
from monarch._mesh import plugins
from monarch._mesh.actors.actor import Actor
from monarch._mesh.actors.adverb_codes import KEEP_COUNTED, KEPT, MAP_CHUNK
from monarch._mesh.actors.endpoint import EndpointProperty
from monarch._mesh.actors.receivers import OneReceiver, ReceiversUnknown, encode_for
from monarch._mesh.failures import ledger
from monarch._mesh.failures.ledger import MeshFailure
from monarch._mesh.failures.undeliverable import UndeliverableMessageEnvelope
from monarch._runtime import instrument
from monarch._runtime.context import Current, current
from monarch._runtime.ending import CleanupTooLong
from monarch._runtime.functions import attribute_of, is_async, is_awaitable
from monarch._runtime.instance import Delivery, Instance, Leave
from monarch._runtime.port import Port, SinkPort
from monarch._runtime.remote_errors import RemoteError, encode_error, formatted
from monarch._shape.extent import Extent, Point
from monarch._text import clip
from monarch._wire import codec, culprit
from monarch._wire.message import ERROR, NO_METHOD, RAISED, VALUE, Bounced, Failure, decode_extent

if TYPE_CHECKING:
    from monarch._wire.message import Call

_AROUND = 1_000  # bytes of an error beside its two texts
_FLOOD = 0.0003  # seconds between two answers of a busy actor under which they are written together


class Method:
    """A method as messages name it."""

    __slots__ = ("chunked", "concurrent", "explicit", "fetching", "fn", "is_async", "spans")
    fn: Callable[..., Any]

    def __init__(self, actor: Any, name: str) -> None:
        self.fetching: Any = None  # of a plain method that takes values of references; an async one fetches them itself
        self.chunked: Method | None = None  # the same method for a list of items, once one came
        if name == NO_METHOD:
            self.fn = _nothing
            self.explicit = self.concurrent = self.is_async = self.spans = False
            return
        attribute = attribute_of(type(actor), name)
        prop = attribute if isinstance(attribute, EndpointProperty) else None
        self.fn = getattr(actor, name)
        self.explicit = prop is not None and prop._user_port
        self.concurrent = prop is not None and prop._concurrent
        self.is_async = is_async(self.fn)
        self.spans = prop is None or prop._instrument
        if prop is not None and prop._instrument:
            self.fn = instrument.instrumented(self.fn, name)
        fetching = None if prop is None else argument_fetcher(prop)
        if fetching is not None and self.is_async:
            self.fn = fetching.before(self.fn)
        else:
            self.fetching = fetching


def argument_fetcher(endpoint: EndpointProperty[Any, Any]) -> Any:
    """Returns what fetches those arguments of an endpoint that are references whose values it takes; None: it takes none."""
    if not endpoint._values:
        return None
    return plugins.outer("references.fetching")(endpoint._method, endpoint._values, 2 if endpoint._user_port else 1)


def _nothing() -> None:
    return None


class Debugging(Protocol):
    """The tool that stops endpoints for people to look at them: see `breakpoints`."""

    def returned(self, instance: Instance, call: Call, error: BaseException | None) -> None:
        """An endpoint has returned, or raised `error`; its caller does not know yet. May take as long as people do."""


class ActorBehaviour:
    """See `_runtime.instance.Behaviour`. `load` decodes (class, args, kwargs, proc mesh, creator) on the actor's thread."""

    is_async = False
    debugging: ClassVar[Debugging | None] = None  # of all actors; an actor that stands at a breakpoint has its own

    def __init__(self, instance: Instance, load: Callable[[], Any], display: str, mesh_name: str) -> None:
        self.instance = instance
        self.proc = instance.proc
        self.display = display
        self.mesh_name = mesh_name
        self.actor: Any = None
        self.cls: type | None = None
        self.proc_mesh: Any = None
        self.creator: Any = None
        self._load = load
        self._methods: dict[str, Method] = {}

    # --- life

    def construct(self) -> None:
        self.cls, args, kwargs, self.proc_mesh, self.creator = self._load()
        del self._load
        assert self.cls is not None
        self.actor = self.cls(*args, **kwargs)

    def restarted(self) -> Any:
        """Tells an actor that took the place of another why that one ended; perhaps an awaitable."""
        replaced = self.instance.replaced
        if replaced is None:
            return None
        with self._no_loop_for(self.actor.__restarted__):
            return self.actor.__restarted__(MeshFailure(replaced))

    def cleanup(self, cause: Exception | None) -> Any:
        with self._no_loop_for(self.actor.__cleanup__):
            return self.actor.__cleanup__(cause)

    async def cancel_tasks(self) -> None:
        """Nothing runs beside an actor without a loop."""

    # --- messages

    def handle(self, delivery: Delivery) -> None:
        """Runs a message of an actor without an event loop."""
        call = delivery.call
        current.set(Current(self.instance, call.rank, call.view, call))
        method: Method | None = None
        try:
            method = self._methods.get(call.method) or self._find(call.method)
            args, kwargs = delivery.arguments()
            if call.adverb == MAP_CHUNK:
                method = self._for_chunks(method)
            if method.is_async:
                raise TypeError(
                    f"{call.method} is async, and this actor has no event loop to run on: it has no async endpoint"
                )
            if method.fetching is not None:
                args, kwargs = method.fetching.values(args, kwargs)
            if method.explicit:
                result = method.fn(self._response_port(delivery), *args, **kwargs)
            else:
                result = method.fn(*args, **kwargs)
        except Exception as exc:
            if self.debugging is not None:
                self.debugging.returned(self.instance, call, exc)
            self._raised(delivery, exc, method)
        else:
            if self.debugging is not None:
                self.debugging.returned(self.instance, call, None)
            if call.port and not method.explicit:
                self._reply(delivery, result)

    async def handle_async(self, delivery: Delivery) -> None:
        raise NotImplementedError("an actor without an event loop")

    def _find(self, name: str) -> Method:
        if name != NO_METHOD and not hasattr(type(self.actor), name):
            raise AttributeError(
                f"actor class {type(self.actor).__qualname__} has no method {name!r} in this process: is its module the "
                f"same version here as where the call was made?"
            )
        method = self._methods[name] = Method(self.actor, name)
        return method

    def _for_chunks(self, method: Method) -> Method:
        if method.chunked is None:
            from monarch._mesh.actors.map_chunks import Chunked  # few actors get chunks

            made = method.chunked = copy.copy(method)
            chunks = Chunked(self, method)
            made.fn = chunks.run_async if method.is_async else chunks.run
            if method.fetching is not None:
                made.fetching = None
                if self.is_async:
                    made.fn, made.is_async = chunks.run_later, True
        return method.chunked

    def _response_port(self, delivery: Delivery) -> Port[Any]:
        call, instance = delivery.call, self.instance
        if not call.port:
            return SinkPort(self.proc, "", 0)
        once = call.adverb == 0
        port: Port[Any] = Port(self.proc, delivery.back, call.port, rank=call.rank, once=once)
        port.return_undeliverable = False
        waiting = (delivery.back, call.port, call.rank)
        instance.open_ports.add(waiting)
        port._on_used = lambda: instance.open_ports.discard(waiting)
        return port

    def _reply(self, delivery: Delivery, result: Any) -> None:
        if delivery.call.adverb in KEPT:
            _keep(delivery, result, None)
            result = None
        try:
            try:
                body, buffers = codec.encode_value(result)
            except ReceiversUnknown:
                body, buffers = encode_for(OneReceiver(delivery.back), result)
            self.proc.check_size(body, buffers)
        except BaseException as exc:  # of the result's own methods, which may raise anything
            if delivery.call.adverb == MAP_CHUNK and self._reply_in_part(delivery, result, exc):
                return
            what = f"the return value of {type(self.actor).__qualname__}.{delivery.call.method}"
            culprit.explain(exc, what, {"result": result})
            self._reply_error(delivery, exc)
            return
        instance = self.instance
        if instance.watcher is not None:
            instance.watcher.answered(delivery, body, buffers)
        # With more messages waiting, answers are written a few at a time.
        coalesce_within = _FLOOD if instance.mailbox.messages else 0.0
        delivery.answered = True  # before: the one that has the answer may ask at once what runs here
        self.proc.reply(delivery, VALUE, body, buffers, coalesce_within)

    def _reply_in_part(self, delivery: Delivery, result: Any, exc: BaseException) -> bool:
        """Answers a chunk with errors in place of those results that cannot be sent. False where that is not what failed."""
        if isinstance(exc, MessageTooLargeError):
            return False
        from monarch._mesh.actors.map_chunks import without_unsendable

        part = without_unsendable(self, delivery.call.method, result)
        if len(part.errors) == len(result.errors):
            return False
        self._reply(delivery, part)
        return True

    def _reply_error(self, delivery: Delivery, exc: BaseException) -> None:
        call, exc = delivery.call, _advise(exc)
        self.proc.events.note("raised", self.instance.key, f"{call.method}: {type(exc).__name__}", "ERROR")
        if call.adverb in KEPT:
            _keep(delivery, None, exc)
        if getattr(type(exc), "_as_it_is", False):
            self.proc.reply(delivery, RAISED, *codec.encode(exc))
            return
        body, buffers = self._encoded(call.method, exc)
        delivery.answered = True
        self.proc.reply(delivery, ERROR, body, buffers)

    def encode_error(self, method: str, exc: BaseException) -> tuple[bytes, list[bytes]]:
        """Returns the error of an item of a chunk, for its caller. Never raises."""
        exc = _advise(exc)
        self.proc.events.note("raised", self.instance.key, f"{method}: {type(exc).__name__}", "ERROR")
        body, buffers = self._encoded(method, exc)
        return body, [bytes(buffer) for buffer in buffers]

    def _encoded(self, method: str, exc: BaseException) -> tuple[bytes, Sequence[memoryview]]:
        """Returns an endpoint's exception for its caller, cut where it is larger than a message may be. Never raises."""
        error = self._remote_error(method, formatted(exc))
        body, buffers = encode_error(exc, error)
        proc = self.proc
        try:
            proc.check_size(body, buffers)
        except MessageTooLargeError:
            room = max(0, proc.frame_limit - _AROUND) // 8  # two texts, and a character takes 4 bytes at most
            error.message, error.formatted = clip(error.message, room), clip(error.formatted, room)
            body, buffers = encode_error(RuntimeError("the exception is too large to send"), error)
        return body, buffers

    def _remote_error(self, method: str, text: str) -> RemoteError:
        instance = self.instance
        labels, sizes = decode_extent(instance.view)
        point = dict(Point(instance.rank, Extent(labels, sizes)))
        where = f"Actor call {instance.name}.{method} failed."
        return RemoteError(where, text, b"", instance.rank, point, f"{os.uname().nodename}, pid {os.getpid()}")

    def _raised(self, delivery: Delivery, exc: Exception, method: Method | None) -> None:
        """An endpoint raised: its caller is told, or, when nobody waits, the actor fails."""
        if delivery.call.port and not (method is not None and method.explicit):
            self._reply_error(delivery, exc)
        else:
            raise self._fatal(exc)

    def _fatal(self, exc: BaseException) -> Leave:
        return Leave.failing(self.describe_failure(exc), exc)

    # --- failures

    @property
    def supervises(self) -> bool:
        """True if the actor has a `__supervise__` of its own, which is asked of every failure."""
        return self.cls is not None and getattr(self.cls, "__supervise__", None) is not Actor.__supervise__

    def supervise(self, failure: MeshFailure) -> Any:
        """Asks the actor; returns Leave (or an awaitable of it) when it did not handle the failure."""
        if type(self.actor).__supervise__ is Actor.__supervise__:
            return self._unhandled(failure)
        try:
            with self._no_loop_for(self.actor.__supervise__):
                handled = self.actor.__supervise__(failure)
        except BaseException as exc:
            return self._unhandled(failure, exc)
        if is_awaitable(handled):
            return self._supervised_later(handled, failure)
        return None if handled else self._unhandled(failure)

    async def _supervised_later(self, handled: Any, failure: MeshFailure) -> Leave | None:
        try:
            return None if await handled else self._unhandled(failure)
        except BaseException as exc:
            if self.instance.end is not None:  # it was cancelled, because the actor ends
                raise
            return self._unhandled(failure, exc)

    def _unhandled(self, child: MeshFailure, exc: BaseException | None = None) -> Leave:
        instance = self.instance
        failure = ledger.unhandled_child(
            self.display,
            child,
            instance.key,
            self.mesh_name,
            instance.rank,
            None if exc is None else f"actor explicitly aborted due to: {formatted(exc)}",
        )
        failure.incarnation, failure.will_restart = instance.incarnation, instance.will_restart
        instance.caused_by = self._whose(child)
        return Leave.failing(failure, exc)

    def _whose(self, child: MeshFailure) -> tuple[str, int, str, str] | None:
        """The actor that failed first, as (mesh key, rank, process, name); None where that is not known."""
        owned = self.proc.mesh.owned.actors.get(child._failure.mesh)
        rank = child.crashed_ranks[0] if child.crashed_ranks else -1
        if owned is None or not 0 <= rank < len(owned.spec.addresses):
            return None
        return child._failure.mesh, rank, owned.spec.addresses[rank], owned.spec.name

    def undeliverable(self, bounced: Bounced) -> Any:
        """A message of this actor came back: asks the hook when there is a choice, else the actor fails."""
        envelope = UndeliverableMessageEnvelope(bounced)
        if not bounced.hook:
            if getattr(self.cls, "_may_lose_broadcasts", False):
                return None
            return Leave.failing(self._failure(envelope.report()))
        hook = self.actor._handle_undeliverable_message
        try:
            with self._no_loop_for(hook):
                handled = hook(envelope)
        except BaseException as exc:
            return self._fatal(exc)
        if is_awaitable(handled):
            return self._undeliverable_later(handled)
        return None

    async def _undeliverable_later(self, handled: Any) -> Leave | None:
        try:
            await handled
        except BaseException as exc:
            if self.instance.end is not None:  # it was cancelled, because the actor ends
                raise
            return self._fatal(exc)
        return None

    def describe_failure(self, exc: BaseException, in_cleanup: bool = False) -> Failure:
        exc = _advise(exc)
        if in_cleanup:
            cause = f"cleanup error: {exc if isinstance(exc, CleanupTooLong) else formatted(exc)}"
        elif isinstance(exc, Aborted):
            cause = f"actor explicitly aborted due to: {exc}"
        else:
            cause = f"{self._while_constructing()}actor explicitly aborted due to: {formatted(exc)}"
        return self._failure(cause)

    def _while_constructing(self) -> str:
        """Returns the failure of a constructor, while there is no actor yet."""
        if self.actor is not None:
            return ""
        if self.cls is None:
            return "the class of the actor, or the arguments of its __init__, could not be decoded here:\n"
        return f"{self.cls.__qualname__}.__init__ raised:\n"

    def _failure(self, cause: str) -> Failure:
        instance = self.instance
        failure = ledger.actor_failure(self.display, cause, instance.key, self.mesh_name, instance.rank)
        failure.incarnation, failure.will_restart = instance.incarnation, instance.will_restart
        return failure

    def describe_stale(self, overtaken: bool = False) -> Failure:
        """Describes the failure of messages for an actor whose place this one has taken; or, `overtaken`, of those that come
        after they were given up with a connection."""
        instance = self.instance
        return ledger.stale_failure(self.display, instance.key, self.mesh_name, instance.rank, overtaken)

    def describe_stop(self, reason: str) -> Failure:
        instance = self.instance
        failure = ledger.stopped_failure(self.display, reason, instance.key, self.mesh_name, instance.rank)
        failure.will_restart = instance.being_replaced
        return failure

    def _no_loop_for(self, function: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
        """Hides the running loop from a plain hook of an actor that has one."""
        return contextlib.nullcontext()


class Aborted(Exception):
    """The end that `actor_instance.abort(reason)` asks for."""


def _keep(delivery: Delivery, result: Any, error: BaseException | None) -> None:
    """The result, or exception, of a call with `rref` stays in this process, under a name that its caller knows."""
    name = (delivery.back, delivery.call.sender, delivery.call.port)
    if delivery.call.adverb == KEEP_COUNTED:
        plugins.outer("references.keep")(name, delivery.call.rank, result, error)
    else:
        plugins.outer("tensor.keep")(name, result, error)


# What is added to exceptions of endpoints that say little to somebody who does not know where endpoints run.


_NO_STDIN = "An endpoint runs in a process of its mesh, whose stdin is /dev/null: nobody can type there. "
_DEBUGGER = (
    f"{_NO_STDIN}To use a debugger, spawn the actor in the process of the program, this_proc().spawn(name, Class), where the "
    f"terminal is; or set PYTHONBREAKPOINT to a debugger that listens on a port. Where every endpoint is at the moment: "
    f"print(wait_graph().get())"
)
_INPUT = f"{_NO_STDIN}Read the input in the program, and pass it as an argument."
_NO_GROUP = (
    "The processes of a mesh are the ranks of a torch process group once the script has called "
    "setup_torch_distributed(procs).get()."
)
_explaining: list[Callable[[BaseException], BaseException]] = []


def explain_errors(explain: Callable[[BaseException], BaseException]) -> None:
    """`explain(exc)` for each exception of an endpoint or constructor of this process, on its thread, before it is sent: it
    may say more of its cause, or return another one in its place. For optional packages. It must not raise."""
    _explaining.append(explain)


def _advise(exc: BaseException) -> BaseException:
    """Returns an exception that an endpoint or constructor raised with a note, if there is something to say, or another
    one."""
    kind = type(exc)
    text = ""
    if kind.__name__ == "BdbQuit" and kind.__module__ == "bdb":
        text = _DEBUGGER
    elif kind is EOFError and "reading a line" in str(exc):
        text = _INPUT
    elif kind is ValueError and "process group has not been initialized" in str(exc):
        text = _NO_GROUP
    if text and text not in getattr(exc, "__notes__", ()):
        exc.add_note(text)
    for explain in _explaining:
        exc = explain(exc)
    return exc
