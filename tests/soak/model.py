"""Rules of what may happen, and what may not, over the history of a run. Pure.

Each rule is a generator of the ways in which a history breaks it; its docstring is the promise. The model does not foretell
what a program does, since threads and processes race; it says which outcomes are wrong whatever the race.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tests.soak.history import (
    NEVER,
    Actor,
    Born,
    Done,
    Ended,
    Fact,
    Handled,
    Heard,
    Over,
    Refused,
    Sent,
    Spawned,
    Struck,
    Told,
)
from tests.soak.program import ABORT, BROADCAST, CALL, CHOOSE, CLIENT, EXIT, FAIL, LEAVE, actor

F = TypeVar("F", bound=Fact)
K = TypeVar("K")

_REFUSALS = (  # what operations may be refused with, and restarts may end with
    "has already been stopped",
    "was stopped",
    "no simulated process lives at",
    "cannot be restarted, because its process",
    "cannot be restarted, its host",
    "constructed on purpose to fail",
    "restarted by its owner",
    "the connection to",
    "all its descendants have failed",
    "is being restarted",
    "ended before it was ready",
    "stopped:",
    "was restarted after this message was sent",
    "does not exist in the process at",
)


_ENDS = ("kill", "stop", "restart", "revive")  # what the client does to actors and processes by which they end


def broken_rules(facts: Sequence[Fact]) -> list[str]:
    """Every way in which a history breaks a rule, under the rule's promise."""
    known = Known(facts)
    return [f"{(rule.__doc__ or '').strip()}\n    but {how}" for rule in RULES for how in rule(known)]


def owed(facts: Sequence[Fact]) -> list[str]:
    """Actors of whose end the client is still to be told, or that their policy is still to restart."""
    known = Known(facts)
    return [actor(*who) for who in [*known.untold(), *known.not_restarted()]]


