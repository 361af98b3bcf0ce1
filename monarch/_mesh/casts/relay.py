"""One agent's part in casts over a tree of agents, and in the answers that come up it. Pure: events in, effects out.

    sender ──► agent of its host (the root) ──► at most `width` agents ──► ... and each to the receivers of its own host

Each method is an event and takes the time as `now`, in seconds; it returns what is to be done, in that order. Upstream is
where a plan or cast came from: the connection of a process of this host, or the prefix of another agent's host. The shape
is that of `tree`: what is below a host in a plan never changes, only who is above it.

Rules:
1. Nothing is reordered: what comes on one path goes on in the same order on each path below.
2. Casts that want their answers up the tree are gatherings, known by (process that holds the port, port), the same at every
   agent. One gives each answer once, when all below have answered or `gather` seconds after the first it holds; the root
   passes on at once what came together.
3. When the host of a child ends, its part without it is adopted: cut as the child had cut it, and what it had not answered
   or confirmed is sent to the grandchildren, marked `again`. Who knows the gathering gives its answers once more, to the new
   parent; receivers drop what they have had by its number (`ordering.Reorder`).
4. A child that cannot reach a host below it says so to the one above (HostUnreachable), which serves that host itself if it
   can: two hosts may be parted that both live.
5. Casts without a gathering are confirmed by each child once they are through to all below it, and kept until then.
6. Answers of a cast with `combine` are all waited for; a process of this host then folds those of neighbouring ranks into one
   (Merge), at every agent but the root.
7. Whose process or host has ended counts as done (`gone`); the caller is told of such ends by others.

Over 600 lines because it is one state machine: each rule above reaches from what comes down to what goes up.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from monarch._mesh.casts import answer_cache as kept
from monarch._mesh.casts import relay_state
from monarch._mesh.casts.answer_cache import AnswerCache, Key, Record
from monarch._mesh.casts.machine import Arm, Disarm, Machine, event
from monarch._mesh.casts.relay_state import (
    CastSubtree,
    Downstream,
    Gathering,
    InFlight,
    Merging,
    RegisteredPlan,
    UnacknowledgedCast,
    Upstream,
    UpstreamKey,
)
from monarch._runtime.ordering import cut, expand
from monarch._wire.address import name_of
from monarch._wire.frame import Buffer
from monarch._wire.message import (
    FAILED,
    MERGED,
    Answer,
    Answers,
    Call,
    CancelGather,
    Cast,
    CastPlan,
    Combine,
    Combined,
    Delivered,
    Failure,
    ForgetPlan,
    HostUnreachable,
    PlanUnknown,
    Skip,
    encode,
)

# Bounds, and what happens beyond them.
# Plans of one upstream, and ours at one child: the least recently used is forgotten, and registered anew when it is needed.
PLANS_KEPT = 4096
GATHERINGS = 65_536  # further calls are delivered, and answered with a Failure
# Of one gathering's answers, held to travel together: then they go (of a reduction: all of its part).
HELD_BYTES = 1024 * 1024
# Casts without a gathering, and bytes of bodies, kept for one child until it has confirmed them. Of what is given up then the
# receivers are told when the child's host ends (Skip), and a call without its body fails.
KEPT_CASTS = 1000
KEPT_BYTES = 16 * 1024 * 1024
ENDED = 1000  # children remembered that count as ended
PATIENCE = 300.0  # seconds that an agent waits for the agent that takes the place of its parent whose host has ended

MANY = 8  # answers that came together, from which on the root does not look at each
CONFIRM_CASTS = 64  # confirmed together at the latest
CONFIRM_DELAY = 0.05  # seconds


class Deliver(NamedTuple):
    """Hand it to the process of this host, as a message of `source`. If that process has ended, call `process_ended`."""

    address: str
    message: Call | Skip
    body: Buffer
    buffers: Sequence[Buffer]
    source: str
    target_incarnation: int = -1  # the incarnation of the process; -1: any


class Forward(NamedTuple):
    """A message to the agent of that host. If the host has ended or cannot be reached, call `host_ended`, then or
    later."""

    host: str
    message: CastPlan | ForgetPlan | Cast | CancelGather
    body: Buffer = b""
    buffers: Sequence[Buffer] = ()


class Reply(NamedTuple):
    """A message to the sender of the cast, which may be gone."""

    upstream: UpstreamKey
    message: Answers | Delivered | PlanUnknown | HostUnreachable
    body: Buffer = b""
    buffers: Sequence[Buffer] = ()


class DirectReply(NamedTuple):
    """No gathering wants this answer: send it to the process at `address` as any other message."""

    address: str
    message: Answer
    body: Buffer
    buffers: Sequence[Buffer]


class Merge(NamedTuple):
    """Hand it to the process of this host, which answers with `combined`. If it has ended, call `process_ended`."""

    address: str
    message: Combine
    body: Buffer
    buffers: Sequence[Buffer]


Effect: TypeAlias = Deliver | Forward | Reply | DirectReply | Merge | Arm | Disarm


class Counts(NamedTuple):
    """The number of everything there is. All but `finished` are 0 when nothing is under way and no plan is registered."""

    plans: int  # of upstreams
    registered: int  # at children
    gatherings: int
    unconfirmed: int  # casts of upstreams
    kept: int  # for children
    kept_bytes: int
    given_up: int
    timers: int
    finished: int  # gatherings whose answers are remembered


class Casts(Machine):
    """See the module. `patience`: longer than it takes any two agents to agree that a host has ended."""

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__()
        self._patience = patience
        self._upstreams: dict[UpstreamKey, Upstream] = {}
        self._children: dict[str, Downstream] = {}  # one a host, until that ends: its numbers go on
        self._apart: dict[str, set[str]] = {}  # by child: hosts below it that it cannot reach
        self._ended: OrderedDict[str, None] = OrderedDict()  # children that count as ended
        self._gatherings: dict[Key, Gathering] = {}
        self._memory = AnswerCache()

    def counts(self) -> Counts:
        children = self._children.values()
        return Counts(
            plans=sum(len(upstream.plans) for upstream in self._upstreams.values()),
            registered=sum(len(child.registered) for child in children),
            gatherings=len(self._gatherings),
            unconfirmed=sum(len(upstream.open) for upstream in self._upstreams.values()),
            kept=sum(len(child.kept) for child in children),
            kept_bytes=sum(child.size for child in children),
            given_up=sum(len(child.given_up) for child in children),
            timers=len(self._armed),
            finished=len(self._memory.done),
        )

    # --- events: from above

    @event
    def plan(self, upstream_key: UpstreamKey, plan: CastPlan) -> None:
        """A plan was registered; in place of one with its number."""
        upstream = self._upstream(upstream_key)
        before = upstream.plans.pop(plan.number, None)
        if before is not None:
            self._forget(before)
        upstream.plans[plan.number] = RegisteredPlan(plan)
        if len(upstream.plans) > PLANS_KEPT:
            self._forget(upstream.plans.popitem(last=False)[1])

    @event
    def forget(self, upstream_key: UpstreamKey, forget: ForgetPlan) -> None:
        """No more casts name that plan."""
        upstream = self._upstreams.get(upstream_key)
        plan = upstream.plans.pop(forget.number, None) if upstream is not None else None
        if plan is not None:
            self._forget(plan)

    @event
    def cast(self, upstream_key: UpstreamKey, cast: Cast, body: Buffer, buffers: Sequence[Buffer] = ()) -> None:
        """A cast came down: it is delivered here and passed on."""
        upstream = self._upstream(upstream_key)
        upstream.is_agent = upstream.is_agent or cast.number > 0
        plan = upstream.plans.get(cast.plan)
        if plan is None:
            self._effects.append(Reply(upstream_key, PlanUnknown(cast), body, buffers))
        elif not self._gather(upstream, plan, cast, body, buffers):
            self._distribute(upstream, plan, cast, body, buffers)

    @event
    def unwanted(self, upstream_key: UpstreamKey, unwanted: CancelGather) -> None:
        """Nobody waits for a gathering's answers any more; those that come still are dropped by the caller's process."""
        gathering = self._gatherings.get((unwanted.back, unwanted.port))
        if gathering is not None:
            gathering.upstreams = [upstream for upstream in gathering.upstreams if upstream.key != upstream_key]
            if not gathering.upstreams:
                self._abandon(gathering)

    @event
    def upstream_gone(self, upstream_key: UpstreamKey) -> None:
        """The connection of a process of this host is lost, and with it all that wait for answers there."""
        self._upstream_gone(self._now, upstream_key)

    # --- events: from processes of this host

    def gathers(self, back: str, port: int) -> bool:
        """True if answers to that port of the process at `back` go up the tree."""
        return (back, port) in self._gatherings

    @event
    def answer(self, back: str, answer: Answer, body: Buffer, buffers: Sequence[Buffer] = ()) -> None:
        """A process of this host has answered, to a port of the process at `back`. A gathering takes one answer a rank."""
        key = back, answer.port
        gathering = self._gatherings.get(key)
        if gathering is None:
            if key not in self._memory.done:
                self._effects.append(DirectReply(back, answer, body, buffers))
        elif gathering.mine.pop(answer.rank, None) is not None:
            self._hold(gathering, Record(answer.rank, answer.kind, body, buffers))
            self._finish_if_answered(gathering)

    @event
    def process_ended(self, address: str) -> None:
        """A process of this host has ended; what it has not answered it never will."""
        name = name_of(address)
        for gathering in list(self._gatherings.values()):
            ranks = [rank for rank, there in gathering.mine.items() if there == name]
            for rank in ranks:
                del gathering.mine[rank]
            if ranks:
                gathering.gone += ranks
                self._finish_if_answered(gathering)
            if gathering.merging is not None and gathering.merging.ended(address):
                gathering.held = gathering.merging.unfolded()
                gathering.merging.groups = []
                self._finish_if_answered(gathering)

    @event
    def combined(self, address: str, combined: Combined, body: Buffer, buffers: Sequence[Buffer] = ()) -> None:
        """A process of this host has folded a group of answers."""
        gathering = self._gatherings.get((combined.back, combined.port))
        merging = gathering.merging if gathering is not None else None
        if gathering is None or merging is None or not merging.groups or merging.helpers[0] != address:
            return
        if merging.take(combined.group, combined.kind, body, buffers):
            gathering.held = merging.result()
            self._finish(gathering)

    # --- events: from below

    @event
    def answers(self, host: str, answers: Answers, body: Buffer, buffers: Sequence[Buffer] = ()) -> None:
        """Answers came up from a child."""
        gathering = self._gatherings.get((answers.back, answers.port))
        if gathering is None:
            return
        known = [in_flight for in_flight in gathering.in_flight.values() if in_flight.part.host == host]
        if not known:
            return
        pending = known[0].pending if len(known) == 1 else set().union(*(in_flight.pending for in_flight in known))
        if gathering.root and len(answers.ranks) >= MANY and pending.issuperset(answers.ranks):
            # As they came: to look at each would be the most work of all, for the agent at the end of every way up.
            pending.difference_update(answers.ranks)
            as_they_came = msgspec.structs.replace(answers, gone=[]) if answers.gone else answers
            self._effects += [Reply(upstream.key, as_they_came, body, buffers) for upstream in gathering.upstreams]
        else:
            for record in _records(answers, body, buffers):
                if record.rank in pending:
                    pending.difference_update(record.ranks)
                    self._hold(gathering, record)
        for rank in answers.gone:
            if rank in pending:
                pending.remove(rank)
                gathering.gone.append(rank)
        for in_flight in known:
            in_flight.pending &= pending
            if not in_flight.pending:
                del gathering.in_flight[in_flight.part]
                self._children[host].release(in_flight)
        self._finish_if_answered(gathering)

    @event
    def delivered(self, host: str, delivered: Delivered) -> None:
        """A child confirms what is through to all below it."""
        child = self._children.get(host)
        if child is not None:
            while child.loose and next(iter(child.loose)) <= delivered.number:
                in_flight = next(iter(child.loose.values()))
                child.release(in_flight)
                self._left(in_flight)
            for what, gap in list(child.given_up.items()):
                if gap.confirmed(delivered.number):
                    del child.given_up[what]
                    gap.close()
                if gap.upstream is not None:
                    self._progress(gap.upstream)

    @event
    def plan_unknown(self, host: str, unknown: PlanUnknown, body: Buffer, buffers: Sequence[Buffer] = ()) -> None:
        """A child lacks the plan of a cast, which it sent back: it is registered, and the cast sent once more."""
        child = self._children.get(host)
        in_flight = child.kept.get(unknown.cast.number) if child is not None else None
        if child is not None and in_flight is not None:
            child.release(in_flight)
            if child.registered.get(in_flight.part) == unknown.cast.plan:
                del child.registered[in_flight.part]
            self._pass(in_flight.owner, in_flight.part, in_flight.cast, body, buffers, in_flight.pending)
            self._left(in_flight)

    @event
    def host_ended(self, host: str) -> None:
        """Takes the word that a host has ended, or cannot be reached any more, which is the same. Harmless when it is
        told again."""
        self._upstream_gone(self._now, host)
        child = self._children.pop(host, None)
        self._apart.pop(host, None)
        for hosts in self._apart.values():
            hosts.discard(host)
        if child is not None:
            self._ended[host] = None
            if len(self._ended) > ENDED:
                self._ended.popitem(last=False)
            for upstream in self._upstreams.values():  # before its ranks are said to be gone: perhaps they can reach it
                if upstream.is_agent:
                    self._effects.append(Reply(upstream.key, HostUnreachable(host)))
            skips = []
            for what, gap in child.given_up.items():
                unacknowledged = UnacknowledgedCast(None, 0)
                unacknowledged.gap = gap
                skips.append((what, unacknowledged))
            for in_flight in list(child.kept.values()):
                lost = self._adopt(child, in_flight)
                if lost is not None:
                    skips.append((in_flight.gap, lost))
            for (
                what,
                unacknowledged,
            ) in skips:  # last: receivers handle what is sent to them again before they skip anything
                self._skip(*what, unacknowledged)

    @event
    def host_replaced(self, host: str) -> None:
        """Another host goes by the name of one that has ended: agents that could not reach that one may reach this."""
        self._ended.pop(host, None)
        for hosts in self._apart.values():
            hosts.discard(host)

    @event
    def unreached(self, host: str, unreached: HostUnreachable) -> None:
        """A child cannot reach a host below it: from now on we serve that ourselves, if we can."""
        child, lost = self._children.get(host), unreached.host
        if child is None or lost == host:
            return
        if any(lost in part.names for part in child.registered):
            self._apart.setdefault(host, set()).add(lost)
        for in_flight in list(child.kept.values()):
            if lost in in_flight.part.names:
                self._go_round(child, in_flight, lost)
        for (sender, to, part), _gap in list(child.given_up.items()):
            if lost in part.names:
                self._skip_alone(sender, to, part.solo(lost), host, UnacknowledgedCast(None, 0))

    # --- timers

    @event
    def fired(self, key: tuple[Any, ...]) -> None:
        """A timer that was armed has run out."""
        self._armed.discard(key)
        if key[0] == "hold":
            gathering = self._gatherings.get(key[1:])
            if gathering is not None:
                gathering.armed = False
                self._flush(gathering)
        elif key[0] == "confirm":
            upstream = self._upstreams.get(key[1])
            if upstream is not None:
                self._confirm(upstream)
        else:
            self._give_up_orphans(self._now)

    # --- down: a cast

    def _gather(
        self, upstream: Upstream, plan: RegisteredPlan, cast: Cast, body: Buffer, buffers: Sequence[Buffer]
    ) -> bool:
        """False when its answers do not come up the tree."""
        if cast.gather < 0 or cast.skip or not cast.port:
            return False
        key = cast.back or cast.source, cast.port
        if self._is_repeat(upstream, plan, key, cast):
            return True
        if len(self._gatherings) >= GATHERINGS:
            ranks = [rank for _, rank in plan.here] + [rank for part in plan.parts for rank in sorted(part.ranks)]
            self._send(upstream, key, [_too_many(rank, cast.method) for rank in ranks], ())
            return False
        gathering = self._gatherings[key] = Gathering(upstream, key, cast)
        self._deliver(plan, cast, body, buffers)
        if cast.again and self._memory.may_have_answered(key):
            # Those who answered then drop the call, which is a repeat, and say nothing.
            self._fail(gathering, [rank for _, rank in plan.here], cast.again)
        else:
            gathering.mine = {rank: name for name, rank in plan.here}
        if gathering.combine:
            gathering.merging = Merging([f"{plan.prefix}/{name}" for name, _ in plan.here])
        for part in plan.parts:
            self._pass_part(gathering, part, _cut_cast(cast, part), body, buffers, set(part.ranks))
        self._finish_if_answered(gathering)
        return True

    def _is_repeat(self, upstream: Upstream, plan: RegisteredPlan, key: Key, cast: Cast) -> bool:
        """True if the cast is known here. Its sender has taken another's place, and is given what that one was."""
        gathering = self._gatherings.get(key)
        given = gathering.given if gathering is not None else self._memory.done.get(key)
        if given is None:
            return False
        if not given.same(cast):  # another process at the address of one that has ended
            if gathering is not None:
                self._abandon(gathering)
            self._memory.forget(given)
            return False
        if gathering is None:
            self._memory.used(given)
        elif upstream not in gathering.upstreams:
            gathering.upstreams.append(upstream)
        for host in [host for part in plan.parts for host in part.names if host in self._ended]:
            self._effects.append(Reply(upstream.key, HostUnreachable(host)))
        failed = [_lost(rank, cast.again) for rank in given.lost]
        self._send(upstream, key, [*given.records, *failed], given.gone)
        return True

    def _distribute(
        self, upstream: Upstream, plan: RegisteredPlan, cast: Cast, body: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        """Distributes a cast without a gathering."""
        if cast.gather >= 0:
            cast = msgspec.structs.replace(cast, gather=-1.0)
        if cast.number:
            upstream.last = cast.number
            upstream.open[cast.number] = None
        unacknowledged = UnacknowledgedCast(upstream, cast.number)
        self._deliver(plan, cast, body, buffers)
        for part in plan.parts:
            self._pass_part(unacknowledged, part, _cut_cast(cast, part), body, buffers, set())
        self._passed(unacknowledged)

    def _deliver(self, plan: RegisteredPlan, cast: Cast, body: Buffer, buffers: Sequence[Buffer]) -> None:
        count = len(plan.here)
        seqs = expand(cut(cast.seqs, 0, count), count)
        incarnations = expand(cut(cast.incarnations, 0, count), count)
        target_incarnation = expand(cut(cast.target_incarnation, 0, count), count)
        back = cast.back or cast.source
        message: Call | Skip
        for (name, rank), seq, incarnation, process in zip(
            plan.here, seqs, incarnations, target_incarnation, strict=True
        ):
            if cast.skip:
                message = Skip(cast.to, cast.sender)
            else:
                message = Call(
                    cast.to, cast.sender, seq, cast.method, cast.port, back, rank, cast.view, cast.adverb, incarnation
                )
            self._effects.append(Deliver(f"{plan.prefix}/{name}", message, body, buffers, cast.source, process))

    def _pass_part(
        self,
        owner: Gathering | UnacknowledgedCast,
        part: CastSubtree,
        cast: Cast,
        body: Buffer,
        buffers: Sequence[Buffer],
        pending: set[int],
    ) -> None:
        """Passes a cast to a child, and to those below it that it cannot reach."""
        apart = self._apart.get(part.host)
        alone = [part.solo(host) for host in sorted(apart & part.names)] if apart else []
        for solo in alone:
            pending -= solo.ranks
        self._pass(owner, part, cast, body, buffers, pending)
        for solo in alone:
            ranks = set(solo.ranks) if isinstance(owner, Gathering) else set()
            self._pass(owner, solo, _cut_cast(cast, solo), body, buffers, ranks)

    def _pass(
        self,
        owner: Gathering | UnacknowledgedCast,
        part: CastSubtree,
        cast: Cast,
        body: Buffer,
        buffers: Sequence[Buffer],
        pending: set[int],
    ) -> None:
        """Passes a cast to a child, which may be new. `cast` has the numbers of the part's positions."""
        child = self._children.get(part.host)
        if child is None:
            child = self._children[part.host] = Downstream(part.host)
            self._ended.pop(part.host, None)
        number = self._register(child, part)
        child.last += 1
        cast = msgspec.structs.replace(cast, plan=number, number=child.last)
        in_flight = InFlight(owner, part, cast, body, buffers, pending)
        if isinstance(owner, UnacknowledgedCast):
            owner.in_flight += 1
        else:
            owner.in_flight[part] = in_flight
        self._effects.append(Forward(part.host, cast, body, buffers))
        if part.plan.forgotten:
            self._unregister(part)
        child.keep(in_flight)
        while len(child.loose) - child.skips > KEPT_CASTS:
            self._give_up(child, next(old for old in child.loose.values() if not old.cast.skip))
        while child.size > KEPT_BYTES:
            self._give_up(child, next(iter(child.bodies.values())))

    def _give_up(self, child: Downstream, in_flight: InFlight) -> None:
        if isinstance(in_flight.owner, UnacknowledgedCast):
            child.give_up(in_flight, in_flight.owner)
            self._left(in_flight)
        else:
            child.drop_body(in_flight)

    def _left(self, in_flight: InFlight) -> None:
        """A cast to a child is through, was given up, or others took its place."""
        if isinstance(in_flight.owner, UnacknowledgedCast):
            self._passed(in_flight.owner)

    def _passed(self, unacknowledged: UnacknowledgedCast) -> None:
        unacknowledged.in_flight -= 1
        if unacknowledged.in_flight:
            return
        if unacknowledged.lost is not None:
            self._lose(*unacknowledged.lost)
        gap, upstream = unacknowledged.gap, unacknowledged.upstream
        if gap is not None:
            gap.close()
            upstream = gap.upstream
        if unacknowledged.number and upstream is not None:
            del upstream.open[unacknowledged.number]
        if upstream is not None:
            self._progress(upstream)

    def _progress(self, upstream: Upstream) -> None:
        """More of its casts may be through."""
        done = upstream.through() - upstream.confirmed if upstream.there else 0
        if done >= CONFIRM_CASTS:
            self._confirm(upstream)
        elif done > 0 and ("confirm", upstream.key) not in self._armed:
            self._arm_once(("confirm", upstream.key), CONFIRM_DELAY)

    def _confirm(self, upstream: Upstream) -> None:
        self._disarm(("confirm", upstream.key))
        through = upstream.through()
        if through > upstream.confirmed:
            upstream.confirmed = through
            self._effects.append(Reply(upstream.key, Delivered(through)))

    # --- down: plans

    def _register(self, child: Downstream, part: CastSubtree) -> int:
        number = child.registered.get(part)
        if number is not None:
            child.registered.move_to_end(part)
            return number
        if len(child.registered) >= PLANS_KEPT:
            self._effects.append(Forward(child.host, ForgetPlan(child.registered.popitem(last=False)[1])))
        child.last_plan += 1
        child.registered[part] = child.last_plan
        plan = CastPlan(child.last_plan, part.plan.width, True, list(part.hosts))
        self._effects.append(Forward(child.host, plan))
        return child.last_plan

    def _unregister(self, part: CastSubtree) -> None:
        child = self._children.get(part.host)
        number = child.registered.pop(part, None) if child is not None else None
        if number is not None:
            self._effects.append(Forward(part.host, ForgetPlan(number)))

    def _forget(self, plan: RegisteredPlan) -> None:
        plan.forgotten = True
        for top in plan.parts:
            for part in top.known():
                self._unregister(part)

    # --- up: answers

    def _hold(self, gathering: Gathering, record: Record) -> None:
        if gathering.merging is not None:  # all are waited for: see `_merge`
            gathering.held.append(record)
            return
        if record.alone:
            self._give(gathering, [record], [])
            return
        gathering.held.append(record)
        gathering.held_size += len(record.body)
        if gathering.held_size > HELD_BYTES:
            self._flush(gathering)

    def _finish_if_answered(self, gathering: Gathering) -> None:
        """After answers came, or ends of those who would have answered."""
        if not gathering.mine and not gathering.in_flight and not gathering.skips:
            if gathering.merging is None or not self._merge(gathering, gathering.merging):
                self._finish(gathering)
        elif not gathering.armed and gathering.merging is None and (gathering.held or gathering.gone):
            gathering.armed = True
            self._arm_once(gathering.timer, gathering.hold)

    def _merge(self, gathering: Gathering, merging: Merging) -> bool:
        """All have answered: neighbours are folded into one. False when there is nothing to fold, or nobody to do it."""
        if merging.groups:
            return True  # at it
        if not merging.helpers or not merging.sort(gathering.held):
            return False
        merging.done = {}
        records = [record for group in merging.groups for record in group]
        message = Combine(
            *gathering.key,
            gathering.combine,
            [len(group) for group in merging.groups],
            [len(record.body) for record in records],
            [len(record.buffers) for record in records],
        )
        buffers = [buffer for record in records for buffer in record.buffers]
        body = b"".join(record.body for record in records)
        self._effects.append(Merge(merging.helpers[0], message, body, buffers))
        return True

    def _finish(self, gathering: Gathering) -> None:
        self._flush(gathering)
        self._end(gathering)
        if not gathering.root:
            self._memory.finish(gathering.given)

    def _flush(self, gathering: Gathering) -> None:
        records, gone = gathering.held, gathering.gone
        gathering.held, gathering.held_size, gathering.gone = [], 0, []
        if records or gone:
            self._give(gathering, records, gone)

    def _give(self, gathering: Gathering, records: list[Record], gone: list[int]) -> None:
        for upstream in gathering.upstreams:
            self._send(upstream, gathering.key, records, () if gathering.root else gone)
        if not gathering.root:
            self._memory.add(gathering.given, records, gone)

    def _send(self, upstream: Upstream, key: Key, records: Sequence[Record], gone: Sequence[int]) -> None:
        """Sends as few messages as may be."""
        together: list[Record] = []
        size = 0
        for record in records:
            if record.alone:
                self._send_together(upstream, key, [record])
                continue
            if size > HELD_BYTES:
                self._send_together(upstream, key, together)
                together, size = [], 0
            together.append(record)
            size += len(record.body)
        if together or gone:
            self._send_together(upstream, key, together, gone)

    def _send_together(self, upstream: Upstream, key: Key, records: Sequence[Record], gone: Sequence[int] = ()) -> None:
        ranks: list[int] = []
        kinds: list[int] = []
        sizes: list[int] = []
        for record in records:
            ranks += record.ranks
            kinds += [record.kind, *[MERGED] * (record.span - 1)]
            sizes += [len(record.body), *[0] * (record.span - 1)]
        answers = Answers(*key, ranks, kinds, sizes, list(gone))
        body = records[0].body if len(records) == 1 else b"".join(record.body for record in records)
        self._effects.append(Reply(upstream.key, answers, body, records[0].buffers if len(records) == 1 else ()))

    def _fail(self, gathering: Gathering, ranks: Iterable[int], host: str) -> None:
        for rank in ranks:
            self._hold(gathering, _lost(rank, host))

    # --- ends

    def _end(self, gathering: Gathering) -> None:
        del self._gatherings[gathering.key]
        self._disarm(gathering.timer)

    def _abandon(self, gathering: Gathering) -> None:
        """Its answers are not wanted any more, here and below."""
        self._end(gathering)
        self._memory.forget(gathering.given)
        for part, in_flight in gathering.in_flight.items():
            self._children[part.host].release(in_flight)
        for host in {part.host: None for part in gathering.in_flight}:
            self._effects.append(Forward(host, CancelGather(*gathering.key)))

    def _adopt(self, child: Downstream, in_flight: InFlight) -> UnacknowledgedCast | None:
        """The host of a cast's child has ended: its own children are ours now. When the cast is lost to them, that of
        the message that they are to skip it."""
        owner, part = in_flight.owner, in_flight.part
        again = msgspec.structs.replace(in_flight.cast, again=child.host)
        if isinstance(owner, UnacknowledgedCast):
            for below in part.below():
                self._pass_part(owner, below, _cut_cast(again, below), in_flight.body, in_flight.buffers, set())
            self._left(in_flight)
            return None
        del owner.in_flight[part]
        gone = in_flight.pending.intersection(part.hosts[0].indices)
        owner.gone += sorted(gone)
        in_flight.pending -= gone
        lost = None if in_flight.whole else self._fail_branch(owner, in_flight)
        for below in part.below():
            pending = in_flight.pending & below.ranks
            if pending:
                self._pass(owner, below, _cut_cast(again, below), in_flight.body, in_flight.buffers, pending)
        self._finish_if_answered(owner)
        return lost

    def _go_round(self, child: Downstream, in_flight: InFlight, lost: str) -> None:
        """A host below a child is served without it."""
        owner, solo = in_flight.owner, in_flight.part.solo(lost)
        cast = _cut_cast(msgspec.structs.replace(in_flight.cast, again=child.host), solo)
        if isinstance(owner, UnacknowledgedCast):
            self._pass(owner, solo, cast, in_flight.body, in_flight.buffers, set())
            return
        pending = in_flight.pending & solo.ranks
        in_flight.pending -= pending
        if pending and in_flight.whole:
            self._pass(owner, solo, cast, in_flight.body, in_flight.buffers, pending)
        elif pending:
            lost_call = self._losing(owner, in_flight, pending)
            self._skip_alone(in_flight.cast.sender, in_flight.cast.to, solo, child.host, lost_call)
        if not in_flight.pending:
            del owner.in_flight[in_flight.part]
            child.release(in_flight)
        self._finish_if_answered(owner)

    def _skip_alone(
        self, sender: str, to: str, solo: CastSubtree, around: str, unacknowledged: UnacknowledgedCast
    ) -> None:
        """Tells the receivers on one host of a gap."""
        skip = Cast(0, 0, "", to, sender, "", 0, "", b"", 0, 0, 0, skip=True, again=around)
        self._pass(unacknowledged, solo, skip, b"", (), set())
        self._passed(unacknowledged)

    def _fail_branch(self, gathering: Gathering, in_flight: InFlight) -> UnacknowledgedCast:
        """It cannot be sent again: those below that have not had it never will. They are told to skip it before it fails, for
        should we end meanwhile, the one above us has to do all this again."""
        pending, in_flight.pending = in_flight.pending, set()
        for below in in_flight.part.below():
            if pending & below.ranks:
                self._effects.append(Forward(below.host, CancelGather(*gathering.key)))
        return self._losing(gathering, in_flight, pending)

    def _losing(self, gathering: Gathering, in_flight: InFlight, pending: set[int]) -> UnacknowledgedCast:
        """Returns the receivers, of those who are to skip a call that cannot be sent again, and for whom it fails then."""
        body = encode(
            Failure(
                f"the call of {in_flight.cast.method}() was lost on its way through host {in_flight.part.host}, which "
                f"cannot pass it on any more; its arguments were not kept to be sent again (limits: "
                f"{relay_state.BODY_KEPT} bytes a call, "
                f"{KEPT_BYTES} a host). It may have run or not: call again if that does no harm"
            )
        )
        gathering.skips += 1
        unacknowledged = UnacknowledgedCast(None, 0)
        unacknowledged.lost = gathering, [Record(rank, FAILED, body, ()) for rank in sorted(pending)]
        return unacknowledged

    def _lose(self, gathering: Gathering, records: list[Record]) -> None:
        gathering.skips -= 1
        if self._gatherings.get(gathering.key) is gathering:
            for record in records:
                self._hold(gathering, record)
            self._finish_if_answered(gathering)

    def _skip(self, sender: str, to: str, part: CastSubtree, unacknowledged: UnacknowledgedCast) -> None:
        """Tells the receivers below a host that has ended of a gap."""
        skip = Cast(0, 0, "", to, sender, "", 0, "", b"", 0, 0, 0, skip=True, again=part.host)
        for below in part.below():
            self._pass_part(unacknowledged, below, skip, b"", (), set())
        self._passed(unacknowledged)

    def _upstream_gone(self, now: float, upstream_key: UpstreamKey) -> None:
        upstream = self._upstreams.pop(upstream_key, None)
        if upstream is None:
            return
        upstream.there = False
        self._disarm(("confirm", upstream_key))
        for plan in upstream.plans.values():
            self._forget(plan)
        for gathering in [known for known in self._gatherings.values() if upstream in known.upstreams]:
            gathering.upstreams.remove(upstream)
            if gathering.root:
                self._abandon(gathering)
            elif not gathering.upstreams:
                gathering.orphaned = now
                self._arm_once(("orphans",), self._patience)

    def _give_up_orphans(self, now: float) -> None:
        """Nobody has taken the parent's place: it was all the way up that hosts ended, or the caller itself."""
        orphans = [known for known in self._gatherings.values() if not known.upstreams]
        for gathering in orphans:
            if now - gathering.orphaned >= self._patience:
                self._abandon(gathering)
        left = [known.orphaned for known in orphans if known.key in self._gatherings]
        if left:
            self._arm_once(("orphans",), max(0.0, min(left) + self._patience - now))

    # --- parts

    def _upstream(self, key: UpstreamKey) -> Upstream:
        upstream = self._upstreams.get(key)
        if upstream is None:
            upstream = self._upstreams[key] = Upstream(key)
        return upstream


def _cut_cast(cast: Cast, part: CastSubtree) -> Cast:
    """The cast with the numbers of the part's positions."""
    if type(cast.seqs) is int and type(cast.incarnations) is int and type(cast.target_incarnation) is int:
        return cast
    return msgspec.structs.replace(
        cast,
        seqs=cut(cast.seqs, part.start, part.stop),
        incarnations=cut(cast.incarnations, part.start, part.stop),
        target_incarnation=cut(cast.target_incarnation, part.start, part.stop),
    )


def _records(answers: Answers, body: Buffer, buffers: Sequence[Buffer]) -> Iterable[Record]:
    merged = answers.kinds.count(MERGED)
    if len(answers.ranks) - merged == 1:
        yield Record(answers.ranks[0], answers.kinds[0], body, buffers, 1 + merged)
        return
    view = memoryview(body)
    firsts = [at for at, kind in enumerate(answers.kinds) if kind != MERGED] if merged else range(len(answers.ranks))
    start = 0
    for at, after in itertools.zip_longest(firsts, firsts[1:], fillvalue=len(answers.ranks)):
        size = answers.sizes[at]
        # A view would keep the others' bodies alive.
        yield Record(answers.ranks[at], answers.kinds[at], bytes(view[start : start + size]), (), after - at)
        start += size


def _lost(rank: int, host: str) -> Record:
    report = (
        f"the answer was lost with host {host}, which has ended: the call may have run, and its answer is not kept any more "
        f"below that host (limits: {kept.GIVEN_GATHERINGS} calls and {kept.GIVEN_BYTES} bytes, {kept.ANSWER_KEPT} an answer)"
    )
    return Record(rank, FAILED, encode(Failure(report)), ())


def _too_many(rank: int, method: str) -> Record:
    report = (
        f"more than {GATHERINGS} calls are under way through one host: the call of {method}() is made, and its answer is "
        f"dropped. Await some of the others first"
    )
    return Record(rank, FAILED, encode(Failure(report)), ())
