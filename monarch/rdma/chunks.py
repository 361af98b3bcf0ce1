"""A transfer whose chunks several threads take."""

from __future__ import annotations

from monarch._linux.locks import Lock
from monarch.rdma.transfer import Transfer


class ChunkedTransfer:
    """Hands out the chunks of a transfer one after the other. The thread that leaves last ends it.

    `shares` counts the threads that work at it or have been asked to.
    """

    def __init__(self, transfer: Transfer, chunk: int, chunks: int | None = None) -> None:
        self.transfer = transfer
        self.chunk = chunk
        self.chunks = max(1, -(-transfer.size // chunk)) if chunks is None else chunks
        self.shares = 0
        self._lock = Lock()
        self._next = 0
        self._error: Exception | None = None
        transfer.chunked = self

    @property
    def taken(self) -> float:
        """Returns the share of the chunks that have been begun, 1.0 for all."""
        return self._next / self.chunks

    @property
    def has_more(self) -> bool:
        return self._error is None and self._next < self.chunks

    def take(self) -> tuple[int, int] | None:
        """Returns where the next chunk begins and how many bytes it has; None when there is none, or an error."""
        with self._lock:
            if not self.has_more:
                return None
            at = self._next * self.chunk
            self._next += 1
        return at, min(self.chunk, self.transfer.size - at)

    def fail(self, error: Exception) -> None:
        """Records why a chunk was not moved; the first error counts."""
        with self._lock:
            self._error = self._error or error

    def leave(self) -> None:
        """Takes one share away. The last one ends the transfer."""
        with self._lock:
            self.shares -= 1
            last = not self.shares
        if last:
            self._end(self._error)

    def _end(self, error: Exception | None) -> None:
        self.transfer.finish(error)
