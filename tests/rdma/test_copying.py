"""Large copies in chunks: each byte once, errors and time limits end them, and the end is told once, last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch.rdma import RDMATimeoutError, copying
from monarch.rdma.buffer_handle import BufferHandle, Owner
from monarch.rdma.copying import CHUNK, INLINE
from monarch.rdma.local_memory import memory_of
from monarch.rdma.transfer import Transfer, check_timeout
from tests.support.patience import TIMEOUT


class Watched:
    """A transfer of `size` bytes whose copies are recorded."""

    def __init__(self, size: int, timeout: float = 60) -> None:
        owner = Owner("host", 1, 1, 3, "name")
        handle = BufferHandle(owner, 7, 1, 0, 0, 0, size, True, None, None)
        self.transfer = Transfer(handle, memory_of(b""), 0, size, False, timeout)
        self.transfer.ended = self._end
        self.copied: list[tuple[int, int]] = []
        self.threads: set[int] = set()
        self.active = 0
        self.ends: list[tuple[BaseException | None, int]] = []
        self.ended = threading.Event()
        self.on_copy: Callable[[int], Any] = lambda at: None

    def copy(self, transfer: Transfer, at: int, count: int) -> None:
        self.active += 1
        self.threads.add(threading.get_ident())
        try:
            self.on_copy(at)
            self.copied.append((at, count))
        finally:
            self.active -= 1

    def _end(self, error: BaseException | None) -> None:
        self.ends.append((error, self.active))
        self.ended.set()

    def run(self) -> BaseException | None:
        copying.run(self.transfer, self.copy)
        assert self.ended.wait(TIMEOUT)
        assert len(self.ends) == 1
        return self.ends[0][0]


@pytest.mark.parametrize("size", [INLINE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 3])
def test_every_byte_is_copied_once(size: int) -> None:
    watched = Watched(size)
    assert watched.run() is None
    at = 0
    for start, count in sorted(watched.copied):
        assert start == at
        assert 0 < count <= CHUNK
        at += count
    assert at == size
    assert threading.get_ident() not in watched.threads


@pytest.mark.parametrize("size", [0, 1, INLINE])
def test_a_small_one_is_done_at_once_in_the_calling_thread(size: int) -> None:
    watched = Watched(size)
    copying.run(watched.transfer, watched.copy)
    assert watched.copied == [(0, size)]
    assert watched.threads == {threading.get_ident()}
    assert watched.ends == [(None, 0)]


def test_an_error_ends_it_when_no_chunk_is_under_way_any_more() -> None:
    watched = Watched(20 * CHUNK)

    def fail(at: int) -> None:
        if at >= 3 * CHUNK:
            raise OSError("broken")

    watched.on_copy = fail
    error = watched.run()
    assert "broken" in str(error)
    assert str(error).startswith("RdmaAction.submit failed")
    assert isinstance(error.__cause__, OSError)
    assert watched.ends[0][1] == 0
    assert len(watched.copied) < 20


def test_one_that_runs_out_of_time_stops_between_chunks() -> None:
    watched = Watched(20 * CHUNK)

    def late(at: int) -> None:
        if at == 2 * CHUNK:
            watched.transfer.deadline = 0

    watched.on_copy = late
    error = watched.run()
    assert isinstance(error, RDMATimeoutError)
    assert "submit timed out" in str(error)
    assert len(watched.copied) < 20


def test_no_time_at_all_copies_nothing() -> None:
    for size in (1, 2 * CHUNK):
        watched = Watched(size, timeout=0)
        assert isinstance(watched.run(), RDMATimeoutError)
        assert watched.copied == []


def test_transfers_share_the_threads() -> None:
    """A long one that cannot go on does not keep a short one from its end, as long as another thread is there."""
    if copying.THREADS < 2:
        pytest.skip("one thread only: one CPU")
    held, go = threading.Event(), threading.Event()
    long, short = Watched(CHUNK), Watched(2 * CHUNK)

    def hold(at: int) -> None:
        held.set()
        assert go.wait(TIMEOUT)

    long.on_copy = hold
    copying.run(long.transfer, long.copy)
    assert held.wait(TIMEOUT)
    assert short.run() is None
    assert not long.ended.is_set()
    go.set()
    assert long.ended.wait(TIMEOUT)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-1, OverflowError), (-0.5, OverflowError), (2**64, OverflowError), (float("inf"), OverflowError),
     (float("nan"), ValueError), ("1", TypeError), (None, TypeError)],
)  # fmt: skip
def test_a_timeout_that_is_none(timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_timeout(timeout)


@pytest.mark.parametrize("timeout", [0, 1, 1.5, 2**64 - 1])
def test_a_timeout(timeout: Any) -> None:
    assert check_timeout(timeout) == float(timeout)
