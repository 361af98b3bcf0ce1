"""What waits in the client for the observer: bounded, and fair to every process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch.telemetry.relay import WaitingBatches


def drained(waiting: WaitingBatches) -> list[bytes]:
    found = []
    while data := waiting.next():
        found.append(data)
    return found


def test_sources_take_turns_each_in_its_order() -> None:
    waiting = WaitingBatches()
    for data in (b"a1", b"a2", b"a3", b"b1", b"c1", b"b2"):
        waiting.put(data[:1].decode(), data)
    assert drained(waiting) == [b"a1", b"b1", b"c1", b"a2", b"b2", b"a3"]
    assert waiting.bytes == 0


def test_one_that_floods_takes_nothing_from_the_others() -> None:
    waiting = WaitingBatches(most=100)
    for _ in range(1000):
        waiting.put("flood", b"x" * 10)
    for number in range(5):
        waiting.put("quiet", b"q%d" % number + b"." * 8)
    assert waiting.bytes <= 100
    assert [data[:2] for data in drained(waiting) if data.startswith(b"q")] == [b"q0", b"q1", b"q2", b"q3", b"q4"]
    assert waiting.dropped == 995


def test_what_is_larger_than_all_there_is_room_for_is_dropped() -> None:
    waiting = WaitingBatches(most=10)
    waiting.put("a", b"x" * 11)
    waiting.put("a", b"y")
    assert drained(waiting) == [b"y"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40)), max_size=60))
def test_it_never_holds_more_and_keeps_each_order(puts: list[tuple[str, int]]) -> None:
    waiting = WaitingBatches(most=100)
    for number, (source, size) in enumerate(puts):
        waiting.put(source, source.encode() + number.to_bytes(2, "big") + b"." * size)
        assert waiting.bytes <= 100
    found = drained(waiting)
    assert len(found) + waiting.dropped == len(puts)
    for source in "abc":
        numbers = [data[1:3] for data in found if data[:1] == source.encode()]
        assert numbers == sorted(numbers)
