"""Casts over a tree of agents: each rule by itself, then whole trees of which hosts and processes end at any moment.

In the tables an agent's host is `H`; its tree is given as hosts, each with one process `m.<n>`, whose rank in the view is n.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.agent.effects import Arm, Disarm
from monarch._mesh.casts import answer_cache as kept
from monarch._mesh.casts import relay as machine
from monarch._mesh.casts import relay_state
from monarch._mesh.casts.relay import Casts, Deliver, DirectReply, Forward, Reply
from monarch._mesh.casts.relay_state import split
from monarch._wire.message import (
    FAILED,
    VALUE,
    Answer,
    Answers,
    Call,
    CancelGather,
    Cast,
    CastPlan,
    Delivered,
    Failure,
    ForgetPlan,
    HostUnreachable,
    PlanHost,
    PlanUnknown,
    Skip,
)
from tests._mesh.casts.cast_world import CastWorld

CALLER = "root/client"
PORT = 7
KEY = (CALLER, PORT)
HOLD = ("hold", *KEY)


def plan(hosts: str, number: int = 1, width: int = 2, serve: bool = True) -> CastPlan:
    """Returns a plan of hosts by their letters; the process of the n-th is `m.<n>`, and n its rank."""
    return CastPlan(number, width, serve, [PlanHost(host, [f"m.{n}"], [n]) for n, host in enumerate(hosts)])


def cast(number: int = 1, gather: float = -1.0, plan: int = 1, seqs: Any = 1, **fields: Any) -> Cast:
    port = PORT if gather >= 0 else 0
    return Cast(plan, number, CALLER, "actors", "sender", "work", port, "", b"", 0, seqs, 0, gather, **fields)


def one(letters: str, upstream: Any = "P", width: int = 2, patience: float = 100.0) -> Casts:
    """The agent of the first host, with the plan of all registered."""
    casts = Casts(patience)
    assert casts.plan(0.0, upstream, plan(letters, width=width)) == []
    return casts


def passed(effects: Iterable[Any], kind: type = Cast) -> list[str]:
    """The hosts to which a message of that kind goes."""
    return [effect.host for effect in effects if isinstance(effect, Forward) and type(effect.message) is kind]


def upward(effects: Iterable[Any]) -> list[Any]:
    return [(effect.upstream, effect.message) for effect in effects if isinstance(effect, Reply)]


def delivered(effects: Iterable[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, Deliver)]


def answers(*ranks: int, gone: Sequence[int] = ()) -> tuple[Answers, bytes]:
    """Returns answers of a child; the body of each is its rank."""
    bodies = [b"%d" % rank for rank in ranks]
    sizes = [len(body) for body in bodies]
    return Answers(CALLER, PORT, list(ranks), [VALUE] * len(ranks), sizes, list(gone)), b"".join(bodies)


# --- down


def test_a_cast_is_delivered_here_and_passed_on_to_the_first_host_of_each_part() -> None:
    casts = one("HABCDE")
    effects = casts.cast(0.0, "P", cast(seqs=[(5, 2), (6, 4)]), b"body", (b"buffer",))
    (here,) = delivered(effects)
    assert here == Deliver("H/m.0", here.message, b"body", (b"buffer",), CALLER)
    assert here.message == Call("actors", "sender", 5, "work", 0, CALLER, 0, b"", 0, 0)
    registered = [effect for effect in effects if isinstance(effect, Forward) and type(effect.message) is CastPlan]
    assert [(p.host, [host.host for host in p.message.hosts], p.message.serve) for p in registered] == [
        ("A", ["A", "B", "C"], True),
        ("D", ["D", "E"], True),
    ]
    sent = [effect for effect in effects if isinstance(effect, Forward) and type(effect.message) is Cast]
    assert [(p.host, p.message.plan, p.message.number, p.message.seqs, p.body, p.buffers) for p in sent] == [
        ("A", 1, 1, [(5, 1), (6, 2)], b"body", (b"buffer",)),
        ("D", 1, 1, 6, b"body", (b"buffer",)),
    ]
    assert passed(casts.cast(0.0, "P", cast(2), b""), CastPlan) == []  # once for all casts


def test_the_root_serves_nobody_when_its_host_has_no_receiver() -> None:
    casts = Casts()
    casts.plan(0.0, "sender", plan("AB", serve=False))
    effects = casts.cast(0.0, "sender", cast(0), b"")
    assert delivered(effects) == []
    assert passed(effects) == ["A", "B"]


def test_a_plan_that_is_not_known_sends_the_cast_back() -> None:
    casts = Casts()
    assert casts.cast(0.0, "P", cast(3, plan=9), b"body", (b"x",)) == [
        Reply("P", PlanUnknown(cast(3, plan=9)), b"body", (b"x",))
    ]


def test_a_cast_that_comes_back_is_sent_again_behind_its_plan() -> None:
    casts = one("HA")
    casts.cast(0.0, "P", cast(1), b"one")
    casts.cast(0.0, "P", cast(2), b"two")
    again = casts.plan_unknown(0.0, "A", PlanUnknown(cast(1, plan=1)), b"one") + casts.plan_unknown(
        0.0, "A", PlanUnknown(cast(2, plan=1)), b"two"
    )
    assert [(type(p.message), p.message.number, p.body) for p in again] == [  # type: ignore[union-attr]
        (CastPlan, 2, b""),
        (Cast, 3, b"one"),
        (Cast, 4, b"two"),
    ]
    assert casts.counts().kept == 2
    assert upward(casts.delivered(0.0, "A", Delivered(4)) + casts.fired(0.0, ("confirm", "P"))) == [("P", Delivered(2))]


def test_a_forgotten_plan_is_forgotten_below_too() -> None:
    casts = one("HAB")
    casts.cast(0.0, "P", cast(1), b"")
    effects = casts.forget(0.0, "P", ForgetPlan(1))
    assert effects == [Forward("A", ForgetPlan(1)), Forward("B", ForgetPlan(1))]
    assert casts.counts().plans == casts.counts().registered == 0


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PLANS_KEPT", 2)
    casts = Casts()
    for number in (1, 2, 3):
        casts.plan(0.0, "P", plan("HA", number))
    assert casts.counts().plans == 2
    assert upward(casts.cast(0.0, "P", cast(1, plan=1), b"")) == [("P", PlanUnknown(cast(1, plan=1)))]


def test_plans_at_a_child_are_bounded_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PLANS_KEPT", 2)
    casts = Casts()
    for number, upstream in enumerate("PQR", 1):
        casts.plan(0.0, upstream, plan("HA"))
        effects = casts.cast(0.0, upstream, cast(1), b"")
        assert passed(effects, CastPlan) == ["A"]
        assert passed(effects, ForgetPlan) == ([] if number < 3 else ["A"])
    assert passed(casts.cast(0.0, "P", cast(2), b""), CastPlan) == ["A"]
    assert casts.counts().registered == 2


# --- up: confirmations


def test_what_nobody_answers_is_confirmed_once_it_is_through_below() -> None:
    casts = one("HAB")
    for number in (1, 2):
        casts.cast(0.0, "P", cast(number), b"")
    assert casts.counts().kept == 4
    assert casts.delivered(0.0, "A", Delivered(2)) == []
    assert casts.delivered(0.0, "B", Delivered(1)) == [Arm(("confirm", "P"), machine.CONFIRM_DELAY)]
    assert casts.fired(0.05, ("confirm", "P")) == [Reply("P", Delivered(1))]
    casts.delivered(0.0, "B", Delivered(2))
    assert casts.fired(0.1, ("confirm", "P")) == [Reply("P", Delivered(2))]
    assert casts.counts()[2:] == (0, 0, 0, 0, 0, 0, 0)


def test_many_confirmations_do_not_wait() -> None:
    casts = one("H")
    told = [upward(casts.cast(0.0, "P", cast(number), b"")) for number in range(1, 65)]
    assert told == [[]] * 63 + [[("P", Delivered(64))]]
    assert casts.counts().timers == 0


def test_a_sender_is_told_of_nothing() -> None:
    casts = one("H", upstream="connection")
    assert [type(effect) for effect in casts.cast(0.0, "connection", cast(0), b"")] == [Deliver]


# --- up: answers


def test_answers_go_up_together_once_all_below_have_answered() -> None:
    casts = one("HAB")
    casts.cast(0.0, "P", cast(gather=0.01), b"")
    assert casts.gathers(*KEY)
    assert casts.answers(0.0, "A", *answers(1)) == [Arm(HOLD, 0.01)]
    assert casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0") == []
    assert casts.answers(0.0, "B", *answers(2)) == [Reply("P", answers(1, 0, 2)[0], b"102"), Disarm(HOLD)]
    assert not casts.gathers(*KEY)
    assert casts.counts()[2:] == (0, 0, 0, 0, 0, 0, 1)


def test_the_root_passes_on_what_came_together_and_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MANY", 2)
    casts = Casts()
    casts.plan(0.0, "conn", plan("ABCDE", width=1, serve=False))
    casts.cast(0.0, "conn", cast(number=0, gather=0.5), b"")
    together, body = answers(0, 2, gone=[1])
    assert casts.answers(0.0, "A", together, body)[0] == Reply("conn", msgspec.structs.replace(together, gone=[]), body)
    again, body = answers(2, 3)  # one of them it has passed on
    assert upward(casts.answers(0.0, "A", again, body)) == []
    last, body = answers(4)
    assert upward(casts.answers(0.0, "A", last, body)) == [("conn", answers(3, 4)[0])]
    assert casts.counts().gatherings == 0


def test_answers_wait_no_longer_than_the_caller_said() -> None:
    casts = one("HAB")
    casts.cast(0.0, "P", cast(gather=0.0), b"")
    assert casts.answers(0.0, "A", *answers(1)) == [Arm(HOLD, 0.0)]
    assert casts.fired(0.0, HOLD) == [Reply("P", answers(1)[0], b"1")]
    assert casts.answers(0.0, "B", *answers(2)) == [Arm(HOLD, 0.0)]  # and then those that follow, together
    assert casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0")[0] == Reply("P", answers(2, 0)[0], b"20")


def test_large_answers_and_those_with_buffers_go_alone_at_once() -> None:
    casts = one("HAB")
    casts.cast(0.0, "P", cast(gather=0.01), b"")
    large = b"x" * (kept.ALONE + 1)
    (up,) = casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), large)
    assert up == Reply("P", Answers(CALLER, PORT, [0], [VALUE], [len(large)]), large)
    (up,) = casts.answers(0.0, "A", answers(1)[0], b"1", (b"buffer",))
    assert up == Reply("P", answers(1)[0], b"1", (b"buffer",))


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "HELD_BYTES", 1)
    casts = one("HABC", width=3)
    casts.cast(0.0, "P", cast(gather=0.01), b"")
    assert upward(casts.answers(0.0, "A", *answers(1))) == []
    assert upward(casts.answers(0.0, "B", *answers(2))) == [("P", answers(1, 2)[0])]


def test_an_answer_counts_once_and_repeats_are_dropped() -> None:
    casts = one("HA")
    casts.cast(0.0, "P", cast(gather=0.01), b"")
    casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0")
    assert casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0") == []
    assert casts.answers(0.0, "elsewhere", *answers(1)) == []
    casts.answers(0.0, "A", *answers(1))
    assert casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0") == []
    assert casts.answers(0.0, "A", *answers(1)) == []


def test_an_answer_that_no_gathering_wants_goes_straight() -> None:
    casts = one("H")
    casts.cast(0.0, "P", cast(), b"")
    answer = Answer(PORT, 0, VALUE)
    assert casts.answer(0.0, CALLER, answer, b"0") == [DirectReply(CALLER, answer, b"0", ())]


def test_a_process_that_ended_is_done_and_the_caller_is_told_by_others() -> None:
    casts = one("HA")
    casts.cast(0.0, "P", cast(gather=0.01), b"")
    assert casts.process_ended(0.0, "H/m.0") == [Arm(HOLD, 0.01)]
    assert casts.process_ended(0.0, "H/m.0") == []
    assert casts.answers(0.0, "A", *answers(1))[0] == Reply("P", answers(1, gone=[0])[0], b"1")
    root = one("H", upstream="connection")
    root.cast(0.0, "connection", cast(0, gather=0.01), b"")
    assert root.process_ended(0.0, "H/m.0") == []
    assert root.counts().gatherings == root.counts().finished == 0  # the root remembers nothing: nobody asks it again


def test_a_caller_that_is_gone_is_told_nothing_and_those_below_forget_its_call() -> None:
    casts = one("HAB", upstream="connection")
    casts.cast(0.0, "connection", cast(0, gather=0.01), b"")
    casts.answers(0.0, "A", *answers(1))
    effects = casts.upstream_gone(0.0, "connection")
    assert effects == [
        Forward("A", ForgetPlan(1)),
        Forward("B", ForgetPlan(1)),
        Disarm(HOLD),
        Forward("B", CancelGather(*KEY)),
    ]
    assert casts.counts() == (0,) * 9


def test_what_is_not_wanted_is_dropped_all_the_way_down() -> None:
    casts = one("HA")
    casts.cast(0.0, "P", cast(gather=0.01), b"")
    assert casts.unwanted(0.0, "Q", CancelGather(*KEY)) == []  # not from there
    assert casts.unwanted(0.0, "P", CancelGather(*KEY)) == [Forward("A", CancelGather(*KEY))]
    assert casts.unwanted(0.0, "P", CancelGather(*KEY)) == []
    assert casts.counts()[2:] == (0,) * 7


def test_gatherings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "GATHERINGS", 0)
    casts = one("HA")
    effects = casts.cast(0.0, "P", cast(gather=0.01), b"")
    (up,) = (effect for effect in effects if isinstance(effect, Reply))
    assert (up.message.ranks, up.message.kinds) == ([0, 1], [FAILED, FAILED])  # type: ignore[union-attr]
    assert len(delivered(effects)) == 1  # lest those that follow wait for it
    assert [p.message.gather for p in effects if isinstance(p, Forward) and type(p.message) is Cast] == [-1.0]


# --- ends of hosts: those below


def test_the_part_of_a_host_that_ended_is_adopted_as_that_host_had_cut_it() -> None:
    casts = one("HABCDE")  # A has B and C below it
    casts.cast(0.0, "P", cast(1, gather=0.01, seqs=[(1, 1), (2, 1), (3, 1), (4, 3)]), b"call")
    casts.cast(0.0, "P", cast(2), b"broadcast")
    casts.answers(0.0, "A", *answers(3))
    effects = casts.host_ended(0.0, "A")
    assert passed(effects, CastPlan) == ["B", "C"]
    assert [
        (p.host, p.body, p.message.number, p.message.seqs, p.message.again)
        for p in effects
        if isinstance(p, Forward) and type(p.message) is Cast
    ] == [("B", b"call", 1, 3, "A"), ("B", b"broadcast", 2, 1, "A"), ("C", b"broadcast", 1, 1, "A")]
    assert casts.host_ended(0.0, "A") == []
    assert casts.answers(0.0, "A", *answers(2)) == []  # it has ended
    casts.answers(0.0, "B", *answers(2))
    casts.answers(0.0, "D", *answers(4, 5))
    assert upward(casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0")) == [
        ("P", answers(3, 2, 4, 5, 0, gone=[1])[0])  # whose host has ended never will answer
    ]


def test_what_was_adopted_is_confirmed_by_those_who_have_it_now() -> None:
    casts = one("HABC", width=1)  # a chain
    casts.cast(0.0, "P", cast(1), b"")
    assert passed(casts.host_ended(0.0, "A")) == ["B"]
    assert casts.forget(0.0, "P", ForgetPlan(1)) == [Forward("B", ForgetPlan(1))]
    assert casts.host_ended(0.0, "B") == [
        Reply("P", HostUnreachable("B")),
        Forward("C", CastPlan(1, 1, True, [PlanHost("C", ["m.3"], [3])])),
        Forward("C", cast(1, again="B")),
        Forward("C", ForgetPlan(1)),  # those above have forgotten it meanwhile
    ]
    assert upward(casts.delivered(0.0, "C", Delivered(1)) + casts.fired(0.0, ("confirm", "P"))) == [("P", Delivered(1))]
    assert casts.counts().registered == casts.counts().kept == 0


def test_a_leaf_that_ended_is_done() -> None:
    casts = one("HA")
    casts.cast(0.0, "P", cast(1), b"")
    casts.cast(0.0, "P", cast(2, gather=0.01), b"")
    assert casts.host_ended(0.0, "A") == [
        Reply("P", HostUnreachable("A")),
        Arm(("confirm", "P"), machine.CONFIRM_DELAY),
        Arm(HOLD, 0.01),
    ]
    assert casts.counts().kept == 0


# --- hosts that cannot reach each other


def test_who_hears_that_a_child_cannot_reach_a_host_serves_it_itself() -> None:
    casts = one("HABC", width=1)  # a chain
    casts.cast(0.0, "P", cast(1), b"broadcast")
    casts.cast(0.0, "P", cast(2, gather=0.01), b"call")
    effects = casts.unreached(0.0, "A", HostUnreachable("C"))
    assert [
        (effect.host, effect.message.again, bytes(effect.body)) for effect in effects if type(effect.message) is Cast
    ] == [("C", "A", b"broadcast"), ("C", "A", b"call")]
    assert casts.answers(0.0, "A", *answers(1, 2, gone=[3])) != []  # what it says of C counts no more
    casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0")
    assert casts.counts().gatherings == 1
    (_, up) = upward(casts.answers(0.0, "C", *answers(3)) + casts.fired(0.0, HOLD))[-1]
    assert 3 in up.ranks and up.gone == []
    assert casts.counts().gatherings == 0
    assert passed(casts.cast(0.0, "P", cast(3), b"")) == ["A", "C"]  # from now on
    casts.host_ended(0.0, "C")
    assert passed(casts.cast(0.0, "P", cast(4), b"")) == ["A"]


def test_a_call_that_is_not_kept_fails_for_those_behind_the_child_that_cannot_reach_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_state, "BODY_KEPT", 3)
    casts = one("HAB", width=1)
    casts.cast(0.0, "P", cast(1, gather=0.01), b"large")
    effects = casts.unreached(0.0, "A", HostUnreachable("B"))
    assert [
        (effect.host, effect.message.skip)
        for effect in effects
        if isinstance(effect, Forward) and type(effect.message) is Cast
    ] == [("B", True)]
    effects = casts.delivered(0.0, "B", Delivered(1))
    assert lost_ranks(effects + casts.fired(0.0, HOLD), "was lost on its way through host A") == [2]


def test_a_parent_that_is_new_hears_whom_this_host_cannot_reach() -> None:
    casts = one("HAB")
    call = cast(4, gather=0.01)
    casts.cast(0.0, "P", call, b"")
    assert ("P", HostUnreachable("A")) in upward(casts.host_ended(0.0, "A"))
    casts.plan(0.0, "Q", plan("HAB"))
    ups = upward(casts.cast(0.0, "Q", msgspec.structs.replace(call, again="P"), b""))
    assert ups[0] == ("Q", HostUnreachable("A"))


# --- ends of hosts: the one above


def test_who_takes_the_place_of_a_parent_is_given_what_that_one_was() -> None:
    casts = one("HAB")
    call = cast(4, gather=0.01)
    casts.cast(0.0, "P", call, b"")
    casts.answers(0.0, "A", *answers(1))
    casts.fired(0.01, HOLD)
    assert casts.host_ended(1.0, "P") == [
        Forward("A", ForgetPlan(1)),
        Forward("B", ForgetPlan(1)),
        Arm(("orphans",), 100.0),
    ]
    assert casts.answer(1.0, CALLER, Answer(PORT, 0, VALUE), b"0") == [Arm(HOLD, 0.01)]
    assert casts.fired(1.0, HOLD) == []  # there is nobody to give it to, yet
    casts.plan(2.0, "G", plan("HAB"))
    again = msgspec.structs.replace(call, number=1, again="P")
    assert casts.cast(2.0, "G", again, b"") == [
        Reply("G", answers(1, 0)[0], b"10")
    ]  # neither delivered nor passed on again
    assert upward(casts.answers(2.0, "B", *answers(2))) == [("G", answers(2)[0])]
    assert casts.cast(2.0, "G", again, b"") == [Reply("G", answers(1, 0, 2)[0], b"102")]  # finished, and still known


def test_a_new_parent_may_come_before_the_old_one_is_known_to_have_ended() -> None:
    casts = one("HA")
    call = cast(1, gather=0.01)
    casts.cast(0.0, "P", call, b"")
    casts.plan(0.0, "G", plan("HA"))
    casts.cast(0.0, "G", msgspec.structs.replace(call, again="P"), b"")
    assert casts.cast(0.0, "P", call, b"") == []  # late, of one that counts as ended
    casts.answers(0.0, "A", *answers(1))
    assert upward(casts.fired(0.0, HOLD)) == [("P", answers(1)[0]), ("G", answers(1)[0])]
    assert casts.unwanted(0.0, "P", CancelGather(*KEY)) == []  # somebody wants it still
    assert passed(casts.host_ended(0.0, "P"), CancelGather) == []
    assert upward(casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0")) == [("G", answers(0)[0])]


def test_what_the_old_parent_had_not_passed_on_is_new() -> None:
    casts = one("HA")
    effects = casts.cast(0.0, "P", cast(1, gather=0.01, again="Z"), b"")
    assert len(delivered(effects)) == 1
    assert [p.message.again for p in effects if isinstance(p, Forward) and type(p.message) is Cast] == ["Z"]


def test_another_process_at_the_address_of_an_old_one_counts_its_ports_anew() -> None:
    casts = one("H")
    casts.cast(0.0, "P", cast(1, gather=0.01), b"")
    casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0")
    other = msgspec.structs.replace(cast(2, gather=0.01), sender="another")
    assert len(delivered(casts.cast(0.0, "P", other, b""))) == 1
    assert upward(casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0")) == [("P", answers(0)[0])]


def test_an_orphan_waits_for_a_new_parent_only_so_long() -> None:
    casts = one("HA", patience=5.0)
    casts.cast(0.0, "P", cast(1, gather=0.01), b"")
    casts.host_ended(1.0, "P")
    casts.plan(2.0, "Q", plan("HA"))
    casts.cast(2.0, "Q", msgspec.structs.replace(cast(1, gather=0.01), port=8), b"")
    casts.host_ended(3.0, "Q")
    assert casts.fired(6.0, ("orphans",)) == [Forward("A", CancelGather(*KEY)), Arm(("orphans",), 2.0)]
    assert casts.fired(8.0, ("orphans",)) == [Forward("A", CancelGather(CALLER, 8))]
    assert casts.counts() == (0,) * 9


# --- what is not kept


def lost_ranks(effects: Iterable[Any], text: str) -> list[int]:
    """The ranks that are answered with a failure that says so."""
    ranks: list[int] = []
    for effect in effects:
        if isinstance(effect, Reply) and isinstance(effect.message, Answers):
            start = 0
            for rank, kind, size in zip(effect.message.ranks, effect.message.kinds, effect.message.sizes, strict=True):
                body = bytes(effect.body)[start : start + size]
                start += size
                if kind == FAILED:
                    assert text in msgspec.msgpack.decode(body, type=Failure).report
                    ranks.append(rank)
    return ranks


def test_a_call_whose_arguments_are_not_kept_fails_with_the_host_it_went_through() -> None:
    casts = one("HAB", width=1)
    casts.cast(0.0, "P", cast(1, gather=0.01), b"x" * (relay_state.BODY_KEPT + 1))
    assert casts.counts().kept_bytes == 0
    effects = casts.host_ended(0.0, "A")
    assert passed(effects, CancelGather) == ["B"]
    assert [p.message.skip for p in effects if isinstance(p, Forward) and type(p.message) is Cast] == [True]
    assert upward(casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0")) == []
    effects = casts.delivered(0.0, "B", Delivered(1))  # they skip it: now it may fail
    assert lost_ranks(effects, "work() was lost on its way through host A") == [2]


@pytest.mark.parametrize(("bound", "limit"), [("KEPT_CASTS", 2), ("KEPT_BYTES", 8)])
def test_of_too_much_that_is_unconfirmed_the_oldest_is_given_up(
    bound: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, bound, limit)
    casts = one("HAB", width=1)
    for number in (1, 2, 3):
        casts.cast(0.0, "P", cast(number, seqs=number), b"body")
    assert casts.counts().kept == 2
    assert casts.counts().kept_bytes == 8
    assert casts.counts().given_up == 1
    sent = [p.message for p in casts.host_ended(0.0, "A") if isinstance(p, Forward) and type(p.message) is Cast]
    assert [(c.seqs, c.skip) for c in sent][:2] == [(2, False), (3, False)]
    assert (sent[2].skip, sent[2].sender, sent[2].to) == (True, "sender", "actors")  # behind what is left


def test_what_was_given_up_is_not_confirmed_before_it_is_through_or_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "KEPT_CASTS", 1)
    casts = one("HAB", width=1)
    for number in (11, 12, 13, 14):
        casts.cast(0.0, "P", cast(number), b"")
    assert casts.counts().given_up == 1
    assert casts.fired(0.0, ("confirm", "P")) == [Reply("P", Delivered(10))]
    casts.delivered(0.0, "A", Delivered(1))  # of 11, 12, 13; those after the first count as given up later
    assert casts.fired(0.0, ("confirm", "P")) == [Reply("P", Delivered(11))]
    casts.host_ended(0.0, "A")
    assert casts.counts()[4:7] == (2, 0, 0)  # 14 is sent again, and the others are to be skipped
    casts.delivered(0.0, "B", Delivered(1))
    assert casts.fired(0.0, ("confirm", "P")) == []
    casts.delivered(0.0, "B", Delivered(2))
    assert casts.fired(0.0, ("confirm", "P")) == [Reply("P", Delivered(14))]
    assert casts.counts() == (1, 1, 0, 0, 0, 0, 0, 0, 0)


def test_what_is_confirmed_leaves_no_gap() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "KEPT_CASTS", 1)
        casts = one("HAB", width=1)
        for number in (1, 2):
            casts.cast(0.0, "P", cast(number), b"")
        assert casts.counts().given_up == 1
        casts.delivered(0.0, "A", Delivered(1))
        assert casts.counts().given_up == 0
        assert not any(p.message.skip for p in casts.host_ended(0.0, "A") if type(p.message) is Cast)  # type: ignore[union-attr]


def test_what_is_given_up_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "KEPT_CASTS", 0)
    monkeypatch.setattr(relay_state, "GIVEN_UP", 2)
    casts = one("HA")
    for number, sender in enumerate("abc", 1):
        casts.cast(0.0, "P", msgspec.structs.replace(cast(number), sender=sender), b"")
    assert casts.counts().given_up == 2


def test_a_skip_goes_to_the_receivers_as_any_cast() -> None:
    casts = one("HA")
    effects = casts.cast(0.0, "P", cast(1, skip=True), b"")
    assert [effect.message for effect in delivered(effects)] == [Skip("actors", "sender")]
    assert passed(effects) == ["A"]
    assert casts.counts().kept == 1


def test_a_call_over_the_bound_of_bytes_loses_its_body_and_not_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "KEPT_BYTES", 4)
    casts = one("HAB", width=1)
    casts.cast(0.0, "P", cast(1, gather=0.01), b"body")
    casts.cast(0.0, "P", cast(2), b"body")
    assert casts.counts().kept_bytes == 4
    casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"0")
    assert upward(casts.answers(0.0, "A", *answers(1, 2))) == [("P", answers(0, 1, 2)[0])]


@pytest.mark.parametrize(("bound", "limit"), [("GIVEN_GATHERINGS", 1), ("GIVEN_BYTES", 1)])
def test_answers_that_are_not_kept_any_more_are_failures_for_who_asks_again(
    bound: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, bound, limit)
    casts = one("H")
    calls = [msgspec.structs.replace(cast(port, gather=0.01, seqs=port), port=port) for port in (1, 2, 3)]
    for call in calls[:2]:
        casts.cast(0.0, "P", call, b"")
        casts.answer(0.0, CALLER, Answer(call.port, 0, VALUE), b"0")
    assert casts.counts().finished == 1
    again = [msgspec.structs.replace(call, again="Z") for call in calls]
    assert lost_ranks(casts.cast(0.0, "P", again[1], b""), "") == []
    effects = casts.cast(0.0, "P", again[0], b"")
    assert lost_ranks(effects, "the answer was lost with host Z") == [0]
    assert len(delivered(effects)) == 1  # for those who have not had it
    assert lost_ranks(casts.cast(0.0, "P", again[2], b""), "") == []  # is new
    assert casts.gathers(CALLER, 3)


def test_a_large_answer_is_not_kept() -> None:
    casts = one("HA")
    call = cast(1, gather=0.01)
    casts.cast(0.0, "P", call, b"")
    casts.answer(0.0, CALLER, Answer(PORT, 0, VALUE), b"x" * (kept.ANSWER_KEPT + 1))
    effects = casts.cast(0.0, "P", msgspec.structs.replace(call, again="Z"), b"")
    assert lost_ranks(effects, "the answer was lost with host Z") == [0]


def test_of_a_gathering_under_way_too_the_oldest_answers_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "GIVEN_BYTES", 1)
    casts = one("HAB")
    call = cast(1, gather=0.0)
    casts.cast(0.0, "P", call, b"")
    for rank, child in ((1, "A"), (2, "B")):
        casts.answers(0.0, child, *answers(rank))
        casts.fired(0.0, HOLD)
    effects = casts.cast(0.0, "P", msgspec.structs.replace(call, again="Z"), b"")
    assert lost_ranks(effects, "the answer was lost with host Z") == [1, 2]


def test_what_is_remembered_of_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "GIVEN_GATHERINGS", 0)
    monkeypatch.setattr(kept, "EVICTED", 1)
    casts = one("H")
    for back in ("root/a", "root/b"):
        casts.cast(0.0, "P", msgspec.structs.replace(cast(1, gather=0.01), back=back), b"")
        casts.answer(0.0, back, Answer(PORT, 0, VALUE), b"0")
    again = msgspec.structs.replace(cast(1, gather=0.01), back="root/a", again="Z")
    assert lost_ranks(casts.cast(0.0, "P", again, b""), "") == [0]


# --- whole trees


def sizes() -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(
        {
            "seed": st.integers(0, 2**32),
            "hosts": st.integers(3, 40),
            "width": st.integers(2, 4),
            "roots": st.integers(1, 2),
        }
    )


@given(sizes(), st.integers(1, 25), st.integers(0, 10))
def test_every_living_receiver_handles_every_cast_once_and_answers_once(
    world: dict[str, int], casts: int, ends: int
) -> None:
    tree = CastWorld(**world, views=3)
    tree.run(casts, ends)
    tree.check_that_all_is_served()
    assert tree.most <= tree.width + len(tree.hosts) - len(tree.alive)  # and those whose end is news to the root
    tree.tidy()


@given(sizes(), st.integers(1, 25), st.integers(0, 2), st.integers(1, 2))
def test_hosts_that_cannot_reach_each_other_are_served_all_the_same(
    world: dict[str, int], casts: int, ends: int, parted: int
) -> None:
    tree = CastWorld(**world, views=3)
    tree.run(casts, ends, parted)
    tree.check_that_all_is_served()
    tree.tidy()


@given(sizes(), st.integers(1, 25), st.integers(0, 10))
def test_where_little_is_kept_nothing_waits_for_what_is_lost(world: dict[str, int], casts: int, ends: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for bound, limit in {"KEPT_CASTS": 1, "KEPT_BYTES": 20}.items():
            patch.setattr(machine, bound, limit)
        patch.setattr(kept, "GIVEN_GATHERINGS", 1)
        patch.setattr(kept, "GIVEN_BYTES", 10)
        patch.setattr(relay_state, "BODY_KEPT", 12)
        tree = CastWorld(**world, views=1)
        tree.run(casts, ends)
        for caller in tree.callers.values():
            for rank, address in enumerate(tree.addresses):
                receiver = tree.receivers[address]
                if receiver.alive:
                    handled = [seq for sender, seq in receiver.handled if sender == caller.name]
                    assert handled == sorted(set(handled))
                    assert set(handled) <= set(caller.sent.get(rank, []))
                    assert receiver.reorder.held == 0
            for port, ranks in caller.calls.items():
                counted = caller.answers[port]
                if not any(failed == port for failed, _ in caller.failed):  # else late ones find the port closed
                    assert max(counted.values(), default=0) <= 1
                assert [index for index, rank in ranks.items() if tree.lives(rank) and not counted[index]] == []
        tree.tidy()


@pytest.mark.parametrize(("hosts", "width"), [(40, 4), (9, 2), (3, 16)])
def test_a_root_sends_no_more_than_its_width_for_a_cast(hosts: int, width: int) -> None:
    names = [f"h{n}" for n in range(hosts)]
    casts = Casts()
    casts.plan(0.0, "sender", CastPlan(1, width, False, [PlanHost(name, ["m.0"], [0]) for name in names]))
    for number in range(5):
        effects = casts.cast(0.0, "sender", cast(0), b"")
        assert len(effects) == len(split(hosts, width)) * (2 if number == 0 else 1)  # the plan goes with the first