class Known:
    """A history, looked up."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.facts = facts
        self.spawned = {fact.mesh: fact for fact in self.all(Spawned)}
        self.sent = {(fact.sender, fact.number): fact for fact in self.all(Sent)}
        self.heard = _grouped(self.all(Heard), lambda fact: (fact.sender, fact.number))
        self.handled = _grouped(self.all(Handled), lambda fact: (fact.sender, fact.number, fact.actor))
        self.handled_by = _grouped(self.all(Handled), lambda fact: fact.actor)
        self.born = _grouped(self.all(Born), lambda fact: fact.actor)
        self.ended = _grouped(self.all(Ended), lambda fact: fact.actor)
        self.done = {id(fact.struck): fact.at for fact in self.all(Done)}
        self.over = next((fact.at for fact in self.all(Over)), len(facts))
        self.struck = [fact for fact in self.all(Struck) if fact.at < self.over]
        self.reports: dict[Actor, list[Told]] = defaultdict(list)
        for told in self.all(Told):
            for rank in told.ranks:
                self.reports[told.mesh, rank].append(told)

    def all(self, kind: type[F]) -> list[F]:
        return [fact for fact in self.facts if type(fact) is kind]

    def actors(self) -> Iterator[Actor]:
        for spawned in self.spawned.values():
            for rank in range(len(spawned.places)):
                yield spawned.mesh, rank

    def place(self, who: Actor) -> str:
        return self.spawned[who[0]].places[who[1]]

    def strikes(self, who: Actor, *kinds: str) -> list[Struck]:
        """Returns what the client did to an actor or its process."""
        place = self.place(who)
        return [
            struck
            for struck in self.struck
            if struck.what in kinds and (who in struck.actors or place in struck.places)
        ]

    def restarts(self, who: Actor) -> list[Struck]:
        return [struck for struck in self.strikes(who, "restart") if struck.actors]

    def cuts(self, one: str, other: str) -> list[Struck]:
        return [struck for struck in self.struck if struck.what == "cut" and {one, other} == set(struck.places)]

    # --- ends

    def is_deadly(self, handled: Handled) -> bool:
        """Returns whether the actor ended with that message."""
        return handled.method == LEAVE or self._is_failure(handled)

    def _is_failure(self, handled: Handled) -> bool:
        if handled.method == FAIL:
            return self.sent[handled.sender, handled.number].adverb == BROADCAST
        return handled.method in (ABORT, EXIT)

    def failures(self, who: Actor) -> list[tuple[int, int]]:
        """(life, place in the history) of each time that an actor failed by itself."""
        found = [(fact.life, fact.at) for fact in self.ended[who] if fact.failed]
        found += [(fact.life, fact.at) for fact in self.handled_by[who] if self._is_failure(fact)]
        return found + [(fact.life, fact.at) for fact in self.born[who] if who[1] in self.spawned[who[0]].broken]

    def killed_lives(self, who: Actor) -> list[int]:
        """The life that each kill of its process met."""
        kills = [struck for struck in self.strikes(who, "kill") if id(struck) in self.done]
        return [max((born.life for born in self.born[who] if born.at < kill.at), default=0) for kill in kills]

    def dead_lives(self, who: Actor) -> int:
        """Returns how many lives of an actor ended other than by being stopped, at most."""
        kills = self.killed_lives(who)
        unborn = len(kills) if self.strikes(who, "restart", "revive") or self.spawned[who[0]].group else 0
        return len({*kills, *(life for life, _ in self.failures(who))}) + unborn

    def untold(self) -> list[Actor]:
        """Actors of the client that have certainly failed, and of which it was not told."""
        return [who for who in self.actors() if self._has_certainly_failed(who) and not self.reports[who]]

    def _has_certainly_failed(self, who: Actor) -> bool:
        spawned = self.spawned[who[0]]
        if spawned.owner != CLIENT or spawned.group or self.strikes(who, "stop", "restart", "revive"):
            return False
        kills = [struck for struck in self.strikes(who, "kill") if id(struck) in self.done]
        if any(kill.at > spawned.at or not self._may_be_replaced(self.place(who)) for kill in kills):
            return True
        return any(at < self.over for _, at in self.failures(who))

    def not_restarted(self) -> list[Actor]:
        """Actors under a policy that have failed, and nothing came of it."""
        return [who for who in self.actors() if self.spawned[who[0]].group and self._waits_for_policy(who)]

    def _waits_for_policy(self, who: Actor) -> bool:
        family = self._family(who)
        if any(self.reports[other] or self.strikes(other, "stop", "restart", "revive") for other in family):
            return False
        dead = [*self.killed_lives(who), *(life for life, at in self.failures(who) if at < self.over)]
        return max(dead, default=-1) >= max((born.life for born in self.born[who]), default=0)

    def _family(self, who: Actor) -> list[Actor]:
        """The actors that a policy may restart because of one another."""
        group = self.spawned[who[0]].group
        return [other for other in self.actors() if group and self.spawned[other[0]].group == group]

    def _may_be_replaced(self, place: str) -> bool:
        """Returns whether a policy may start another process there."""
        return any(spawned.group and place in spawned.places for spawned in self.spawned.values())

    def lives(self, who: Actor) -> list[int]:
        return sorted({fact.life for fact in self.born[who]})

    def last_sign(self, who: Actor, life: int) -> int:
        """Returns when that life was certainly still there."""
        born = next((fact.at for fact in self.born[who] if fact.life == life), 0)
        # A thread of a process that was killed may note what it did a little later.
        until = min((struck.at for struck in self.strikes(who, *_ENDS) if struck.at > born), default=NEVER)
        signs = [*self.born[who], *self.handled_by[who], *self.ended[who]]
        return max((fact.at for fact in signs if fact.life == life and fact.at < until), default=-1)

    # --- trouble

    def troubles(self, who: Actor) -> list[tuple[int, int]]:
        """Stretches of the history in which messages to an actor may fail; -1 is a beginning that is not known."""
        spawned = self.spawned[who[0]]
        family = self._family(who)
        found = [stretch for other in family or [who] for stretch in self._own_troubles(other)]
        if isinstance(spawned.owner, tuple):
            found += self.troubles(spawned.owner)
        if family or isinstance(spawned.owner, tuple):
            return [(begin, NEVER) for begin, _ in found]
        return found

    def _own_troubles(self, who: Actor) -> Iterator[tuple[int, int]]:
        restarts = self.restarts(who)
        for struck in self.strikes(who, *_ENDS):
            if struck in restarts and id(struck) in self.done:
                yield struck.at, self.done[id(struck)]
            else:
                yield struck.at, self._restarted_after(restarts, self.done.get(id(struck), NEVER))
        leaves = [fact.at for fact in self.handled_by[who] if fact.method == LEAVE]
        for at in [*leaves, *(at for _, at in self.failures(who))]:
            yield -1, self._restarted_after(restarts, at)

    def _restarted_after(self, restarts: Sequence[Struck], at: int) -> int:
        ends = [self.done[id(struck)] for struck in restarts if struck.at > at and id(struck) in self.done]
        return min(ends, default=NEVER)

    def excuses(self, sent: Sent, heard_at: int) -> bool:
        """Returns whether anything happened for which a message may have failed."""
        for rank in sent.ranks:
            for struck in self.cuts(sent.place, self.place((sent.mesh, rank))):
                if struck.at < heard_at and self.done.get(id(struck), NEVER) > sent.at:
                    return True
        involved = [(sent.mesh, rank) for rank in sent.ranks]
        if sent.sender != CLIENT:
            involved.append(_actor_of(sent.sender))
        return any(begin < heard_at and over > sent.at for who in involved for begin, over in self.troubles(who))


def _grouped(facts: Sequence[F], key: Callable[[F], K]) -> dict[K, list[F]]:
    groups: dict[K, list[F]] = defaultdict(list)
    for fact in facts:
        groups[key(fact)].append(fact)
    return groups


def _actor_of(sender: str) -> Actor:
    """ "m0[1]~0" -> ("m0", 1)"""
    mesh, _, rest = sender.partition("[")
    return mesh, int(rest.partition("]")[0])


# --- the rules: messages


def in_order(known: Known) -> Iterator[str]:
    """Checks that what one actor sent another is handled in the order in which it was sent."""
    last: dict[object, int] = {}
    for fact in known.all(Handled):
        stream = (fact.sender, fact.actor, fact.life)
        if fact.number <= last.get(stream, -1):
            yield f"{_shown(fact)} after {last[stream]}"
        last[stream] = fact.number


def at_most_once(known: Known) -> Iterator[str]:
    """A message is handled at most once, whatever the network repeats and whoever takes an actor's place."""
    for handled in known.handled.values():
        if len(handled) > 1:
            yield " and ".join(map(_shown, handled))


