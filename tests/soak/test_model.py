"""Each rule lets an ordinary history pass and finds the one that breaks it."""

from __future__ import annotations

import pytest

from tests.soak import model
from tests.soak.history import (
    Born,
    Done,
    Ended,
    Fact,
    Handled,
    Heard,
    Over,
    Receipt,
    Refused,
    Sent,
    Spawned,
    Struck,
    Told,
)
from tests.soak.program import BROADCAST, CALL, CALL_ONE, CHOOSE, CLIENT, EXIT, FAIL, STREAM, WORK

A, B = ("m0", 0), ("m0", 1)
SPAWNED = Spawned("m0", CLIENT, ("p0[0]", "p0[1]"))
KILL_A = Struck("kill", places=("p0[0]",))
STOP = Struck("stop", actors=(A, B))
RESTART_A = Struck("restart", actors=(A,))
DOWN = "SupervisionError"


def sent(number: int, ranks: tuple[int, ...] = (0,), adverb: str = CALL_ONE, method: str = WORK) -> Sent:
    return Sent(CLIENT, CLIENT, number, "m0", ranks, adverb, method)


def handled(number: int, who: tuple[str, int] = A, life: int = 0, method: str = WORK) -> Handled:
    return Handled(who, life, CLIENT, number, method)


def heard(number: int, *receipts: Receipt, error: str = "") -> Heard:
    return Heard(CLIENT, number, receipts, error)


def receipt(number: int, who: tuple[str, int] = A, life: int = 0) -> Receipt:
    return Receipt(who, life, number)


def told(*ranks: int, mesh: str = "m0") -> Told:
    return Told(CLIENT, mesh, ranks, "it failed")


def story(*facts: Fact) -> list[Fact]:
    """The facts in that order; a message has left by the time of the next fact."""
    for at, fact in enumerate(facts):
        fact.at = at
        if isinstance(fact, Sent):
            fact.left = at + 1
    return list(facts)


LIVED = (SPAWNED, Born(A, 0), Born(B, 0))
DIED = (*LIVED, KILL_A, Done(KILL_A))

ORDINARY = {
    "calls": (*LIVED, sent(1), handled(1), heard(1, receipt(1)), sent(2), handled(2), heard(2, receipt(2))),
    "a call of all": (*LIVED, sent(1, (0, 1), CALL), handled(1), handled(1, B), heard(1, receipt(1), receipt(1, B))),
    "an exception": (*LIVED, sent(1, method=FAIL), handled(1, method=FAIL), heard(1, error="ActorError(PlannedError)")),
    "a lost broadcast": (*LIVED, sent(1, (0,), BROADCAST), told(mesh="<none>")),
    "a kill": (*DIED, told(0), sent(1), heard(1, error=DOWN)),
    "a restart": (
        *DIED, told(0), RESTART_A, Born(A, 1), Done(RESTART_A), sent(1), handled(1, life=1), heard(1, receipt(1, life=1))
    ),
    "a stop": (
        *LIVED, sent(1), handled(1), heard(1, receipt(1)), STOP, Ended(A, 0, False), Ended(B, 0, False), Done(STOP)
    ),
    "failures": (
        *LIVED, sent(1, (0, 1), BROADCAST, FAIL), handled(1, method=FAIL), handled(1, B, method=FAIL),
        Ended(A, 0, True), Ended(B, 0, True), told(0), told(1), sent(2), heard(2, error=DOWN),
    ),
}  # fmt: skip

