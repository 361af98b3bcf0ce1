"""Tests of how much streamed output is on its way, and what is said of the rest."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.output.capture import PROCESS, TOTAL, Budget

LINE = "x" * 99 + "\n"


def fill(budget: Budget, source: int) -> int:
    """Sends until no more is admitted; the characters on their way."""
    sent = sum(map(len, budget.admit(source, [LINE] * (PROCESS // 100 + 1))))
    assert PROCESS - 100 < sent <= PROCESS
    return sent


def test_lines_are_dropped_beyond_the_bound_of_a_process_and_counted() -> None:
    budget = Budget()
    sent = fill(budget, 1)
    assert budget.admit(1, [LINE, LINE]) == []
    assert budget.admit(2, [LINE]) == [LINE]  # another one has its own
    assert budget.printed(1, sent) == [1]
    assert budget.lost(1) == "[3 lines, 300 characters were dropped: they came faster than the client prints them]"
    assert budget.admit(1, [LINE]) == [LINE]
    assert budget.lost(1) == ""


def test_after_a_gap_nothing_is_sent_until_the_gap_was_told() -> None:
    budget = Budget()
    sent = fill(budget, 1)
    assert budget.printed(1, 100) == []  # not yet half
    assert budget.admit(1, ["short\n"]) == []
    assert budget.printed(1, sent // 2 + 100) == [1]
    assert budget.admit(1, ["short\n"]) == []
    assert budget.lost(1).startswith("[3 lines")
    assert budget.admit(1, ["short\n"]) == ["short\n"]


def test_one_that_found_no_room_among_the_others_is_told_of_when_they_have_been_printed() -> None:
    budget = Budget()
    sent = [fill(budget, source) for source in range(1, 17)]
    budget.admit(16, ["x" * (TOTAL - sum(sent)) + "\n"], TOTAL)
    rest = list(range(1, 17))
    assert budget.admit(99, ["x" * 1601 + "\n"]) == []
    told: list[int] = []
    for source in rest:
        told += budget.printed(source, sent[source - 1])
    assert 99 in told


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2000), st.booleans()), max_size=60))
def test_never_more_than_the_bounds_and_every_line_is_sent_or_counted(steps: list[tuple[int, int, bool]]) -> None:
    budget = Budget()
    on_way: dict[int, int] = {}
    written = sent = lost = 0
    for source, count, prints in steps:
        if prints and on_way.get(source):
            for due in budget.printed(source, on_way.pop(source)):
                lost += int(re.findall(r"\d+", budget.lost(due))[0])
        lines = budget.admit(source, [LINE] * count)
        written += count
        sent += len(lines)
        on_way[source] = on_way.get(source, 0) + sum(map(len, lines))
        assert on_way[source] <= PROCESS
        assert sum(on_way.values()) <= TOTAL
    for source in range(1, 41):
        lost += int((re.findall(r"\d+", budget.lost(source)) or ["0"])[0])
    assert sent + lost == written
