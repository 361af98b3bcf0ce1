from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.casts.plan import ViewReceivers
from monarch._wire.message import decode_extent

ADDRESSES = [f"unix:/h/m.{rank}" for rank in range(8)]


@given(st.lists(st.integers(0, 7), unique=True))
def test_receivers_are_the_ranks_of_the_view_in_its_order(ranks: list[int]) -> None:
    plan = ViewReceivers(("x",), (len(ranks),), ranks, ADDRESSES)
    assert plan.receivers == tuple((index, rank, ADDRESSES[rank]) for index, rank in enumerate(ranks))
    assert (plan.ranks, plan.addresses) == (tuple(ranks), tuple(ADDRESSES[rank] for rank in ranks))
    assert len(plan) == len(ranks)


def test_the_view_travels_with_each_message() -> None:
    plan = ViewReceivers(("hosts", "gpus"), (2, 3), range(6), ADDRESSES)
    assert decode_extent(plan.view) == (("hosts", "gpus"), (2, 3))


def test_actors_that_share_a_process() -> None:
    plan = ViewReceivers(("x",), (4,), [0, 1, 2, 3], ["a", "b", "a", "a"])
    assert len(plan) == 4


def test_a_view_of_no_dimensions_has_one_receiver() -> None:
    plan = ViewReceivers((), (), [5], ADDRESSES)
    assert plan.receivers == ((0, 5, ADDRESSES[5]),)
