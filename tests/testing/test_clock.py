from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from monarch._runtime.loop import Loop
from monarch.testing import VirtualClock


@pytest.fixture
def loop(virtual_clock: VirtualClock) -> Iterator[Loop]:
    """A running loop that the clock governs."""
    loop = Loop("governed", virtual_clock.now, virtual=True)
    loop.start()
    virtual_clock.attach(loop)
    yield loop
    virtual_clock.detach(loop)
    loop.stop()
    assert loop.join(30)


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = VirtualClock(start=10.0)
    assert clock.now() == 10.0
    clock.advance(2.5)
    clock.advance(0)
    assert clock.now() == 12.5


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan")])
def test_time_does_not_go_back(seconds: float) -> None:
    with pytest.raises(ValueError, match="time does not go back"):
        VirtualClock().advance(seconds)


def test_timers_run_at_their_times_in_order(virtual_clock: VirtualClock, loop: Loop) -> None:
    ran: list[tuple[str, float]] = []
    for name, delay in (("third", 3.0), ("first", 1.0), ("second", 2.0), ("later", 3.5)):
        loop.call_later(delay, lambda name=name: ran.append((name, virtual_clock.now())))  # type: ignore[misc]
    virtual_clock.advance(3.0)
    assert ran == [("first", 1.0), ("second", 2.0), ("third", 3.0)]
    virtual_clock.advance(0.5)
    assert ran[3:] == [("later", 3.5)]


def test_a_timer_set_by_a_timer_runs_in_the_same_stretch(virtual_clock: VirtualClock, loop: Loop) -> None:
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(virtual_clock.now())
        loop.call_later(1.0, tick)

    loop.call_later(1.0, tick)
    virtual_clock.advance(4.5)
    assert ticks == [1.0, 2.0, 3.0, 4.0]
    assert virtual_clock.next_timer() == 0.5


def test_a_cancelled_timer_does_not_run(virtual_clock: VirtualClock, loop: Loop) -> None:
    ran: list[str] = []
    loop.call_later(1.0, lambda: ran.append("no")).cancel()
    loop.call_later(2.0, lambda: ran.append("yes"))
    virtual_clock.advance(5)
    assert ran == ["yes"]
    assert virtual_clock.next_timer() is None


def test_one_clock_governs_several_loops(virtual_clock: VirtualClock, loop: Loop) -> None:
    other = Loop("other", virtual_clock.now, virtual=True)
    other.start()
    virtual_clock.attach(other)
    ran: list[str] = []
    other.call_later(1.0, lambda: loop.call_later(1.0, lambda: ran.append("across")))
    virtual_clock.advance(2.0)
    assert ran == ["across"]
    virtual_clock.detach(other)
    other.stop()
    assert other.join(30)


def test_advancing_on_a_governed_loop_is_refused(virtual_clock: VirtualClock, loop: Loop) -> None:
    errors: list[BaseException] = []
    done = threading.Event()

    def advance() -> None:
        try:
            virtual_clock.advance(1.0)
        except RuntimeError as exc:
            errors.append(exc)
        done.set()

    loop.call_soon(advance)
    assert done.wait(30)
    assert "cannot be called on one of them" in str(errors[0])
