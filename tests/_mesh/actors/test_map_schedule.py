"""Tests of which rank runs which item: the decisions of `Endpoint.map`, without actors."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.actors.map_schedule import _PATIENCE, AHEAD, MapSchedule


def send_all(schedule: MapSchedule) -> list[tuple[int, int]]:
    """Sends what there is room for: (item, rank)."""
    sent = []
    while (assigned := schedule.assign()) is not None:
        schedule.sent(assigned)
        sent.append((assigned.item, assigned.rank))
    return sent


def given_now(schedule: MapSchedule) -> list[int]:
    found = []
    while (index := schedule.next_given()) is not None:
        found.append(index)
    return found


def test_each_rank_gets_its_share_and_the_next_item_when_it_is_free() -> None:
    schedule = MapSchedule(3, 1, 0, ordered=False)
    assert send_all(schedule) == [(0, 0), (1, 1), (2, 2)]
    schedule.answered(1)
    assert send_all(schedule) == [(3, 1)]
    assert given_now(schedule) == [1]


def test_several_in_flight_go_round_before_any_rank_has_two() -> None:
    assert send_all(MapSchedule(2, 2, 0, ordered=False)) == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_in_order_results_wait_for_those_before_them() -> None:
    schedule = MapSchedule(3, 1, 0, ordered=True)
    send_all(schedule)
    schedule.answered(2)
    schedule.answered(1)
    assert given_now(schedule) == []
    schedule.answered(0)
    assert given_now(schedule) == [0, 1, 2]


@pytest.mark.parametrize("ordered", [True, False])
def test_no_more_is_pulled_ahead_than_the_bound(ordered: bool) -> None:
    schedule = MapSchedule(2, 1, 0, ordered)
    send_all(schedule)
    for _ in range(100):  # rank 1 answers and answers; item 0 stays, or nobody reads
        for index in [i for i in range(1, schedule.pulled) if schedule._rank_of.get(i) == 1]:
            schedule.answered(index)
        send_all(schedule)
    assert schedule.pulled == AHEAD * 2
    if ordered:
        schedule.answered(0)
    assert given_now(schedule)
    assert send_all(schedule)


def test_an_item_whose_rank_died_goes_to_another_one() -> None:
    schedule = MapSchedule(2, 1, 1, ordered=False)
    send_all(schedule)
    assert schedule.died(0, 0.0, lost=False) == (True, 0)
    assert send_all(schedule) == []  # rank 1 is busy, rank 0 is down
    schedule.answered(1)
    assert send_all(schedule) == [(0, 1)]
    assert schedule.died(0, 0.0, lost=False) == (False, 1)
    assert sorted(given_now(schedule)) == [0, 1]
    assert (schedule.failed, schedule.sent_again) == (1, 1)


def test_without_retries_it_has_failed() -> None:
    schedule = MapSchedule(2, 1, 0, ordered=False)
    send_all(schedule)
    assert schedule.died(0, 0.0, lost=False) == (False, 0)
    assert given_now(schedule) == [0]


def test_what_raised_is_tried_on_another_rank_first_and_on_the_same_if_there_is_no_other() -> None:
    schedule = MapSchedule(2, 1, 5, ordered=False)
    send_all(schedule)
    assert schedule.raised(0)
    assert send_all(schedule) == [(2, 0)]  # it waits for rank 1
    schedule.answered(1)
    assert send_all(schedule) == [(0, 1)]
    assert schedule.raised(0)
    assert send_all(schedule) == [(0, 1)]  # it has failed on both


def test_a_rank_that_answers_again_is_used_again() -> None:
    schedule = MapSchedule(1, 2, 1, ordered=False)
    send_all(schedule)
    assert schedule.died(0, 0.0, lost=False) == (True, 0)
    assert schedule.died(1, 0.0, lost=False) == (True, None)  # it is being probed already
    delays = [schedule.probed(0, False, 0.0, coming_back=True) for _ in range(6)]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert not schedule.stuck
    assert schedule.probed(0, True, 3.0) == 0.0
    assert send_all(schedule) == [(0, 0), (1, 0)]


def test_a_rank_that_came_back_before_all_of_its_deaths_were_told_has_no_more_room_than_before() -> None:
    schedule = MapSchedule(1, 2, 3, ordered=False)
    send_all(schedule)
    schedule.died(0, 0.0, lost=False)
    schedule.probed(0, True, 0.1)
    assert send_all(schedule) == [(0, 0)]  # item 1 still counts
    assert schedule.died(1, 0.1, lost=False) == (True, 0)


def test_nobody_is_left_when_no_rank_comes_back() -> None:
    schedule = MapSchedule(2, 1, 1, ordered=False)
    send_all(schedule)
    schedule.died(0, 0.0, lost=False)
    schedule.died(1, 0.0, lost=True)
    assert not schedule.stuck
    schedule.probed(0, False, 0.0, coming_back=False)
    assert not schedule.stuck  # the owner may just have heard of it
    schedule.probed(0, False, 0.1, coming_back=False)
    assert schedule.stuck
    schedule.give_up()
    assert sorted(given_now(schedule)) == [0, 1]


def test_where_another_process_owns_the_mesh_a_rank_is_waited_for_so_long() -> None:
    schedule = MapSchedule(1, 1, 0, ordered=False)
    send_all(schedule)
    schedule.died(0, 5.0, lost=False)
    schedule.probed(0, False, 5.0 + _PATIENCE - 0.1)
    assert not schedule.stuck
    schedule.probed(0, False, 5.0 + _PATIENCE)
    assert schedule.stuck


def test_what_cannot_be_sent_has_failed_and_the_rank_stays_free() -> None:
    schedule = MapSchedule(1, 1, 3, ordered=True)
    schedule.unsendable(0)
    assert given_now(schedule) == [0]
    assert send_all(schedule) == [(1, 0)]


@given(
    ranks=st.integers(1, 4),
    in_flight=st.integers(1, 3),
    retries=st.integers(0, 2),
    items=st.integers(0, 30),
    ordered=st.booleans(),
    chances=st.randoms(use_true_random=False),
)
def test_every_item_is_given_once_within_the_bounds(
    ranks: int, in_flight: int, retries: int, items: int, ordered: bool, chances: object
) -> None:
    """Holds whatever answers, raises, dies and comes back, in whatever order."""
    choose = chances.choice  # type: ignore[attr-defined]
    schedule = MapSchedule(ranks, in_flight, retries, ordered)
    rank_of: dict[int, int] = {}
    sent: Counter[int] = Counter()
    probing: set[int] = set()
    given: list[int] = []
    while not schedule.over:
        while (assigned := schedule.assign()) is not None:
            if assigned.fresh and assigned.item == items:
                schedule.exhausted = True
                continue
            assert assigned.rank not in probing
            schedule.sent(assigned)
            rank_of[assigned.item] = assigned.rank
            sent[assigned.item] += 1
        assert max(Counter(rank_of.values()).values(), default=0) <= in_flight
        assert schedule.pulled - schedule.given <= AHEAD * ranks * in_flight
        if rank_of and choose([True, True, False]):
            index = choose(sorted(rank_of))
            what = choose(["answer", "answer", "raise", "die"])
            rank = rank_of[index]
            if what == "answer":
                del rank_of[index]
                schedule.answered(index)
            elif what == "raise":
                del rank_of[index]
                schedule.raised(index)
            else:
                for lost in [i for i, r in rank_of.items() if r == rank]:
                    del rank_of[lost]
                    schedule.died(lost, 0.0, lost=False)
                probing.add(rank)
        elif probing:
            rank = choose(sorted(probing))
            if not schedule.probed(rank, choose([True, False]), 0.0, coming_back=True):
                probing.discard(rank)
        index = schedule.next_given()
        if index is not None:
            given.append(index)
        assert not schedule.stuck
    assert sorted(given) == list(range(items))
    assert not ordered or given == sorted(given)
    assert all(1 <= sent[index] <= retries + 1 for index in range(items))
    assert schedule.done == schedule.given == items
    assert not schedule.in_flight
