"""A card that is not there: its memory is the host's, at addresses that nobody may touch, and copies are done when they
are waited for.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from monarch._devices.memory import Card

NOWHERE = 1 << 60  # no process has memory there: whoever takes such an address for the host's dies of it


class OnCard(torch.Tensor):
    """A tensor that says it is on cuda:0."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def data_ptr(self) -> int:
        return int(super().data_ptr()) + NOWHERE


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)  # type: ignore[no-any-return]


class FakeCard:
    """One card, cuda:0 of this process unless `visible` is False."""

    def __init__(self, uuid: str = "card-1", visible: bool = True, ipc: str = "") -> None:
        self.uuid = uuid
        self.visible = visible
        self.ipc = ipc
        self.can_pin = True
        self.fails: Exception | None = None
        self.open_storages = 0
        self.shares = 0
        self.settled = 0
        self.begun = 0
        self.waited = 0
        self.copied = 0  # by `begin_all`
        self.drained = 0
        self.marks: list[Any] = []
        self.after: list[Any] = []
        self._lock = threading.Lock()
        self._files: dict[int, tuple[int, int]] = {}

    # --- for tests

    def tensor(self, data: bytes, dtype: torch.dtype = torch.uint8) -> Any:
        """A tensor with these bytes, in memory that another process can be given."""
        file = os.memfd_create("fake-card")
        os.ftruncate(file, max(1, len(data)))
        with mmap.mmap(file, max(1, len(data))) as memory:
            memory[: len(data)] = data
        whole = self._bytes(mmap.mmap(file, max(1, len(data))), len(data))
        self._files[plain(whole).untyped_storage().data_ptr()] = file, len(data)
        return whole.view(dtype)

    def bytes_of(self, tensor: Any) -> bytes:
        return bytes(plain(self.flat(tensor)).numpy())

    def close(self) -> None:
        for file, _ in self._files.values():
            os.close(file)
        self._files.clear()

    # --- the interface

    def flat(self, tensor: Any) -> Any:
        start = tensor.storage_offset() * tensor.element_size()
        size = tensor.numel() * tensor.element_size()
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), start, (size,)).as_subclass(OnCard)

    def whole(self, storage: Any) -> Any:
        return torch.empty(0, dtype=torch.uint8).set_(storage).as_subclass(OnCard)

    def card(self, flat: Any) -> Card:
        assert isinstance(flat, OnCard)
        return Card("cuda", self.uuid)

    def find(self, card: Card) -> str:
        return "cuda:0" if self.visible and card == ("cuda", self.uuid) else ""

    def current(self, kind: str) -> str:
        return "cuda:0" if self.visible and kind == "cuda" else ""

    def empty(self, size: int, device: str) -> Any:
        assert device == "cuda:0"
        return torch.full((size,), 0xEE, dtype=torch.uint8).as_subclass(OnCard)

    def pinned(self, size: int) -> Any:
        if not self.can_pin:
            raise RuntimeError("no memory can be pinned")
        return torch.full((size,), 0xDD, dtype=torch.uint8)

    def mark(self, flat: Any) -> Any:
        assert isinstance(flat, OnCard)
        self.marks.append(object())
        return self.marks[-1]

    def settle(self, flat: Any) -> None:
        self.settled += 1

    def begin(self, target: Any, source: Any, after: Any = None) -> Callable[[], None]:
        assert target.dtype == source.dtype == torch.uint8
        assert target.shape == source.shape
        assert isinstance(target, OnCard) or isinstance(source, OnCard)
        if self.fails is not None:
            raise self.fails
        with self._lock:
            self.begun += 1
            self.after.append(after)
        done = False

        def wait() -> None:
            nonlocal done
            if not done:
                done = True
                plain(target).copy_(plain(source))
                with self._lock:
                    self.waited += 1

        return wait

    def begin_all(self, copies: Sequence[tuple[Any, Any]], after: Sequence[Any] = ()) -> Callable[[], None]:
        for target, source in copies:
            assert target.dtype == source.dtype
            assert target.shape == source.shape
            assert isinstance(target, OnCard) or isinstance(source, OnCard)
        if self.fails is not None:
            raise self.fails
        with self._lock:
            self.begun += 1
            self.copied += len(copies)
            self.after += after
        done = False

        def wait() -> None:
            nonlocal done
            if not done:
                done = True
                for target, source in copies:
                    plain(target).copy_(plain(source))
                with self._lock:
                    self.waited += 1

        return wait

    def scratch(self, size: int, device: str) -> Any:
        return self.empty(size, device)

    def drain(self, device: str) -> None:
        assert device == "cuda:0"
        self.drained += 1

    def ipc_obstacle(self, flat: Any) -> str:
        return self.ipc

    def share(self, flat: Any) -> tuple[Any, ...]:
        self.shares += 1
        return os.getpid(), *self._files[plain(flat).untyped_storage().data_ptr()]

    def open(self, shared: tuple[Any, ...], device: str) -> Any:
        pid, number, size = shared
        file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(file, max(1, size))
        finally:
            os.close(file)
        self.open_storages += 1
        weakref.finalize(memory, self._closed)
        return self._bytes(memory, size)

    def _bytes(self, memory: mmap.mmap, size: int) -> Any:
        return torch.frombuffer(memory, dtype=torch.uint8)[:size].as_subclass(OnCard)

    def _closed(self) -> None:
        self.open_storages -= 1
