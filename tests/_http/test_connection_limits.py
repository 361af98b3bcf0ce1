"""Tests of how long a connection may take."""

from __future__ import annotations

import pytest

from monarch._http.connection_limits import BODY, HEAD, LAST, LEAST, SLOW, ConnectionLimits, Phase


@pytest.mark.parametrize(
    ("phase", "seconds"), [(Phase.HEAD, HEAD), (Phase.BODY, BODY), (Phase.DRAINED, LAST), (Phase.CLOSING, LAST)]
)
def test_what_the_other_side_says_has_an_end(phase: Phase, seconds: float) -> None:
    limits = ConnectionLimits(10.0)
    limits.late(10.0, phase, 1, 0)
    assert limits.late(10.0 + seconds, phase, 1, 0) == ""
    assert limits.late(10.1 + seconds, phase, 1, 0) == f"{phase.value} in {seconds:g} s"


def test_the_first_request_is_awaited_from_the_connection_on() -> None:
    assert ConnectionLimits(10.0).late(10.1 + HEAD, Phase.HEAD, 0, 0) != ""


@pytest.mark.parametrize("phase", [Phase.ANSWER, Phase.IDLE])
def test_who_waits_for_an_answer_may_wait(phase: Phase) -> None:
    limits = ConnectionLimits(0.0)
    assert [limits.late(time, phase, 1, 0) for time in (1.0, 1000.0)] == ["", ""]


def test_each_request_has_its_own_time() -> None:
    limits = ConnectionLimits(0.0)
    for request in range(10):
        assert limits.late(request * BODY, Phase.BODY, request, 0) == ""


def test_an_answer_is_taken_at_some_speed() -> None:
    limits, left = ConnectionLimits(0.0), 10 * LEAST
    limits.late(100.0, Phase.ANSWER, 1, left)
    for step in range(1, 6):
        assert limits.late(100.0 + step * SLOW, Phase.ANSWER, 1, left - step * LEAST) == ""
    assert limits.late(100.0 + 6 * SLOW, Phase.ANSWER, 1, left - 6 * LEAST + 1) == ""
    assert "of its answer in 20 s" in limits.late(100.1 + 6 * SLOW, Phase.ANSWER, 1, left - 6 * LEAST + 1)


def test_one_whose_end_is_being_taken_stays_until_it_is() -> None:
    limits = ConnectionLimits(0.0)
    limits.late(100.0, Phase.CLOSING, 1, LEAST)
    assert limits.late(100.1 + LAST, Phase.CLOSING, 1, LEAST) == ""
    assert limits.late(100.1 + SLOW, Phase.CLOSING, 1, LEAST - 1) != ""


def test_more_of_an_answer_does_not_hide_that_it_is_taken() -> None:
    """The application writes as fast as the other side reads."""
    limits = ConnectionLimits(0.0)
    for step in range(10):
        limits.taken(step * SLOW)
        assert limits.late(step * SLOW, Phase.ANSWER, 1, LEAST) == ""
