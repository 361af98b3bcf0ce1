from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._runtime import loop as module
from monarch._runtime.loop import Loop
from tests.support.patience import TIMEOUT
from tests.support.threads import join, start


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("test-io")
    loop.start()
    yield loop
    loop.stop()
    assert loop.join(TIMEOUT)


def turn(loop: Loop) -> None:
    """Waits until everything that was soon has run."""
    done = threading.Event()
    loop.call_soon(done.set)
    assert done.wait(TIMEOUT)


def by_hand(clock: Callable[[], float]) -> Iterator[Loop]:
    loop = Loop("by hand", clock)
    yield loop
    loop.stop()
    loop.run()


def test_soon_is_in_order_and_on_the_loops_thread(loop: Loop) -> None:
    seen: list[tuple[int, bool]] = []
    for number in range(100):
        loop.call_soon(lambda n=number: seen.append((n, loop.in_loop())))  # type: ignore[misc]
    turn(loop)
    assert seen == [(number, True) for number in range(100)]
    assert not loop.in_loop()


def test_calls_from_many_threads_all_run(loop: Loop) -> None:
    seen: list[tuple[int, int]] = []

    def calls(who: int) -> None:
        for n in range(500):
            loop.call_soon(lambda n=n: seen.append((who, n)))  # type: ignore[misc]

    join(*[start(calls, who) for who in range(6)])
    turn(loop)
    for who in range(6):
        assert [number for sender, number in seen if sender == who] == list(range(500))


def test_a_call_made_while_the_loop_sleeps_wakes_it(loop: Loop) -> None:
    for _ in range(500):
        turn(loop)


def test_timers_run_at_their_time_in_their_order() -> None:
    clock = Clock()
    for loop in by_hand(clock):
        seen: list[str] = []
        loop.call_later(2.0, lambda seen=seen: seen.append("late"))
        loop.call_later(1.0, lambda seen=seen: seen.append("a"))
        loop.call_later(1.0, lambda seen=seen: seen.append("b"))
        cancelled = loop.call_later(1.0, lambda seen=seen: seen.append("cancelled"))
        cancelled.cancel()
        loop.call_soon(lambda: None)
        loop._turn()
        assert seen == []
        clock.time += 1.0
        loop._turn()
        assert seen == ["a", "b"]
        clock.time += 5.0
        loop._turn()
        assert seen == ["a", "b", "late"]
        assert loop.statistics() == {"descriptors": 0, "timers": 0, "soon": 0}
        cancelled.cancel()


def test_a_timer_of_zero_runs_without_an_event(loop: Loop) -> None:
    done = threading.Event()
    loop.call_later(0.0, done.set)
    assert done.wait(TIMEOUT)


def test_a_timer_may_set_another_and_cancel_one_that_is_due() -> None:
    clock = Clock()
    for loop in by_hand(clock):
        seen: list[str] = []
        other: list[module.TimerHandle] = []

        def first(loop: Loop = loop, other: list[module.TimerHandle] = other, seen: list[str] = seen) -> None:
            other[0].cancel()
            loop.call_later(0.0, lambda: seen.append("set by it"))

        loop.call_later(1.0, first)
        other.append(loop.call_later(1.0, lambda seen=seen: seen.append("cancelled")))
        loop.call_soon(lambda: None)
        loop._turn()
        clock.time += 1.0
        loop._turn()
        loop._turn()
        assert seen == ["set by it"]


def test_cancelled_timers_do_not_pile_up() -> None:
    """Calls with a long time limit, answered at once."""
    for loop in by_hand(Clock()):
        kept = [loop.call_later(3600.0, lambda: None) for _ in range(50)]
        for _ in range(20_000):
            loop.call_later(3600.0, lambda: None).cancel()
        loop.call_soon(lambda: None)
        loop._turn()
        assert loop.statistics()["timers"] <= 2 * module._CROWD
        assert sum(not entry[2].cancelled for entry in loop._timers) == len(kept)


# --- what is seldom due


