"""Tests of what `monarch logs` is asked for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from monarch._mesh.output.kept import Line, OutputPage
from monarch.tools import log_lines
from monarch.tools.verbs.logs_verb import Followed

NOW = time.mktime((2026, 3, 10, 14, 30, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", NOW - 90),
        ("10m", NOW - 600),
        ("1.5h", NOW - 5400),
        ("2d", NOW - 2 * 86400),
        ("14:05", NOW - 1500),
        ("14:29:30", NOW - 30),
        ("15:00", NOW + 1800 - 86400),
        ("2026-03-10 14:00", NOW - 1800),
        ("2026-03-10T14:00:00", NOW - 1800),
        ("2026-03-10", NOW - 14.5 * 3600),
    ],
)
def test_since(text: str, at: float) -> None:
    assert log_lines.since(text, NOW) == at


@pytest.mark.parametrize("text", ["", "10", "m", "yesterday", "25:00", "2026-13-01"])
def test_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 10m"):
        log_lines.since(text, NOW)


def test_ranks() -> None:
    assert log_lines.ranks([]) is None
    assert log_lines.ranks(["3", "0,5-7", "3"]) == [0, 3, 5, 6, 7]
    for text in ("x", "-1", "3-1", "1-", "0-9999999"):
        with pytest.raises(ValueError, match="expected ranks such as 3 or 0,2-4"):
            log_lines.ranks([text])


def test_lines_of_several_processes() -> None:
    def told(rank: int, *lines: Line) -> OutputPage:
        return OutputPage(f"p.{rank}~0", f"p.{rank}", "mesh", rank, False, True, "", 0, lines[-1].number, list(lines))

    both = [told(0, Line(1, 1.0, 1, "a"), Line(2, 3.0, 1, "loss 3")), told(1, Line(8, 2.0, 1, "loss 2"))]
    assert [log_lines.shown(*pair) for pair in log_lines.merged(both)] == [
        "[mesh 0] a",
        "[mesh 1] loss 2",
        "[mesh 0] loss 3",
    ]
    assert [line.text for _, line in log_lines.merged(both, log_lines.expression("loss"))] == ["loss 2", "loss 3"]
    assert log_lines.cursors(both) == {"p.0~0": 2, "p.1~0": 8}
    with pytest.raises(ValueError, match="no regular expression"):
        log_lines.expression("(")


def test_a_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    file = Followed(str(path))
    assert file.lines() == []
    with path.open("a") as log:
        log.write("one\ntw")
    assert file.lines() == ["one"]
    with path.open("a") as log:
        log.write("o\n")
    assert file.lines() == ["two"]
    path.write_text("new\n")
    assert file.lines() == ["new"]
    with path.open("a") as log:
        log.write("x" * (5 << 19) + "\n")
    assert [len(line) for line in [*file.lines(), *file.lines(), *file.lines()]] == [1 << 20, 1 << 20, 1 << 19]
    path.unlink()
    assert file.lines() == []
