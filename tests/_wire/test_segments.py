from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._wire import shared_memory
from monarch._wire.segments import HEADER, SMALLEST, Pool, Segment, capacity_for
from monarch._wire.shared_memory import LentMemory, OwnMemory


class Fake:
    """Flags, and no memory."""

    def __init__(self) -> None:
        self.flags = bytearray(HEADER)


class Sender:
    """A pool as its process uses it."""

    def __init__(self, limit: int = 1 << 24, count: int = 8) -> None:
        self.dropped: list[Segment[Fake]] = []
        self.pool: Pool[Fake] = Pool(limit, count, self.dropped.append)
        self.number = 0

    def get(self, size: int, *receivers: str, now: float = 0.0) -> Segment[Fake] | None:
        segment = self.pool.reuse(size, receivers, now)
        if segment is None and self.pool.make_room(size, now):
            self.number += 1
            segment = Segment(self.number, capacity_for(size), Fake())
            self.pool.add(segment, receivers)
        return segment

    def send(self, size: int, *receivers: str, now: float = 0.0) -> Segment[Fake]:
        segment = self.get(size, *receivers, now=now)
        assert segment is not None
        segment.filled()
        return segment


@pytest.mark.parametrize(
    ("size", "capacity"), [(1, SMALLEST), (SMALLEST, SMALLEST), (SMALLEST + 1, 2 * SMALLEST), (1 << 20, 1 << 20)]
)
def test_capacities_are_powers_of_two(size: int, capacity: int) -> None:
    assert capacity_for(size) == capacity


def test_a_segment_is_used_again_only_when_every_receiver_and_its_filler_are_done() -> None:
    sender = Sender()
    segment = sender.get(1 << 20, "a", "b")
    assert segment is not None and segment.memory.flags[:4] == bytes([1, 1, 1, 0])
    segment.release(1)
    segment.release(2)
    assert sender.get(1 << 20, "a") is not segment  # it is still being filled
    segment.filled()
    assert sender.get(1 << 20, "a") is segment


def test_the_one_used_last_is_used_next() -> None:
    sender = Sender()
    first, second = sender.send(1 << 20, "a"), sender.send(1 << 20, "a")
    first.release(1)
    second.release(1)
    assert sender.send(1 << 20, "a") is second


def test_bytes_and_number_are_bounded_and_free_ones_of_other_sizes_make_room() -> None:
    sender = Sender(limit=1 << 20, count=3)
    small = [sender.send(SMALLEST, "a") for _ in range(3)]
    assert sender.get(SMALLEST, "a") is None  # three there are
    assert sender.get(1 << 21, "a") is None  # larger than all of them may be
    small[0].release(1)
    assert sender.get(1 << 19, "a") is not None
    assert sender.dropped == [small[0]]
    assert sender.pool.bytes == (1 << 19) + 2 * SMALLEST
    assert sender.get(1 << 19, "a") is None
    small[1].release(1)
    assert sender.get(1 << 19, "a") is None  # dropping that one would not do, so it stays
    assert sender.pool.number == 3


def test_room_that_no_memory_was_found_for_is_given_back() -> None:
    sender = Sender(limit=1 << 20, count=1)
    assert sender.pool.make_room(1 << 20, 0.0)
    sender.pool.no_room(1 << 20)
    assert (sender.pool.bytes, sender.pool.number) == (0, 0)
    assert sender.get(1 << 20, "a") is not None


def test_a_receiver_that_ended_has_released_everything_and_knows_nothing() -> None:
    sender = Sender()
    segment = sender.send(1 << 20, "a", "b")
    segment.known = {1: "a", 2: "b"}
    sender.pool.ended("a")
    assert segment.busy and segment.known == {2: "b"}
    sender.pool.ended("b")
    assert not segment.busy and sender.dropped == []


def test_the_end_of_a_receiver_does_not_take_a_segment_from_who_fills_it() -> None:
    sender = Sender()
    segment = sender.get(1 << 20, "a")
    sender.pool.ended("a")
    assert sender.get(1 << 20, "b") is not segment


def test_what_a_receiver_may_still_have_behind_a_broken_connection_is_never_used_again() -> None:
    sender = Sender()
    doubtful, released, others = (sender.send(1 << 20, *to) for to in (("a", "b"), ("a",), ("b",)))
    released.release(1)
    sender.pool.broke("a")
    assert sender.dropped == [doubtful]
    assert {segment.number for segment in sender.pool.segments()} == {released.number, others.number}


