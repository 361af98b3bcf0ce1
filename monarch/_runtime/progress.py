"""Progress of work that takes long, for people: one line on a terminal, a bar in a notebook, else a line now and then."""

from __future__ import annotations

import html
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from typing import Any, Generic, TypeVar

from monarch._linux import terminal
from monarch._linux.locks import Lock
from monarch._text import duration, fitting, one_line, size
from monarch.config import settings

T = TypeVar("T")

_SHORT = 3.0  # seconds of work of which nothing is said
_LIVE, _LOGGED = 0.2, 30.0  # seconds between two lines: in place of each other, and below each other
_TITLE = 200  # characters


class ProgressMeter:
    """The work that is done, its rate, and when there is something to show. Pure: times are arguments, seconds of one clock.

    `total`: None where it is not known. `every`: seconds between two times that something is shown. `of_bytes`: both are
    bytes, and shown so.
    """

    def __init__(self, title: str, total: int | None, every: float, now: float, of_bytes: bool = False) -> None:
        self.title = fitting(one_line(title), _TITLE)
        self.total = total
        self.done = 0
        self._of_bytes = of_bytes
        self._every = every
        self._begun = now
        self._due = now + _SHORT

    def advance(self, count: int, now: float) -> bool:
        """Adds what is done. True when it is time to show it."""
        self.done += count
        if now < self._due:
            return False
        self._due = now + self._every
        return True

    def due_in(self, now: float) -> float:
        """Returns the seconds until there is something to show; 0.0 or less: now."""
        return self._due - now

    def line(self, now: float) -> str:
        """Returns how far it is: `train: 120 of 1,000 (12 %), 45.2 a second, 19.5 s left`."""
        seconds = now - self._begun
        rate = self.done / seconds if seconds > 0 else 0.0
        done = self._said(self.done)
        done += "" if self.total is None else f" of {self._said(self.total)} ({self.part:.0%})"
        parts = [done.replace("%", " %")]
        if rate:
            parts.append(self._rate(rate))
        if rate and self.total is not None and self.done < self.total:
            parts.append(f"{duration((self.total - self.done) / rate)} left")
        return f"{self.title}: {', '.join(parts)}" if self.title else ", ".join(parts)

    def end(self, now: float) -> str:
        """Returns what it came to; "" where it was short."""
        seconds = now - self._begun
        if seconds < _SHORT:
            return ""
        done = self._said(self.done)
        done += "" if self.total is None or self.total == self.done else f" of {self._said(self.total)}"
        text = f"{done} in {duration(seconds)}" + (f", {self._rate(self.done / seconds)}" if self.done else "")
        return f"{self.title}: {text}" if self.title else text

    @property
    def part(self) -> float:
        """Returns the share that is done, 1.0 at most; 0.0 where the total is not known."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    def _said(self, count: int) -> str:
        return size(count) if self._of_bytes else f"{count:,}"

    def _rate(self, rate: float) -> str:
        return f"{size(rate)} a second" if self._of_bytes else _per_time(rate)


def _per_time(rate: float) -> str:
    return f"{rate:,.1f} a second" if rate >= 1 else f"{duration(1 / rate)} each"


class ShownProgress(Generic[T]):
    """The progress of a loop, or of work that says itself what is done; see `monarch.progress`."""

    def __init__(
        self,
        items: Iterable[T],
        meter: Callable[[float, float], ProgressMeter],
        place: _Place | None,
        clock: Callable[[], float],
    ) -> None:
        self._items = items
        self._clock = clock
        self._place = place
        self._meter = meter(place.every if place is not None else _LOGGED, clock())
        self._ended = False

    def __iter__(self) -> Iterator[T]:
        try:
            for item in self._items:
                yield item
                self.advance()
        finally:
            self.end()

    def __enter__(self) -> ShownProgress[T]:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    def advance(self, count: int = 1) -> None:
        """Says that so much more is done."""
        now = self._clock()
        if self._meter.advance(count, now) and self._place is not None and not self._ended:
            self._place.show(self._meter, self._meter.line(now))

    def end(self) -> None:
        """Ends it: the line gives way to one that says what it came to. A second time does nothing."""
        if not self._ended:
            self._ended = True
            if self._place is not None:
                self._place.end(self._meter, self._meter.end(self._clock()))


class AwaitedProgress:
    """The progress of work whose results a program waits for. On a terminal the line stands only during a wait, so that what
    the program prints of a result has a line of its own."""

    def __init__(self, title: str, items: Iterable[Any], shown: bool | None = None) -> None:
        self._place = _place(shown)
        every, total = (_LOGGED, None) if self._place is None else (self._place.every, _count(items))
        self._meter = ProgressMeter(title, total, every, time.monotonic())

    def waits(self, done: int) -> float | None:
        """Shows what is due, `done` being done in all. Returns the seconds until it is to be asked again; None: never."""
        if self._place is None:
            return None
        now = time.monotonic()
        if self._meter.advance(done - self._meter.done, now):
            try:
                self._place.show(self._meter, self._meter.line(now))
            except (OSError, ValueError):  # nobody reads stderr any more: the work goes on
                self._place = None
                return None
        return max(self._meter.due_in(now), _LIVE)

    def goes_on(self) -> None:
        """Takes the line away: the wait is over."""
        if self._place is not None:
            with suppress(OSError, ValueError):
                self._place.hide()

    def end(self, done: int) -> None:
        """Says that no more is awaited: a bar that stands shows what it came to. Elsewhere nothing is said."""
        if isinstance(self._place, _NotebookBar) and self._place.stands:
            now = time.monotonic()
            self._meter.advance(done - self._meter.done, now)
            self._place.end(self._meter, self._meter.end(now))


class WatchedProgress:
    """The progress of work that others do, for a caller who waits: a thread asks `far` how far it is, which gives what is
    done and how much there is (None: not known). Entered for each wait, by any threads; the line stands only during waits, as
    that of `AwaitedProgress`. The rate is the mean since it was made. Nothing is started where nothing would be shown.

    `far` may wait, and raise: then nothing more is shown. `of_bytes`: what is counted are bytes.
    """

    def __init__(
        self, title: str, far: Callable[[], tuple[int, int | None]], of_bytes: bool = False, shown: bool | None = None
    ) -> None:
        self._place = _place(shown)
        every = _LOGGED if self._place is None else self._place.every
        self._meter = ProgressMeter(title, None, every, time.monotonic(), of_bytes)
        self._far = far
        self._lock = Lock()
        self._waits = 0
        self._over = threading.Event()

    def __enter__(self) -> None:
        if self._place is not None:
            with self._lock:
                self._waits += 1
                if self._waits == 1:
                    self._over = threading.Event()
                    threading.Thread(
                        target=self._watch, args=(self._place, self._over), name="monarch-progress", daemon=True
                    ).start()

    def __exit__(self, *raised: object) -> None:
        if self._place is not None:
            with self._lock:
                self._waits -= 1
                if not self._waits:
                    self._over.set()
                    with suppress(OSError, ValueError):
                        self._close(self._place, raised[:1] == (None,))

    def _close(self, place: _Place, whole: bool) -> None:
        """`whole`: the work has been done; a bar that stands says so."""
        if isinstance(place, _NotebookBar) and place.stands and whole:
            now = time.monotonic()
            self._meter.advance((self._meter.total or self._meter.done) - self._meter.done, now)
            place.end(self._meter, self._meter.end(now))
        else:
            place.hide()

    def _watch(self, place: _Place, over: threading.Event) -> None:
        with suppress(Exception):  # of `far`, which asks others, and of a stderr that nobody reads: the work goes on
            while not over.wait(max(self._meter.due_in(time.monotonic()), _LIVE)):
                self.look(place, over)

    def look(self, place: _Place, over: threading.Event) -> None:
        """Shows what is due, unless the wait is over."""
        done, total = self._far()
        with self._lock:
            now = time.monotonic()
            self._meter.total = total
            if self._meter.advance(done - self._meter.done, now) and not over.is_set():
                place.show(self._meter, self._meter.line(now))


def _count(items: Iterable[Any]) -> int | None:
    """Returns how many there are; None where they do not say, as the loader of an endless data set whose `len` raises."""
    try:
        return (len(items) or None) if isinstance(items, Sized) else None
    except Exception:  # of the items' own `len`, which may raise anything
        return None


class _Place:
    """The place where lines go one below the other: a file, a pipe, a log."""

    every = _LOGGED

    def show(self, meter: ProgressMeter, line: str) -> None:
        terminal.note(line)

    def hide(self) -> None:
        """Takes away what gives way to what the program prints."""

    def end(self, meter: ProgressMeter, line: str) -> None:
        if line:
            terminal.note(line)


class _TerminalLine(_Place):
    """The line of the cursor, which is shown anew."""

    every = _LIVE
    _stands = False

    def show(self, meter: ProgressMeter, line: str) -> None:
        self._stands = True
        terminal.replace_line(line, shutil.get_terminal_size().columns - 1, sys.stderr)

    def hide(self) -> None:
        if self._stands:
            self._stands = False
            terminal.erase_line(sys.stderr)

    def end(self, meter: ProgressMeter, line: str) -> None:
        if line:
            terminal.erase_line(sys.stderr)
            terminal.note(line)


class NotebookOutput:
    """A page below the running cell, which is shown anew."""

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def stands(self) -> bool:
        """Returns whether it is there already."""
        return self._handle is not None

    def show(self, page: str) -> None:
        """Shows this HTML in place of what stands there."""
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(page), display_id=True)
        else:
            self._handle.update(HTML(page))


class _NotebookBar(_Place):
    """A bar below the cell, which is shown anew."""

    every = _LIVE

    def __init__(self) -> None:
        self._output = NotebookOutput()

    @property
    def stands(self) -> bool:
        """Returns whether there is a bar already."""
        return self._output.stands

    def show(self, meter: ProgressMeter, line: str) -> None:
        value = f' value="{meter.part:.4f}"' if meter.total is not None else ""
        self._output.show(f'<progress max="1"{value} style="width:20em"></progress> {html.escape(line)}')

    def end(self, meter: ProgressMeter, line: str) -> None:
        if line:
            self.show(meter, line)


def notebook_output() -> NotebookOutput | None:
    """Returns a page that shows itself below the running cell; None where there is no notebook, or such things are not to
    show themselves."""
    return NotebookOutput() if isinstance(_place(None), _NotebookBar) else None


def _place(shown: bool | None) -> _Place | None:
    if shown is False or sys.stderr is None:
        return None
    if shown is None and (not settings.show_progress() or os.environ.get("CI") or "PYTEST_CURRENT_TEST" in os.environ):
        return None
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return _NotebookBar()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return _TerminalLine()
    return _Place()


def progress(
    items: Iterable[T] = (), title: str = "", *, total: int | None = None, shown: bool | None = None
) -> ShownProgress[T]:
    """Shows how far a loop is, with its rate and the time left: `for batch in progress(loader, "train"):`.

    One line on a terminal, a bar below the cell of a notebook, else a line in 30 s; on stderr, in the process that calls it.
    Nothing is said of what takes less than 3 s. Work that is no loop says itself what is done:
    `with progress(total=100) as bar: ... bar.advance(10)`.

    `total`: how many there are; None takes `len(items)` where they have one, and else says only how many are done. `shown`:
    None is silent under pytest, where the variable CI is set and where the setting `show_progress` is off; True shows it
    there too, False never. The rate is the mean since the beginning. It starts no thread: what stands on the screen is as of
    the last item. What the items raise is raised
    in the loop, which ends it, as `break` does. TypeError for a `total` that is no whole number of 0 or more.
    """
    if total is None:
        total = _count(items)
    elif isinstance(total, bool) or not isinstance(total, int) or total < 0:
        raise TypeError(f"total is how many there are, a whole number, got {total!r}")
    return ShownProgress(
        items, lambda every, now: ProgressMeter(title, total, every, now), _place(shown), time.monotonic
    )
