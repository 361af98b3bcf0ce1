"""Other programs of this machine and user: their agents are reached at the socket in their folder.

A mesh may be sent to another program (multiprocessing, a queue, a file). Its host is a folder then, and the agents of the two
programs make a link as between two machines, so that all else is as there: casts, deaths, and the end of what the other
program has spawned here with it. Who may connect is what the kernel says of the socket: our own user, nobody else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from monarch._wire.address import AGENT
from monarch._wire.transport import unix
from monarch._wire.transport.base import DialFailed, Reactor

SCHEME = "unix:"
_GONE = (FileNotFoundError, ConnectionRefusedError)  # its agent has ended


def is_neighbour(host: str) -> bool:
    """True if the agent of that host prefix is, or was a moment ago, one of this machine's."""
    return host.startswith(SCHEME) and os.path.exists(_socket_of(host))


def dial(host: str, loop: Reactor, done: Callable[[Any], None]) -> None:
    """Calls `done` soon, with a connected socket or DialFailed. Never waits."""
    outcome: Any
    try:
        outcome = unix.dial(_socket_of(host), wait=False)
    except OSError as exc:
        outcome = DialFailed(f"{_socket_of(host)}: {exc.strerror or exc}", refused=isinstance(exc, _GONE))
    loop.call_soon(lambda: done(outcome))


def _socket_of(host: str) -> str:
    return os.path.join(host.removeprefix(SCHEME), AGENT)