def answered_is_handled(known: Known) -> Iterator[str]:
    """A value that was returned means that its actor handled the message, exactly once."""
    for heard in known.all(Heard):
        sent = known.sent[heard.sender, heard.number]
        for receipt in heard.receipts:
            handled = known.handled[heard.sender, receipt.number, receipt.actor]
            if receipt.number != heard.number or [fact.life for fact in handled] != [receipt.life]:
                yield f"{heard} for {sent}, handled: {handled}"


def every_rank_answers(known: Known) -> Iterator[str]:
    """A call answers for every rank it was sent to, in their order; a stream once for each; the others once."""
    for (sender, number), all_heard in known.heard.items():
        sent = known.sent[sender, number]
        targets = [(sent.mesh, rank) for rank in sent.ranks]
        answered = [receipt.actor for heard in all_heard for receipt in heard.receipts]
        if sent.adverb == CALL and answered and answered != targets:
            yield f"{sent} was answered by {answered}"
        if len(set(answered)) < len(answered) or not set(answered) <= set(targets):
            yield f"{sent} was answered by {answered}"


def errors_are_typed(known: Known) -> Iterator[str]:
    """Checks that what ends without a value ends with SupervisionError, with the exception of the endpoint, or at its
    deadline."""
    for heard in known.all(Heard):
        sent = known.sent[heard.sender, heard.number]
        expected = ["", "SupervisionError"]
        if sent.deadline is not None:
            expected.append("TimeoutError")
        if sent.method == FAIL:
            expected.append("ActorError(PlannedError)")
        if heard.error not in expected:
            yield f"{sent} ended with {heard.error}: {heard.text}"
        if sent.method in (FAIL, EXIT) and not heard.error:
            yield f"{sent} returned {heard.receipts}"


