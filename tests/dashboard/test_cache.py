"""What several ask for at a time is made once."""

from __future__ import annotations

import threading

import pytest

from monarch.dashboard.pages.cache import MOST_ENTRIES, Cache


def test_kept_for_its_time() -> None:
    now = 0.0
    cache = Cache(2.0, lambda: now)
    made = iter(range(10))
    assert cache.get("a", lambda: next(made)) == 0
    now = 1.9
    assert cache.get("a", lambda: next(made)) == 0
    now = 2.0
    assert cache.get("a", lambda: next(made)) == 1


def test_errors_are_not_kept() -> None:
    cache = Cache(2.0, lambda: 0.0)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get("a", fail)
    assert cache.get("a", lambda: 5) == 5


def test_many_at_once_make_one() -> None:
    cache = Cache(2.0, lambda: 0.0)
    begun, go_on = threading.Event(), threading.Event()
    calls = []

    def slow() -> int:
        calls.append(1)
        begun.set()
        assert go_on.wait(60)
        return 7

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("a", slow))) for _ in range(8)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert (found, calls) == ([7] * 8, [1])


def test_it_is_bounded() -> None:
    cache = Cache(2.0, lambda: 0.0)
    for number in range(MOST_ENTRIES * 2):
        cache.get(number, lambda number=number: number)  # type: ignore[misc]
    assert len(cache._entries) <= MOST_ENTRIES
