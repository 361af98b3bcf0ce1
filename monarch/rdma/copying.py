"""Large copies in a few threads, chunk by chunk; small ones at once, in the thread that asked.

A backend brings `copy(transfer, at, count)`, which moves `count` bytes `at` bytes into a transfer and raises when it
cannot.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable

from monarch._linux.locks import Lock
from monarch.actor.lowlevel import start_thread
from monarch.rdma.chunks import ChunkedTransfer
from monarch.rdma.transfer import Transfer

Copy = Callable[[Transfer, int, int], None]

INLINE = 1 << 16  # bytes up to which handing over to another thread costs more than the copy
CHUNK = 4 << 20  # bytes between two looks at the clock and the control word
THREADS = min(4, os.cpu_count() or 1)
IDLE = 5.0  # seconds without work after which a thread ends


def run(transfer: Transfer, copy: Copy) -> None:
    """Copies all of `transfer` and finishes it: before this returns when it is small, else on other threads."""
    if transfer.late():
        transfer.finish(transfer.timed_out())
    elif transfer.size <= INLINE:
        try:
            copy(transfer, 0, transfer.size)
        except Exception as exc:
            transfer.finish(exc)
        else:
            transfer.finish()
    else:
        _CopyJob(transfer, copy).begin()


def later(work: Callable[[], None]) -> None:
    """Runs `work`, which does not wait and does not raise, on one of the threads."""
    _POOL.put(work)


class _CopyJob(ChunkedTransfer):
    def __init__(self, transfer: Transfer, copy: Copy) -> None:
        super().__init__(transfer, CHUNK)
        self._copy = copy

    def begin(self) -> None:
        width = self.shares = min(THREADS, self.chunks)
        for _ in range(width):
            _POOL.put(self.step)

    def step(self) -> None:
        """Moves one chunk and goes to the end of the queue, so that transfers share the threads."""
        chunk = self.take()
        if chunk is not None:
            try:
                if self.transfer.late():
                    raise self.transfer.timed_out()
                self._copy(self.transfer, *chunk)
            except Exception as exc:
                self.fail(exc)
        if chunk is not None and self.has_more:
            _POOL.put(self.step)
        else:
            self.leave()


class _CopyThreads:
    """At most THREADS threads, started as work comes, which end when none has come for a while."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = Lock()
        self._threads = 0
        self._idle = 0

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)
        with self._lock:
            start = self._threads < THREADS and self._idle < self._work.qsize()
            self._threads += start
        if start:
            try:
                start_thread(self._serve, "monarch-rdma")
            except RuntimeError:  # the process has no room for another: those there are do it, or the caller itself
                with self._lock:
                    self._threads -= 1
                    alone = not self._threads
                if alone:
                    self._work.get()()

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                work = self._work.get(timeout=IDLE)
            except queue.Empty:
                work = None
            with self._lock:
                self._idle -= 1
                if work is None:
                    if not self._work.empty():
                        continue
                    self._threads -= 1
                    return
            work()
            work = None  # while this waits for more, it keeps no memory alive


_POOL = _CopyThreads()


def _after_fork() -> None:
    global _POOL
    _POOL = _CopyThreads()  # the threads are the parent's


os.register_at_fork(after_in_child=_after_fork)
