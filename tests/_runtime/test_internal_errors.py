"""Tests of what is said of errors of the runtime itself: bounded in rate and size; whatever stderr is, it neither
raises nor waits."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator

import pytest

from monarch._runtime.internal_errors import KINDS, SIZE, WINDOW, Reporter, Throttle, shortened, write_stderr


class Clock:
    time = 100.0

    def __call__(self) -> float:
        return self.time


class Said:
    """A Reporter, what it wrote, and its clock."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.clock = Clock()
        self.reporter = Reporter(self.clock, self.texts.append)

    def report(self, exc: BaseException) -> bool:
        return self.reporter.report("a thread", exc)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as exc:
        return exc


def test_an_error_is_said_once_and_counted_until_its_window_ends() -> None:
    said = Said()
    more = [said.report(raised(ValueError(f"attempt {n}"))) for n in range(1000)]
    assert len(said.texts) == 1 and "attempt 0" in said.texts[0] and "please report it" in said.texts[0]
    assert more == [False] + [True] * 999
    assert said.reporter.end_window()  # not yet
    said.clock.time += WINDOW
    assert not said.reporter.end_window()
    assert len(said.texts) == 2
    assert said.texts[1].startswith("monarch: 999 more of: ValueError at ") and "on a thread" in said.texts[1]


def test_the_next_error_says_what_was_counted_before_it() -> None:
    said = Said()
    for _ in range(3):
        said.report(raised(ValueError("broken")))
    said.clock.time += WINDOW
    said.report(raised(ValueError("broken again")))
    assert "2 more of" in said.texts[1] and "broken again" in said.texts[1]


def test_so_many_kinds_in_a_window_and_no_more() -> None:
    throttle = Throttle()
    said = [throttle.offer(f"kind {n}", f"text {n};", 0.0) for n in range(KINDS + 50)]
    assert [text for text in said if text] == [f"text {n};" for n in range(KINDS)]
    assert throttle.end_window(WINDOW) == "monarch: 50 more internal errors, of other kinds\n"
    assert throttle.end_window(2 * WINDOW) == ""


def test_a_long_report_keeps_its_beginning_and_its_end() -> None:
    text = shortened("begin" + "x" * 10 * SIZE + "end")
    assert text.startswith("begin") and text.endswith("end") and len(text) < SIZE + 100
    assert "characters left out" in text


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error", [Unprintable(), ValueError("\udce9"), ValueError("x" * 10_000_000), SystemExit(1), MemoryError()]
)
def test_no_error_makes_reporting_raise(error: BaseException, capfd: pytest.CaptureFixture[str]) -> None:
    assert Reporter().report("a thread", raised(error)) is False
    err = capfd.readouterr().err
    assert type(error).__name__ in err and len(err) < SIZE + 1000


def test_a_writer_that_raises_is_put_up_with() -> None:
    def broken(text: str) -> None:
        raise OSError("no")

    assert Reporter(write=broken).report("a thread", raised(ValueError())) is False


# --- what stderr may be


@pytest.fixture
def stderr() -> Iterator[int]:
    """Descriptor 2, put back after the test."""
    kept = os.dup(2)
    yield 2
    os.dup2(kept, 2)
    os.close(kept)


def test_stderr_is_closed(stderr: int) -> None:
    os.close(stderr)
    write_stderr("nobody reads this")


def test_stderr_is_a_pipe_that_nobody_reads(stderr: int) -> None:
    reading, writing = os.pipe()
    os.dup2(writing, stderr)
    os.close(writing)
    size = fcntl.fcntl(reading, fcntl.F_GETPIPE_SZ)
    write_stderr("x" * 10 * size)
    os.set_blocking(reading, False)
    assert 0 < len(os.read(reading, 20 * size)) <= size
    os.close(reading)
    write_stderr("and now its other end is closed")


def test_stderr_is_a_full_disk(stderr: int) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, stderr)
    os.close(full)
    write_stderr("no room")


def test_sys_stderr_does_not_matter(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    Reporter().report("a thread", raised(ValueError("seen all the same")))
    assert "seen all the same" in capfd.readouterr().err
