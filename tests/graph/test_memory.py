"""Values in shared memory: in place, kept, read by several, too large."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from monarch.actor import MessageTooLargeError
from monarch.graph.bells import DescriptorAt, OtherBell, OwnBell, Spin
from monarch.graph.memory import GraphMemory, Value
from monarch.graph.plan import control_size

RINGS, DEPTH, SLOT = 2, 2, 128 << 10


@pytest.fixture
def memories() -> Iterator[tuple[GraphMemory, GraphMemory]]:
    """The same memory as two processes have it. Ring 1 is read by several."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, control_size(RINGS, DEPTH) + RINGS * DEPTH * SLOT)
    made = [GraphMemory(os.dup(fd), RINGS, DEPTH, SLOT, [False, True], 100_000) for _ in range(2)]
    os.close(fd)
    yield made[0], made[1]
    for memory in made:
        memory.close()


def read(memory: GraphMemory, ring: int, number: int) -> Value:
    return memory.read((ring,), number)[0][ring]


def test_what_another_user_has_at_that_number_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.memfd_create("test")
    at = DescriptorAt(os.getpid(), fd)
    os.close(at.open(os.O_RDWR))
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(PermissionError, match="is another user's"):
            at.open(os.O_RDWR)
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)


@pytest.mark.parametrize("ring", [0, 1])
def test_a_value_goes_from_one_to_the_other(memories: tuple[GraphMemory, GraphMemory], ring: int) -> None:
    writer, reader = memories
    assert not reader.written(ring, 5)
    writer.write(ring, 1, 0, b"body", [b"x" * 5000, bytearray(b"y" * 7)], "it")
    writer.tell(ring, 5, 1)
    assert reader.written(ring, 5)
    assert not reader.written(ring, 3)
    value = read(reader, ring, 5)
    assert (value.kind, value.body, [bytes(buffer) for buffer in value.buffers]) == (
        0,
        b"body",
        [b"x" * 5000, b"y" * 7],
    )
    assert value.lent is not None
    value.buffers = ()
    assert not value.lent.used
    reader.give_back(value.lent)


@pytest.mark.parametrize("ring", [0, 1])
def test_what_is_kept_stays_what_it_was(memories: tuple[GraphMemory, GraphMemory], ring: int) -> None:
    writer, reader = memories
    kept = []
    for number in range(4):
        writer.write(ring, 0, 0, b"", [bytes([number]) * 9000], "it")
        writer.tell(ring, number, 0)
        value = read(reader, ring, number)
        kept.append(memoryview(value.buffers[0])[10:])
        lent, value.buffers = value.lent, ()
        assert lent is not None
        assert lent.used
        reader.give_back(lent)
    assert [bytes(view) == bytes([number]) * 8990 for number, view in enumerate(kept)] == [True] * 4
    kept[0][0] = 77  # its owner's own
    assert kept[1][0] == 1


@pytest.mark.parametrize("ring", [0, 1])
def test_a_forked_child_keeps_what_there_was_and_changes_nothing_here(
    memories: tuple[GraphMemory, GraphMemory], ring: int
) -> None:
    writer, reader = memories
    writer.write(ring, 0, 0, b"", [b"a" * 9000], "it")
    writer.tell(ring, 0, 0)
    value = read(reader, ring, 0)
    written, overwritten, seen = os.pipe(), os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        value.buffers[0][:1] = b"c"
        os.write(written[1], b".")
        os.read(overwritten[0], 1)
        os.write(seen[1], bytes(value.buffers[0][:4]))
        os._exit(0)
    try:
        os.read(written[0], 1)
        assert bytes(value.buffers[0]) == b"a" * 9000
        lent, value.buffers = value.lent, ()
        assert lent is not None and not lent.used
        reader.give_back(lent)
        writer.write(ring, 0, 0, b"", [b"b" * 9000], "it")
        os.write(overwritten[1], b".")
        assert os.read(seen[0], 4) == b"caaa"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for fd in (*written, *overwritten, *seen):
            os.close(fd)
    writer.tell(ring, 1, 0)
    again = read(reader, ring, 1)
    assert bytes(again.buffers[0]) == b"b" * 9000
    lent, again.buffers = again.lent, ()
    assert lent is not None
    reader.give_back(lent)


