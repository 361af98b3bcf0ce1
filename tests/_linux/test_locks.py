"""Locks that an exception of a signal handler does not leave locked."""

from __future__ import annotations

import threading
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from monarch._linux import locks
from monarch._linux.locks import WithLock, WithRLock
from tests.support.interrupts import Interrupted, Steps

# Its file makes it one of those whose steps are interrupted.
HELD: CodeType = compile("with lock: inside.append(1)", str(Path(locks.__file__).with_name("held.py")), "exec")


def condition_of_a_lock() -> threading.Condition:
    return locks.Condition(WithLock())


@pytest.mark.parametrize("made", [locks.Lock, locks.RLock, WithLock, WithRLock, locks.Condition, condition_of_a_lock])
def test_an_interrupt_at_any_step_leaves_it_free(made: Any) -> None:
    lock, steps, step = made(), Steps(), 0
    while steps.came or not step:
        inside: list[int] = []
        try:
            with steps.at(step):
                exec(HELD, {"lock": lock, "inside": inside})
        except Interrupted:
            pass
        assert free(lock), f"step {step}"
        step += 1
    assert step > 8 and inside == [1]


def free(lock: Any) -> bool:
    """Returns whether another thread can take it."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(False))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


def test_it_is_as_a_lock_of_threading() -> None:
    lock = WithLock()
    with lock as taken:
        assert taken is True and lock.locked() and not lock.acquire(False) and not lock.acquire(timeout=0)
        assert not free(lock)
    assert not lock.locked()
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        lock.release()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert free(lock)


def test_one_thread_takes_it_twice() -> None:
    lock = WithRLock()
    with lock, lock:
        assert not free(lock)
    assert free(lock)
    for condition in locks.Condition(), condition_of_a_lock():
        with condition as taken:
            assert taken is True and not free(condition) and not condition.wait(0) and not free(condition)
        assert free(condition)
