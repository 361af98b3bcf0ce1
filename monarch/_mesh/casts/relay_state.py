"""State of the casts at an agent: their plans, who sent them, which children have them. What to do `relay` decides."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from monarch._mesh.casts.answer_cache import CachedAnswers, Key, Record, size_of
from monarch._wire.frame import Buffer
from monarch._wire.message import VALUE, Cast, CastPlan, PlanHost
from monarch._wire.unpickling import is_marked

BODY_KEPT = 1024 * 1024  # bytes: a larger body of a call is not kept, and it fails when the child's host ends
# (sender, mesh, part) with casts that were given up, remembered for each child; Skips are always kept.
GIVEN_UP = 1000

UpstreamKey: TypeAlias = Any  # a key; only the one that carries out effects knows more


class RegisteredPlan:
    """One as an upstream registered it: its receivers here, and the parts that go to children."""

    __slots__ = ("forgotten", "here", "parts", "prefix", "width")

    def __init__(self, plan: CastPlan) -> None:
        self.width = plan.width
        self.forgotten = False
        own, rest = (plan.hosts[:1], plan.hosts[1:]) if plan.serve else ([], plan.hosts)
        self.prefix = own[0].host if own else ""
        # (process name, rank in the view); they have the first positions
        self.here = list(zip(own[0].names, own[0].indices, strict=True)) if own else []
        self.parts = parts(self, rest, len(self.here))


class CastSubtree:
    """A child's host and those below it. Positions `start` to `stop` of whatever it is a part of."""

    __slots__ = ("_below", "_solos", "host", "hosts", "names", "plan", "ranks", "start", "stop")

    def __init__(self, plan: RegisteredPlan, hosts: Sequence[PlanHost], start: int) -> None:
        self.plan = plan
        self.hosts = hosts
        self.host = hosts[0].host
        self.ranks = frozenset(index for host in hosts for index in host.indices)
        self.start = start
        self.stop = start + sum(len(host.names) for host in hosts)
        self.names = frozenset(host.host for host in hosts)
        self._below: list[CastSubtree] | None = None
        self._solos: dict[str, CastSubtree] = {}

    def below(self) -> list[CastSubtree]:
        """The parts of the child's own children."""
        if self._below is None:
            self._below = parts(self.plan, self.hosts[1:], len(self.hosts[0].names))
        return self._below

    def solo(self, host: str) -> CastSubtree:
        """Returns the subtree of that host alone, which the child cannot reach; `host` is one of `names`."""
        known = self._solos.get(host)
        if known is None:
            start = 0
            for there in self.hosts:
                if there.host == host:
                    known = self._solos[host] = CastSubtree(self.plan, [there], start)
                    break
                start += len(there.names)
        assert known is not None
        return known

    def known(self) -> Iterable[CastSubtree]:
        """This one, and those that were taken out of it."""
        yield self
        yield from self._solos.values()
        for part in self._below or ():
            yield from part.known()


def parts(plan: RegisteredPlan, hosts: Sequence[PlanHost], start: int) -> list[CastSubtree]:
    parts = []
    for places in split(len(hosts), plan.width):
        part = CastSubtree(plan, hosts[places.start : places.stop], start)
        parts.append(part)
        start = part.stop
    return parts


class Upstream:
    """An upstream: its plans, and which of its casts are not through yet."""

    __slots__ = ("confirmed", "gaps", "is_agent", "key", "last", "open", "plans", "there")

    def __init__(self, key: UpstreamKey) -> None:
        self.key = key
        self.is_agent = False
        self.there = True
        self.plans: OrderedDict[int, RegisteredPlan] = OrderedDict()
        self.last = 0
        self.open: dict[int, None] = {}  # ascending
        self.gaps: dict[Gap, None] = {}
        self.confirmed = 0

    def through(self) -> int:
        """All up to this number are through."""
        first = next(iter(self.open), self.last + 1)
        return min((gap.first for gap in self.gaps), default=first) - 1 if self.gaps else first - 1