BROKEN = [
    (model.in_order, (*LIVED, sent(1), sent(2), handled(2), handled(1))),
    (model.at_most_once, (*LIVED, sent(1), handled(1), RESTART_A, Born(A, 1), handled(1, life=1))),
    (model.answered_is_handled, (*LIVED, sent(1), heard(1, receipt(1)))),
    (model.every_rank_answers, (*LIVED, sent(1, (0, 1), CALL), handled(1), heard(1, receipt(1)))),
    (model.errors_are_typed, (*LIVED, sent(1), heard(1, error="KeyError"))),
    (model.errors_have_a_cause, (*LIVED, KILL_A, Done(KILL_A), told(0), sent(1, (1,)), heard(1, error=DOWN))),
    (model.nothing_is_lost, (*LIVED, sent(1, (0,), BROADCAST), sent(2), handled(2), heard(2, receipt(2)))),
    (model.meant_for_that_life, (*LIVED, sent(1), RESTART_A, Ended(A, 0, False), Born(A, 1), handled(1, life=1))),
    (model.born_once, (*LIVED, Born(A, 0))),
    (model.the_dead_do_nothing, (*LIVED, sent(1), Ended(A, 0, False), handled(1))),
    (model.stopped_is_stopped, (*LIVED, sent(1), STOP, Done(STOP), handled(1))),
    (model.restarted_is_new, (*LIVED, RESTART_A, Done(RESTART_A))),
    (model.told_at_most_once, (*DIED, told(0), told(0))),
    (model.ends_have_consequences, DIED),
    (model.bounced_is_lost, (*LIVED, sent(1, (0,), BROADCAST), handled(1), told(mesh="<none>"))),
    (model.refusals_are_documented, (*LIVED, Refused("m0.stop()", "KeyError", "'m0'"))),
    # a stream that answers twice for a rank
    (model.every_rank_answers, (
        *LIVED, sent(1, (0, 1), STREAM), handled(1), heard(1, receipt(1)), heard(1, receipt(1))
    )),
    # a choice of what was not to be chosen
    (model.every_rank_answers, (*LIVED, sent(1, (0,), CHOOSE), handled(1, B), heard(1, receipt(1, B)))),
    # a timeout without a deadline
    (model.errors_are_typed, (*LIVED, sent(1), heard(1, error="TimeoutError"))),
    # an exit that returned
    (model.errors_are_typed, (*LIVED, sent(1, method=EXIT), handled(1, method=EXIT), heard(1, receipt(1)))),
    # an error after the restart
    (model.errors_have_a_cause, (
        *DIED, told(0), RESTART_A, Born(A, 1), Done(RESTART_A), sent(1), heard(1, error=DOWN)
    )),
    # a message of a sender that has met the life before
    (model.meant_for_that_life, (
        Spawned("m0", ("m9", 0), ("p0[0]",)), Born(A, 0), sent(1), handled(1), sent(2), Ended(A, 0, False), Born(A, 1),
        handled(2, life=1)
    )),
    # a failure that nobody was told of
    (model.ends_have_consequences, (
        *LIVED, sent(1, (0,), BROADCAST, FAIL), handled(1, method=FAIL), Ended(A, 0, True), Over()
    )),
    # a failure that its policy did not see
    (model.ends_have_consequences, (Spawned("m0", CLIENT, ("p0[0]",), "m0"), Born(A, 0), Ended(A, 0, True))),
    # a report of a life that goes on
    (model.told_at_most_once, (*LIVED, told(1))),
    # a report after the stop
    (model.stopped_is_stopped, (*LIVED, STOP, Done(STOP), Ended(A, 0, True), told(0))),
]  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_history_breaks_no_rule(name: str) -> None:
    facts = story(*ORDINARY[name])
    assert model.broken_rules(facts) == []
    assert model.owed(facts) == []


@pytest.mark.parametrize(("rule", "facts"), BROKEN, ids=[rule.__name__ for rule, _ in BROKEN])
def test_a_history_that_breaks_the_rule_is_found(rule: model.Rule, facts: tuple[Fact, ...]) -> None:
    assert list(rule(model.Known(story(*facts)))) != []


def test_each_rule_is_broken_by_a_history() -> None:
    assert {rule for rule, _ in BROKEN} == set(model.RULES)


def test_what_is_owed_is_named() -> None:
    assert model.owed(story(*DIED)) == ["m0[0]"]


def test_a_broken_rule_says_its_promise_and_how_it_was_broken() -> None:
    (text,) = model.broken_rules(story(*LIVED, sent(1), handled(1), heard(1, error="Odd")))
    assert text.startswith("Checks that what ends without a value ends with SupervisionError")
    assert "ended with Odd" in text
