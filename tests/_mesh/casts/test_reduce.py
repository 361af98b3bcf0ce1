"""Reductions: which answers an agent has folded, by whom, and what goes up in their place."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.casts import reduce
from monarch._mesh.casts.answer_cache import Record
from monarch._mesh.casts.relay import Casts, Forward, Merge, Reply
from monarch._mesh.casts.relay_state import Merging
from monarch._wire.message import ERROR, MERGED, VALUE, Answer, Answers, Cast, CastPlan, Combined, PlanHost
from monarch._wire.unpickling import MARK

CALLER, PORT = "root/client", 7


def reduction(gather: float = 0.01, number: int = 1) -> Cast:
    return Cast(1, number, CALLER, "actors", "sender", "work", PORT, "", b"", 0, 1, 0, gather, combine=b"how")


def agent(here: int = 3, below: Sequence[str] = (), number: int = 1) -> Casts:
    """Returns an agent of host H, with processes m.0, m.1... that are receivers, and children with one receiver each."""
    casts = Casts()
    names = [f"m.{n}" for n in range(here)]
    hosts = [PlanHost("H", names, list(range(here)))]
    hosts += [PlanHost(host, [f"m.{here + n}"], [here + n]) for n, host in enumerate(below)]
    casts.plan(0.0, "P", CastPlan(1, 8, True, hosts))
    casts.cast(0.0, "P", reduction(number=number), b"")
    return casts


def answer(casts: Casts, rank: int, body: bytes, kind: int = VALUE, buffers: Sequence[bytes] = ()) -> list[Any]:
    return casts.answer(0.0, CALLER, Answer(PORT, rank, kind), body, buffers)


def test_nothing_goes_up_before_all_have_answered_and_a_process_here_folds_them() -> None:
    casts = agent(3)
    assert answer(casts, 2, b"ccc") == []
    assert answer(casts, 0, b"a", buffers=[b"xy"]) == []
    (merge,) = answer(casts, 1, b"bb")
    assert isinstance(merge, Merge) and merge.address == "H/m.0"
    ask = merge.message
    assert (ask.combine, ask.groups, ask.sizes, ask.buffers) == (b"how", [3], [1, 2, 3], [1, 0, 0])
    assert (merge.body, merge.buffers) == (b"abbccc", [b"xy"])
    (up,) = casts.combined(0.0, "H/m.0", Combined(CALLER, PORT, 0, VALUE), b"sum", [b"tail"])
    assert isinstance(up, Reply) and (up.upstream, up.body, list(up.buffers)) == ("P", b"sum", [b"tail"])
    assert up.message == Answers(CALLER, PORT, [0, 1, 2], [VALUE, MERGED, MERGED], [3, 0, 0])
    assert casts.counts().gatherings == casts.counts().timers == 0


def test_what_children_have_folded_is_folded_with_ours() -> None:
    casts = agent(1, ["C"])
    answer(casts, 0, b"mine")
    theirs = Answers(CALLER, PORT, [1], [VALUE], [6])
    (merge,) = casts.answers(0.0, "C", theirs, b"theirs")
    assert merge.message.groups == [2] and merge.body == b"minetheirs"
    (up,) = casts.combined(0.0, "H/m.0", Combined(CALLER, PORT, 0, VALUE), b"both")
    assert up.message.ranks == [0, 1] and up.message.kinds == [VALUE, MERGED]


def test_an_exception_stays_where_it_is_and_is_folded_with_nobody() -> None:
    casts = agent(4)
    for rank, kind in ((0, VALUE), (1, VALUE), (2, ERROR)):
        answer(casts, rank, b"%d" % rank, kind)
    (merge,) = answer(casts, 3, b"3")
    assert merge.message.groups == [2] and merge.body == b"01"
    (up,) = casts.combined(0.0, "H/m.0", Combined(CALLER, PORT, 0, VALUE), b"folded")
    assert up.message == Answers(CALLER, PORT, [0, 1, 2, 3], [VALUE, MERGED, ERROR, VALUE], [6, 0, 1, 1])
    assert up.body == b"folded23"


def test_an_answer_that_is_the_callers_to_read_is_folded_with_nobody() -> None:
    casts = agent(4)
    for rank, buffers in ((0, ()), (1, [b"reference", MARK]), (2, ())):
        answer(casts, rank, b"%d" % rank, buffers=buffers)
    (merge,) = answer(casts, 3, b"3")
    assert merge.message.groups == [2] and merge.body == b"23"
    ups = casts.combined(0.0, "H/m.0", Combined(CALLER, PORT, 0, VALUE), b"folded")
    assert [(up.message.ranks, up.message.kinds, up.body, len(up.buffers)) for up in ups] == [
        ([1], [VALUE], b"1", 2),
        ([0, 2, 3], [VALUE, VALUE, MERGED], b"0folded", 0),
    ]


def test_one_answer_goes_up_as_it_is() -> None:
    casts = agent(1)
    (up,) = answer(casts, 0, b"only")
    assert up.message == Answers(CALLER, PORT, [0], [VALUE], [4]) and up.body == b"only"


def test_another_process_folds_when_the_first_ends_at_it_and_nobody_when_none_is_left() -> None:
    casts = agent(2)
    answer(casts, 0, b"0")
    (first,) = answer(casts, 1, b"1")
    assert first.address == "H/m.0"
    (second,) = casts.process_ended(0.0, "H/m.0")
    assert isinstance(second, Merge) and second.address == "H/m.1" and second.body == b"01"
    assert casts.combined(0.0, "H/m.0", Combined(CALLER, PORT, 0, VALUE), b"late") == []
    (up,) = casts.process_ended(0.0, "H/m.1")
    assert up.message.kinds == [VALUE, VALUE] and up.body == b"01"


def test_one_that_ended_before_does_not_fold() -> None:
    casts = agent(3)
    answer(casts, 0, b"0")
    assert casts.process_ended(0.0, "H/m.0") == []
    answer(casts, 1, b"1")
    (merge,) = answer(casts, 2, b"2")
    assert merge.address == "H/m.1" and merge.message.groups == [3]


def test_the_root_passes_on_what_comes() -> None:
    casts = Casts()
    casts.plan(0.0, "P", CastPlan(1, 8, False, [PlanHost("C", ["m.0", "m.1"], [0, 1]), PlanHost("D", ["m.2"], [2])]))
    down = casts.cast(0.0, "P", reduction(number=0), b"")
    assert [
        effect.message.combine for effect in down if isinstance(effect, Forward) and type(effect.message) is Cast
    ] == [b"how", b"how"]
    casts.answers(0.0, "C", Answers(CALLER, PORT, [0, 1], [VALUE, MERGED], [2, 0]), b"cc")
    *_, up = casts.answers(0.0, "D", Answers(CALLER, PORT, [2], [VALUE], [1]), b"d")
    ups = [effect for effect in (up, *_) if isinstance(effect, Reply)]
    assert [(effect.message.ranks, effect.body) for effect in ups] == [([0, 1, 2], b"ccd")]


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.integers(0, 2)), max_size=12))
def test_groups_are_neighbours_in_order_and_nothing_is_lost(layout: list[tuple[int, bool, int]]) -> None:
    records, rank = [], 0
    for span, fine, gap in layout:
        rank += gap
        records.append(Record(rank, VALUE if fine else ERROR, b"%d" % rank, (), span))
        rank += span
    merging = Merging(["H/m.0"])
    assert merging.sort(list(reversed(records))) == any(len(group) > 1 for group in merging.groups)
    assert merging.unfolded() == records
    for number, group in enumerate(merging.groups):
        for one, other in itertools.pairwise(group):
            assert one.kind == other.kind == VALUE and one.rank + one.span == other.rank
        last = merging.take(number, VALUE, b"", ())
        assert last == (number == len(merging.groups) - 1)
    if merging.groups:
        covered = [rank for record in merging.result() for rank in record.ranks]
        assert covered == [rank for record in records for rank in record.ranks]


@pytest.mark.parametrize(
    ("name", "values", "result"),
    [
        ("sum", [1, 2, 3], 6),
        ("min", [2, 1, 3], 1),
        ("max", [2, 1, 3], 3),
        ("concat", [[1], [2], [3]], [1, 2, 3]),
        ("concat", ["a", "b", "c"], "abc"),
    ],
)
def test_names_stand_for_functions(name: str, values: list[Any], result: Any) -> None:
    combine = reduce.combiner(name)
    assert combine(combine(values[0], values[1]), values[2]) == result
    assert combine(values[0], combine(values[1], values[2])) == result


def test_arrays_and_tensors_are_combined_element_by_element() -> None:
    one, other = numpy.array([1.0, 5.0]), numpy.array([3.0, 2.0])
    assert reduce.combiner("min")(one, other).tolist() == [1.0, 2.0]
    assert reduce.combiner("max")(one, other).tolist() == [3.0, 5.0]
    assert reduce.combiner("concat")(one, other).tolist() == [1.0, 5.0, 3.0, 2.0]
    torch = pytest.importorskip("torch")
    first, second = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0])
    assert reduce.combiner("min")(first, second).tolist() == [1.0, 2.0]
    assert reduce.combiner("concat")(first, second).tolist() == [1.0, 5.0, 3.0, 2.0]


def test_functions_stand_for_themselves_and_other_names_are_refused() -> None:
    assert reduce.combiner(operator.mul) is operator.mul
    with pytest.raises(ValueError, match=r"no combine function is called 'mean' \(known: sum, min, max, concat\)"):
        reduce.combiner("mean")
