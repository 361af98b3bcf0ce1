"""ThreadTimeout: code on threads that is ended when its time is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch.experimental.thread_timeout import ThreadTimeout, ThreadTimeoutError


def on_thread(run: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def body() -> None:
        try:
            found.append(run())
        except BaseException as exc:
            found.append(exc)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(60)
    return found[0]


def forever() -> None:
    with ThreadTimeout(0.01):
        while True:
            try:
                pass
            except Exception:  # which it is not
                pass


def test_what_takes_too_long_is_ended() -> None:
    found = on_thread(forever)
    assert isinstance(found, ThreadTimeoutError) and not isinstance(found, Exception)
    assert str(found) == "the time of a ThreadTimeout is over"


def test_what_is_done_in_time_is_left_alone_and_it_can_be_used_again() -> None:
    def run() -> int:
        count = 0
        timeout = ThreadTimeout(60)
        for _ in range(3):
            with timeout:
                count += 1
        return count

    assert on_thread(run) == 3


def test_native_code_is_ended_behind_the_call() -> None:
    def run() -> str:
        reached = "nothing"
        try:
            with ThreadTimeout(0.01):
                threading.Event().wait(0.3)
                reached = "behind"
                for _ in range(1_000_000):
                    pass
                reached = "the end"
        except ThreadTimeoutError:
            return "ended" if reached != "the end" else reached
        return reached

    assert on_thread(run) == "ended"


def test_not_nested_and_not_on_the_main_thread() -> None:
    def run() -> None:
        with ThreadTimeout(60), ThreadTimeout(60):
            pass

    found = on_thread(run)
    assert isinstance(found, RuntimeError) and "cannot be nested" in str(found)
    with pytest.raises(RuntimeError, match="main one"), ThreadTimeout(1):
        pass
    with pytest.raises(ValueError, match="more than 0"):
        ThreadTimeout(0)