def test_free_segments_that_nobody_needed_for_a_while_are_dropped() -> None:
    sender = Sender()
    old, busy = sender.send(1 << 20, "a"), sender.send(1 << 20, "a")
    old.release(1)
    assert sender.pool.trim(-5.0, 5.0) == 5.0  # seen to be free now
    assert sender.pool.trim(4.0, 14.0) == 5.0
    assert sender.pool.trim(5.0, 15.0) == 15.0 and sender.dropped == [old]
    busy.release(1)
    sender.pool.trim(15.0, 20.0)
    assert sender.pool.trim(20.0, 30.0) is None
    assert sender.pool.bytes == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(1, 1 << 20), st.sets(st.sampled_from("abc"), min_size=1)),
            st.tuples(st.just("release"), st.integers(0, 30), st.sampled_from("abc")),
            st.tuples(st.just("ended"), st.just(0), st.sampled_from("abc")),
            st.tuples(st.just("broke"), st.just(0), st.sampled_from("abc")),
            st.tuples(st.just("trim"), st.integers(0, 100), st.just("")),
        ),
        max_size=60,
    )
)
def test_no_segment_has_two_payloads_and_the_bounds_hold(steps: list[tuple[str, int, Any]]) -> None:
    sender = Sender(limit=1 << 21, count=5)
    using: dict[int, set[str]] = {}  # segment -> receivers that have views of what is in it
    segments: dict[int, Segment[Fake]] = {}
    for now, (step, number, who) in enumerate(steps):
        if step == "send":
            segment = sender.get(number, *sorted(who), now=float(now))
            if segment is not None:
                assert segment.size >= number
                assert not using.get(segment.number)
                using[segment.number], segments[segment.number] = set(who), segment
                segment.filled()
        elif step == "release" and segments:
            segment = list(segments.values())[number % len(segments)]
            if who in using[segment.number]:
                using[segment.number].discard(who)
                segment.release(segment.users.index(who) + 1)
        elif step == "ended":
            for users in using.values():
                users.discard(who)
            sender.pool.ended(who)
        elif step == "broke":
            sender.pool.broke(who)
        elif step == "trim":
            sender.pool.trim(float(number), float(now))
        kept = sender.pool.segments()
        assert len(kept) == sender.pool.number <= 5
        assert sum(segment.size for segment in kept) == sender.pool.bytes <= 1 << 21
        assert not {id(segment) for segment in kept} & {id(segment) for segment in sender.dropped}


# --- memory


SIZE = 1 << 16


class Pair:
    """Memory of a process and the same memory as another has mapped it; here both are one process."""

    def __init__(self, size: int = SIZE) -> None:
        self.soon: list[Callable[[], Any]] = []
        self.own = OwnMemory(size)
        self.own.prepare(size)
        self.lent = LentMemory(os.dup(self.own.fd), self.soon.append)

    def send(self, data: bytes, slot: int = 1, others: bool = False) -> memoryview:
        self.own.flags[slot] = 1
        self.own.write(0, data)
        return self.lent.borrow(slot, len(data), others)

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def used(self, slot: int = 1) -> bool:
        self.run()
        return bool(self.own.flags[:][slot])


@pytest.fixture
def pair() -> Pair:
    return Pair()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_was_written_is_there(pair: Pair) -> None:
    data = os.urandom(SIZE)
    view = pair.send(data)
    assert view == data and view.format == "B" and not view.readonly


@pytest.mark.parametrize("others", [False, True])
def test_the_flag_is_cleared_when_the_last_view_dies(pair: Pair, others: bool) -> None:
    view = pair.send(b"x" * 8192, others=others)
    part = memoryview(view)[4096:].cast("Q")[1:]
    copy = bytes(part)
    del view
    assert pair.used() and pair.lent.lent == 1
    del part
    assert not pair.used() and pair.lent.lent == 0
    assert copy == b"x" * 4088


@pytest.mark.parametrize("others", [False, True])
def test_arrays_made_of_it_keep_it(pair: Pair, others: bool) -> None:
    numpy = pytest.importorskip("numpy")
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(numpy.arange(8192, dtype=numpy.uint8), 5, buffer_callback=buffers.append)
    array = pickle.loads(body, buffers=[pair.send(buffers[0].raw(), others=others)])
    part = array[100:200].reshape(10, 10).T
    again = numpy.asarray(memoryview(part))[2]
    del array, part
    assert pair.used()
    assert list(again) == [102 + 10 * i & 255 for i in range(10)]
    del again
    assert not pair.used()


@pytest.mark.parametrize("others", [False, True])
def test_tensors_that_share_it_keep_it(pair: Pair, others: bool) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.frombuffer(pair.send(bytes(range(256)) * 16, others=others), dtype=torch.uint8)
    part = tensor.view(16, 256)[3].detach()
    storage = part.untyped_storage()
    array = part.numpy()[10:]
    del tensor, part
    assert pair.used()
    del storage
    assert pair.used() and array[0] == 10
    del array
    assert not pair.used()


