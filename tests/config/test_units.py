from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.config.units import LONGEST_SECONDS, format_duration, parse_duration

MS_PER_CENTURY = int(LONGEST_SECONDS * 1000)


@pytest.mark.parametrize(
    ("text", "seconds", "normal"),
    [
        ("30s", 30.0, "30s"),
        ("300s", 300.0, "5m"),
        ("90s", 90.0, "1m 30s"),
        ("1h30m", 5400.0, "1h 30m"),
        ("1h 30m", 5400.0, "1h 30m"),
        ("  1h  ", 3600.0, "1h"),
        ("1 h", 3600.0, "1h"),
        ("90min", 5400.0, "1h 30m"),
        ("36hours", 129600.0, "1day 12h"),
        ("2 days", 172800.0, "2days"),
        ("1w", 604800.0, "7days"),
        ("1M", 2630016.0, "1month"),
        ("1m", 60.0, "1m"),
        ("1y", 31557600.0, "1year"),
        ("400days", 34560000.0, "1year 1month 4days 7h 26m 24s"),
        ("500ms", 0.5, "500ms"),
        ("1us", 1e-6, "1us"),
        ("1µs", 1e-6, "1us"),
        ("1\N{GREEK SMALL LETTER MU}s", 1e-6, "1us"),
        ("1ns", 1e-9, "1ns"),
        ("1.5s", 1.5, "1s 500ms"),
        ("0.25h", 900.0, "15m"),
        ("1s 1h 1s", 3602.0, "1h 2s"),
        ("0", 0.0, "0s"),
        ("0s", 0.0, "0s"),
        ("0h 0ms", 0.0, "0s"),
        ("0.4ns", 0.0, "0s"),
        ("100years", LONGEST_SECONDS, "100years"),
    ],
)
def test_a_duration_is_read_and_written_normalised(text: str, seconds: float, normal: str) -> None:
    assert parse_duration(text) == seconds
    assert format_duration(seconds) == normal


def test_a_number_alone_may_be_of_a_known_unit() -> None:
    assert [parse_duration(text, bare="s") for text in ("2", " 0.5 ", "2m", "0")] == [2.0, 0.5, 120.0, 0.0]
    for text in ("1m 30", "1e3", "inf", "-1", ".5"):
        with pytest.raises(ValueError, match="Invalid duration format"):
            parse_duration(text, bare="s")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("   ", "it is empty"),
        ("-1s", "expected a number at '-1s'"),
        ("s", "expected a number at 's'"),
        ("1s, 2m", "expected a number at ', 2m'"),
        ("1", "1 has no unit, write for example 1s or 1ms"),
        ("1 30s", "1 has no unit"),
        ("1m 30", "30 has no unit"),
        ("1e3s", "unknown unit 'e'"),
        (
            "3fortnights",
            "unknown unit 'fortnights' (known units: ns, us, ms, s, m, h, day, week, month, year)",
        ),
        ("1H", "unknown unit 'H'"),
        ("\N{ARABIC-INDIC DIGIT ONE}s", "expected a number at"),
        ("101years", "it is longer than 100 years"),
        ("9" * 40 + "years", "it is longer than 100 years"),
        ("9" * 5000 + "s", "more than 40 digits"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^Invalid duration format") as caught:
        parse_duration(text)
    assert why in str(caught.value)
    assert str(caught.value).endswith('Examples: "30s", "1m 30s", "500ms"')
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), LONGEST_SECONDS * 2])
def test_what_is_no_length_of_time_is_not_written(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be between 0 and 3155760000 seconds"):
        format_duration(seconds)


def test_every_duration_is_a_wait_the_system_accepts() -> None:
    assert threading.TIMEOUT_MAX > LONGEST_SECONDS


@given(st.integers(0, MS_PER_CENTURY))
def test_milliseconds_survive_writing_and_reading(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, 2**51))
def test_nanoseconds_survive_writing_and_reading_up_to_26_days(nanoseconds: int) -> None:
    seconds = nanoseconds / 10**9
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.floats(0, LONGEST_SECONDS))
def test_what_was_written_once_is_written_the_same_again(seconds: float) -> None:
    text = format_duration(seconds)
    assert format_duration(parse_duration(text)) == text


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(["ms", "s", "m", "h", "days"])), min_size=1))
def test_terms_add_up_in_any_order(terms: list[tuple[int, str]]) -> None:
    texts = [f"{count}{unit}" for count, unit in terms]
    assert parse_duration(" ".join(texts)) == parse_duration("".join(reversed(texts)))


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        assert str(error).startswith("Invalid duration format")
    else:
        assert 0 <= seconds <= LONGEST_SECONDS
