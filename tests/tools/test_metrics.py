"""monarch metrics: curves as text, what is said of them, runs side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.error import URLError

import msgspec
import pytest

from monarch.metrics.metric_plot import PlottedLine, comparison, number, page, plot, sentence
from monarch.telemetry.curves import MetricCurves
from monarch.telemetry.runs import KeptRun, RunWriter
from monarch.tools import cli
from monarch.tools.verbs import metrics_verb

NAN = float("nan")


def curves(steps: int = 3, ranks: int = 4, odd: int = -1, name: str = "loss") -> MetricCurves:
    made = MetricCurves()
    for step in range(steps):
        for rank in range(ranks):
            made.add("trainers", name, step, NAN if rank == odd and step == 1 else step + rank / 10, rank, 0.0)
    return made


def test_a_rising_line_fills_its_plot() -> None:
    assert plot([PlottedLine([0, 1], [0.0, 1.0])], 15, 1) == ["        1 ┤⣀⠤⠒⠉", "           0  1"]
    rows = plot([PlottedLine(range(11), [float(step) for step in range(11)])], 31, 3)
    assert [row[:10].strip() for row in rows] == ["10", "", "0", ""] and rows[-1].split() == ["0", "10"]
    assert rows[0].index("⠉") > rows[2].index("⣀")


def test_gaps_single_points_and_equal_values_are_drawn() -> None:
    gap = plot([PlottedLine([0, 1, 2, 3], [1.0, None, None, 1.0])], 21, 1)[0].partition("┤")[2]
    assert len(gap) == 10 and gap.strip(" ") == gap and "  " in gap
    assert "0.5" in plot([PlottedLine([4], [0.5])], 21, 3)[0] or plot([PlottedLine([4], [0.5])], 21, 3)
    flat = plot([PlottedLine([0, 9], [2.0, 2.0])], 21, 3)
    assert flat[0].split()[0] == "3" and flat[2].split()[0] == "1" and len(flat[1].split("┤")[1]) == 10
    assert plot([PlottedLine([0], [None])], 21, 3) == ["no value was a finite number"]


def test_values_at_the_ends_of_what_a_float_can_be() -> None:
    most = 1.7e308
    rows = plot([PlottedLine([0, 1], [-most, most])], 21, 3)
    assert rows[0].split()[0] == "1.70e+308" and rows[2].split()[0] == "-1.70e+308"
    drawn = [row.partition("┤")[2] for row in rows[:3]]
    assert drawn == [row.partition("┤")[2] for row in plot([PlottedLine([0, 1], [-1.0, 1.0])], 21, 3)[:3]]
    assert len(plot([PlottedLine([0, 1], [most, most])], 21, 3)) == 4
    assert len(plot([PlottedLine([0, 1], [0.0, 5e-324])], 21, 3)) == 4


def test_colours_tell_runs_apart() -> None:
    rows = plot([PlottedLine([0, 1], [0.0, 0.0]), PlottedLine([0, 1], [1.0, 1.0])], 21, 2, coloured=True)
    assert "\x1b[36m" in rows[1] and "\x1b[33m" in rows[0] and "\x1b[33m" not in rows[1]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (0.0, "0"), (1234.5678, "1235"), (123456.0, "123,456"), (1e-5, "1.00e-05"), (-2e9, "-2.00e+09")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_what_a_curve_says() -> None:
    (plain,) = curves().told()
    assert sentence(plain) == "2.15 at step 2, from 2 (rank 0) to 2.3 (rank 3)"
    (odd,) = curves(odd=3).told()
    assert sentence(odd).endswith("; NaN or infinite at 1 point, first at step 1, rank 3")
    found = MetricCurves()
    for rank in range(8):
        found.add("m", "x", 5, 9.0 if rank == 6 else 1.0, rank, 0.0)
    assert sentence(found.told()[0]).endswith("; rank 6 differs from all others at 1 of 1 point")
    empty = MetricCurves()
    empty.add("m", "x", 5, NAN, 0, 0.0)
    assert sentence(empty.told()[0]) == "no value is a finite number, at 1 step"


def test_a_name_cannot_obey_a_terminal() -> None:
    (hostile,) = curves(name="a\x1b[2J\nb").told()
    text = page([hostile], 100, 2)
    assert "\x1b" not in text and "a\\x1b[2J\\nb" in text
    assert all(len(line) <= 60 for line in page([hostile], 60, 2).splitlines())


def test_runs_are_compared_by_mesh_and_name() -> None:
    runs = [
        KeptRun(name=name, started=0.0, updated=0.0, curves=curves(steps).told())
        for name, steps in (("a", 3), ("b", 5))
    ]
    text = comparison(runs, [run.curves for run in runs], 80, 4, False)
    assert text.splitlines()[:3] == [
        "trainers · loss",
        "  - a  2.15 at step 2, from 2 (rank 0) to 2.3 (rank 3)",
        "  - b  4.15 at step 4, from 4 (rank 0) to 4.3 (rank 3)",
    ]


@pytest.mark.parametrize(("lines", "shown", "left"), [(0, 24, 1), (24, 3, 22), (8, 1, 24), (400, 24, 1)])
def test_a_window_shows_what_has_room(lines: int, shown: int, left: int) -> None:
    found = MetricCurves()
    for each in range(25):
        found.add("m", f"x{each}", 0, 1.0, 0, 0.0)
    text = metrics_verb.live_page(found.told(), os.terminal_size((80, lines)), 7, "")
    assert text.count(" at step 0") == shown
    assert f"{left} more have no room: --match TEXT chooses" in text and "7 values are of further curves" in text
    if lines:
        assert len(text.splitlines()) <= lines + 4


def test_nothing_was_logged() -> None:
    size = os.terminal_size((80, 24))
    assert "has logged nothing yet: it calls monarch.metrics.log(" in metrics_verb.live_page([], size, 0, "")
    assert "nothing under a name with 'los' in it" in metrics_verb.live_page([], size, 0, "los")


class AnsweringClient:
    """Stands in for the telemetry of a program."""

    url = "http://x"

    def metrics(self, match: str, mesh: str | None) -> dict[str, Any]:
        return {"curves": msgspec.to_builtins(curves().told(match, mesh)), "left_out": 0}


def test_one_look_at_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(metrics_verb, "client_of", lambda pid: AnsweringClient())
    assert cli.main(["metrics", "--match", "los"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("trainers · loss  2.15 at step 2") and "\x1b" not in out, "no terminal: one look"


def test_a_program_that_has_ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def gone(*_: object) -> Any:
        raise URLError("refused")

    monkeypatch.setattr(AnsweringClient, "metrics", gone)
    monkeypatch.setattr(metrics_verb, "client_of", lambda pid: AnsweringClient())
    assert cli.main(["metrics"]) == 1
    assert "telemetry at http://x does not answer: refused. Has the program ended?" in " ".join(
        capsys.readouterr().err.split()
    )


def test_runs_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunWriter("runs", "first", curves())
    run.close()
    assert cli.main(["metrics", "first", "runs/first.json"]) == 0
    out = capsys.readouterr().out
    assert out.count("- first  2.15 at step 2") == 2 and "\x1b" not in out
    assert cli.main(["metrics", "first", "--match", "nope"]) == 66
    assert cli.main(["metrics", "second"]) == 66
    assert "the newest first: first" in " ".join(capsys.readouterr().err.split())


def test_the_name_in_a_file_passes_for_no_line_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    kept = KeptRun(name="\x1b[2Jevil\nmonarch: all is well", started=1.0, updated=1.0, curves=[])
    path.write_bytes(msgspec.json.encode(kept))
    path.chmod(0o600)
    assert cli.main(["metrics", str(path)]) == 66
    assert "\\x1b[2Jevil\\nmonarch: all is well" in capsys.readouterr().err
