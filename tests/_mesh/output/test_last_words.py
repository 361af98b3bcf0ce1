"""Tests of what is kept of the stderr of a process for the report of its end."""

from __future__ import annotations

import pytest

from monarch._mesh.output.capture import LastWords

DUMP = [
    "Fatal Python error: Segmentation fault",
    "",
    "Stack (most recent call first):",
    *(f"  frame {n}" for n in range(9)),
]


@pytest.mark.parametrize("most", [0, 1, 3, 20])
def test_the_last_lines(most: int) -> None:
    words = LastWords(most)
    lines = [f"line {n}" for n in range(10)]
    words.take(lines[:4])
    words.take(lines[4:])
    assert words.shown(crashed=True) == words.shown(crashed=False) == (lines[-most:] if most else [])


def test_a_crash_is_shown_from_its_first_line_behind_what_was_said_before() -> None:
    words = LastWords(6)
    words.take(["1", "2", "3", "4", *DUMP, "Extension modules: a, b"])
    assert words.shown(crashed=True) == ["2", "3", "4", *DUMP[:3]]
    words = LastWords(6)
    words.take(["1", *DUMP])
    assert words.shown(crashed=True) == ["1", *DUMP[:5]]
    words = LastWords(20)
    words.take([*"123456789", *DUMP])
    assert words.shown(crashed=True) == [*"123456789", *DUMP[:11]]
    words = LastWords(1)
    words.take(["1", *DUMP])
    assert words.shown(crashed=True) == DUMP[:1]


def test_the_crash_of_a_process_that_was_started_there_is_no_crash() -> None:
    words = LastWords(5)
    words.take([*DUMP, "after"])
    assert words.shown(crashed=False) == [*DUMP[-4:], "after"]


def test_the_last_crash_counts_and_modules_are_left_out() -> None:
    words = LastWords(4)
    words.take([*DUMP, "Fatal Python error: Aborted", "Extension modules: a, b", "  frame"])
    assert words.shown(crashed=True) == [*DUMP[-2:], "Fatal Python error: Aborted", "  frame"]


def test_no_lines_are_kept_when_none_are_wanted() -> None:
    words = LastWords(0)
    words.take(DUMP)
    assert words.shown(crashed=True) == []
