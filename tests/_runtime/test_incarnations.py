"""Tests of what a process knows of restarts elsewhere: it only ever grows, until it is forgotten, and it is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._runtime import incarnations
from monarch._runtime.incarnations import Incarnations, first_in, process_of


def test_nothing_is_known_at_first_and_that_is_cheap_to_ask() -> None:
    known = Incarnations()
    assert not known
    assert known.of("m", 0, "p0") == 0


def test_an_actor_restarted_in_its_process() -> None:
    known = Incarnations()
    known.actor_restarted("m", 1, 1)
    assert known
    assert [known.of("m", rank, "p") for rank in range(3)] == [0, 1, 0]
    assert known.of("n", 1, "p") == 0


def test_a_process_that_was_replaced_makes_all_its_actors_later_ones() -> None:
    known = Incarnations()
    known.actor_restarted("m", 0, 5)
    known.process_restarted("p0", 1)
    assert known.of("m", 0, "p0") == known.of("n", 7, "p0") == first_in(1) > 5
    assert known.of("m", 0, "p1") == 5  # there it would be another's
    known.actor_restarted("m", 0, first_in(1) + 1)
    assert known.of("m", 0, "p0") == first_in(1) + 1
    known.process_restarted("p0", 2)
    assert known.of("m", 0, "p0") == first_in(2)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_word_of_an_earlier_restart_changes_nothing(late: int) -> None:
    known = Incarnations()
    known.actor_restarted("m", 0, 3)
    known.actor_restarted("m", 0, late)
    assert known.of("m", 0, "p") == 3
    known.process_restarted("p", 3)
    known.process_restarted("p", late)
    assert known.of("m", 0, "p") == first_in(3)


def test_what_is_forgotten_is_unknown_again() -> None:
    known = Incarnations()
    known.actor_restarted("m", 0, 1)
    known.actor_restarted("n", 0, 1)
    known.process_restarted("p", 1)
    known.forget_actors("m")
    known.forget_process("p")
    assert (known.of("m", 0, "p"), known.of("n", 0, "p")) == (0, 1)
    for name in ("n", "m", "never known"):
        known.forget_actors(name)
        known.forget_process(name)
    assert not known


def test_a_thousand_restarts_take_no_more_room_than_one() -> None:
    known = Incarnations()
    for number in range(1, 1001):
        known.actor_restarted("m", 3, number)
        known.process_restarted("p", number)
    assert (known._actors, known._processes) == ({"m": {3: 1000}}, {"p": 1000})


def test_so_many_meshes_are_remembered_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnations, "_KEPT", 10)
    known = Incarnations()
    for number in range(15):
        known.actor_restarted(f"m{number}", 0, 1)
    assert [known.of(f"m{number}", 0, "p") for number in range(15)] == [0] * 5 + [1] * 10


@given(st.integers(0, 2**20), st.integers(0, 2**32 - 1))
def test_an_incarnation_holds_that_of_its_process(process: int, restarts: int) -> None:
    incarnation = first_in(process) + restarts
    assert process_of(incarnation) == process
    assert incarnation < first_in(process + 1)


news = st.lists(
    st.one_of(
        st.tuples(st.just("actor"), st.sampled_from("mn"), st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.just("process"), st.sampled_from("pq"), st.just(0), st.integers(0, 4)),
    ),
    max_size=30,
)


@given(news)
def test_whatever_the_order_of_the_news_the_latest_counts(news: list[tuple[str, str, int, int]]) -> None:
    known = Incarnations()
    latest: dict[tuple[str, str, int], int] = {}
    for kind, name, rank, incarnation in news:
        if kind == "actor":
            known.actor_restarted(name, rank, incarnation)
        else:
            known.process_restarted(name, incarnation)
        latest[kind, name, rank] = max(latest.get((kind, name, rank), 0), incarnation)
        for mesh in "mn":
            for address in "pq":
                least = first_in(latest.get(("process", address, 0), 0))
                assert [known.of(mesh, rank, address) for rank in range(3)] == [
                    max(least, latest.get(("actor", mesh, rank), 0)) for rank in range(3)
                ]
