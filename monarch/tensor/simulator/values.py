"""What references stand for in a simulation: metadata, and a buffer that views share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.tensor.metadata import Meta
    from monarch.tensor.simulator.machine import Team


class Buffer:
    """Memory of `nbytes` on each rank of `team`, made on `stream`. `users`: how many values lie in it."""

    __slots__ = ("nbytes", "number", "stream", "team", "users")

    def __init__(self, number: int, nbytes: int, team: Team, stream: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self.team = team
        self.stream = stream
        self.users = 0


class Value:
    """One tensor, as its ranks have it: `meta` is None where nothing is known of it."""

    __slots__ = ("buffer", "meta")

    def __init__(self, meta: Meta | None, buffer: Buffer) -> None:
        self.meta = meta
        self.buffer = buffer
        buffer.users += 1

    def again(self) -> Value:
        """Another reference to the same."""
        return Value(self.meta, self.buffer)

    def leave(self) -> Buffer | None:
        """It is deleted. Its buffer, when nobody lies in it any more."""
        self.buffer.users -= 1
        return self.buffer if not self.buffer.users else None
