"""Actor: the class users derive from, and how a running one handles its messages.

`Behaviour` is the actor's half of `_runtime.instance`: it decodes a message on the actor's own thread, finds the method,
runs it and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, NoReturn

from monarch._errors import MessageTooLargeError, format_remote
from monarch._mesh import supervision
from monarch._mesh.endpoint import EndpointProperty
from monarch._mesh.supervision import MeshFailure
from monarch._runtime import instrument
from monarch._runtime.context import Current, current
from monarch._runtime.instance import Delivery, Instance, Leave
from monarch._runtime.port import Port, SinkPort, encode_error
from monarch._shape.view import MeshTrait
from monarch._wire import codec
from monarch._wire.message import ERROR, VALUE, Answer, Bounced, Failure

_FLOOD = 0.0003  # seconds between two answers of a busy actor under which they are written together

_log = logging.getLogger("monarch")


class Actor(MeshTrait):
    """Base of every actor class. An instance lives in one process, on a thread of its own, and handles one message at a time.

    `__init__` takes the arguments of `spawn` and runs on that thread before any endpoint. An actor with at least one
    `async def` endpoint has an asyncio loop there; its plain endpoints run on the same thread with no loop visible.

    Hooks: `__cleanup__(self, exc)` runs once when the actor stops or fails after construction (`exc` None on an ordinary
    stop), limited by the setting `cleanup_timeout`; `__supervise__(self, failure)` is told of failures of the meshes
    this actor spawned and returns whether it handled them; `_handle_undeliverable_message(self, envelope)` whether it
    handled the loss of a port message of its own. Each may be `async def` in an actor that has a loop.
    """

    @functools.cached_property
    def logger(self) -> logging.Logger:
        """A logger named after the class, level DEBUG."""
        logger = logging.getLogger(type(self).__name__)
        logger.setLevel(logging.DEBUG)
        return logger

    def __cleanup__(self, exc: Exception | None) -> Any:
        """Called once at the end; see the class."""

    def __supervise__(self, failure: MeshFailure) -> Any:
        """Called for a failure of a mesh this actor spawned; a true result means handled."""
        return False

    def _handle_undeliverable_message(self, envelope: UndeliverableMessageEnvelope) -> Any:
        """Called when a port message of this actor could not be delivered; a true result means handled."""
        return False

    @property
    def _ndslice(self) -> NoReturn:
        raise NotImplementedError("actor implementations are not meshes: call this on the mesh that spawn returned")

    @property
    def _labels(self) -> NoReturn:
        raise NotImplementedError("actor implementations are not meshes: call this on the mesh that spawn returned")

    def _new_with_shape(self, shape: Any) -> NoReturn:
        raise NotImplementedError("actor implementations are not meshes: call this on the mesh that spawn returned")

    @property
    def initialized(self) -> Any:
        raise NotImplementedError("actor implementations are not meshes: call this on the mesh that spawn returned")

    def stop(self, reason: str = "") -> Any:
        raise NotImplementedError(
            "actor implementations are not meshes: use context().actor_instance.stop() to stop this actor"
        )


_HOOKS = ("__cleanup__", "__supervise__", "_handle_undeliverable_message")


def endpoints_of(cls: type) -> dict[str, EndpointProperty[Any, Any]]:
    """The endpoints of an actor class, inherited ones included, by name."""
    found = {}
    for name in dir(cls):
        attribute = inspect.getattr_static(cls, name, None)
        if isinstance(attribute, EndpointProperty):
            found[name] = attribute
    return found


def needs_loop(cls: type) -> bool:
    """Whether an actor of this class has an asyncio loop: an async endpoint or hook, or no endpoint at all."""
    methods = [prop._method for prop in endpoints_of(cls).values()]
    hooks = [getattr(cls, hook) for hook in _HOOKS]
    return not methods or any(map(inspect.iscoroutinefunction, [*methods, *hooks]))


class UndeliverableMessageEnvelope:
    """A message that could not be delivered, for `_handle_undeliverable_message`."""

    def __init__(self, bounced: Bounced) -> None:
        self._bounced = bounced

    def sender(self) -> str:
        return self._bounced.sender

    def dest(self) -> str:
        return self._bounced.dest

    def error_msg(self) -> str:
        return self._bounced.error

    def report(self) -> str:
        b = self._bounced
        return f"undeliverable message {'for' if b.what != b.dest else 'to'} {b.what}\n  sender: {b.sender}\n  dest: {b.dest}\n  error: {b.error}"

    def __repr__(self) -> str:
        return f"<undeliverable {self._bounced.what} to {self._bounced.dest}>"


class _Method:
    """A method as messages name it."""

    __slots__ = ("concurrent", "explicit", "fn", "is_async")

    def __init__(self, actor: Any, name: str) -> None:
        attribute = inspect.getattr_static(type(actor), name, None)
        prop = attribute if isinstance(attribute, EndpointProperty) else None
        self.fn: Callable[..., Any] = getattr(actor, name)
        self.explicit = prop is not None and prop._user_port
        self.concurrent = prop is not None and prop._concurrent
        self.is_async = inspect.iscoroutinefunction(self.fn)
        if prop is not None and prop._instrument:
            self.fn = instrument.instrumented(self.fn, name)


class ActorBehaviour:
    """See `_runtime.instance.Behaviour`. `load` decodes (class, args, kwargs, proc mesh, creator) on the actor's thread."""

    def __init__(
        self, instance: Instance, load: Callable[[], Any], display: str, mesh_name: str, is_async: bool
    ) -> None:
        self.is_async = is_async
        self.instance = instance
        self.display = display
        self.mesh_name = mesh_name
        self.actor: Any = None
        self.cls: type | None = None
        self.proc_mesh: Any = None
        self.creator: Any = None
        self._load = load
        self._methods: dict[str, _Method] = {}
        self._running_tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- life

    def construct(self) -> None:
        if self.is_async:
            self._loop = asyncio.get_running_loop()
        self.cls, args, kwargs, self.proc_mesh, self.creator = self._load()
        del self._load
        assert self.cls is not None
        self.actor = self.cls(*args, **kwargs)

    def cleanup(self, cause: Exception | None) -> Any:
        with self._no_loop_for(self.actor.__cleanup__):
            return self.actor.__cleanup__(cause)

    async def settle_tasks(self) -> None:
        """Cancels and awaits the concurrent endpoints that still run."""
        tasks = [task for task in self._running_tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- messages

    def handle(self, delivery: Delivery) -> None:
        """Runs a message of an actor without a loop."""
        call = delivery.call
        current.set(Current(self.instance, call.rank, call.view))
        method: _Method | None = None
        try:
            method = self._methods.get(call.method) or self._find(call.method)
            args, kwargs = codec.decode(delivery.body, delivery.buffers)
            if method.is_async:
                raise TypeError(f"{call.method} is async, and this actor has no event loop to run on: it has no async endpoint")
            if method.explicit:
                result = method.fn(self._response_port(delivery), *args, **kwargs)
            else:
                result = method.fn(*args, **kwargs)
        except Exception as exc:
            self._raised(delivery, exc, method)
        else:
            if call.port and not method.explicit:
                self._reply(delivery, result)

    async def handle_async(self, delivery: Delivery) -> None:
        """Runs a message of an actor with a loop; concurrent endpoints only start here."""
        call = delivery.call
        instance = self.instance
        current.set(Current(instance, call.rank, call.view))
        method: _Method | None = None
        try:
            method = self._methods.get(call.method) or self._find(call.method)
            args, kwargs = codec.decode(delivery.body, delivery.buffers)
            if method.explicit:
                args = (self._response_port(delivery), *args)
            if method.concurrent:
                self._start_concurrent(delivery, method, args, kwargs)
                return
            if method.is_async:
                result = await method.fn(*args, **kwargs)
            else:
                asyncio._set_running_loop(None)
                try:
                    result = method.fn(*args, **kwargs)
                finally:
                    asyncio._set_running_loop(self._loop)
        except Exception as exc:
            self._raised(delivery, exc, method)
        else:
            if call.port and not method.explicit:
                self._reply(delivery, result)

    def _start_concurrent(
        self, delivery: Delivery, method: _Method, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        instance = self.instance

        async def body() -> None:
            try:
                result = await method.fn(*args, **kwargs)
            except asyncio.CancelledError:
                raise
            except Exception as exc:
                if method.explicit:
                    instance.mailbox.put_control(self._fatal(exc, method.fn.__name__))
                elif delivery.call.port:
                    self._reply_error(delivery, exc)
                else:
                    _log.error("concurrent endpoint %s of %s raised, and nobody waits for its answer",
                               method.fn.__name__, self.display, exc_info=exc)  # fmt: skip
            except BaseException as exc:
                instance.mailbox.put_control(self._fatal(exc, method.fn.__name__))
            else:
                if delivery.call.port and not method.explicit:
                    self._reply(delivery, result)
            finally:
                instance.concurrent.pop(task, None)
                self._running_tasks.discard(task)

        assert self._loop is not None
        task = self._loop.create_task(body())
        self._running_tasks.add(task)
        instance.concurrent[task] = delivery

    def _find(self, name: str) -> _Method:
        if not hasattr(type(self.actor), name):
            raise AttributeError(
                f"actor class {type(self.actor).__qualname__} has no method {name!r} in this process: is its module the "
                f"same version here as where the call was made?"
            )
        method = self._methods[name] = _Method(self.actor, name)
        return method

    def _response_port(self, delivery: Delivery) -> Port[Any]:
        call, instance = delivery.call, self.instance
        if not call.port:
            return SinkPort(instance.proc, "", 0)
        once = call.adverb == 0
        port: Port[Any] = Port(instance.proc, delivery.back, call.port, rank=call.rank, once=once)
        port.return_undeliverable = False
        waiting = (delivery.back, call.port, call.rank)
        instance.open_ports.add(waiting)
        port._on_used = lambda: instance.open_ports.discard(waiting)
        return port

    def _reply(self, delivery: Delivery, result: Any) -> None:
        try:
            body, buffers = codec.encode_value(result)
            self.instance.proc.check_size(body, buffers)
        except Exception as exc:
            self._reply_error(delivery, exc)
            return
        call, instance = delivery.call, self.instance
        # With more messages waiting, answers are written a few at a time.
        lazy = _FLOOD if instance.mailbox.messages else 0.0
        instance.proc.answer(delivery.back, Answer(call.port, call.rank, VALUE), body, buffers, lazy)

    def _reply_error(self, delivery: Delivery, exc: BaseException) -> None:
        call = delivery.call
        where = f"Actor call {self.instance.name}.{call.method} failed."
        formatted = format_remote(exc)
        body, buffers = encode_error(exc, where, formatted)
        proc = self.instance.proc
        try:
            proc.check_size(body, buffers)
        except MessageTooLargeError:
            body, buffers = encode_error(RuntimeError("the exception is too large to send"), where, formatted[:100_000])
        proc.answer(delivery.back, Answer(call.port, call.rank, ERROR), body, buffers)

    def _raised(self, delivery: Delivery, exc: Exception, method: _Method | None) -> None:
        """An endpoint raised: its caller is told, or, when nobody waits, the actor fails."""
        if delivery.call.port and not (method is not None and method.explicit):
            self._reply_error(delivery, exc)
        else:
            raise self._fatal(exc, delivery.call.method)

    def _fatal(self, exc: BaseException, doing: str) -> Leave:
        failure = self.describe_failure(exc, doing)
        return Leave(failure.report, failure, exc if isinstance(exc, Exception) else RuntimeError(failure.report))

    # --- failures

    def supervise(self, failure: MeshFailure) -> Any:
        """Asks the actor; returns Leave (or an awaitable of it) when it did not handle the failure."""
        if type(self.actor).__supervise__ is Actor.__supervise__:
            return self._unhandled(failure)
        try:
            with self._no_loop_for(self.actor.__supervise__):
                handled = self.actor.__supervise__(failure)
        except Exception as exc:
            return self._unhandled(failure, exc)
        if inspect.isawaitable(handled):
            return self._supervised_later(handled, failure)
        return None if handled else self._unhandled(failure)

    async def _supervised_later(self, handled: Any, failure: MeshFailure) -> Leave | None:
        try:
            return None if await handled else self._unhandled(failure)
        except Exception as exc:
            return self._unhandled(failure, exc)

    def _unhandled(self, child: MeshFailure, exc: Exception | None = None) -> Leave:
        instance = self.instance
        failure = supervision.unhandled_child(
            self.display,
            child,
            instance.key,
            self.mesh_name,
            instance.rank,
            None if exc is None else f"actor explicitly aborted due to: {format_remote(exc)}",
        )
        cause = exc if exc is not None else RuntimeError(failure.report)
        return Leave(failure.report, failure, cause)

    def undeliverable(self, bounced: Bounced) -> Any:
        """A message of this actor came back: asks the hook when there is a choice, else the actor fails."""
        envelope = UndeliverableMessageEnvelope(bounced)
        if not bounced.hook:
            return self._fatal_text(envelope.report())
        try:
            handled = self.actor._handle_undeliverable_message(envelope)
        except Exception as exc:
            return self._fatal(exc, "_handle_undeliverable_message")
        if inspect.isawaitable(handled):
            return self._undeliverable_later(handled)
        return None

    async def _undeliverable_later(self, handled: Any) -> Leave | None:
        try:
            await handled
        except Exception as exc:
            return self._fatal(exc, "_handle_undeliverable_message")
        return None

    def _fatal_text(self, text: str) -> Leave:
        failure = supervision.actor_failure(
            self.display, text, self.instance.key, self.mesh_name, self.instance.rank
        )
        return Leave(failure.report, failure, RuntimeError(failure.report))

    def describe_failure(self, exc: BaseException, doing: str) -> Failure:
        if doing == "cleanup error":
            cause = f"cleanup error: {exc}" if isinstance(exc, TimeoutError) else f"cleanup error: {format_remote(exc)}"
        elif isinstance(exc, Aborted):
            cause = f"actor explicitly aborted due to: {exc}"
        else:
            cause = f"actor explicitly aborted due to: {format_remote(exc)}"
        instance = self.instance
        return supervision.actor_failure(self.display, cause, instance.key, self.mesh_name, instance.rank)

    def describe_stop(self, reason: str) -> Failure:
        instance = self.instance
        return supervision.stopped_failure(self.display, reason, instance.key, self.mesh_name, instance.rank)

    def _no_loop_for(self, function: Callable[..., Any]) -> Any:
        """Hides the running loop from a plain hook of an actor that has one."""
        if self._loop is None or inspect.iscoroutinefunction(function):
            return contextlib.nullcontext()
        return _hidden_loop(self._loop)


class Aborted(Exception):
    """`actor_instance.abort(reason)`."""


@contextlib.contextmanager
def _hidden_loop(loop: asyncio.AbstractEventLoop) -> Any:
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
