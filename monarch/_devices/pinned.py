"""Bytes between a device and ordinary memory of the host, through a bounded number of pinned pieces.

A device copies to and from pinned memory by itself, several times as fast as from what the kernel may move. Two pieces
take turns: while the device fills one, the other is emptied. A process has at most PIECES of them; beyond that, and where
none can be pinned, ordinary memory of the same size serves, more slowly.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from monarch._devices.forked import never_free
from monarch._devices.memory import Wait, interface
from monarch._devices.modes import locally
from monarch._linux.locks import Lock

PIECE = 4 << 20  # bytes
PIECES = 32  # pinned in one process at most: 128 MiB
KEPT = 8  # of them, when nobody uses them


class _PinnedPool:
    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[Any] = []
        self._count = 0

    @locally
    def take(self) -> tuple[Any, bool]:
        """A piece, and whether it is one of the pool's."""
        with self._lock:
            if self._free:
                return self._free.pop(), True
            room = self._count < PIECES
            self._count += room
        if room:
            try:
                return interface().pinned(PIECE), True
            except Exception:  # the kernel lets no more memory be pinned: slower is better than not at all
                with self._lock:
                    self._count -= 1
        import torch

        return torch.empty(PIECE, dtype=torch.uint8, device="cpu"), False

    def give_back(self, piece: Any, pooled: bool) -> None:
        if not pooled:
            return
        with self._lock:
            if len(self._free) < KEPT:
                self._free.append(piece)
            else:
                self._count -= 1


_pool = _PinnedPool()


def _after_fork() -> None:
    """Pinned memory is its process's: a child frees none of it."""
    global _pool
    never_free(_pool)
    _pool = _PinnedPool()


os.register_at_fork(after_in_child=_after_fork)


class Piece:
    """PIECE bytes of the host as a flat tensor, from `address` on. `close` it once nothing copies to or from it.

    `storage` is what of it stays the same from one use to the next: RDMA devices keep it registered.
    """

    __slots__ = ("_pool", "_pooled", "address", "bytes", "storage")

    def __init__(self) -> None:
        self._pool = _pool
        self.bytes, self._pooled = self._pool.take()
        self.address: int = self.bytes.data_ptr()
        self.storage = self.bytes.untyped_storage()

    def close(self) -> None:
        self._pool.give_back(self.bytes, self._pooled)


@contextmanager
def two() -> Iterator[tuple[Piece, Piece]]:
    """Two pieces for a `with` block."""
    first = Piece()
    try:
        second = Piece()
        try:
            yield first, second
        finally:
            second.close()
    finally:
        first.close()


@locally
def to_host(source: Any, address: int, after: Any = None) -> None:
    """Copies a device's bytes (flat) to the host's memory at an address. Done when it returns."""
    size = source.numel()
    before: tuple[int, int, int] | None = None  # to where, from where, how many: what the last piece holds
    with two() as pieces:
        for number, at in enumerate(range(0, size, PIECE)):
            piece, count = pieces[number % 2], min(PIECE, size - at)
            wait = interface().begin(piece.bytes[:count], source[at : at + count], after)
            after = None
            try:
                if before is not None:
                    ctypes.memmove(*before)
            finally:
                wait()
            before = address + at, piece.address, count
        if before is not None:
            ctypes.memmove(*before)


@locally
def to_device(target: Any, address: int, after: Any = None) -> None:
    """Copies the host's memory at an address to a device's bytes (flat). Done when it returns."""
    size = target.numel()
    waits: list[Wait | None] = [None, None]
    with two() as pieces:
        try:
            for number, at in enumerate(range(0, size, PIECE)):
                turn = number % 2
                piece, count, wait = pieces[turn], min(PIECE, size - at), waits[turn]
                if wait is not None:
                    waits[turn] = None
                    wait()
                ctypes.memmove(piece.address, address + at, count)
                waits[turn] = interface().begin(target[at : at + count], piece.bytes[:count], after)
                after = None
        finally:
            for wait in waits:
                if wait is not None:
                    wait()
