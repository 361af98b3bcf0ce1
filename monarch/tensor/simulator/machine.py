"""The simulated workers: a clock for each stream of each device, and how they wait for each other.

Time is an integer, nanoseconds since the beginning. Commands come in the order in which the controller issues them; a
stream does its own in that order, so each call here says at once when its work begins and ends. Ranks that have done
exactly the same are one Device when `grouped`, until their ways part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

CHANGES = 1 << 18  # changes of a device's memory kept one by one; beyond it the earlier half is only summed up
SPANS = 1 << 19  # spans that all devices keep together; later ones are only counted


class StreamSpan(NamedTuple):
    """An action or a wait of a stream from `start` on. `ident`: its command."""

    start: int
    duration: int
    name: str
    kind: str
    stream: int
    ident: int


class PostedEvent(NamedTuple):
    """A point in the work of a stream."""

    time: int
    stream: int


class MemoryChange(NamedTuple):
    """`nbytes` of buffer `buffer` come at `time` (nanoseconds), or go when negative. `ident`: the command that did
    it."""

    time: int
    buffer: int
    nbytes: int
    ident: int


class AllocationLedger:
    """The allocations of one device since the last `turn`.

    Changes may come out of order in time, because streams run beside each other; those of one buffer may not. Beyond
    CHANGES changes the earlier half is summed up: a change that comes for that time later counts from its end on.
    """

    def __init__(self) -> None:
        self.changes: list[MemoryChange] = []
        self.live: dict[int, int] = {}  # bytes by buffer
        self._before = 0  # bytes there were before `changes`
        self._peak = 0  # the most before `changes`

    def add(self, time: int, buffer: int, nbytes: int, ident: int = 0) -> None:
        """`buffer` has `nbytes` more from `time` on."""
        self.live[buffer] = self.live.get(buffer, 0) + nbytes
        self._note(MemoryChange(time, buffer, nbytes, ident))

    def free(self, time: int, buffer: int, ident: int = 0) -> None:
        """`buffer` is gone at `time`. Nothing happens when it is not there."""
        nbytes = self.live.pop(buffer, None)
        if nbytes is not None:
            self._note(MemoryChange(time, buffer, -nbytes, ident))

    def _note(self, change: MemoryChange) -> None:
        self.changes.append(change)
        if len(self.changes) > CHANGES:
            self.changes.sort(key=_time)
            early, self.changes = self.changes[: CHANGES // 2], self.changes[CHANGES // 2 :]
            self._before, self._peak = _summed(early, self._before, self._peak)

    def timeline(self) -> list[tuple[int, int]]:
        """(time, bytes from then on), in order, one entry for each time at which there was a change."""
        found: dict[int, int] = {}
        total = self._before
        for change in sorted(self.changes, key=_time):
            total += change.nbytes
            found[change.time] = total
        return list(found.items())

    def peak(self) -> int:
        """The most bytes there were at any time since the last turn, what was there then included."""
        return _summed(sorted(self.changes, key=_time), self._before, max(self._peak, self._before))[1]

    def turn(self) -> None:
        """Makes what there is now the beginning."""
        self.changes = []
        self._before = self._peak = sum(self.live.values())

    def copy(self) -> AllocationLedger:
        """The same for a device whose ways part from this one's."""
        made = AllocationLedger()
        made.changes, made.live = list(self.changes), dict(self.live)
        made._before, made._peak = self._before, self._peak
        return made


def _time(change: MemoryChange) -> int:
    return change.time


def _summed(changes: list[MemoryChange], total: int, peak: int) -> tuple[int, int]:
    """(bytes after, the most on the way) of changes in order of time; those of one moment count together."""
    for place, change in enumerate(changes):
        total += change.nbytes
        if place + 1 == len(changes) or changes[place + 1].time != change.time:
            peak = max(peak, total)
    return total, peak


class SimulatedDevice:
    """Ranks that have done the same so far."""

    __slots__ = ("clocks", "events", "ledger", "ranks", "spans")

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.clocks: dict[int, int] = {}  # when each stream is free
        self.events: dict[int, deque[PostedEvent]] = {}
        self.ledger = AllocationLedger()
        self.spans: list[StreamSpan] = []

    def part(self, ranks: tuple[int, ...]) -> SimulatedDevice:
        """Some of its ranks, with all that they did."""
        made = SimulatedDevice(ranks)
        made.clocks = dict(self.clocks)
        made.events = {number: deque(waiting) for number, waiting in self.events.items()}
        made.ledger = self.ledger.copy()
        made.spans = list(self.spans)
        return made

    def clock(self, stream: int) -> int:
        return self.clocks.get(stream, 0)