def test_where_stores_may_overtake_loads_the_loop_clears_the_flag(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_ORDERED", False)
    view = pair.send(b"x" * 4096)
    view[0] = 7
    del view
    assert pair.own.flags[:2][1] and len(pair.soon) == 1
    assert not pair.used() and pair.lent.lent == 0
    assert pair.own._view[HEADER] == 7


def test_the_last_view_may_die_in_a_cycle_and_on_any_thread(pair: Pair) -> None:
    cycle: list[Any] = [pair.send(b"x" * 4096)]
    cycle.append(cycle)
    del cycle
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert not pair.used()


def test_a_lone_receiver_writes_into_the_segment_itself(pair: Pair) -> None:
    view = pair.send(b"a" * 4096)
    view[0] = ord("b")
    assert bytes(pair.own._view[HEADER : HEADER + 2]) == b"ba"


def test_of_several_receivers_none_sees_what_another_writes(pair: Pair) -> None:
    other = LentMemory(os.dup(pair.own.fd), pair.soon.append)
    first = pair.send(b"a" * SIZE, slot=1, others=True)
    second = other.borrow(2, SIZE, True)
    first[:] = b"b" * SIZE
    second[5] = 0
    assert bytes(pair.own._view[HEADER:]) == b"a" * SIZE
    assert first == b"b" * SIZE and second[4:7] == b"a\0a"
    del first
    assert not pair.used(1)
    assert pair.send(b"c" * SIZE, slot=1, others=True) == b"c" * SIZE  # and not what it wrote there before
    other.retire()


def test_without_a_private_mapping_it_is_copied(pair: Pair) -> None:
    private, pair.lent._private = pair.lent._private, 0
    view = pair.send(b"a" * SIZE, others=True)
    assert not pair.used()
    pair.send(b"b" * SIZE)
    assert view == b"a" * SIZE
    pair.lent._private = private


def test_memory_that_is_retired_is_unmapped_with_its_last_payload() -> None:
    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:monarch-payload" in line for line in maps)

    before, files = mappings(), open_files()
    pair = Pair()
    view = pair.send(b"a" * SIZE)
    copy = pair.send(b"a" * SIZE, slot=2, others=True)
    pair.lent.retire()
    del pair.own
    assert open_files() == files
    assert view == copy == b"a" * SIZE  # whoever made it may be gone
    del view, copy
    pair.run()
    assert mappings() == before


def test_mapped_memory_needs_no_descriptor() -> None:
    before = open_files()
    pairs = [Pair() for _ in range(10)]
    assert open_files() == before + 10  # those of the makers
    views = [pair.send(b"x" * 4096) for pair in pairs]
    assert open_files() == before + 10
    del views
    for pair in pairs:
        pair.lent.retire()
    del pairs, pair
    assert open_files() == before


def test_what_is_in_use_at_a_fork_is_never_given_back(pair: Pair) -> None:
    view = pair.send(b"a" * 4096)
    pair.lent.pin()
    later = pair.send(b"b" * 4096, slot=2)
    del view, later
    assert pair.used(1) and not pair.used(2)


def test_a_child_of_a_fork_gives_nothing_back(pair: Pair) -> None:
    view = pair.send(b"a" * 4096)
    child = os.fork()
    if not child:
        del view
        os._exit(0 if pair.own.flags[1] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pair.used() and view == b"a" * 4096


@pytest.mark.parametrize(("slot", "used"), [(0, 10), (HEADER, 10), (1, SIZE + 1)])
def test_payloads_that_cannot_be_there_are_refused(pair: Pair, slot: int, used: int) -> None:
    with pytest.raises(ValueError, match="no payload"):
        pair.lent.borrow(slot, used, False)


def test_memory_that_could_shrink_under_us_is_refused() -> None:
    before = open_files()
    fd = os.memfd_create("anything", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, HEADER + SIZE)
    with pytest.raises(ValueError, match="shrink"):
        LentMemory(fd, lambda fn: None)
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(OSError, match="Invalid argument"):
        LentMemory(read, lambda fn: None)
    assert open_files() == before


def test_a_lack_of_memory_is_an_error() -> None:
    before = open_files()
    with pytest.raises(OSError, match=r"memory|space|large"):
        OwnMemory(1 << 62)
    gc.collect()
    assert open_files() == before


@pytest.mark.parametrize("most", [0, 1, 3])
def test_large_payloads_are_copied_with_as_many_threads_as_can_be_had(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[threading.Thread] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(began) >= most:
            raise RuntimeError("can't start new thread")
        began.append(thread)
        start(thread)

    monkeypatch.setattr("monarch._wire.shared_memory._LARGE", 1 << 12)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(threading.Thread, "start", limited)
    data = os.urandom((1 << 16) + 7)
    memory = OwnMemory(1 << 17)
    memory.write_in_threads(5, memoryview(data))
    assert bytes(memory._view[HEADER + 5 : HEADER + 5 + len(data)]) == data
    assert len(began) == most and not any(thread.is_alive() for thread in began)
