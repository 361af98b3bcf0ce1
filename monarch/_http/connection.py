"""A connection to an HTTP port, as uvicorn has it, with an end for whoever never ends.

Beyond uvicorn's: a request that cannot be read is told so in JSON and is no error of ours, whenever it comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from monarch._http.connection_limits import ConnectionLimits, Phase

# uvicorn warns of what anybody may send, which would fill the log of the program.
_logger = logging.getLogger("monarch.http")
_logger.setLevel(logging.ERROR)

_UNREADABLE = "this cannot be read: send requests of HTTP/1.1, with a head of at most 16 KiB"
_PHRASES = {400: "Bad Request", 403: "Forbidden", 408: "Request Timeout", 503: "Service Unavailable"}


def whole_answer(status: int, text: str) -> bytes:
    """Returns an answer for one with whom nothing else will be said. `text`: without what JSON would escape."""
    body = f'{{"error": "{text}"}}'
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}",
        "content-type: application/json",
        "x-content-type-options: nosniff",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return ("\r\n".join(head) + "\r\n\r\n" + body).encode()


class HttpConnection(H11Protocol):  # type: ignore[misc]  # uvicorn is an optional dependency
    """`gone` is called when it has ended."""

    def __init__(self, gone: Callable[[HttpConnection], None], **given: Any) -> None:
        super().__init__(**given)
        self.logger = _logger
        self._gone = gone
        self._requests = 0
        self._counted: Any = None

    @property
    def phase(self) -> Phase:
        if self.transport.is_closing():
            return Phase.CLOSING
        asking = self.conn.their_state is h11.SEND_BODY
        if self.cycle is not None and not self.cycle.response_complete:
            return Phase.BODY if asking else Phase.ANSWER
        if asking:
            return Phase.DRAINED
        return Phase.HEAD if self.cycle is None or self.conn.trailing_data[0] else Phase.IDLE

    def look(self) -> None:
        """Ends it if it takes too long."""
        phase = self.phase
        if self.cycle is not self._counted:
            self._counted = self.cycle
            self._requests += 1
        now = self.loop.time()
        if phase is not Phase.IDLE:
            self.since = now
        why = self._limits.late(now, phase, self._requests, self.transport.get_write_buffer_size())
        if not why:
            return
        if phase is Phase.HEAD and self.conn.trailing_data[0]:
            self.end(408, f"send the head of a request at once: this connection {why}")
        else:
            self.transport.abort()

    def end(self, status: int, text: str) -> None:
        """Closes it, with an answer that says why if none has begun."""
        cycle = self.cycle
        running = cycle is not None and not cycle.response_complete
        if not (running and cycle.response_started) and not self.transport.is_closing():
            self.transport.write(whole_answer(status, text))
        if running:  # nobody is there any more for what is being made
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    # --- as uvicorn calls them

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()  # that it is idle
        self._limits = ConnectionLimits(self.since)

    def send_400_response(self, msg: str) -> None:
        self.end(400, _UNREADABLE)

    def resume_writing(self) -> None:
        self._limits.taken(self.loop.time())
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone(self)


def protocol(
    config: Any, server: Any, let_in: Callable[[], object], gone: Callable[[HttpConnection], None]
) -> HttpConnection:
    """Returns one of a uvicorn server. `let_in` is for the gate, which calls it for a request that it lets in."""
    return HttpConnection(
        gone,
        config=config,
        server_state=server.server_state,
        app_state={"let_in": let_in},
        _loop=asyncio.get_running_loop(),
    )
