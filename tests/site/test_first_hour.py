"""The first hour: reading and running the tutorial, chapter by chapter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import Block, blocks
from tests.support.site import extension

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial"
HOUR = 60  # minutes that all chapters take but the last, which is for one's own script

# Seconds that the programs of a chapter took on two busy cores: pytest --durations=0 tests/examples/test_docs.py -k tutorial
RUN = {
    "1-first-actor": 1,
    "2-mesh": 2,
    "3-ddp": 12,
    "4-failures": 10,
    "5-machines": 11,
    "6-checkpoints": 9,
    "7-cluster": 41,
    "8-looking-inside": 15,
    "9-your-own-script": 144,
}


def lines_read(block: Block) -> int:
    """Counts the lines of a block; of a diff those that are new, as one knows the others from the step before."""
    if block.words[:1] == ["diff"]:
        return sum(line.startswith("+") for line in block.lines)
    return len(block.lines)


def minutes(chapter: str) -> float:
    """The time of reading a chapter and running its programs."""
    pytest.importorskip("docutils", reason="the extensions of the site need it")
    page = (TUTORIAL / f"{chapter}.md").read_text()
    found = blocks(page)
    inside = {number for block in found for number in range(block.line - 1, block.line + len(block.lines) + 1)}
    prose = [line for number, line in enumerate(page.splitlines(), 1) if number not in inside]
    reading: float = extension("reading_time").to_read(len(" ".join(prose).split()), sum(map(lines_read, found)))
    return reading + RUN[chapter] / 60


def test_every_chapter_has_its_time() -> None:
    assert {path.stem for path in TUTORIAL.glob("[0-9]*.md")} == set(RUN)


@pytest.mark.parametrize("chapter", RUN)
def test_a_chapter_says_how_long_it_takes(chapter: str) -> None:
    said = re.search(r"(\d+) minutes[.;]", (TUTORIAL / f"{chapter}.md").read_text())
    assert said is not None and abs(int(said[1]) - minutes(chapter)) <= 1


def test_the_tutorial_is_an_hour() -> None:
    *first, own = sorted(RUN)
    assert own == "9-your-own-script"
    assert sum(map(minutes, first)) <= HOUR


def test_of_a_diff_only_what_is_new_is_read() -> None:
    assert [lines_read(block) for block in blocks("```diff from=x\n@@\n a\n-b\n+c\n```\n```text\na\nb\n```\n")] == [
        1,
        2,
    ]
