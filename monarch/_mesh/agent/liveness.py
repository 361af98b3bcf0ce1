"""The signs of life of one process. Pure: what is seen of it in, with the time as an argument; suspicion out.

A sign is any frame it sends. When there was none for half of `after` it is asked for one; when it has not answered in the
other half it is suspected. One that the kernel has stopped is suspected at once, and until it is continued.
"""

from __future__ import annotations

import signal

NEVER = float("inf")
_TOGETHER = 0.05  # share of `after` by which it may be asked early, so that one timer serves many processes
_ROUNDING = 1e-6  # seconds that a timer may be early


class Liveness:
    """`after`: seconds without a sign until it is suspected (0: never); `timeout`: seconds it is suspected until it is to be
    killed (0: never). `suspicion`: why it is suspected now; "" it is not."""

    __slots__ = ("_alive_at", "_asked_at", "_signal", "after", "suspicion", "timeout")

    def __init__(self, after: float, timeout: float) -> None:
        self.after = after
        self.timeout = timeout
        self.suspicion = ""
        self._signal = 0  # by which it was stopped, as a shell stops a job
        self._alive_at = 0.0
        self._asked_at: float | None = None  # no sign since

    def seen(self, now: float) -> bool:
        """A sign of life. Whether that ends a suspicion: it does not for one that is stopped, whose frames are old."""
        self._alive_at, self._asked_at = now, None
        if not self.suspicion or self._signal:
            return False
        self.suspicion = ""
        return True

    def stopped(self, number: int) -> None:
        """Notes that the process was stopped by that signal. It is suspected."""
        self._signal = number
        self.suspicion = f"stopped by signal {_named(number)}"

    def continued(self, now: float) -> bool:
        """Notes that the process goes on; True if that ends a suspicion."""
        if not self._signal:
            return False
        self._signal = 0
        return self.seen(now)

    def asked(self, now: float) -> None:
        """It was asked for a sign, and has to give one from then on."""
        if self._asked_at is None:
            self._asked_at = now

    def due(self) -> float:
        """Returns when it is to be asked, or is suspected when it still has not answered; NEVER when neither."""
        if self.suspicion or self.after <= 0:
            return NEVER
        if self._asked_at is None:
            return self._alive_at + self.after / 2
        return max(self._alive_at + self.after, self._asked_at + self.after / 2)

    def asks(self, now: float, late: float) -> bool:
        """True if it is to be asked for a sign now; again if we are `late` seconds: when we did not run ourselves, its
        silence says nothing."""
        if self.suspicion or self.after <= 0:
            return False
        if self._asked_at is None:
            return now >= self._alive_at + self.after * (0.5 - _TOGETHER)
        if late <= self.after / 4:
            return False
        self._asked_at = None
        return True

    def falls_silent(self, now: float) -> bool:
        """True if it is suspected from now on because it has not answered."""
        if self._asked_at is None or now + _ROUNDING < self.due():
            return False
        self.suspicion = (
            f"its I/O thread has not answered for {self.after:g} s: something holds the interpreter lock, or the process "
            f"does not get the processor"
        )
        return True

    def verdict(self) -> str:
        """Returns why it was killed, once it was suspected for `timeout`."""
        if self._signal:
            seen = f"was stopped by signal {_named(self._signal)} for {self.timeout:g} s"
        else:
            seen = f"gave no sign of life for {self.after + self.timeout:g} s (its I/O thread did not answer)"
        return f"{seen} and was killed (setting suspect_timeout)"


def _named(number: int) -> str:
    """Returns a signal as `19 (SIGSTOP)`."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
