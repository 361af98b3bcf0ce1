"""Arguments that mean something only to those who receive them: pickled anew once it is known who that is.

An optional package may send an object of this process as a claim on something that its counterpart in each receiving process
has (a distributed tensor, on the local tensors there). Ordinary messages are encoded without a thought of receivers;
the first such object stops that, and the message is encoded again by `encode_for`. So ordinary messages pay nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch import _text
from monarch._errors import NotSendableError
from monarch._runtime.context import current, here
from monarch._wire import codec, culprit
from monarch._wire.unpickling import MARK, MARK_BEHIND


class ReceiversUnknown(NotSendableError):
    """The error of pickling something that depends on who receives it, and this is no message to actors."""


class Receivers:
    """The receivers of a message. `key` names their mesh in each process, `name` is for people, `addresses` their
    processes.

    Reducers leave in `before` what has to happen once the message is encoded and before it is sent; by name, so that a
    message that is pickled twice has it once. `counted`: whether there is something in it that is counted on its way, and is
    claimed, or given up, by who reads it.
    """

    __slots__ = ("addresses", "before", "counted", "key", "name")

    def __init__(self, key: str, name: str, addresses: Sequence[str]) -> None:
        self.key = key
        self.name = name
        self.addresses = addresses
        self.before: dict[str, Callable[[], None]] = {}
        self.counted = False


class OneReceiver(Receivers):
    """The one process that a result, or a message for a Port, goes to."""

    __slots__ = ()

    def __init__(self, address: str) -> None:
        super().__init__("", "a result", (address,))


class _Now(threading.local):
    receivers: Receivers | None = None


_now = _Now()


def reduce_for(cls: type, reduce: Callable[[Any, Receivers], Any], why: str, results: bool = False) -> None:
    """Objects of exactly this type are pickled as `reduce(obj, receivers)`, a tuple as from `__reduce__`, in arguments
    of endpoints and constructors, with `results` in what endpoints return, in messages for Ports, and in what is `Sealed` to
    be carried on, too. Anywhere else NotSendableError says `why` not. For optional packages."""

    from monarch._wire.sealed import set_apart  # packages that call this have loaded it

    def reduced(obj: Any) -> Any:
        if results and (apart := set_apart(obj)) is not None:
            return apart
        if _now.receivers is None or (isinstance(_now.receivers, OneReceiver) and not results):
            raise ReceiversUnknown(f"a {cls.__name__} cannot be sent here: {why}")
        return reduce(obj, _now.receivers)

    codec.reduce_as(cls, reduced)


def encode_for(receivers: Receivers, value: Any) -> tuple[bytes, Sequence[memoryview]]:
    """`codec.encode(value)` for a message to `receivers`, with what has to happen before it is sent. Raises what
    pickling raises, MessageTooLargeError, and what that raises. For optional packages."""
    before, _now.receivers = _now.receivers, receivers
    try:
        body, buffers = codec.encode(value)
    finally:
        _now.receivers = before
    here().check_size(body, buffers)
    for act in receivers.before.values():
        act()
    if receivers.counted:
        if buffers or isinstance(receivers, OneReceiver):
            buffers.append(MARK)
        else:
            body += MARK_BEHIND  # without buffers it goes the shorter way
    return body, buffers


_warned = False  # of a large argument


def warn_if_large(size: int, limit: int, what: str, count: int) -> None:
    """Says, once a process, what else there is for arguments of `limit` bytes or more."""
    global _warned
    if size < limit or _warned:
        return
    _warned = True
    logging.getLogger("monarch").warning(
        "%s are %s, for %s: they are copied into messages, and what follows them waits. What is large goes faster beside the "
        "messages: send an RDMABuffer of monarch.rdma, from which each actor reads (docs/how-to/large-data.md). Said once, "
        "from %s on (setting large_argument_bytes)",
        what, _text.size(size), _text.counted(count, "actor"), _text.size(limit),
    )  # fmt: skip


def explain(exc: Exception, receivers: Receivers, what: str, values: Mapping[str, Any]) -> None:
    """Adds to what encoding `values` for `receivers` raised which part of them it was."""
    before, _now.receivers = _now.receivers, Receivers(receivers.key, receivers.name, receivers.addresses)
    try:
        culprit.explain(exc, what, values)
    finally:
        _now.receivers = before


def lives_here(key: str) -> bool:
    """True if an actor of the mesh of that key runs in this process. For optional packages."""
    return key in here().actors


def own_key() -> str:
    """The key of the mesh that the running actor belongs to. RuntimeError outside of any. For optional packages."""
    running = current.get()
    if running is None:
        raise RuntimeError("no actor runs here")
    return running.instance.key
