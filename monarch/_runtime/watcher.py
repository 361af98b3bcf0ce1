"""An object that is told of all that one actor asks of others. Few actors have one: those that are recorded, or replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Asking(NamedTuple):
    """A call that an actor is about to send: to which ranks of which mesh; `entry` waits for the answers, if anybody does."""

    mesh: str
    method: str
    adverb: int
    ranks: Sequence[int]
    entry: Any  # an Entry, or None
    body: bytes
    buffers: Sequence[memoryview]


class Watcher(Protocol):
    """An observer of all that an actor asks of others: it records that, or plays what was recorded (`monarch.replay`).
    Called in the thread that does it."""

    def asked(self, call: Asking) -> bool:
        """The actor calls an endpoint. True: nothing is sent, for the answers are known."""
        ...

    def opened(self, queue: Any) -> None:
        """Takes note that the actor opens a channel."""
        ...

    def answered(self, delivery: Any, body: bytes, buffers: Sequence[memoryview]) -> None:
        """A message was handled, and this is what its sender gets."""
        ...

    def sent(self, kind: int, body: bytes, buffers: Sequence[memoryview]) -> None:
        """Takes note that the actor sends to a port."""
        ...


def tell(
    sender: Any,
    mesh: Any,
    method: str,
    adverb: int,
    only: int | None,
    reply: Any,
    body: bytes,
    buffers: Sequence[memoryview],
) -> bool:
    """The actor `sender`, which has a watcher, calls an endpoint of `mesh`, of its rank `only` if that is not None. `reply`
    is the Entry or the Port that answers go to, or None. True: nothing is to be sent."""
    number = getattr(reply, "_number", 0)
    if number:  # a Port, whose entry is here or in another process
        reply = sender.proc.ports.get(number) if reply._address == sender.proc.address else None
    ranks = mesh._plan.ranks if only is None else mesh._plan.ranks[only : only + 1]
    watcher: Watcher = sender.watcher
    return watcher.asked(Asking(mesh._spec.name, method, adverb, ranks, reply, body, buffers))
