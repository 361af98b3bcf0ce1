"""Runs that are kept in files: named, gone on with, read back; others' files are refused."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest

from monarch._linux.private_files import UntrustedFileError
from monarch.telemetry import runs
from monarch.telemetry.curves import MetricCurves
from monarch.telemetry.runs import RunWriter


def writer(folder: Path, name: str = "a", at: float = 5.0) -> tuple[RunWriter, MetricCurves]:
    curves = MetricCurves()
    return RunWriter(str(folder), name, curves, lambda: at), curves


def test_a_run_is_written_when_something_has_changed(tmp_path: Path) -> None:
    run, curves = writer(tmp_path / "runs")
    curves.add("m", "loss", 1, 0.5, 0, 3.0)
    run.write()
    kept = runs.read_run(run.path)
    assert (kept.name, kept.started, kept.updated) == ("a", 5.0, 5.0) and kept.curves == curves.told()
    assert os.stat(run.path).st_mode & 0o777 == 0o600
    before = os.stat(run.path).st_ino
    run.write()
    assert os.stat(run.path).st_ino == before
    curves.add("m", "loss", 2, 0.4, 0, 3.0)
    run.close()
    assert runs.read_run(run.path).curves[0].steps == [1, 2]


def test_a_run_of_that_name_is_gone_on_with(tmp_path: Path) -> None:
    run, curves = writer(tmp_path)
    curves.add("m", "loss", 1, 0.5, 0, 3.0)
    run.close()
    again, more = writer(tmp_path, at=9.0)
    more.add("m", "loss", 2, 0.4, 0, 3.0)
    again.close()
    kept = runs.read_run(again.path)
    assert kept.curves[0].mean == [0.5, 0.4] and (kept.started, kept.updated) == (5.0, 9.0)


def test_values_that_cannot_be_told_end_no_keeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, curves = writer(tmp_path)
    curves.add("m", "loss", 1, 0.5, 0, 3.0)
    with monkeypatch.context() as patch:
        patch.setattr(curves, "told", lambda: 1 / 0)
        run.write()
    assert "could not be kept: division by zero" in caplog.text
    run.write()
    assert runs.read_run(run.path).curves == curves.told()


def test_one_that_was_only_looked_at_is_not_written_again(tmp_path: Path) -> None:
    run, curves = writer(tmp_path)
    curves.add("m", "loss", 1, 0.5, 0, 3.0)
    run.close()
    before = os.stat(run.path).st_ino
    again, _ = writer(tmp_path)
    again.close()
    assert os.stat(run.path).st_ino == before


def test_what_is_no_run_is_neither_read_nor_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"mine": 1}')
    with pytest.raises(ValueError, match=r"a\.json is no run that monarch\.metrics\.keep has written"):
        writer(tmp_path)
    assert path.read_text() == '{"mine": 1}'
    path.unlink()
    run, curves = writer(tmp_path)
    curves.add("m", "loss", 1, 0.5, 0, 3.0)
    run.close()
    path.write_text(path.read_text().replace('"mean":[0.5]', '"mean":[0.5,1]'))
    with pytest.raises(ValueError, match="its columns differ in length"):
        runs.read_run(str(path))


def _of(*curves: dict[str, Any]) -> str:
    return json.dumps({"schema": "monarch.run/1", "name": "r", "started": 1.0, "updated": 2.0, "curves": curves})


def _curve(points: int = 2, **more: Any) -> dict[str, Any]:
    floats = dict.fromkeys(("mean", "least", "most", "spread", "at"), [1.0] * points)
    ranks = dict.fromkeys(("least_rank", "most_rank", "odd", "odd_rank", "differs"), [0] * points)
    counts = {"steps": list(range(points)), "count": [1] * points}
    return {"mesh": "m", "name": "x", "width": 1, **counts, **floats, **ranks, **more}


@pytest.mark.parametrize(
    ("curves", "why"),
    [
        ([_curve(513)], "a curve has more than 512 points"),
        ([_curve(0)] * 501, "it has more than 500 curves"),
        ([_curve(steps=[0, 10**4000])], "is no number from 0 to"),
        ([_curve(steps=[0, 2**62])], "is no number from 0 to"),
        ([_curve(steps=[-1, 2])], "is no number from 0 to"),
        ([_curve(width=10**400)], "is no number from 0 to"),
        ([_curve(width=0)], "is no number from 0 to"),
        ([_curve(count=[1, 10**400])], "is no number from 0 to"),
        ([_curve(most_rank=[-2, 0])], "is no number from 0 to"),
        ([_curve(mean=[1.0, 10**400])], ""),
    ],
)
def test_what_no_program_has_written_is_refused(tmp_path: Path, curves: list[dict[str, Any]], why: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(_of(_curve(512, steps=[n * 2**53 for n in range(512)])))
    path.chmod(0o600)
    assert runs.read_run(str(path)).curves[0].steps[1] == 2**53
    path.write_text(_of(*curves))
    with pytest.raises(ValueError, match=f"is no run that monarch.metrics.keep has written: .*{why}"):
        runs.read_run(str(path))


def test_values_that_are_too_many_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text(_of(_curve(300_000)))
    path.chmod(0o600)
    monkeypatch.setattr(runs, "_decode", None)
    with pytest.raises(ValueError, match="it has more values than curves have"):
        runs.read_run(str(path))


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    run, curves = writer(tmp_path)
    curves.add("m", "loss", 1, 0.5, 0, 3.0)
    run.close()
    os.chmod(run.path, 0o666)
    with pytest.raises(UntrustedFileError):
        runs.read_run(run.path)


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "a b", "x" * 101, "ä"])
def test_a_name_is_that_of_a_file(name: str) -> None:
    with pytest.raises(ValueError, match="a run is named by up to 100 letters"):
        runs.check_name(name)


def test_a_new_name_is_the_time(tmp_path: Path) -> None:
    now = datetime.datetime(2026, 11, 28, 1, 2, 3)
    assert runs.new_name(str(tmp_path / "missing"), now) == "2026-11-28-010203"
    (tmp_path / "2026-11-28-010203.json").touch()
    assert runs.new_name(str(tmp_path), now) == "2026-11-28-010203-2"


def test_the_newest_are_listed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at, name in enumerate(("old.json", "new.json", "other.txt", ".hidden.json")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    assert runs.found_runs(str(tmp_path)) == [("new", 1.0), ("old", 0.0)]
    monkeypatch.setattr(runs, "RUNS", 1)
    assert runs.found_runs(str(tmp_path)) == [("new", 1.0)]
    assert runs.found_runs(str(tmp_path / "missing")) == []


def test_runs_are_chosen_by_name_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, curves = writer(tmp_path / "runs")
    curves.add("m", "loss", 1, 0.5, 0, 3.0)
    run.close()
    monkeypatch.chdir(tmp_path)
    assert [each.name for each in runs.chosen_runs(["a", "runs/a.json"])] == ["a", "a"]
    with pytest.raises(FileNotFoundError):
        runs.chosen_runs(["b"])