def test_of_several_readers_none_sees_what_another_writes(memories: tuple[GraphMemory, GraphMemory]) -> None:
    for number in range(2):
        memories[0].write(1, 0, 0, b"", [b"a" * 9000], "it")
        memories[0].tell(1, number, 0)
        for reader in memories:
            value = read(reader, 1, number)
            assert value.buffers[0][0] == ord("a")
            value.buffers[0][0] = ord("b")
            lent, value.buffers = value.lent, ()
            assert lent is not None
            reader.give_back(lent)


def test_what_is_too_large_says_which_buffer_to_set(memories: tuple[GraphMemory, GraphMemory]) -> None:
    with pytest.raises(MessageTooLargeError) as failed:
        memories[0].write(0, 0, 0, b"1234", [bytes(SLOT)], "the return value of a.step()")
    assert str(failed.value) == (
        "the return value of a.step() is 128 KiB (131076 bytes), more than the 98 KiB that each value of the graph may have: "
        "compile it with buffer=131076 or more"
    )


def test_nothing_stays_mapped() -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return maps.read().count("memfd:gone")

    fd = os.memfd_create("gone")
    os.ftruncate(fd, control_size(RINGS, DEPTH) + RINGS * DEPTH * SLOT)
    memory = GraphMemory(fd, RINGS, DEPTH, SLOT, [False, False], SLOT)
    memory.write(0, 0, 0, b"", [bytes(9000)], "it")
    memory.tell(0, 0, 0)
    value = read(memory, 0, 0)
    kept, value.buffers = value.buffers[0], ()
    assert value.lent is not None
    memory.give_back(value.lent)
    memory.close()
    gc.collect()
    assert mapped() == 0
    assert bytes(kept) == bytes(9000)
    assert not os.path.exists(f"/proc/self/fd/{fd}")


def test_a_bell_wakes_who_sleeps_and_rings_are_not_counted() -> None:
    own = OwnBell()
    other = OtherBell(own.at)
    for _ in range(100_000):  # more than a pipe holds: nobody waits for room
        other.ring()
    own.forget()
    own.sleep(0.0)
    thread = threading.Thread(target=own.sleep)
    thread.start()
    while thread.is_alive():
        other.ring()
    own.close()
    own.ring()
    other.ring()
    other.close()


def test_who_spins_gives_way_and_stops_where_somebody_else_wants_the_core() -> None:
    at, gave = 0.0, 0.0

    def give_way() -> None:
        nonlocal at
        at += gave

    gave = 5e-6
    spin = Spin(100e-6, lambda: at, give_way)
    assert spin.until(lambda: at > 50e-6)
    assert not spin.until(lambda: False)
    gave, before = 5e-3, at
    assert not spin.until(lambda: False)
    assert at == before + gave
    assert not spin.until(lambda: True)  # not for a while
    assert not Spin(0.0, lambda: at, give_way).until(lambda: True)


def test_who_spins_goes_on_beside_moments_of_others_and_pauses_after_a_turn() -> None:
    at, gave = 0.0, [0.0]

    def give_way() -> None:
        nonlocal at
        at += gave[0]

    spin = Spin(100e-6, lambda: at, give_way)

    def left_out() -> int:
        count = 0
        while not spin.until(lambda: True):
            count += 1
        return count

    gave[0] = 20e-6
    for _ in range(1000):
        assert not spin.until(lambda: False)
    assert left_out() == 0
    gave[0], paused = 5e-3, []
    for _ in range(6):
        assert not spin.until(lambda: False)
        paused.append(left_out())
    assert paused == [256, 512, 1024, 2048, 4096, 4096]
    for _ in range(100):  # nobody is there any more
        assert left_out() == 0
    assert not spin.until(lambda: False)
    assert left_out() == 256
