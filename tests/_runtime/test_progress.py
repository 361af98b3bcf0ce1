"""Progress of loops: what is said and when, by a clock that the test sets; where it is shown."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

import monarch
from monarch._runtime import progress as module
from monarch._runtime.progress import AwaitedProgress, ProgressMeter, WatchedProgress, progress
from monarch._runtime.promise import Promise
from monarch._runtime.shown_waits import show_waits
from tests.support.hostile import NAME, fit
from tests.support.patience import TIMEOUT, until


def test_the_line_has_rate_and_time_left() -> None:
    meter = ProgressMeter("train", 1000, 0.2, 10.0)
    meter.advance(100, 12.0)
    assert meter.line(14.0) == "train: 100 of 1,000 (10 %), 25.0 a second, 36.0 s left"
    meter.advance(900, 50.0)
    assert meter.line(50.0) == "train: 1,000 of 1,000 (100 %), 25.0 a second"
    assert meter.end(50.0) == "train: 1,000 in 40.0 s, 25.0 a second"


def test_without_a_total_and_before_anything_is_done() -> None:
    meter = ProgressMeter("", None, 0.2, 0.0)
    assert (meter.line(0.0), meter.line(9.0), meter.part) == ("0", "0", 0.0)
    meter.advance(2, 10.0)
    assert meter.line(10.0) == "2, 5.0 s each"
    assert ProgressMeter("x", 4, 1.0, 0.0).end(4.0) == "x: 0 of 4 in 4.0 s"


def test_nothing_is_said_of_what_is_short_and_then_so_often() -> None:
    meter = ProgressMeter("", 100, 0.5, 0.0)
    said = [tick / 4 for tick in range(17) if meter.advance(1, tick / 4)]
    assert said == [3.0, 3.5, 4.0]
    assert meter.end(2.9) == "" and meter.end(3.0)


def test_a_title_is_written_out_and_bounded() -> None:
    assert fit(ProgressMeter(NAME, None, 1.0, 0.0).line(1.0))
    assert "\n" not in ProgressMeter("x" * 10_000, None, 1.0, 0.0).line(1.0)
    assert len(ProgressMeter("x" * 10_000, None, 1.0, 0.0).title) <= 200


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal  # type: ignore[method-assign]


def loop(monkeypatch: pytest.MonkeyPatch, terminal: bool, seconds: float, shown: bool | None = True, **of: Any) -> str:
    """Returns what stderr gets of a loop over four items that take so long each."""
    stream, now = Stream(terminal), [0.0]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    seen = []
    for item in progress("abcd", "t", shown=shown, **of):
        seen.append(item)
        now[0] += seconds
    assert seen == list("abcd")
    return stream.getvalue()


def test_a_terminal_has_one_line_and_then_what_it_came_to(monkeypatch: pytest.MonkeyPatch) -> None:
    text = loop(monkeypatch, True, 2.0)
    assert text.count("\n") == 1 and text.endswith("\r\x1b[Kt: 4 in 8.0 s, 2.0 s each\n")
    assert "\r\x1b[Kt: 2 of 4 (50 %), 2.0 s each, 4.0 s left" in text


def test_a_file_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = loop(monkeypatch, False, 20.0).splitlines()
    assert lines[0] == "t: 1 of 4 (25 %), 20.0 s each, 1 min 0 s left"
    assert lines[-1] == "t: 4 in 1 min 20 s, 20.0 s each" and len(lines) == 3 and "\x1b" not in "".join(lines)


def test_what_is_short_or_not_asked_for_under_pytest_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loop(monkeypatch, True, 0.1) == ""
    assert loop(monkeypatch, True, 60.0, shown=None) == ""
    assert loop(monkeypatch, True, 60.0, shown=False) == ""


def test_a_loop_that_is_left_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = Stream(False), [0.0]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with pytest.raises(ValueError, match="on purpose"), progress(total=10, title="t", shown=True) as bar:
        now[0] = 4.0
        bar.advance(5)
        raise ValueError("on purpose")
    bar.end()
    assert stream.getvalue().splitlines() == [
        "t: 5 of 10 (50 %), 1.2 a second, 4.0 s left",
        "t: 5 of 10 in 4.0 s, 1.2 a second",
    ]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the pages that a notebook is given to show."""
    display = pytest.importorskip("IPython.display")
    pages: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            pages.append(page.data)

    def first(page: Any, display_id: bool) -> Handle:
        pages.append(page.data)
        return Handle()

    monkeypatch.setattr(display, "display", first)
    return pages


def test_a_notebook_has_a_bar(shown: list[str]) -> None:
    bar = module._NotebookBar()
    meter = ProgressMeter("<b>", 4, 0.2, 0.0)
    meter.advance(1, 4.0)
    bar.show(meter, meter.line(4.0))
    bar.end(meter, meter.end(5.0))
    assert len(shown) == 2 and 'value="0.2500"' in shown[0] and "&lt;b&gt;" in shown[0] and "<b>" not in shown[0]


def awaited(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, shown: bool | None = True) -> Any:
    """Returns `wait(seconds, done)`: a wait at that time, which has ended when it returns what it said of the next one."""
    now = [0.0]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    waits = AwaitedProgress("t", range(10), shown)

    def wait(seconds: float, done: int) -> float | None:
        now[0] = seconds
        try:
            return waits.waits(done)
        finally:
            waits.goes_on()

    return wait


