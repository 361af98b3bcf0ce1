"""The owner's table: words that say what is registered, and locks that hold a drop back."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from monarch.rdma import BufferDroppedError
from monarch.rdma.local_memory import memory_of
from monarch.rdma.registry import PAGE_SLOTS, WORD, RegisteredBuffer, Registry, lock


def word_at(region: RegisteredBuffer) -> int:
    return int(WORD.unpack(ctypes.string_at(region.word, WORD.size))[0])


@pytest.fixture
def mine() -> Registry:
    return Registry()


@pytest.fixture
def writer(mine: Registry) -> Iterator[int]:
    """The table's file as another process has it."""
    file = os.open(f"/proc/self/fd/{mine.owner.table}", os.O_RDONLY)
    yield file
    os.close(file)


def test_the_word_is_the_token_until_the_drop(mine: Registry) -> None:
    region = mine.register(memory_of(bytearray(4)))
    assert region.token != 0
    assert word_at(region) == region.token
    assert mine.drop(region.number, region.token)
    assert word_at(region) == 0
    assert len(mine) == 0


def test_a_drop_can_be_repeated_and_reaches_no_successor(mine: Registry) -> None:
    first = mine.register(memory_of(bytearray(4)))
    assert mine.drop(first.number, first.token)
    second = mine.register(memory_of(bytearray(4)))
    assert second.slot == first.slot
    assert second.token != first.token
    assert mine.drop(first.number, first.token)
    assert mine.drop(second.number, first.token)
    assert word_at(second) == second.token
    with mine.using(second.number, second.token) as region:
        assert region is second


def test_a_dropped_buffer_is_not_found(mine: Registry) -> None:
    region = mine.register(memory_of(bytearray(4)))
    mine.drop(region.number, region.token)
    with pytest.raises(BufferDroppedError, match=f"buffer {region.number} not found"), mine.using(region.number, 1):
        pass


def test_a_drop_waits_for_a_writer_of_another_process(mine: Registry, writer: int) -> None:
    region = mine.register(memory_of(bytearray(4)))
    lock(writer, fcntl.F_RDLCK, region.slot)
    assert not mine.drop(region.number, region.token)
    assert word_at(region) == 0  # nothing new begins
    other = mine.register(memory_of(bytearray(4)))
    assert other.slot != region.slot
    assert not mine.drop(region.number, region.token)
    lock(writer, fcntl.F_UNLCK, region.slot)
    assert mine.drop(region.number, region.token)
    assert mine.register(memory_of(bytearray(4))).slot == region.slot


def test_a_drop_waits_for_a_copy_of_this_process(mine: Registry) -> None:
    region = mine.register(memory_of(bytearray(4)))
    with mine.using(region.number, region.token):
        assert not mine.drop(region.number, region.token)
    assert mine.drop(region.number, region.token)


def test_the_lock_of_a_writer_that_dies_is_freed(mine: Registry) -> None:
    region = mine.register(memory_of(bytearray(4)))
    file = os.open(f"/proc/self/fd/{mine.owner.table}", os.O_RDONLY)
    lock(file, fcntl.F_RDLCK, region.slot)
    assert not mine.drop(region.number, region.token)
    os.close(file)  # as the kernel does for a process that ends
    assert mine.drop(region.number, region.token)


def test_words_stay_where_they_are_when_the_table_grows(mine: Registry) -> None:
    data = memory_of(bytearray(1))
    regions = [mine.register(data) for _ in range(2 * PAGE_SLOTS + 1)]
    assert len({region.slot for region in regions}) == len(regions)
    assert [word_at(region) for region in regions] == [region.token for region in regions]
    assert all(mine.drop(region.number, region.token) for region in regions)
    assert len(mine) == 0


class Registering(RuleBasedStateMachine):
    """Buffers that come and go in any order: words tell the truth, slots in use are not shared."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = Registry()
        self.live: list[RegisteredBuffer] = []
        self.gone: list[RegisteredBuffer] = []
        self.data = memory_of(bytearray(1))

    @rule()
    def register(self) -> None:
        self.live.append(self.mine.register(self.data))

    @rule(index=st.integers(min_value=0))
    def drop(self, index: int) -> None:
        if self.live:
            region = self.live.pop(index % len(self.live))
            assert self.mine.drop(region.number, region.token)
            self.gone.append(region)

    @rule(index=st.integers(min_value=0))
    def drop_again(self, index: int) -> None:
        if self.gone:
            region = self.gone[index % len(self.gone)]
            assert self.mine.drop(region.number, region.token)

    @invariant()
    def words_tell_the_truth(self) -> None:
        assert len(self.mine) == len(self.live)
        assert len({region.slot for region in self.live}) == len(self.live)
        assert all(word_at(region) == region.token for region in self.live)
        assert all(word_at(region) != region.token for region in self.gone)

    def teardown(self) -> None:
        os.close(self.mine.owner.table)


TestRegistering = Registering.TestCase
