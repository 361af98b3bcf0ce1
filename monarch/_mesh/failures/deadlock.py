"""Finds actors that wait for each other in a circle. Pure: what waits, and what is asked, in; messages and verdicts out.

Edge chasing after Chandy, Misra and Haas, "Distributed Deadlock Detection" (ACM Transactions on Computer Systems 1(2), 1983).
A wait that has stood for some time sends a probe along the edge to the actors it waits for. There the probe asks which waits
keep the message from being answered, and goes on along those; a probe that meets the wait it began with has gone round a
circle. Three rules are added:

- A probe goes only along waits that are older than the one it began with. So of a circle only the youngest wait finds it, and
  that wait is the one that is given up: exactly one victim, with nobody to agree with. Age is (since, name), a total order.
- It goes round twice. The first time finds the circle, the second one makes sure that it still stands and collects what to
  tell people.
- A wait asks again as long as it stands, less and less often: a wait that had a way out may lose it later.

Callers give in only waits that nothing but their answer can end: no time limit, no cancelling. Then every circle that is
found is one: a probe passes a wait only while it stands, with its message unanswered, and neither ends before the waits
further on do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from monarch._wire.message import DeadlockProbe

_AT_ONCE = 100  # waits of one process that begin to ask in one sweep; the rest in the next
_STEPS = 1000  # waits in the longest circle that is found
_REMEMBERED = 10_000  # probes remembered, so that each wait passes each on once
_SELDOM = 60.0  # seconds after which a wait that stands and stands asks again, at most


class Blocked(NamedTuple):
    """A wait of this process, for the answer on `port` of actor `key` in each of the processes `targets`.

    `who` is the actor that waits, `since` as the clock of this process has it.
    """

    number: int
    who: str
    since: float
    key: str
    port: int
    targets: Sequence[str]


class SendProbe(NamedTuple):
    """Effect: a message to the process at `address`."""

    address: str
    probe: DeadlockProbe


class EndWait(NamedTuple):
    """Effect: end wait `number` of this process; `path` says who waits for whom, beginning with it."""

    number: int
    path: list[str]


class Detector:
    """One a process, at `address`. `describe(wait)` is a line for people. Times are in seconds, by the caller's clock;
    `after` is how long a wait must have stood to count."""

    def __init__(self, address: str, describe: Callable[[Blocked], str]) -> None:
        self._address = address
        self._describe = describe
        self._asked: dict[int, tuple[int, float]] = {}  # wait -> how often it has asked, when it asks again
        self._seen: OrderedDict[tuple[str, int, int, bool, int], None] = OrderedDict()

    def sweep(
        self, waits: Iterable[tuple[int, float]], look: Callable[[int], Blocked | None], now: float, after: float
    ) -> list[SendProbe]:
        """Begins probes. Called from time to time, with (number, since) of every wait that stands; `look` says what is
        known of one that is due, None for one that can end by itself."""
        asked = {}
        effects: list[SendProbe] = []
        begun = 0
        for number, since in waits:
            attempt, due = self._asked.get(number, (0, since + after))
            if now >= due and begun < _AT_ONCE:
                begun += 1
                due = now + min(after * 2**attempt, _SELDOM)
                attempt += 1
                wait = look(number)
                if wait is not None:
                    effects += self._begin(wait, attempt)
            asked[number] = attempt, due
        self._asked = asked
        return effects

    def probed(
        self, probe: DeadlockProbe, blockers: Iterable[Blocked], now: float, after: float
    ) -> list[SendProbe | EndWait]:
        """A probe has come; `blockers` are the waits that keep the message it asks about from being answered."""
        effects: list[SendProbe | EndWait] = []
        origin = (probe.since, probe.who, probe.origin, probe.number)
        for wait in blockers:
            mine = (wait.since, wait.who, self._address, wait.number)
            if mine > origin or now - wait.since < after or self._saw(probe, wait):
                continue
            if mine < origin:
                effects += self._pass_on(probe, wait)
            elif probe.again:
                effects.append(EndWait(wait.number, probe.path))
            else:
                effects += self._begin(wait, probe.attempt, again=True)
        return effects

    def _saw(self, probe: DeadlockProbe, wait: Blocked) -> bool:
        """True if the wait was asked this before; remembers that it was."""
        key = (probe.origin, probe.number, probe.attempt, probe.again, wait.number)
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return False

    def _begin(self, wait: Blocked, attempt: int, again: bool = False) -> list[SendProbe]:
        path = [self._describe(wait)] if again else []
        asking = self._address, wait.number, wait.since, wait.who, attempt, 1, path, again
        return [
            SendProbe(address, DeadlockProbe(wait.key, wait.port, self._address, *asking)) for address in wait.targets
        ]

    def _pass_on(self, probe: DeadlockProbe, wait: Blocked) -> list[SendProbe]:
        if probe.steps >= _STEPS:
            return []
        path = [*probe.path, self._describe(wait)] if probe.again else []
        asking = probe.origin, probe.number, probe.since, probe.who, probe.attempt, probe.steps + 1, path, probe.again
        return [
            SendProbe(address, DeadlockProbe(wait.key, wait.port, self._address, *asking)) for address in wait.targets
        ]
