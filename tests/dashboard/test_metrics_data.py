"""The answers to the page of metrics: curves folded over ranks, and runs beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from monarch.dashboard.pages import metrics_data
from monarch.dashboard.pages.metrics_data import MetricsData
from monarch.dashboard.shared_answers import SharedAnswers
from monarch.telemetry.curves import MetricCurves
from monarch.telemetry.runs import RunWriter
from monarch.telemetry.store import FOLDED, folded


class Curves:
    """A store, as far as the page needs one."""

    def __init__(self, runs: str = "") -> None:
        self.curves = MetricCurves()
        self.runs = runs


def made(store: Any) -> MetricsData:
    return MetricsData(store, SharedAnswers(0.0))


def test_curves_are_those_of_the_job(recorded: Any) -> None:
    found = made(recorded.store).told("loss")
    assert found["names"] == [("trainers", "loss"), ("trainers", "grad/norm"), ("trainers", "tokens/s")]
    (loss,) = found["curves"]
    assert loss["count"][0] == 64 and loss["odd"][9] == 1 and loss["odd_rank"][9] == 5 == loss["differs"][9]
    (speed,) = made(recorded.store).told("tokens", "trainers")["curves"]
    assert set(speed["differs"]) == {17} and set(speed["least_rank"]) == {17}
    assert made(recorded.store).told(mesh="others")["curves"] == []


def test_sql_folds_as_the_curves_do(recorded: Any) -> None:
    live = recorded.store.curves.told()
    saved = MetricCurves()
    saved.restore(folded(recorded.store.query(FOLDED, timeout=60).rows))
    for curve in saved.told():
        (other,) = [each for each in live if each.name == curve.name]
        assert curve.steps == other.steps and curve.mean == pytest.approx(other.mean)
        assert (curve.least_rank, curve.most_rank, curve.odd, curve.odd_rank) == (
            other.least_rank, other.most_rank, other.odd, other.odd_rank
        )  # fmt: skip
        assert curve.differs == other.differs


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Curves()
    for name in range(5):
        for step in range(300):
            store.curves.add("m", f"x{name}", step, 1 / 3, 0, 0.0)
    monkeypatch.setattr(metrics_data, "SHOWN", 2)
    found = made(store).told()
    assert [len(curve["steps"]) for curve in found["curves"]] == [150, 150] and len(found["names"]) == 5
    assert found["curves"][0]["mean"][0] == 0.33333333


def test_runs_beside_it_are_listed_and_compared(tmp_path: Path) -> None:
    store = Curves(str(tmp_path))
    for number, name in enumerate(("a", "b")):
        curves = MetricCurves()
        curves.add("m", "loss", 1, float(number), 0, 0.0)
        RunWriter(str(tmp_path), name, curves).close()
        os.utime(tmp_path / f"{name}.json", (number, number))
    data = made(store)
    found = data.told(compared=("a",))
    assert found["runs"] == [{"name": "b", "updated_us": 1_000_000}, {"name": "a", "updated_us": 0}]
    ((run),) = found["compared"]
    assert run["name"] == "a" and run["curves"][0]["mean"] == [0.0]
    assert data.told("nothing", compared=("a",))["compared"][0]["curves"] == []
    curves = MetricCurves()
    curves.add("m", "loss", 2, 5.0, 0, 0.0)
    RunWriter(str(tmp_path), "a", curves).close()  # which goes on
    assert data.told(compared=("a",))["compared"][0]["curves"][0]["steps"] == [1, 2]


def test_runs_that_were_read_are_changed_by_one_asker_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made(Curves(str(tmp_path)))

    class Guarded(dict[str, Any]):
        def __setitem__(self, name: str, value: Any) -> None:
            assert not data._lock.acquire(blocking=False)
            super().__setitem__(name, value)

        def __delitem__(self, name: str) -> None:
            assert not data._lock.acquire(blocking=False)
            super().__delitem__(name)

    monkeypatch.setattr(data, "_read", Guarded())
    monkeypatch.setattr(metrics_data, "COMPARED", 1)
    for name in ("a", "b"):
        curves = MetricCurves()
        curves.add("m", "loss", 1, 1.0, 0, 0.0)
        RunWriter(str(tmp_path), name, curves).close()
        data.told(compared=(name,))
    assert list(data._read) == ["b"]


@pytest.mark.parametrize(
    ("compared", "text"),
    [
        (("c",), "no run 'c' was kept beside this one"),
        (("../a",), "a run is named by"),
        (tuple("abcdefg"), "up to 6 runs are compared at a time, and these are 7"),
        (("bad",), "is no run that"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, compared: tuple[str, ...], text: str) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=text):
        made(Curves(str(tmp_path))).told(compared=compared)
    with pytest.raises(ValueError, match="no run 'a' was kept"):
        made(Curves()).told(compared=("a",))