def errors_have_a_cause(known: Known) -> Iterator[str]:
    """SupervisionError says that a target or the sender ended, was being restarted, or that their connection broke."""
    for heard in known.all(Heard):
        sent = known.sent[heard.sender, heard.number]
        if heard.error == "SupervisionError" and not known.excuses(sent, heard.at):
            yield f"nothing happened to {sent}: {heard.text}"


def nothing_is_lost(known: Known) -> Iterator[str]:
    """Checks that what an actor sent between two messages that were answered by the same life of another was handled
    there too."""
    for (sender, who), sent in _conversations(known).items():
        place = known.place(who)
        answered = _answered_by_life(known, sender, who)
        for fact in sent:
            later = {life for number, life in answered.items() if number > fact.number}
            before = {life for number, life in answered.items() if number < fact.number}
            same = later & (before | {0})
            if not same or known.handled[sender, fact.number, who] or known.cuts(fact.place, place):
                continue
            if fact.adverb == CHOOSE or (
                fact.adverb != BROADCAST and any(known.troubles((fact.mesh, rank)) for rank in fact.ranks)
            ):
                continue
            yield f"{fact} was not handled by {actor(*who)}, of which {sorted(answered)} were answered"


def _conversations(known: Known) -> dict[tuple[str, Actor], list[Sent]]:
    found: dict[tuple[str, Actor], list[Sent]] = defaultdict(list)
    for fact in known.all(Sent):
        for rank in fact.ranks:
            found[fact.sender, (fact.mesh, rank)].append(fact)
    return found


def _answered_by_life(known: Known, sender: str, who: Actor) -> dict[int, int]:
    return {
        receipt.number: receipt.life
        for heard in known.all(Heard)
        if heard.sender == sender
        for receipt in heard.receipts
        if receipt.actor == who
    }


# --- the rules: lives


def meant_for_that_life(known: Known) -> Iterator[str]:
    """A message sent to an actor that has ended never reaches the one that takes its place."""
    for who, handled in list(known.handled_by.items()):
        met: dict[str, int] = {}  # sender -> the latest life that handled a message of it
        for fact in handled:
            left = known.sent[fact.sender, fact.number].left
            if fact.sender == CLIENT and known.spawned[who[0]].owner == CLIENT:
                earlier = [life for life in known.lives(who) if life < fact.life]
                if left <= _restart_asked_for(known, fact):
                    yield f"{_shown(fact)} was sent before that restart was asked for"
            else:  # one that never met the life before means whoever is there
                earlier = [life for life in [met.get(fact.sender, fact.life)] if life < fact.life]
            for life in earlier:
                if left <= known.last_sign(who, life):
                    yield f"{_shown(fact)} was sent while {actor(*who)}~{life} lived"
            met[fact.sender] = max(fact.life, met.get(fact.sender, fact.life))


def _restart_asked_for(known: Known, fact: Handled) -> int:
    """Returns when, at the earliest, the client asked for the restart of which that life came; -1 when that cannot be
    said."""
    who, index = fact.actor, known.lives(fact.actor).index(fact.life)
    strikes = known.strikes(who, "restart", "revive")
    restarts = [struck.at for struck in strikes if struck.actors]
    if known.spawned[who[0]].group or not 0 < index <= len(restarts):
        return -1
    # What is sent when the process is new and the actor not yet there waits for it.
    replaced = [struck.at for struck in known.strikes(who, "kill", "restart", "revive") if struck.places]
    return min([restarts[index - 1], *replaced])


def born_once(known: Known) -> Iterator[str]:
    """Each life of an actor begins once."""
    if any(struck.what == "repeat" for struck in known.struck):
        return  # a constructor that raises at once is gone before its repeat comes
    for who, born in known.born.items():
        lives = [fact.life for fact in born]
        if len(set(lives)) < len(lives):
            yield f"{actor(*who)} was born as {lives}"


