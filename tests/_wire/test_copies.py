"""Memory for copies is used again once nobody looks at it, and given back when nothing needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch._wire.copies import LEAST, Copies, as_bytes

MIB = 1 << 20


class Clock:
    """Time stands still but for `advance`."""

    def __init__(self) -> None:
        self.time = 0.0
        self._due: list[tuple[float, Callable[[], Any]]] = []

    def now(self) -> float:
        return self.time

    def call_soon(self, fn: Callable[[], Any]) -> None:
        self.call_later(0.0, fn)

    def call_later(self, delay: float, fn: Callable[[], Any]) -> None:
        self._due.append((self.time + delay, fn))

    def advance(self, seconds: float) -> None:
        end = self.time + seconds
        while due := sorted((one for one in self._due if one[0] <= end), key=lambda one: one[0]):
            self._due.remove(due[0])
            self.time = max(self.time, due[0][0])
            due[0][1]()
        self.time = end


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def copies(clock: Clock) -> Copies:
    return Copies(16 * MIB, 10.0, clock)


def address(view: Any) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.mark.parametrize("size", [0, 1, LEAST - 1, LEAST, 3 * MIB + 5])
def test_a_copy_is_what_was_there(copies: Copies, size: int) -> None:
    source = bytearray(b"before".ljust(size, b"x")[:size])
    copy = copies.of(memoryview(source))
    source[:] = bytes(size)
    assert bytes(copy) == b"before".ljust(size, b"x")[:size]


def test_bytes_are_not_copied(copies: Copies) -> None:
    data = bytes(3 * MIB)
    assert copies.of(data) is data


def test_views_of_other_formats_are_copied_as_bytes(copies: Copies) -> None:
    source = memoryview(bytearray(range(256)) * 8192).cast("I")
    assert bytes(copies.of(source)) == source.tobytes()


def test_memory_is_used_again_when_the_last_view_is_gone(copies: Copies) -> None:
    first = copies.of(bytearray(b"1" * 3 * MIB))
    part, where = memoryview(first)[MIB:], address(first)
    del first
    second = copies.of(bytearray(b"2" * 3 * MIB))
    assert address(second) != where
    assert bytes(part) == b"1" * 2 * MIB
    del part
    third = copies.of(bytearray(b"3" * (2 * MIB + 1)))
    assert address(third) == where
    assert bytes(third) == b"3" * (2 * MIB + 1)
    assert bytes(second) == b"2" * 3 * MIB


def test_much_larger_memory_is_left_for_what_needs_it(copies: Copies) -> None:
    large = copies.of(bytearray(15 * MIB))
    where = address(large)
    del large
    small = copies.of(bytearray(2 * MIB))
    assert address(small) != where
    assert address(copies.of(bytearray(15 * MIB))) == where


def test_no_more_is_kept_than_the_limit(copies: Copies) -> None:
    for sizes in ([4, 4, 4, 4, 4], [17], [9, 9]):
        held = [copies.of(bytearray(size * MIB)) for size in sizes]
        del held
        assert copies.free <= 16 * MIB


def test_what_nothing_needs_is_given_back(copies: Copies, clock: Clock) -> None:
    copies.of(bytearray(4 * MIB))
    clock.advance(9.9)
    assert copies.free == 4 * MIB
    copies.of(bytearray(4 * MIB))
    clock.advance(9.9)
    assert copies.free == 4 * MIB
    clock.advance(0.2)
    assert copies.free == 0
    copies.of(bytearray(4 * MIB))
    assert copies.free == 4 * MIB
    clock.advance(10.1)
    assert copies.free == 0


@pytest.mark.parametrize("size", [0, 5, 33 * MIB + 7])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_made_of_anything(size: int, kind: Any) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    made = as_bytes(kind(data[:size]))
    assert type(made) is bytes
    assert made == data[:size]


def test_threads_get_memory_of_their_own(copies: Copies) -> None:
    wrong = []

    def work(number: int) -> None:
        data = bytes([number]) * (2 * MIB)
        for _ in range(30):
            if bytes(copies.of(bytearray(data))) != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert copies.free <= 16 * MIB