class Gap:
    """Casts of one sender to one part that were given up and are not confirmed.

    The one above is not told that they are through before they are, or before the receivers were told to skip them: should
    we end too, it is the one to do that. `first` is the lowest number from above, `last` the highest at the child; those
    given up since are `later`, or a flood of them would never end.
    """

    __slots__ = ("first", "last", "later", "upstream")

    def __init__(self, upstream: Upstream | None, first: int, last: int) -> None:
        self.upstream = upstream
        self.first = first
        self.last = last
        self.later: tuple[int, int] | None = None

    def add(self, first: int, last: int) -> None:
        self.later = (self.later[0] if self.later is not None else first), last

    def confirmed(self, number: int) -> bool:
        """Takes the child's confirmation, up to that number: whether nothing is left."""
        if self.last <= number and self.later is not None:
            self.first, self.last = self.later
            self.later = None
        return self.last <= number

    def close(self) -> None:
        if self.upstream is not None:
            self.upstream.gaps.pop(self, None)


class UnacknowledgedCast:
    """A cast without a gathering: through once none of it is in flight.

    Of one that tells receivers to skip: `gap` is what is through then, or `lost` the answers that the callers get then.
    """

    __slots__ = ("gap", "in_flight", "lost", "number", "upstream")

    def __init__(self, upstream: Upstream | None, number: int) -> None:
        self.upstream = upstream
        self.number = number
        self.in_flight = 1  # until it has left here
        self.gap: Gap | None = None
        self.lost: tuple[Gathering, list[Record]] | None = None


class Gathering:
    """A cast whose answers come up the tree: who has not answered, and what is held."""

    __slots__ = (
        "armed",
        "combine",
        "given",
        "gone",
        "held",
        "held_size",
        "hold",
        "in_flight",
        "key",
        "merging",
        "mine",
        "orphaned",
        "root",
        "skips",
        "upstreams",
    )

    def __init__(self, upstream: Upstream, key: Key, cast: Cast) -> None:
        # Who wants the answers. More than one only while hosts end: a cast of one that has ended may come after that of
        # the one that took its place, and looks the same.
        self.upstreams = [upstream]
        self.key = key
        self.hold = cast.gather
        self.root = cast.number == 0
        self.given = CachedAnswers(key, cast)
        self.mine: dict[int, str] = {}  # rank -> process name
        self.in_flight: dict[CastSubtree, InFlight] = {}
        self.combine = b"" if self.root else cast.combine  # the root has no processes that are receivers
        self.merging: Merging | None = None
        self.skips = 0  # that must be through before the call fails for those who are to skip it
        self.held: list[Record] = []
        self.held_size = 0
        self.gone: list[int] = []
        self.armed = False
        self.orphaned = 0.0  # since when, without anybody above

    @property
    def timer(self) -> tuple[str, str, int]:
        return "hold", *self.key


class Merging:
    """Answers that a process of this host folds: `groups` of neighbours, each into one. `helpers`: addresses of those
    that can, the first of which is at it."""

    __slots__ = ("done", "groups", "helpers", "others")

    def __init__(self, helpers: list[str]) -> None:
        self.helpers = helpers
        self.groups: list[list[Record]] = []
        self.others: list[Record] = []  # that stay as they are
        self.done: dict[int, Record] = {}

    def sort(self, records: Sequence[Record]) -> bool:
        """Puts answers into groups. Whether there is anything to fold."""
        groups: list[list[Record]] = []
        for record in sorted(records):
            last = groups[-1][-1] if groups else None
            if last is not None and _may_be_folded(last) and _may_be_folded(record) and last.ranks.stop == record.rank:
                groups[-1].append(record)
            else:
                groups.append([record])
        self.groups = [group for group in groups if len(group) > 1]
        self.others = [group[0] for group in groups if len(group) == 1]
        return bool(self.groups)

    def ended(self, address: str) -> bool:
        """A process has ended: whether it was at it."""
        if address not in self.helpers:
            return False
        working = bool(self.groups) and self.helpers[0] == address
        self.helpers.remove(address)
        return working

    def take(self, number: int, kind: int, body: Buffer, buffers: Sequence[Buffer]) -> bool:
        """A group has been folded. Whether all have."""
        if 0 <= number < len(self.groups):
            group = self.groups[number]
            span = sum(record.span for record in group)
            self.done[number] = Record(group[0].rank, kind, body, buffers, span)
        return len(self.done) == len(self.groups)

    def result(self) -> list[Record]:
        return sorted([*self.others, *self.done.values()])

    def unfolded(self) -> list[Record]:
        return sorted([*self.others, *(record for group in self.groups for record in group)])