def test_on_a_terminal_a_line_stands_only_while_results_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(True)
    wait = awaited(monkeypatch, stream)
    assert wait(1.0, 1) == 2.0 and stream.getvalue() == ""
    assert wait(4.0, 2) == pytest.approx(0.2)
    assert stream.getvalue() == "\r\x1b[Kt: 2 of 10 (20 %), 2.0 s each, 16.0 s left\r\x1b[K"
    wait(4.1, 2)
    assert stream.getvalue().count("\r") == 2  # nothing to show, nothing to take away


def test_in_a_log_what_is_awaited_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(False)
    wait = awaited(monkeypatch, stream)
    assert [wait(seconds, 5) for seconds in (2.0, 5.0, 10.0, 35.0)] == [1.0, 30.0, 25.0, 30.0]
    assert stream.getvalue().splitlines() == [
        "t: 5 of 10 (50 %), 1.0 a second, 5.0 s left",
        "t: 5 of 10 (50 %), 7.0 s each, 35.0 s left",
    ]


def test_work_goes_on_when_nobody_reads_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(True)
    wait = awaited(monkeypatch, stream)
    stream.close()
    assert wait(4.0, 2) is None and wait(5.0, 3) is None


def test_the_setting_turns_off_what_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert awaited(monkeypatch, Stream(True), None)(4.0, 2) == pytest.approx(0.2)
    with monarch.configured(show_progress=False):
        assert awaited(monkeypatch, Stream(True), None)(4.0, 2) is None
        assert awaited(monkeypatch, Stream(True), True)(4.0, 2) == pytest.approx(0.2)


class Waited:
    """Work of others at which somebody waits: a place that notes what is shown, and a clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, terminal: bool = True) -> None:
        self.stream, self.now, self.far = Stream(terminal), 0.0, (0, None)
        monkeypatch.setattr(sys, "stderr", self.stream)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setenv("TERM", "xterm")
        self.progress = WatchedProgress("checkpoint /c", lambda: self.far, of_bytes=True, shown=True)

    def look(self, now: float, done: int, total: int | None, over: bool = False) -> str:
        """Returns what a look at that time shows."""
        self.now, self.far = now, (done, total)
        before, ended = len(self.stream.getvalue()), threading.Event()
        if over:
            ended.set()
        assert self.progress._place is not None
        self.progress.look(self.progress._place, ended)
        return self.stream.getvalue()[before:]


def test_work_of_others_is_shown_to_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    work = Waited(monkeypatch)
    assert work.look(1.0, gib, 12 * gib) == ""
    assert work.look(4.0, 2 * gib, 12 * gib).endswith("c: 2.0 GiB of 12.0 GiB (17 %), 512 MiB a second, 20.0 s left")
    assert work.look(8.0, 3 * gib, 12 * gib, over=True) == "", "the wait is over"
    assert work.look(8.3, 3 * gib, None).endswith("c: 3.0 GiB, 370 MiB a second")
    log = Waited(monkeypatch, terminal=False)
    assert log.look(4.0, gib, None) == "checkpoint /c: 1.0 GiB, 256 MiB a second\n"
    assert log.look(30.0, gib, None) == "" != log.look(40.0, gib, None)


def test_the_line_stands_only_during_waits_and_the_thread_ends_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "_SHORT", 0.0)
    monkeypatch.setattr(module, "_LIVE", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    progress = WatchedProgress("t", lambda: (3, 4), shown=True)
    promise: Promise[int] = Promise()
    future = show_waits(promise.future, progress)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            future.get(0.001)
    with progress, progress:
        until(lambda: stream.getvalue() and not stream.getvalue().endswith("\r\x1b[K"))
    assert stream.getvalue().endswith("\r\x1b[K")
    promise.set(7)
    assert future.get() == 7
    for thread in threading.enumerate():
        if thread.name == "monarch-progress":
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def test_what_cannot_tell_how_far_it_is_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, asked = Stream(True), threading.Event()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "_LIVE", 0.0)
    monkeypatch.setattr(module, "_SHORT", 0.0)

    def far() -> tuple[int, int]:
        asked.set()
        raise OSError("no such folder")

    with WatchedProgress("t", far, shown=True):
        assert asked.wait(TIMEOUT)
    assert stream.getvalue() == ""
    silent = WatchedProgress("t", lambda: pytest.fail("nobody is shown it"), shown=False)
    with silent:
        assert silent._place is None


def test_a_bar_ends_with_what_it_came_to(monkeypatch: pytest.MonkeyPatch, shown: list[str]) -> None:
    monkeypatch.setattr(module, "_place", lambda shown: module._NotebookBar())
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    waits = AwaitedProgress("t", range(10))
    now[0] = 4.0
    waits.end(0)
    assert shown == []  # there was no bar
    waits.waits(2)
    now[0] = 5.0
    waits.end(10)
    assert len(shown) == 2 and 'value="1.0000"' in shown[1] and "t: 10 in 5.0 s" in shown[1]


def test_items_whose_length_cannot_be_told() -> None:
    class Endless(list[int]):
        def __len__(self) -> int:
            raise TypeError("an iterable data set has no length")

    assert list(progress(Endless([1, 2]), shown=False)) == [1, 2]


def test_monarch_has_it() -> None:
    assert monarch.progress is progress
