"""Ports as programs hold them: a sending end that may travel, a receiving end that stays, and the channel of both."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic

from monarch._errors import NotSendableError
from monarch._runtime.context import current, here
from monarch._runtime.future import Future, make_future
from monarch._runtime.queue import Arrival, Queue
from monarch._runtime.remote_errors import RemoteError, encode_error, encode_whole, formatted
from monarch._wire import codec, culprit
from monarch._wire.message import ERROR, RAISED, VALUE, Answer

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # every checker has it: `default` came with Python 3.13

    from monarch._runtime.proc import Proc

    T = TypeVar("T", default=Any)  # of `Channel.open()`, which is older than `Channel[int].open()`
    T_co = TypeVar("T_co", covariant=True, default=Any)
    T_contra = TypeVar("T_contra", contravariant=True, default=Any)
else:
    from typing import TypeVar

    T, T_co, T_contra = TypeVar("T"), TypeVar("T_co"), TypeVar("T_contra")

_NOT_PICKLED = "A port was given an exception that cannot be pickled."


class Port(Generic[T_contra]):
    """The sending end of a channel; may be sent anywhere and used by any thread.

    `send` encodes at once and does not wait for delivery. Messages of one sender arrive in order. When the receiver is
    gone, the sending actor is told (`_handle_undeliverable_message`), unless `return_undeliverable` is False.
    """

    __slots__ = ("_address", "_number", "_on_used", "_once", "_proc", "_rank", "_used", "return_undeliverable")

    def __init__(self, proc: Proc, address: str, number: int, *, rank: int = -1, once: bool = False) -> None:
        self._proc = proc
        self._address = address
        self._number = number
        self._rank = rank
        self._once = once
        self._used = False
        self._on_used: Callable[[], None] | None = None
        self.return_undeliverable = True

    def send(self, obj: T_contra) -> None:
        """Sends `obj`. Raises RuntimeError on a once port that was used, and whatever pickling raises."""
        self._check()
        try:
            try:
                body, buffers = codec.encode_value(obj)
            except NotSendableError as exc:
                body, buffers = self._proc.hooks.encode_for(self._address, obj, exc)
        except Exception as exc:
            culprit.explain(exc, "a message for a Port", {"obj": obj})
            raise
        self._deliver(VALUE, body, buffers)

    def exception(self, exc: Exception) -> None:
        """The receiver's `recv` (or the caller's Future) raises `exc` itself; an ActorError with its text when it cannot be
        pickled."""
        if not isinstance(exc, BaseException):
            raise TypeError(f"Port.exception expects an exception, got {type(exc).__name__}")
        self._check()
        try:
            kind, payload = RAISED, encode_whole(exc)
        except BaseException:  # of the exception's own methods, which may raise anything
            kind, payload = ERROR, encode_error(exc, RemoteError(_NOT_PICKLED, formatted(exc)))
        self._deliver(kind, *payload)

    def _check(self) -> None:
        if self._once and self._used:
            raise RuntimeError("OncePortRef already used: this port takes exactly one message")

    def _deliver(self, kind: int, body: bytes, buffers: Sequence[memoryview]) -> None:
        sender = ""
        running = current.get()
        if running is not None and running.instance.watcher is not None:
            running.instance.watcher.sent(kind, body, buffers)
        if self.return_undeliverable:
            sender = running.instance.unique if running is not None else self._proc.root_name
        self._used = True
        if self._on_used is not None:
            self._on_used()
        self._proc.answer(self._address, Answer(self._number, self._rank, kind, sender), body, buffers)

    def __reduce__(self) -> Any:
        return _rebuild_port, (self._address, self._number, self._rank, self._once, self.return_undeliverable)

    def __repr__(self) -> str:
        return f"<Port {self._number} of {self._address}>"


class SinkPort(Port[Any]):
    """The port that an explicit-port endpoint gets under `broadcast`: nobody listens."""

    __slots__ = ()

    def send(self, obj: Any) -> None:
        """Drops the message."""

    def exception(self, exc: Exception) -> None:
        """Nobody waits for it: raised here, in the actor."""
        raise exc


def _rebuild_port(address: str, number: int, rank: int, once: bool, return_undeliverable: bool) -> Port[Any]:
    port: Port[Any] = Port(here(), address, number, rank=rank, once=once)
    port.return_undeliverable = return_undeliverable
    return port


class PortReceiver(Generic[T_co]):
    """The reading end of a channel; stays in the process that opened it.

    `recv()` is lazy: the first observed Future takes the first message. One that timed out stays armed and takes the
    next message: observe it again, do not call `recv()` anew.
    """

    _ranked = False

    def __init__(self, queue: Queue, once: bool = False, keep: Any = None) -> None:
        self._queue = queue
        self._once = once
        self._used = False
        self._keep = keep  # the receiver this one was made from, whose end closes the queue
        if keep is None:
            weakref.finalize(self, queue.close).atexit = False

    def recv(self) -> Future[T_co]:
        """The next message. ValueError on the second `recv` of a once channel."""
        if self._once:
            if self._used:
                raise ValueError("OncePort is already used: it receives exactly one message")
            self._used = True
        return make_future(Arrival(self._queue, self._ranked, self))

    def ranked(self) -> RankedPortReceiver[T_co]:
        """The same queue, each message with its sender's rank."""
        return RankedPortReceiver(self._queue, self._once, self)

    def __iter__(self) -> Iterator[Future[T_co]]:
        while True:
            yield self.recv()

    def __reduce__(self) -> Any:
        raise TypeError("a PortReceiver cannot be sent: it works only in the process that opened it; send the Port")


class RankedPortReceiver(PortReceiver[tuple[int, T_co]]):
    """Receives `(rank, value)`; rank is the sender's in the mesh that was addressed."""

    _ranked = True


class Channel(Generic[T]):
    """`Channel.open()` makes a port and its receiver, in this process."""

    @classmethod
    def open(cls, once: bool = False) -> tuple[Port[T], PortReceiver[T]]:
        """(Port, PortReceiver), both of this process. The port may be sent anywhere; the receiver stays here.

            port, receiver = Channel[float].open()
            trainers.train.broadcast(port)      # an endpoint that does port.send(loss)
            loss = receiver.recv().get()

        `once`: for exactly one message; a second `send` is a RuntimeError, a second `recv` a ValueError.
        """
        proc = here()
        queue = _open_queue(once)
        receiver: PortReceiver[T] = PortReceiver(queue, once)  # first: its end takes the queue out of the table
        return Port(proc, proc.address, proc.ports.add(queue), once=once), receiver

    @classmethod
    def open_ranked(cls, once: bool = False) -> tuple[Port[T], RankedPortReceiver[T]]:
        """Opens as `open` does, with a receiver that gets `(rank, value)`: for answers to `send`, which carry their
        sender's rank."""
        proc = here()
        queue = _open_queue(once)
        receiver: RankedPortReceiver[T] = RankedPortReceiver(queue, once)
        return Port(proc, proc.address, proc.ports.add(queue), once=once), receiver


def _open_queue(once: bool) -> Queue:
    queue = Queue(limit=1 if once else 0)
    running = current.get()
    if running is not None:
        queue.owner = running.instance
        if running.instance.watcher is not None:
            running.instance.watcher.opened(queue)
    return queue


codec.forbid(Future, "it belongs to this process; send its result")
for _receiver in (PortReceiver, RankedPortReceiver):
    codec.forbid(_receiver, "it works only in the process that opened it; send the Port")