def the_dead_do_nothing(known: Known) -> Iterator[str]:
    """An actor handles nothing before its constructor, after a message that ended it, or after its `__cleanup__`."""
    for who, handled in known.handled_by.items():
        ends = {fact.life: fact.at for fact in known.ended[who]}
        births = {fact.life: fact.at for fact in known.born[who]}
        for fact in handled:
            if not births.get(fact.life, NEVER) < fact.at < ends.get(fact.life, NEVER):
                yield f"{_shown(fact)}, which lived from {births.get(fact.life)} to {ends.get(fact.life)}"
            if known.is_deadly(fact):
                ends[fact.life] = fact.at


def stopped_is_stopped(known: Known) -> Iterator[str]:
    """Checks that when `stop()` has resolved, the actors of the mesh handle nothing any more and its owner is told of
    no failure."""
    for struck in known.struck:
        if struck.what != "stop" or id(struck) not in known.done:
            continue
        stopped = struck.actors or [who for who in known.actors() if known.place(who) in struck.places]
        for who in stopped:
            facts = [*known.handled_by[who], *known.reports[who]]
            if known.strikes(who, "kill", "restart", "revive") or known.spawned[who[0]].group:
                continue  # threads of killed processes may end later; a policy gives up later
            for fact in facts:
                if fact.at > known.done[id(struck)]:
                    yield f"{struck} was done at {known.done[id(struck)]}, and then {fact}"


def restarted_is_new(known: Known) -> Iterator[str]:
    """Checks that when `restart()` of actors has resolved, each of them was constructed anew."""
    for struck in known.struck:
        if struck.what == "restart" and id(struck) in known.done:
            for who in struck.actors:
                if not any(struck.at < born.at < known.done[id(struck)] for born in known.born[who]):
                    yield f"{actor(*who)} was not, between {struck.at} and {known.done[id(struck)]}"


# --- the rules: owners


def told_at_most_once(known: Known) -> Iterator[str]:
    """The owner of a mesh is told of each end of an actor once, and of nothing that did not happen."""
    for who, told in known.reports.items():
        most = known.dead_lives(who)
        if len(told) > most:
            reports = "\n".join(f"{fact.at}: {fact.text}" for fact in told)
            yield f"{actor(*who)} ended at most {most} times, and was reported {len(told)} times:\n{reports}"


def ends_have_consequences(known: Known) -> Iterator[str]:
    """The owner of a mesh is told of every actor that failed or whose process was killed, unless a policy restarts it."""
    for who in known.untold():
        yield f"it was not told of {actor(*who)}"
    for who in known.not_restarted():
        yield f"{actor(*who)} was neither restarted nor reported"


def bounced_is_lost(known: Known) -> Iterator[str]:
    """A broadcast comes back as undeliverable at most once for each actor that did not handle it, unless it was repeated."""
    bounced = [fact for fact in known.all(Told) if fact.mesh == "<none>"]
    lost = [
        (fact.number, rank)
        for fact in known.all(Sent)
        if fact.sender == CLIENT and fact.adverb == BROADCAST
        for rank in fact.ranks
        if not known.handled[CLIENT, fact.number, (fact.mesh, rank)]
    ]
    if len(bounced) > len(lost) and not any(struck.what == "repeat" for struck in known.struck):
        yield f"{len(bounced)} came back and {len(lost)} were lost"


def refusals_are_documented(known: Known) -> Iterator[str]:
    """An operation that is refused says why."""
    for fact in known.all(Refused):
        if not any(text in fact.text for text in _REFUSALS):
            yield f"{fact.operation} raised {fact.error}: {fact.text}"


def _shown(fact: Handled) -> str:
    return f"{actor(*fact.actor)}~{fact.life} handled {fact.number} of {fact.sender} (at {fact.at})"


Rule = Callable[[Known], Iterator[str]]

RULES: tuple[Rule, ...] = (
    in_order,
    at_most_once,
    answered_is_handled,
    every_rank_answers,
    errors_are_typed,
    errors_have_a_cause,
    nothing_is_lost,
    meant_for_that_life,
    born_once,
    the_dead_do_nothing,
    stopped_is_stopped,
    restarted_is_new,
    told_at_most_once,
    ends_have_consequences,
    bounced_is_lost,
    refusals_are_documented,
)
