"""Registrations of local memory: kept per storage, gone with it, bounded."""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from monarch.rdma.backends.ibverbs import registration_cache
from monarch.rdma.backends.ibverbs.registration_cache import RegistrationCache, storage_of
from monarch.rdma.local_memory import LocalMemory, memory_of


class Registered:
    def __init__(self, book: Book, address: int, size: int) -> None:
        self.book, self.address, self.size = book, address, size
        self.key = self.remote_key = next(book.keys)
        book.now.append(self)

    def close(self) -> None:
        self.book.now.remove(self)


class Book:
    """The book of what is registered now, and how often that was done."""

    def __init__(self) -> None:
        self.now: list[Registered] = []
        self.times = 0
        self.refuse = 0
        self.keys = iter(range(1, 1 << 30))

    def register(self, nic: str, memory: LocalMemory, address: int, size: int, access: int) -> Registered:
        if self.refuse:
            self.refuse -= 1
            raise OSError(12, "Cannot allocate memory")
        self.times += 1
        return Registered(self, address, size)


@pytest.fixture
def book() -> Book:
    return Book()


def use(memory: RegistrationCache, data: Any, nic: str = "nic", write: bool = True) -> int:
    """One transfer."""
    held = memory.hold(nic, memory_of(data), write)
    held.release()
    return held.key


def tensor() -> Any:
    return torch.zeros(100)


def array() -> Any:
    return np.zeros((10, 10))


@pytest.mark.parametrize("make", [tensor, array])
def test_a_storage_is_registered_once_and_until_it_is_freed(make: Callable[[], Any], book: Book) -> None:
    local, data = RegistrationCache(book.register), make()
    whole = memory_of(data)
    keys = {use(local, data), use(local, data[3:5]), use(local, data[7])}
    assert len(keys) == 1 and book.times == 1
    assert (book.now[0].address, book.now[0].size) == (whole.address, whole.size)
    del whole, data
    gc.collect()
    assert book.now == [] and len(local) == 0


def test_a_mapping_is_kept_while_it_lives(book: Book) -> None:
    local, data = RegistrationCache(book.register), mmap.mmap(-1, 4096)
    assert use(local, data) == use(local, data)
    del data
    assert book.now == []


@pytest.mark.parametrize(
    "data", [bytearray(10), memoryview(bytearray(10))[2:5], np.frombuffer(bytearray(10)[:8]), bytes(5)]
)
def test_other_memory_is_registered_for_the_transfer(data: Any, book: Book) -> None:
    local = RegistrationCache(book.register)
    held = local.hold("nic", memory_of(data), False)
    assert [(one.address, one.size) for one in book.now] == [(memory_of(data).address, memory_of(data).size)]
    held.release()
    assert book.now == [] and len(local) == 0


def test_each_device_and_each_right_is_another(book: Book) -> None:
    local, data = RegistrationCache(book.register), tensor()
    assert len({use(local, data, "a"), use(local, data, "b"), use(local, data, "a", write=False)}) == 3
    assert len(local) == 3


def test_a_new_storage_at_the_same_place_is_another(book: Book) -> None:
    local = RegistrationCache(book.register)
    room = bytearray(64)
    first = np.zeros(0)

    class Owner:  # a numpy array cannot be had at a chosen address that it owns
        def __init__(self) -> None:
            self.base = None
            self.flags = np.zeros(1).flags
            self.nbytes = 64
            self.__array_interface__ = {"data": (memory_of(room).address, False)}

    def through(owner: Any) -> int:
        held = local.hold("nic", LocalMemory(memory_of(room).address, 64, True, owner, "array"), True)
        held.release()
        return held.key

    del first
    one, other = Owner(), Owner()
    before = through(one)
    assert through(other) != before  # the first is alive, but it is another's memory
    assert len(book.now) == 1


def test_what_is_in_use_when_its_place_is_taken_is_let_go_of_later(book: Book) -> None:
    local, data = RegistrationCache(book.register), tensor()
    held = [local.hold("nic", memory_of(data), True) for _ in range(2)]
    local.close()
    assert len(book.now) == 1  # in use
    held[0].release()
    held[1].release()
    local.close()
    assert book.now == []


def test_those_used_longest_ago_go_first(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_cache, "CACHED", 3)
    local = RegistrationCache(book.register)
    tensors = [torch.zeros(10) for _ in range(5)]
    for one in tensors:
        use(local, one)
    assert len(local) == len(book.now) == 3
    times = book.times
    use(local, tensors[4])
    use(local, tensors[2])
    assert book.times == times
    use(local, tensors[0])
    assert book.times == times + 1
    use(local, tensors[2])
    assert book.times == times + 1


def test_no_room_to_lock_memory_costs_what_is_kept(book: Book) -> None:
    local = RegistrationCache(book.register)
    kept, data = tensor(), tensor()
    use(local, kept)
    book.refuse = 1
    use(local, data)
    assert len(book.now) == 1
    local.close()
    book.refuse = 1
    with pytest.raises(OSError, match="allocate"):
        use(local, data)


def test_storages_may_be_freed_where_the_lock_is_held(book: Book) -> None:
    local, data = RegistrationCache(book.register), tensor()
    use(local, data)
    with local._lock:
        del data
        assert len(book.now) == 1
    kept = tensor()
    use(local, kept)  # whoever comes next does it
    assert len(book.now) == len(local) == 1


def test_storages() -> None:
    weights = torch.zeros(10, 10)
    found = storage_of(memory_of(weights[3]))
    assert found is not None and (found.address, found.size) == (weights.data_ptr(), 400)
    assert storage_of(memory_of(memoryview(b"abc"))) is None
    assert storage_of(memory_of(np.ones((4, 4)).T.copy())) is not None


def test_registrations_are_shared_by_many_threads(book: Book) -> None:
    local, data = RegistrationCache(book.register), [torch.zeros(10) for _ in range(4)]

    def work() -> None:
        for number in range(200):
            use(local, data[number % 4])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(book.now) == len(local) == 4
