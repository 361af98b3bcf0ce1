"""What is told of all that one actor asks of others. Few actors have one: those that are recorded, or replayed."""

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
    timeout: float | None = None


class Watcher(Protocol):
    """What is told of all that an actor asks of others: it records that, or plays what was recorded (`monarch.replay`).
    Called in the thread that does it."""

    def asked(self, call: Asking) -> bool:
        """The actor calls an endpoint. True: nothing is sent, for the answers are known."""
        ...

    def opened(self, queue: Any) -> None:
        """It opens a channel."""
        ...

    def answered(self, delivery: Any, body: bytes, buffers: Sequence[memoryview]) -> None:
        """A message was handled, and this is what its sender gets."""
        ...

    def sent(self, kind: int, body: bytes, buffers: Sequence[memoryview]) -> None:
        """It sends to a port."""
        ...
