"""How long a worker waits for a client before it ends by itself. Pure: who comes and goes in, with the time as an argument;
the verdict out.

A client is a process that has attached, or a client's machine that has made a link. The lease runs while there is none: from
the worker's start, and from the moment that the last one left or was lost.
"""

from __future__ import annotations

from monarch._wire.address import host_of

NEVER = float("inf")
_ROUNDING = 1e-6  # seconds that a timer may be early


class Lease:
    """`seconds`: 0 is for ever."""

    __slots__ = ("_clients", "_since", "seconds")

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        self._clients: set[str] = set()  # addresses of processes, and prefixes of hosts
        self._since = now  # when there was a client last, or the start

    def came(self, client: str) -> None:
        self._clients.add(client)

    def left(self, client: str, now: float) -> None:
        """That process or host is gone; with a host, its processes."""
        before = len(self._clients)
        self._clients = {known for known in self._clients if known != client and host_of(known) != client}
        if before and not self._clients:
            self._since = now

    def due(self) -> float:
        """When it is over unless a client comes; NEVER while there is one."""
        return NEVER if self._clients or self.seconds <= 0 else self._since + self.seconds

    def is_over(self, now: float) -> bool:
        return now + _ROUNDING >= self.due()

    def verdict(self) -> str:
        """Why it ended."""
        return f"no client for {self.seconds:g} s (setting worker_lease, MONARCH_WORKER_LEASE, --lease)"