def _may_be_folded(record: Record) -> bool:
    """Returns whether it is a value, and none with something that is counted on its way: that is for the caller to read."""
    return record.kind == VALUE and not (record.buffers and is_marked(record.buffers))


class InFlight:
    """A cast as it went to a child, kept until that has answered or confirmed it."""

    __slots__ = ("body", "buffers", "cast", "owner", "part", "pending", "size", "whole")

    def __init__(
        self,
        owner: Gathering | UnacknowledgedCast,
        part: CastSubtree,
        cast: Cast,
        body: Buffer,
        buffers: Sequence[Buffer],
        pending: set[int],
    ) -> None:
        self.owner = owner
        self.part = part
        self.cast = cast
        self.body = body
        self.buffers = buffers
        self.size = size_of(body, buffers)
        self.whole = True  # the body is kept
        self.pending = pending  # ranks of a gathering that have not answered

    @property
    def gap(self) -> tuple[str, str, CastSubtree]:
        """Returns what its receivers are told to skip if it is lost."""
        return self.cast.sender, self.cast.to, self.part

    def drop_body(self) -> None:
        self.whole, self.size, self.body, self.buffers = False, 0, b"", ()


class Downstream:
    """An agent we pass on to, and what is kept for it."""

    __slots__ = ("bodies", "given_up", "host", "kept", "last", "last_plan", "loose", "registered", "size", "skips")

    def __init__(self, host: str) -> None:
        self.host = host
        self.last = 0
        self.last_plan = 0
        self.registered: OrderedDict[CastSubtree, int] = OrderedDict()
        self.kept: dict[int, InFlight] = {}
        self.loose: dict[int, InFlight] = {}  # those without a gathering
        self.bodies: dict[int, InFlight] = {}  # those whose body takes memory
        self.size = 0
        self.skips = 0  # of those
        self.given_up: OrderedDict[tuple[str, str, CastSubtree], Gap] = OrderedDict()  # (sender, mesh, part)

    def keep(self, in_flight: InFlight) -> None:
        number = in_flight.cast.number
        self.kept[number] = in_flight
        if isinstance(in_flight.owner, UnacknowledgedCast):
            self.loose[number] = in_flight
            self.skips += in_flight.cast.skip
        elif in_flight.size > BODY_KEPT:
            in_flight.drop_body()
        if in_flight.size:
            self.bodies[number] = in_flight
            self.size += in_flight.size

    def release(self, in_flight: InFlight) -> None:
        number = in_flight.cast.number
        if self.kept.pop(number, None) is not None:
            if self.loose.pop(number, None) is not None:
                self.skips -= in_flight.cast.skip
            if self.bodies.pop(number, None) is not None:
                self.size -= in_flight.size

    def give_up(self, in_flight: InFlight, unacknowledged: UnacknowledgedCast) -> None:
        """Over a bound: should this child's host end, the receivers below it are told of a gap."""
        self.release(in_flight)
        upstream = unacknowledged.upstream if unacknowledged.number else None
        gap = self.given_up.get(in_flight.gap)
        if gap is not None:
            gap.add(unacknowledged.number, in_flight.cast.number)
            self.given_up.move_to_end(in_flight.gap)
            return
        gap = self.given_up[in_flight.gap] = Gap(upstream, unacknowledged.number, in_flight.cast.number)
        if upstream is not None:
            upstream.gaps[gap] = None
        if len(self.given_up) > GIVEN_UP:
            self.given_up.popitem(last=False)[1].close()

    def drop_body(self, in_flight: InFlight) -> None:
        """Over a bound: should this child's host end, the call fails."""
        del self.bodies[in_flight.cast.number]
        self.size -= in_flight.size
        in_flight.drop_body()


# A plan's hosts stand in one order. The agent at the root cuts the list (but for its own host, where that is the first) into
# at most `width` contiguous parts of nearly equal size; the first host of each is a child, which does the same with the rest
# of its part. So what is below a host follows from the list alone: the host that takes a dead one's place cuts as it did.
def split(count: int, width: int) -> list[range]:
    """Divides `count` places into at most `width` contiguous parts, none empty, whose sizes differ by one at most,
    larger first.

    ValueError when `width` is below 1.
    """
    if width < 1:
        raise ValueError(f"a tree's width is at least 1, got {width} (setting max_cast_fanout)")
    parts = min(count, width)
    if not parts:
        return []
    size, larger = divmod(count, parts)
    starts = [part * size + min(part, larger) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]
