"""Time that moves only when a test says so.

Governs the timers of the runtime: `with_timeout`, delays of an in-memory network, waits for actors and
processes to start and stop. Knows nothing of actors' own code: `asyncio.sleep` and `time.sleep` there, and
`Future.get(timeout)`, take real time.
"""

from __future__ import annotations

import threading

from monarch._linux.locks import Lock
from monarch._runtime.loop import Loop

_PATIENCE = 30.0  # real seconds until a loop that does not turn is an error


class VirtualClock:
    """`now()` in seconds; stands still until `advance`. May be shared by several clusters.

    clock = VirtualClock()
    with InProcessCluster(clock=clock) as cluster:
        ...
        clock.advance(5.0)
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)
        self._lock = Lock()  # one advance at a time
        self._loops: list[Loop] = []

    def __repr__(self) -> str:
        return f"<VirtualClock {self._now:g} s, {len(self._loops)} loops>"

    def now(self) -> float:
        """Seconds since the clock's start."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Lets `seconds` pass and returns once every timer due by then has run.

        Loop run in the order of their times, each seeing its own time as now; one that a timer sets and that
        is due within the same stretch runs too. ValueError for negative seconds; RuntimeError on a loop that
        the clock governs and for a loop that is stuck.
        """
        if not seconds >= 0:
            raise ValueError(f"time does not go back: advance({seconds!r}) needs 0 seconds or more")
        if any(loop.in_loop() for loop in self._loops):
            raise RuntimeError(
                "advance() waits for the loops that the clock governs and cannot be called on one of them"
            )
        with self._lock:
            until = self._now + seconds
            while (due := self._next_due()) is not None and due <= until:
                self._now = max(self._now, due)
            self._now = until

    def next_timer(self) -> float | None:
        """Returns in how many seconds the next timer is due; None when there is none."""
        with self._lock:
            due = self._next_due()
        return None if due is None else max(0.0, due - self._now)

    def attach(self, loop: Loop) -> None:
        """The clock governs `loop` until `detach`."""
        self._loops = [*self._loops, loop]

    def detach(self, loop: Loop) -> None:
        """The clock no longer governs `loop`. Nothing for one that it does not."""
        self._loops = [other for other in self._loops if other is not loop]

    def _next_due(self) -> float | None:
        """Returns when the earliest timer is due. A loop that is asked has run those that were due before."""
        dues: list[float | None] = []
        # Again until nothing changes: timers of one loop may have set timers of another.
        while (asked := [_ask(loop) for loop in self._loops]) != dues:
            dues = asked
        return min((due for due in dues if due is not None), default=None)


def _ask(loop: Loop) -> float | None:
    """The loop's next timer, as of a turn that began after the call and in whose predecessor due timers
    ran."""
    answered = threading.Event()
    dues: list[float | None] = []

    def answer() -> None:
        dues.append(loop.next_timer())
        answered.set()

    # The first call wakes a sleeping loop, whose timers run at the end of that turn; the second looks in
    # the next.
    loop.call_soon(lambda: loop.call_soon(answer))
    if not answered.wait(_PATIENCE):
        raise RuntimeError(f"loop {loop.name!r} did not turn for {_PATIENCE:g} s: is a callback blocked?")
    return dues[0]
