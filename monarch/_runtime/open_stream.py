"""Streams as optional packages use them: to the process of an actor."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from monarch._runtime.context import here


def serve_streams(purpose: str, handler: Callable[[socket.socket], None]) -> None:
    """Has this process take streams for `purpose`; a second handler takes the place of the first.

    `handler` gets each, a connected blocking socket of a process that may speak to this one, on a thread of its own; the
    socket is closed when it returns or raises. At most 256 streams of a process are served at a time, others are refused.
    """
    here().streams().serve(purpose, handler)


def open_stream(actor: Any, purpose: str, timeout: float) -> socket.socket:
    """A connected blocking socket to a handler in the process of `actor`, an ActorMesh of one. The caller closes it.

    Waits up to `timeout` seconds, so not for an event loop's thread; other than an actor's or the client's, the thread needs
    the context (`bind_context`). NoStreamError says why there is none: nobody serves the purpose there, the process has
    ended, its host cannot be dialled (it has no address, lies behind a gateway, or the job uses TLS). TimeoutError.
    """
    return here().streams().open(actor._spec.addresses[0], purpose, timeout)


def stream_obstacle(actor: Any, timeout: float = 1.0) -> str:
    """Returns why `open_stream` can have none, as far as this host can tell; "" when it may. Asks the host agent once
    a host, which takes a fraction of a millisecond, and gives it up after `timeout` seconds."""
    return here().streams().obstacle(actor._spec.addresses[0], timeout)


def stream_encrypted(actor: Any, timeout: float = 1.0) -> bool:
    """Returns whether messages to the process of `actor` go by TLS, and nothing else keeps this process from reaching
    its host. What is sent there by other ways than messages is then not encrypted. Costs and waits as
    `stream_obstacle` does."""
    return here().streams().encrypted(actor._spec.addresses[0], timeout)