def test_rare_calls_run_on_the_loops_thread_in_the_order_of_their_times(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    done = threading.Event()

    def note(what: str) -> None:
        seen.append((what, loop.in_loop()))

    began = loop.now()
    with monkeypatch.context() as at_one_time:  # however long this thread is kept from running in between
        at_one_time.setattr(loop, "now", lambda: began)
        loop.call_rarely(0.02, done.set)
        loop.call_rarely(0.01, lambda: note("second"))
        loop.call_rarely(0.001, lambda: note("first"))
        loop.call_rarely(0.001, lambda: note("cancelled")).cancel()
        loop.call_rarely(3600.0, lambda: note("much later"))
    assert done.wait(TIMEOUT)
    assert seen == [("first", True), ("second", True)]


def test_a_rare_call_earlier_than_those_before_it_is_not_late(loop: Loop) -> None:
    done = threading.Event()
    loop.call_rarely(3600.0, lambda: None)
    loop.call_rarely(0.01, done.set)
    assert done.wait(TIMEOUT)


def test_rare_calls_leave_the_loop_asleep() -> None:
    loop = Loop("by hand")
    loop.call_rarely(3600.0, lambda: None)
    assert loop.next_timer() is None and loop._timeout() is None
    thread = loop._rare_thread
    assert thread is not None and thread.is_alive()
    loop.stop()
    loop.run()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_in_virtual_time_a_rare_call_is_one_like_any_other() -> None:
    clock = Clock()
    loop = Loop("by hand", clock, virtual=True)
    loop.call_rarely(5.0, lambda: None)
    assert loop.next_timer() == 105.0 and loop._rare_thread is None
    loop.stop()
    loop.run()


def test_descriptors(loop: Loop) -> None:
    reading, writing = os.pipe()
    got: list[bytes] = []
    come = threading.Semaphore(0)

    def on_event(mask: int) -> None:
        got.append(os.read(reading, 100))
        come.release()

    loop.add(reading, on_event)
    os.write(writing, b"a")
    assert come.acquire(timeout=TIMEOUT)
    loop.pause(reading)
    os.write(writing, b"b")
    turn(loop)
    turn(loop)
    assert got == [b"a"]
    loop.resume(reading)
    assert come.acquire(timeout=TIMEOUT)
    assert got == [b"a", b"b"] and reading in loop.descriptors()
    loop.remove(reading)
    loop.remove(reading)
    os.write(writing, b"c")
    turn(loop)
    turn(loop)
    assert got == [b"a", b"b"] and reading not in loop.descriptors()
    os.close(reading)
    os.close(writing)


def test_want_write_of_a_descriptor_that_was_removed_is_harmless(loop: Loop) -> None:
    reading, writing = os.pipe()
    ready = threading.Event()
    loop.add(writing, lambda mask: (ready.set(), loop.remove(writing)))
    loop.want_write(writing, True)
    assert ready.wait(TIMEOUT)
    turn(loop)
    loop.want_write(writing, True)
    os.close(reading)
    os.close(writing)
    loop.want_write(writing, False)


def test_an_error_is_reported_and_the_loop_goes_on(loop: Loop) -> None:
    errors: list[BaseException] = []
    loop.on_error = errors.append
    reading, writing = os.pipe()

    def broken(mask: int) -> None:
        os.read(reading, 1)
        raise ValueError("of a descriptor")

    def fail(text: str) -> None:
        raise ValueError(text)

    loop.add(reading, broken)
    os.write(writing, b"x")
    loop.call_soon(lambda: fail("of soon"))
    loop.call_later(0.0, lambda: fail("of a timer"))
    done = threading.Event()
    loop.call_later(0.0, done.set)
    assert done.wait(TIMEOUT)
    turn(loop)
    loop.remove(reading)
    os.close(reading)
    os.close(writing)
    assert sorted(str(error) for error in errors) == ["of a descriptor", "of a timer", "of soon"]


def test_an_error_without_a_listener_goes_to_stderr(loop: Loop, capfd: pytest.CaptureFixture[str]) -> None:
    loop.call_soon(lambda: 1 / 0)
    turn(loop)
    assert "an internal error on the I/O thread; please report it" in capfd.readouterr().err


def test_a_loop_that_cannot_go_on_says_so_last() -> None:
    ended: list[tuple[BaseException, bool]] = []
    loop = Loop("test-io")
    loop.ended_unasked = lambda exc: ended.append((exc, loop.in_loop()))
    loop.start()
    turn(loop)
    loop.call_soon(loop.epoll.close)
    assert loop.join(TIMEOUT)
    assert [(type(exc), inside) for exc, inside in ended] == [(ValueError, False)]
    loop.call_soon(lambda: None)
    loop.stop()


def test_a_loop_whose_descriptors_have_become_others_is_noticed_by_its_alarm() -> None:
    ended: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    loop = Loop("test-io")  # not running, as one is not that sleeps in them
    loop.ended_unasked = ended.put
    null = os.open(os.devnull, os.O_RDWR)
    for fd in loop.descriptors():  # as programs do that make a daemon of themselves, and then open files
        os.dup2(null, fd)
    loop.call_rarely(0.0, lambda: None)
    assert "closed from outside" in str(ended.get(timeout=TIMEOUT))
    loop.epoll.close()
    os.close(loop._wake_fd)
    os.close(null)


def test_stopping_closes_what_the_loop_holds() -> None:
    loop = Loop("test-io")
    loop.start()
    assert loop._thread is not None and (loop._thread.name, loop._thread.daemon) == ("test-io", True)
    turn(loop)
    mine = {loop._wake_fd, loop.epoll.fileno()}
    assert mine == set(loop.descriptors())
    loop.stop()
    assert loop.join(TIMEOUT) and loop.epoll.closed
    loop.call_soon(lambda: None)
    loop.call_later(1.0, lambda: None)
    loop.stop()


def test_the_loop_may_be_stopped_from_its_own_thread() -> None:
    loop = Loop("test-io")
    loop.start()
    answers: list[bool] = []

    def stop() -> None:
        loop.stop()
        answers.append(loop.join(0.0))  # nobody waits for oneself

    loop.call_soon(stop)
    assert loop.join(TIMEOUT) and answers == [True]


def test_start_thread_passes_arguments() -> None:
    got: list[Any] = []
    thread = module.start_thread(lambda *args: got.extend(args), "a name", 1, 2)
    thread.join(TIMEOUT)
    assert (got, thread.name, thread.daemon) == ([1, 2], "a name", True)
