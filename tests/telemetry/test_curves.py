"""Curves of what a program logs: folded over ranks, bounded, and which rank differs."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.telemetry import curves
from monarch.telemetry.curves import Curve, FoldedPoint, MetricCurves

NAN = math.nan


def point(*values: float) -> FoldedPoint:
    """The values of rank 0, 1 and so on."""
    made = FoldedPoint()
    for rank, value in enumerate(values):
        made.add(value, rank, 10.0 + rank)
    return made


def only(found: MetricCurves, **how: Any) -> Curve:
    (curve,) = found.told(**how)
    return curve


def test_a_point_has_what_all_ranks_logged() -> None:
    made = point(2.0, 1.0, 6.0)
    assert (made.mean, made.least, made.least_rank, made.most, made.most_rank) == (3.0, 1.0, 1, 6.0, 2)
    assert made.spread == pytest.approx(math.sqrt(14 / 3)) and made.at == 12.0


def test_what_is_no_finite_number_is_counted_and_not_part_of_the_mean() -> None:
    made = point(1.0, NAN, 3.0, -math.inf)
    assert (made.mean, made.count, made.odd, made.odd_rank) == (2.0, 2, 2, 1)
    alone = point(NAN)
    assert alone.mean is None and alone.differs() == -1, "all ranks are alike"


@pytest.mark.parametrize(
    ("values", "mean", "spread"),
    [
        ((1.0, 1e155), 5e154, 5e154),
        ((1.7e308, -1.7e308), 0.0, 1.7e308),
        ((-1.7e308, 1.7e308, 1.7e308), 0.0, 1.7e308),
        ((1e200, 1e200), 1e200, 0.0),
    ],
)
def test_sums_beyond_what_a_float_can_be(values: tuple[float, ...], mean: float, spread: float) -> None:
    made, other = MetricCurves(), MetricCurves()
    for rank, value in enumerate(values):
        made.add("m", "loss", 0, value, rank, 1.0)
    other.restore(msgspec.json.decode(msgspec.json.encode(made.told()), type=list[Curve]))
    for found in (only(made), only(other)):
        assert found.mean == pytest.approx([mean]) and found.spread == pytest.approx([spread])
        assert found.differs == [-1]
    other.add("m", "loss", 0, -values[0], 5, 1.0)
    other.add("m", "loss", 1, 1.0, 5, 1.0)
    other.told(points=1)
    (wide,) = msgspec.json.decode(msgspec.json.encode(other.told(points=1)), type=list[Curve])
    assert wide.count == [len(values) + 2]

    # as SQL folds it, or a file has it
    """Of what SQL has folded, or of a file."""
    for mean, spread in ((0.0, 1e200), (math.inf, math.inf)):
        made = MetricCurves()
        made.restore([Curve("m", "x", 1, [0], [mean], [-1.0], [3.0], [0], [1], [spread], [2], [0], [-1], [-1], [1.0])])
        found = only(made)
        assert (found.mean, found.spread) == ([mean if mean == 0 else 1.0], [2.0])


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        ((1.0, 1.01, 0.99, 9.0, 1.0, 1.02), 3),
        ((1.0, 1.01, 0.99, 1.02, -9.0), 4),
        ((0.5,) * 63 + (0.6,), 63),  # the others are equal
        ((0.5, 0.5, 0.5, 0.5), -1),
        ((1e9, 1e9 + 1, 1e9 - 1, 1e9, 1e9 + 5000), 4),  # no digits are lost
        ((1.0, 2.0, 3.0, 4.0, 5.0), -1),
        ((1.0, 9.0, 1.0), -1),  # too few to tell
        ((1.0, 1.0, NAN, 1.0), 2),
        ((NAN, NAN, NAN, 1.0), -1),  # most are
        ((0.1 + 0.2, 0.3, 0.3, 0.3, 0.3), -1),  # of the last digit
    ],
)
def test_the_rank_that_differs(values: tuple[float, ...], rank: int) -> None:
    assert point(*values).differs() == rank


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.data())
def test_points_that_are_merged_are_one(values: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(values) - 1))
    whole, first, second = FoldedPoint(), FoldedPoint(), FoldedPoint()
    for rank, value in enumerate(values):
        whole.add(value, rank, 0.0)
        (first if rank < cut else second).add(value, rank, 0.0)
    first.merge(second)
    assert first.mean == pytest.approx(whole.mean, abs=1e-6) and first.count == whole.count
    assert first.spread == pytest.approx(whole.spread, abs=1e-1)
    assert (first.least, first.most) == (min(values), max(values))


def test_curves_are_by_mesh_and_name() -> None:
    found = MetricCurves()
    found.add("trainers", "loss", 3, 0.5, 0, 1.0)
    found.add("judges", "loss", 3, 0.7, 0, 1.0)
    found.add("trainers", "lr", 0, 0.1, 0, 1.0)
    assert found.names() == [("trainers", "loss"), ("judges", "loss"), ("trainers", "lr")]
    assert [curve.mesh for curve in found.told("los")] == ["trainers", "judges"]
    assert only(found, text="loss", mesh="judges").mean == [0.7]
    assert [curve.name for curve in found.told(most=1)] == ["loss"]


def test_a_curve_becomes_wider_and_keeps_all_that_was_logged() -> None:
    found = MetricCurves()
    steps = 2 * curves.POINTS + 1
    for step in range(steps):
        for rank in range(2):
            found.add("m", "x", step, float(step), rank, 0.0)
    curve = only(found)
    assert curve.width == 4 and len(curve.steps) <= curves.POINTS and curve.steps[:3] == [0, 4, 8]
    assert sum(curve.count) == 2 * steps and curve.least[0] == 0.0 and curve.most[-1] == steps - 1
    narrow = only(found, points=10)
    assert len(narrow.steps) <= 10 and sum(narrow.count) == 2 * steps
    assert only(found).width == 4, "what is told does not change it"


def test_steps_far_apart_are_bounded_as_well() -> None:
    found = MetricCurves()
    for step in range(curves.POINTS + 1):
        found.add("m", "x", step * 2**50, 1.0, 0, 0.0)
    assert len(only(found).steps) <= curves.POINTS


def test_curves_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "CURVES", 2)
    found = MetricCurves()
    for name in "abc":
        found.add("m", name, 0, 1.0, 0, 0.0)
    assert [curve.name for curve in found.told()] == ["a", "b"] and found.left_out == 1
    found.clear()
    assert found.names() == [] and found.left_out == 0


def test_what_was_kept_goes_on() -> None:
    whole, before, after = MetricCurves(), MetricCurves(), MetricCurves()
    for step in range(curves.POINTS + 100):
        for rank in range(4):
            value = NAN if step == 7 and rank == 3 else math.sin(step) + rank
            whole.add("m", "x", step, value, rank, step)
            (before if step < curves.POINTS + 50 else after).add("m", "x", step, value, rank, step)
    resumed = MetricCurves()
    resumed.restore(before.told())
    resumed.restore(after.told())
    kept, expected = only(resumed), only(whole)
    assert kept.steps == expected.steps and kept.width == expected.width == 2
    assert kept.mean == pytest.approx(expected.mean) and kept.spread == pytest.approx(expected.spread)
    for column in ("least", "most", "least_rank", "most_rank", "count", "odd", "odd_rank", "at"):
        assert getattr(kept, column) == getattr(expected, column), column


def test_the_rank_that_stands_out() -> None:
    found = MetricCurves()
    for step in range(10):
        for rank in range(8):
            found.add("m", "x", step, 5.0 if rank == 6 and step > 3 else 1.0, rank, 0.0)
    assert only(found).standing_out() == (6, 6)


def test_a_point_that_not_all_ranks_have_logged_yet_is_not_shown_to_who_looks() -> None:
    found = MetricCurves()
    for step, ranks in ((0, 4), (1, 4), (2, 1)):
        for rank in range(ranks):
            found.add("m", "x", step, 1.0, rank, 100.0 + step)
    assert only(found, now=102.5).steps == [0, 1]
    assert only(found, now=106.0).steps == only(found).steps == [0, 1, 2], "the others are late, or have ended"
    for rank in range(1, 4):
        found.add("m", "x", 2, 1.0, rank, 102.0)
    assert only(found, now=102.5).steps == [0, 1, 2]
