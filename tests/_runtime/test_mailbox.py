from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._runtime.mailbox import Mailbox
from tests.support.patience import TIMEOUT
from tests.support.threads import join, start


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as the interpreter allows, so that races have their chance."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def next_of(mailbox: Mailbox) -> Any:
    """Takes as an event loop takes it; None when there is nothing."""
    waiting = mailbox.control or mailbox.messages
    return waiting.popleft() if waiting else None


def test_control_items_go_first() -> None:
    mailbox = Mailbox()
    mailbox.put("m1")
    mailbox.put("m2")
    mailbox.put_control("stop")
    assert len(mailbox) == 3
    assert [mailbox.take(), next_of(mailbox), mailbox.take(), next_of(mailbox)] == ["stop", "m1", "m2", None]


def test_many_putters_and_one_taker(switching: None) -> None:
    mailbox = Mailbox()
    putters, each = 8, 1500
    taken: list[tuple[int, int]] = []

    def put(putter: int) -> None:
        for number in range(each):
            (mailbox.put_control if putter == 0 else mailbox.put)((putter, number))

    def take() -> None:
        for _ in range(putters * each):
            taken.append(mailbox.take())

    taker = start(take)
    join(*[start(put, putter) for putter in range(putters)], taker)
    for putter in range(putters):
        assert [number for who, number in taken if who == putter] == list(range(each))
    assert len(mailbox) == 0


def test_one_at_a_time_the_taker_sleeps_and_is_woken_each_time(switching: None) -> None:
    there, back = Mailbox(), Mailbox()

    def answer() -> None:
        while (item := there.take()) is not None:
            back.put(item + 1)
        back.put(None)

    thread = start(answer)
    for number in range(3000):
        there.put(number)
        assert back.take() == number + 1
    there.put(None)
    assert back.take() is None
    join(thread)


def test_a_taker_with_a_time_limit_misses_nothing(switching: None) -> None:
    """Time limits that end at the very moment something is put."""
    mailbox = Mailbox()
    count = 2000
    taken: list[int] = []

    def take() -> None:
        while len(taken) < count:
            item = next_of(mailbox)
            if item is None:
                mailbox.wait(1e-6)
            else:
                taken.append(item)

    taker = start(take)
    for number in range(count):
        mailbox.put(number)
    join(taker)
    assert taken == list(range(count))
    assert not mailbox._wakers


def test_wait_returns_at_once_when_something_is_there() -> None:
    mailbox = Mailbox()
    mailbox.put(1)
    mailbox.wait(None)
    mailbox.wait(TIMEOUT)
    assert next_of(mailbox) == 1
    mailbox.wait(0.0)
    mailbox.wait(-1.0)


def test_without_messages_only_control_items_wake() -> None:
    mailbox = Mailbox()
    mailbox.put("message")
    woken = threading.Event()
    asleep = threading.Event()

    def sleep() -> None:
        asleep.set()
        mailbox.wait(None, messages=False)
        woken.set()

    thread = start(sleep)
    assert asleep.wait(TIMEOUT)
    mailbox.put_control("control")
    assert woken.wait(TIMEOUT)
    join(thread)
    assert (mailbox.take(), mailbox.take()) == ("control", "message")


def test_arm_calls_once_and_only_when_nothing_is_there() -> None:
    mailbox = Mailbox()
    calls: list[int] = []
    assert mailbox.arm(lambda: calls.append(1))
    mailbox.put("a")
    mailbox.put("b")
    mailbox.put_control("c")
    assert calls == [1]
    assert not mailbox.disarm()
    assert not mailbox.arm(lambda: calls.append(2))  # something is there
    mailbox.put("d")
    assert calls == [1]
    assert next_of(mailbox) == "c"
    assert mailbox.arm(lambda: calls.append(3), messages=False)
    assert mailbox.disarm()
    mailbox.put("e")
    assert calls == [1]


def test_waking_without_anybody_asleep_is_harmless() -> None:
    mailbox = Mailbox()
    mailbox.wake()
    mailbox.put(1)
    assert mailbox.take() == 1
    assert mailbox.arm(lambda: None) and mailbox.disarm()


def test_wake_ends_a_sleep_for_nothing() -> None:
    mailbox = Mailbox()
    thread = start(mailbox.wait, None)
    for _ in range(20_000):
        mailbox.wake()
        thread.join(0.001)
        if not thread.is_alive():
            break
    join(thread)
    assert next_of(mailbox) is None


def test_draining_and_taking_share_the_messages_out(switching: None) -> None:
    """A request to stop drains while the actor still takes: nothing twice, nothing lost."""
    for _ in range(30):
        mailbox = Mailbox()
        for number in range(400):
            mailbox.put(number)
        taken: list[int] = []
        drained: list[int] = []
        go = threading.Barrier(2, timeout=TIMEOUT)

        def take(mailbox: Mailbox = mailbox, taken: list[int] = taken, go: threading.Barrier = go) -> None:
            go.wait()
            while (item := mailbox.take()) != "stop":
                taken.append(item)

        thread = start(take)
        go.wait()
        drained += mailbox.drain()
        mailbox.put_control("stop")
        join(thread)
        assert sorted(taken + drained) == list(range(400))
        assert taken == sorted(taken) and drained == sorted(drained)
    assert Mailbox().drain() == []
