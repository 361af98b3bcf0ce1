"""Time limits of a connection to an HTTP port. Pure: the time is an argument."""

from __future__ import annotations

import enum

CONNECTIONS = 256  # of a port, unless said otherwise
HEAD = 2.0  # seconds for the head of a request; the first counts from the connection on
BODY = 30.0  # for its body
LAST = 2.0  # to take the end of an answer, and to stop sending what is not wanted
SLOW, LEAST = 20.0, 1 << 17  # seconds in which so many bytes of an answer are taken, or what is left of it


class Phase(enum.Enum):
    HEAD = "said no request"
    BODY = "did not send all of its request"
    ANSWER = "waits for its answer"
    IDLE = "has its answer"
    DRAINED = "went on sending after its answer"
    CLOSING = "did not take the end of its answer"


_LONGEST = {Phase.HEAD: HEAD, Phase.BODY: BODY, Phase.DRAINED: LAST, Phase.CLOSING: LAST}


class ConnectionLimits:
    """The limits of one connection, which is looked at now and then."""

    def __init__(self, now: float) -> None:
        self._phase, self._request = Phase.HEAD, 0
        self._since = now
        self._unsent = 0
        self._taken_at = now

    def late(self, now: float, phase: Phase, request: int, unsent: int) -> str:
        """Returns why it has to go; "" while it may stay. `request`: how many it has begun; `unsent`: bytes of answers that
        it has not taken."""
        if (phase, request) != (self._phase, self._request):
            self._phase, self._request, self._since = phase, request, now
        if unsent > self._unsent:
            if not self._unsent:
                self._taken_at = now
            self._unsent = unsent
        elif not unsent or self._unsent - unsent >= LEAST:
            self.taken(now)
            self._unsent = unsent
        if unsent and now - self._taken_at > SLOW:
            return f"took less than {LEAST:,} bytes of its answer in {SLOW:g} s"
        longest = _LONGEST.get(phase)
        if longest is None or now - self._since <= longest:
            return ""
        return "" if unsent and phase is Phase.CLOSING else f"{phase.value} in {longest:g} s"

    def taken(self, now: float) -> None:
        """Much of an answer was taken."""
        self._taken_at = now
