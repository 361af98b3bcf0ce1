"""The time for which an API server does not answer as it should: how long that is borne, and when it is asked again. Pure."""

from __future__ import annotations

from monarch.job.kubernetes.api import ClusterError

LIMIT = 60.0  # seconds
_FIRST = 1.0  # seconds until it is asked again, unless it says for how long it wants to be left alone
_LONGEST = 10.0


class Outage:
    """Trouble that passes by itself, from the first error to the next answer."""

    def __init__(self) -> None:
        self.why = ""  # the last error; "" when there is no outage
        self.said = False  # whether people were told of one
        self._since = 0.0
        self._pause = _FIRST
        self._left_alone_until = 0.0

    def over(self) -> None:
        """Notes an answer."""
        self.why, self._pause, self._left_alone_until = "", _FIRST, 0.0

    def pause(self, error: ClusterError, now: float) -> float | None:
        """Notes an error, and returns the seconds until the server may be asked again; None when that does not help, or has
        been tried for long enough."""
        if not error.passing:
            return None
        if not self.why:
            self._since = now
        self.why = str(error)
        left = self._since + LIMIT - now
        if left <= 0:
            return None
        pause, self._pause = max(error.retry_after, self._pause), min(2 * self._pause, _LONGEST)
        self._left_alone_until = now + min(error.retry_after, left)
        return min(pause, left)

    def left_alone(self, now: float) -> bool:
        """True while the server wants to be left alone."""
        return now < self._left_alone_until