class Team:
    """The ranks of a mesh, as the devices they are at the moment."""

    __slots__ = ("devices", "ranks", "version")

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = tuple(ranks)
        self.version = -1
        self.devices: list[SimulatedDevice] = []


class SimulatedMachine:
    """Devices for the ranks 0 to `ranks`; `now` is the controller's clock: nothing begins before it was issued."""

    def __init__(self, ranks: int, grouped: bool = False) -> None:
        everyone = tuple(range(ranks))
        self.devices = [SimulatedDevice(everyone)] if grouped else [SimulatedDevice((rank,)) for rank in everyone]
        self._of = {rank: device for device in self.devices for rank in device.ranks}
        self._version = 0
        self._moves: dict[Hashable, deque[dict[int, tuple[int, int]]]] = {}
        self.now = 0
        self.began = 0  # when this iteration did
        self.dropped = 0  # spans that were too many
        self._kept = 0

    # --- who

    def cover(self, team: Team) -> list[SimulatedDevice]:
        """The devices that are exactly the ranks of `team`; splits those that have others too."""
        if team.version != self._version:
            self._part(team.ranks, lambda rank: 0)
            team.devices = list(dict.fromkeys(self._of[rank] for rank in team.ranks))
            team.version = self._version
        return team.devices

    def _part(self, ranks: Iterable[int], kind: Callable[[int], Hashable]) -> None:
        """Splits devices so that the ranks of each are all of one kind, and all in `ranks` or none."""
        if len(self.devices) == len(self._of):
            return  # each rank is one already
        wanted = dict.fromkeys(ranks)
        for device in dict.fromkeys(self._of[rank] for rank in wanted):
            kinds: dict[Hashable, list[int]] = {}
            for rank in device.ranks:
                kinds.setdefault((kind(rank),) if rank in wanted else None, []).append(rank)
            if len(kinds) > 1:
                self._split(device, [tuple(part) for part in kinds.values()])

    def _split(self, device: SimulatedDevice, parts: Sequence[tuple[int, ...]]) -> None:
        made = [device.part(part) for part in parts]
        at = self.devices.index(device)
        self.devices[at : at + 1] = made
        self.devices.sort(key=lambda one: one.ranks[0])
        self._of.update({rank: one for one in made for rank in one.ranks})
        self._kept += len(device.spans) * (len(made) - 1)
        self._version += 1

    def device_of(self, rank: int) -> SimulatedDevice:
        return self._of[rank]

    # --- what

    def launch(self, duration: int) -> int:
        """The controller issues a command, which takes it `duration`. When it began."""
        start = self.now
        self.now += duration
        return start

    def run(self, team: Team, stream: int, duration: int, name: str, kind: str, ident: int) -> int:
        """Work of each device by itself. When it begins on the first rank."""
        for device in self.cover(team):
            start = max(self.now, device.clock(stream))
            self._span(device, StreamSpan(start, duration, name, kind, stream, ident))
            device.clocks[stream] = start + duration
        return self._began(team, stream, duration)

    def collect(
        self, team: Team, members: Sequence[Sequence[int]], stream: int, duration: int, name: str, kind: str, ident: int
    ) -> int:  # fmt: skip
        """Work that ranks do together, `members` by `members`: it begins when the last of them is there."""
        ready = {rank: max(self.now, device.clock(stream)) for device in self.cover(team) for rank in device.ranks}
        starts = {rank: start for group in members for start in [max(ready[r] for r in group)] for rank in group}
        self._part(team.ranks, starts.__getitem__)
        for device in self.cover(team):
            start = starts[device.ranks[0]]
            self._wait_until(device, stream, start, "waiting for other ranks", ident)
            self._span(device, StreamSpan(start, duration, name, kind, stream, ident))
            device.clocks[stream] = start + duration
        return self._began(team, stream, duration)

    def post(self, team: Team, stream: int, number: int) -> None:
        """Posts an event behind what the stream was given so far."""
        for device in self.cover(team):
            time = max(self.now, device.clock(stream))
            device.events.setdefault(number, deque()).append(PostedEvent(time, stream))

    def wait(self, team: Team, stream: int, number: int, duration: int, named: Callable[[int], str], ident: int) -> int:
        """The stream goes on when the event has come, which takes it `duration` to notice. `named`: a stream's name."""
        for device in self.cover(team):
            waiting = device.events.get(number)
            event = waiting.popleft() if waiting else PostedEvent(self.now, stream)
            if waiting is not None and not waiting:
                del device.events[number]
            self._wait_until(device, stream, event.time, f"waiting for {named(event.stream)}", ident)
            start = max(self.now, device.clock(stream), event.time)
            self._span(device, StreamSpan(start, duration, "wait event", "WaitEvent", stream, ident))
            device.clocks[stream] = start + duration
        return self._began(team, stream, duration)

    def send(
        self, team: Team, stream: int, move: Hashable, durations: Mapping[int, int], name: str, kind: str, ident: int
    ) -> int:  # fmt: skip
        """The ranks in `durations` send something, for so long; the others of the team have nothing to do."""
        self._part(team.ranks, lambda rank: durations.get(rank, -1))
        sent: dict[int, tuple[int, int]] = {}
        first = self.now
        for device in self.cover(team):
            duration = durations.get(device.ranks[0], -1)
            if duration < 0:
                continue
            start = max(self.now, device.clock(stream))
            first = start if not sent else min(first, start)
            self._span(device, StreamSpan(start, duration, name, kind, stream, ident))
            device.clocks[stream] = start + duration
            sent.update(dict.fromkeys(device.ranks, (start, start + duration)))
        self._moves.setdefault(move, deque()).append(sent)
        return first

    def receive(
        self, team: Team, stream: int, move: Hashable, senders: Mapping[int, int], name: str, kind: str, ident: int
    ) -> None:  # fmt: skip
        """Each rank of the team gets what the rank `senders` says has sent it: it is busy from when both are there
        until it has it all. What comes from its own rank is there already."""
        waiting = self._moves[move]
        sent = waiting.popleft()
        if not waiting:
            del self._moves[move]
        self._part(team.ranks, lambda rank: (sent[senders[rank]], senders[rank] == rank))
        for device in self.cover(team):
            rank = device.ranks[0]
            start, end = sent[senders[rank]]
            if senders[rank] == rank:
                device.clocks[stream] = max(device.clock(stream), end)
                continue
            self._wait_until(device, stream, start, "waiting for other ranks", ident)
            start = max(start, device.clock(stream), self.now)
            self._span(device, StreamSpan(start, max(0, end - start), name, kind, stream, ident))
            device.clocks[stream] = max(start, end)

    # --- time

    def end(self) -> int:
        """Returns when everything that was issued is done."""
        return max(self.now, *(clock for device in self.devices for clock in (*device.clocks.values(), 0)))

    def turn(self) -> tuple[int, int]:
        """Everybody waits for everybody, and a new iteration begins. (Nanoseconds and the most bytes of the last
        one.)"""
        end = self.end()
        elapsed, peak = end - self.began, self.peak()
        for device in self.devices:
            device.clocks = dict.fromkeys(device.clocks, end)
            device.spans = []
            device.ledger.turn()
        self.now = self.began = end
        self.dropped = self._kept = 0
        return elapsed, peak

    def peak(self) -> int:
        """The most bytes that a device had in this iteration."""
        return max(device.ledger.peak() for device in self.devices)

    def wait_until(self, time: int) -> None:
        """The controller waits for a value that is there at `time`."""
        self.now = max(self.now, time)

    def _began(self, team: Team, stream: int, duration: int) -> int:
        return self._of[team.ranks[0]].clock(stream) - duration

    def _wait_until(self, device: SimulatedDevice, stream: int, time: int, name: str, ident: int) -> None:
        ready = max(self.now, device.clock(stream))
        if time > ready:
            self._span(device, StreamSpan(ready, time - ready, name, "wait", stream, ident))
            device.clocks[stream] = time

    def _span(self, device: SimulatedDevice, span: StreamSpan) -> None:
        if self._kept >= SPANS:
            self.dropped += 1
            return
        self._kept += 1
        device.spans.append(span)
