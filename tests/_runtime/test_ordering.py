"""Tests that, whatever happens on the way, a receiver handles each sender's messages once, as they were sent."""

from __future__ import annotations

import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from queue import Queue
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._runtime.incarnations import first_in
from monarch._runtime.ordering import Numbering, RankKey, Reorder, compress, cut, expand
from monarch._wire.message import Stamp
from tests.support.interrupts import Steps
from tests.support.threads import together

T = TypeVar("T")

SENDERS = ("a", "b", "c")
counts = st.fixed_dictionaries({sender: st.integers(0, 12) for sender in SENDERS})


def accepted(reorder: Reorder[T], sender: str, number: int, item: T) -> list[T]:
    """Returns what may be handled now; none of it was given up before."""
    ready = reorder.accept(sender, number, item)
    assert ready is not None
    return list(ready)


def messages(sent: dict[str, int]) -> list[tuple[str, int]]:
    return [(sender, number) for sender, count in sent.items() for number in range(1, count + 1)]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Returns what senders sent, and the order in which it came: any order, some of it more than once."""
    sent = draw(counts)
    every = messages(sent)
    repeats = draw(st.lists(st.sampled_from(every), max_size=10)) if every else []
    return sent, draw(st.permutations(every + repeats))


@given(deliveries())
def test_any_order_and_any_repeats_are_released_in_order_once(
    case: tuple[dict[str, int], list[tuple[str, int]]],
) -> None:
    sent, arrivals = case
    reorder: Reorder[tuple[str, int]] = Reorder()
    released: list[tuple[str, int]] = []
    for sender, number in arrivals:
        released += accepted(reorder, sender, number, (sender, number))
        so_far = [message for message in released if message[0] == sender]
        assert so_far == messages({sender: len(so_far)})  # at every moment, not only in the end
    assert sorted(released) == sorted(messages(sent))
    assert reorder.held == 0
    assert [reorder.gap(sender) for sender in SENDERS] == [None] * 3


@given(deliveries())
def test_what_is_held_is_what_came_too_early(case: tuple[dict[str, int], list[tuple[str, int]]]) -> None:
    _, arrivals = case
    reorder: Reorder[int] = Reorder()
    come: set[tuple[str, int]] = set()
    released: dict[str, int] = dict.fromkeys(SENDERS, 0)
    for sender, number in arrivals:
        come.add((sender, number))
        released[sender] += len(accepted(reorder, sender, number, number))
        early = {one: [n for s, n in come if s == one and n > released[one]] for one in SENDERS}
        assert reorder.held == sum(map(len, early.values()))
        for one, numbers in early.items():
            assert reorder.gap(one) == ((released[one] + 1, min(numbers)) if numbers else None)
            assert reorder.knows(one) is (released[one] > 0)


@given(st.lists(st.sampled_from(SENDERS), max_size=40))
def test_in_order_nothing_is_ever_held(order: list[str]) -> None:
    reorder: Reorder[int] = Reorder()
    numbering = Numbering()
    for sender in order:
        number = one(numbering, sender, 0)
        assert accepted(reorder, sender, number, number) == [number]
        assert reorder.held == 0


def test_the_first_message_of_a_number_counts() -> None:
    reorder: Reorder[str] = Reorder()
    assert accepted(reorder, "a", 2, "early") == []
    assert accepted(reorder, "a", 2, "its repeat") == []
    assert accepted(reorder, "a", 1, "first") == ["first", "early"]
    assert accepted(reorder, "a", 1, "repeat") == []
    assert accepted(reorder, "a", 2, "repeat") == []


@given(st.sets(st.integers(1, 12)), st.integers(13, 20))
def test_a_lost_path_releases_what_came_and_continues_anywhere(came: set[int], after: int) -> None:
    reorder: Reorder[int] = Reorder()
    released: list[int] = []
    for number in sorted(came, reverse=True):
        released += accepted(reorder, "a", number, number)
    assert accepted(reorder, "b", 2, 2) == []
    released += reorder.lost("a")
    assert released == sorted(came)
    assert (reorder.held, reorder.gap("a"), reorder.gap("b")) == (1, None, (1, 2))
    assert reorder.lost("a") == []
    if came:  # the numbers between are gone for ever
        assert accepted(reorder, "a", after, after) == [after]
        assert accepted(reorder, "a", after + 2, after + 2) == []
    else:  # nothing is known of that sender: it begins at one
        assert accepted(reorder, "a", 2, 2) == []
        after = 0
    assert accepted(reorder, "a", after + 1, after + 1) == [after + 1, after + 2]


@given(st.sets(st.integers(1, 12)))
def test_a_forgotten_sender_begins_anew(came: set[int]) -> None:
    reorder: Reorder[int] = Reorder()
    released: list[int] = []
    for number in sorted(came, reverse=True):
        released += accepted(reorder, "a", number, number)
    released += reorder.forget("a")
    assert released == sorted(came)
    assert (reorder.held, reorder.knows("a"), reorder.forget("a")) == (0, False, [])
    assert accepted(reorder, "a", 1, 1) == [1]


@given(st.integers(1, 20), st.integers(1, 5))
def test_a_sender_whose_first_messages_were_refused_begins_later(first: int, count: int) -> None:
    reorder: Reorder[int] = Reorder()
    reorder.skip("a")
    assert reorder.knows("a") and not reorder.knows("b")
    released = [item for number in range(first, first + count) for item in accepted(reorder, "a", number, number)]
    assert released == list(range(first, first + count))
    assert accepted(reorder, "a", first + count + 1, 0) == []  # from the first on, in order as ever
    assert accepted(reorder, "b", 2, 2) == []


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.data())
def test_what_is_given_up_and_comes_after_all_is_answered_once(arrivals: list[int], data: st.DataObject) -> None:
    """A path is lost again and again. Each number is handled once, in order, or refused once; repeats are dropped."""
    reorder: Reorder[int] = Reorder()
    reorder.skip("a")
    handled: list[int] = []
    refused: list[int] = []
    for number in arrivals:
        ready = reorder.accept("a", number, number)
        if ready is None:
            refused.append(number)
        else:
            handled += ready
        if data.draw(st.booleans()):
            handled += reorder.lost("a")
    handled += reorder.lost("a")
    assert handled == sorted(set(handled))
    assert sorted(handled + refused) == sorted(set(arrivals))


def test_the_ranges_that_were_given_up_are_bounded() -> None:
    reorder: Reorder[int] = Reorder()
    for number in range(2, 1002, 2):  # one between two is missing each time
        reorder.accept("a", number, number)
        reorder.lost("a")
    assert len(reorder._gaps["a"]) == 64
    assert reorder.accept("a", 999, 999) is None
    assert reorder.accept("a", 3, 3) == ()  # too long ago


# --- the sender's side


def one(numbering: Numbering, mesh: str, rank: RankKey) -> int:
    message = SimpleNamespace(seq=0)
    numbering.next(message, mesh, rank)
    return message.seq


def many(numbering: Numbering, mesh: str, ranks: Sequence[RankKey]) -> Stamp:
    message: Any = SimpleNamespace(seqs=0)
    numbering.next_many(message, mesh, ranks)
    stamp: Stamp = message.seqs
    return stamp


steps = st.lists(st.tuples(st.sampled_from(["m", "n"]), st.lists(st.integers(0, 5), unique=True)), max_size=12)


@given(steps)
def test_each_receiver_is_counted_for_itself(steps: list[tuple[str, list[int]]]) -> None:
    numbering = Numbering()
    expected: dict[tuple[str, int], int] = {}
    for mesh, ranks in steps:
        for rank in ranks:
            expected[mesh, rank] = expected.get((mesh, rank), 0) + 1
        stamp = many(numbering, mesh, ranks)
        assert expand(stamp, len(ranks)) == [expected[mesh, rank] for rank in ranks]
    for mesh, rank in itertools.product("mn", range(6)):
        assert one(numbering, mesh, rank) == expected.get((mesh, rank), 0) + 1


def test_a_stamp_is_one_number_when_all_stand_at_the_same_count() -> None:
    numbering = Numbering()
    assert many(numbering, "m", range(1000)) == 1
    one(numbering, "m", 500)
    assert many(numbering, "m", range(1000)) == [(2, 500), (3, 1), (2, 499)]
    assert many(numbering, "m", []) == 0 and expand(0, 0) == []


def test_a_forgotten_mesh_is_counted_anew_and_others_go_on() -> None:
    numbering = Numbering()
    many(numbering, "m", [0, 1])
    one(numbering, "n", 0)
    numbering.forget("m")
    numbering.forget("never sent to")
    assert (one(numbering, "m", 1), one(numbering, "n", 0)) == (1, 2)


def test_each_incarnation_of_a_receiver_is_counted_from_one() -> None:
    numbering = Numbering()
    assert [one(numbering, "m", 0) for _ in range(3)] == [1, 2, 3]
    assert [one(numbering, "m", (0, 1)) for _ in range(2)] == [1, 2]
    assert [one(numbering, "m", 1), one(numbering, "m", (0, 1)), one(numbering, "m", 1)] == [1, 3, 2]
    assert one(numbering, "m", (0, 2)) == 1
    numbering.forget("m")
    assert one(numbering, "m", (0, 2)) == 1


receivers = st.tuples(st.integers(0, 2), st.integers(0, 6))


@given(st.lists(receivers, max_size=60))
def test_incarnations_only_go_up_and_none_is_counted_twice(sent: list[tuple[int, int]]) -> None:
    """Ranks with and without restarts, in any order: as senders see them, each only ever hears of later ones."""
    numbering = Numbering()
    last = dict.fromkeys(range(3), 0)
    counts: dict[tuple[int, int], int] = {}
    for rank, incarnation in sent:
        last[rank] = now = max(last[rank], incarnation)
        counts[rank, now] = counts.get((rank, now), 0) + 1
        assert one(numbering, "m", (rank, now) if now else rank) == counts[rank, now]
    # Of those before the last nothing is kept, but for messages that name none: those could still be taken for this one's.
    kept = {(rank, 0) for rank, now in sent if not now} | {(rank, now) for rank, now in last.items() if now}
    assert len(numbering._counts.get("m", ())) == len(kept & set(counts))


def test_a_thousand_restarts_leave_two_counters() -> None:
    numbering = Numbering()
    for incarnation in range(1000):
        assert one(numbering, "m", (0, incarnation) if incarnation else 0) == 1
    assert (len(numbering), len(numbering._counts["m"])) == (1, 2)
    first, later = first_in(1), first_in(2)
    assert [one(numbering, "m", (0, incarnation)) for incarnation in (first, first + 1, first)] == [1, 1, 2]
    assert one(numbering, "m", (0, later + 1)) == 1
    assert list(numbering._counts["m"]) == [0, (0, later + 1)]


def test_a_thread_that_has_not_heard_of_the_restart_repeats_no_number() -> None:
    numbering = Numbering()
    assert [one(numbering, "m", 0) for _ in range(2)] == [1, 2]
    assert one(numbering, "m", (0, 1)) == 1
    assert one(numbering, "m", 0) == 3  # one is a repeat for an actor that has begun this stream


@pytest.mark.parametrize("ranks", [[0], [0, 1, 2], [2, 0]])
def test_casts_and_single_messages_share_the_order(ranks: list[int]) -> None:
    """Shows that what a sender casts to a view and what it sends to one actor of it stays in order."""
    numbering = Numbering()
    receivers: dict[int, Reorder[str]] = {rank: Reorder() for rank in ranks}
    first = expand(many(numbering, "m", ranks), len(ranks))
    alone = one(numbering, "m", ranks[0])
    last = expand(many(numbering, "m", ranks), len(ranks))
    got: dict[int, list[str]] = {rank: [] for rank in ranks}
    for rank, number in reversed(list(zip(ranks, last, strict=True))):
        got[rank] += receivers[rank].accept("s", number, "last")
    got[ranks[0]] += receivers[ranks[0]].accept("s", alone, "alone")
    for rank, number in zip(ranks, first, strict=True):
        got[rank] += receivers[rank].accept("s", number, "first")
    assert got == {rank: ["first", *(["alone"] if rank == ranks[0] else []), "last"] for rank in ranks}


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_part_of_a_stamp_is_the_stamp_of_the_part(numbers: list[int], start: int, stop: int) -> None:
    stop = min(stop, len(numbers))
    start = min(start, stop)
    stamp = compress(numbers)
    assert expand(stamp, len(numbers)) == numbers
    assert cut(stamp, start, stop) == compress(numbers[start:stop])


whole, half = tuple(range(6)), tuple(range(3))
sent_to = st.one_of(st.integers(0, 6), st.sampled_from([whole, half, (*whole,), (2, (3, 1), 4), "forget"]))


@given(st.lists(st.tuples(st.sampled_from("mn"), sent_to), max_size=40))
def test_numbers_are_the_same_however_often_the_same_receivers_are_sent_to(sent: list[tuple[str, Any]]) -> None:
    numbering = Numbering()
    counts: Counter[tuple[str, Any]] = Counter()
    for mesh, to in sent:
        if to == "forget":
            numbering.forget(mesh)
            for key in [key for key in counts if key[0] == mesh]:
                del counts[key]
            continue
        ranks = to if isinstance(to, tuple) else (to,)
        stamp = many(numbering, mesh, to) if isinstance(to, tuple) else one(numbering, mesh, to)
        if (3, 1) in ranks and not counts[mesh, (3, 1)]:
            del counts[mesh, 3]  # nothing is sent to it any more
        counts.update((mesh, rank) for rank in ranks)
        assert expand(stamp, len(ranks)) == [counts[mesh, rank] for rank in ranks]


def test_many_threads_that_send_to_one_and_to_all_take_each_number_once() -> None:
    numbering, ranks, taken = Numbering(), tuple(range(8)), Queue[list[int]]()

    def casts() -> None:
        taken.put([expand(many(numbering, "m", ranks), 8)[5] for _ in range(300)])

    def calls() -> None:
        taken.put([one(numbering, "m", 5) for _ in range(300)])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        together(casts, calls, casts)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(number for _ in range(3) for number in taken.get()) == list(range(1, 901))


def test_what_is_held_can_be_taken_out_once() -> None:
    reorder: Reorder[str] = Reorder()
    for sender, number in (("a", 3), ("b", 2), ("a", 2)):
        assert accepted(reorder, sender, number, f"{sender}{number}") == []
    assert sorted(reorder.drain()) == ["a2", "a3", "b2"]
    assert (reorder.held, reorder.drain()) == (0, [])
    assert accepted(reorder, "a", 1, "a1") == ["a1"]


KINDS: dict[str, Any] = {"one": 1, "many": (0, 1), "others": (1, 2, (3, 1))}


@pytest.mark.parametrize("handled", KINDS)
@pytest.mark.parametrize("sent", KINDS)
def test_a_handler_that_sends_at_any_step_of_a_send_takes_numbers_of_its_own(sent: str, handled: str) -> None:
    def send(*kinds: str) -> None:
        for kind in kinds:
            to = KINDS[kind]
            ranks = to if isinstance(to, tuple) else (to,)
            stamp = many(numbering, "m", ranks) if ranks is to else one(numbering, "m", to)
            for rank, number in zip(ranks, expand(stamp, len(ranks)), strict=True):
                taken[rank].append(number)

    steps, step = Steps(), 0
    for before in ("many", "many"), ("one", "many"), ("many", "others"):
        for step in itertools.count():
            numbering = Numbering()
            taken: dict[RankKey, list[int]] = defaultdict(list)
            send(*before)
            with steps.at(step, partial(send, handled)):
                send(sent)
            send(*KINDS)
            for rank, numbers in taken.items():
                assert sorted(numbers) == list(range(1, len(numbers) + 1)), (before, step, rank)
            if not steps.came:
                break
    assert step > 10
