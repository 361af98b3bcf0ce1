"""A card that is not there: its memory is the host's, at addresses that nobody may touch, and copies are done when they
are waited for.

What it does as torch and the driver do: memory that was shared stays taken until its count is 0 (see `counts.py`), and a
thread that uses no device makes a context on the first one as soon as it frees memory of another process.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from monarch._devices.memory import Card, ipc_count, remove_ipc_counts
from tests._devices.counts import Counts
from tests._devices.nowhere import NOWHERE


class OnCard(torch.Tensor):
    """A tensor that says it is on cuda:0."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def data_ptr(self) -> int:
        return int(super().data_ptr()) + NOWHERE


class OnSecond(OnCard):
    """One that says it is on cuda:1."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 1)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)  # type: ignore[no-any-return]


class FakeCard:
    """One card, cuda:0 of this process, or cuda:1 if `second`; unless `visible` is False."""

    def __init__(self, uuid: str = "card-1", visible: bool = True, ipc: str = "", second: bool = False) -> None:
        self.uuid = uuid
        self.second = second
        self.visible = visible
        self.ipc = ipc
        self.can_pin = True
        self.fails: Exception | None = None
        self.fails_to_open: Exception | None = None
        self.contexts: set[str] = set()  # devices on which this process has one
        self.counts = Counts()
        self.open_storages = 0
        self.shares = 0
        self.settled = 0
        self.begun = 0
        self.waited = 0
        self.copied = 0  # by `begin_all`
        self.drained = 0
        self.marks: list[Any] = []
        self.after: list[Any] = []
        self.reached: list[Any] = []
        self._lock = threading.RLock()  # a finalizer may come in the middle of anything
        self._thread = threading.local()
        self._files: dict[int, tuple[int, int]] = {}
        self._shared: dict[int, list[tuple[bytes, int]]] = {}  # by file: the counts of its shares
        self._limbo: set[int] = set()  # files that this process has freed and others may have open

    @property
    def name(self) -> str:
        return "cuda:1" if self.second else "cuda:0"

    @property
    def _class(self) -> type[OnCard]:
        return OnSecond if self.second else OnCard

    # --- for tests

    def tensor(self, data: bytes, dtype: torch.dtype = torch.uint8) -> Any:
        """A tensor with these bytes, in memory that another process can be given."""
        file = os.memfd_create("fake-card")
        os.ftruncate(file, max(1, len(data)))
        with mmap.mmap(file, max(1, len(data))) as memory:
            memory[: len(data)] = data
        memory = mmap.mmap(file, max(1, len(data)))
        whole = self._bytes(memory, len(data))
        start = plain(whole).untyped_storage().data_ptr()
        with self._lock:
            self._files[start] = file, len(data)
        weakref.finalize(memory, self._freed, start, file).atexit = False
        return whole.view(dtype)

    def allocated(self) -> int:
        """Bytes of tensors that live, and of those freed that another process may still have open."""
        with self._lock:
            return sum(os.fstat(file).st_size for file in {*self._limbo, *(file for file, _ in self._files.values())})

    def bytes_of(self, tensor: Any) -> bytes:
        return bytes(plain(self.flat(tensor)).numpy())

    def close(self) -> None:
        with self._lock:
            for file in {*self._limbo, *(file for file, _ in self._files.values())}:
                os.close(file)
            self._files.clear()
            self._limbo.clear()
        self.counts.close()

    # --- the interface

    def flat(self, tensor: Any) -> Any:
        start = tensor.storage_offset() * tensor.element_size()
        size = tensor.numel() * tensor.element_size()
        return (
            torch.empty(0, dtype=torch.uint8, device="cpu")
            .set_(tensor.untyped_storage(), start, (size,))
            .as_subclass(self._class)
        )

    def whole(self, storage: Any) -> Any:
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).as_subclass(self._class)

    def card(self, flat: Any) -> Card:
        assert isinstance(flat, OnCard)
        return Card("cuda", self.uuid)

    def find(self, card: Card) -> str:
        return self.name if self.visible and card == ("cuda", self.uuid) else ""

    def current(self, kind: str) -> str:
        return self.name if self.visible and kind == "cuda" else ""

    @contextmanager
    def on(self, device: str) -> Iterator[None]:
        before, self._thread.device = self._current(), device
        try:
            yield
        finally:
            self._thread.device = before

    def empty(self, size: int, device: str) -> Any:
        assert device == self.name
        return torch.full((size,), 0xEE, dtype=torch.uint8, device="cpu").as_subclass(self._class)

    def pinned(self, size: int) -> Any:
        if not self.can_pin:
            raise RuntimeError("no memory can be pinned")
        return torch.full((size,), 0xDD, dtype=torch.uint8, device="cpu")

    def mark(self, flat: Any) -> Any:
        assert isinstance(flat, OnCard)
        self.marks.append(object())
        return self.marks[-1]

    def reach(self, mark: Any) -> None:
        assert mark in self.marks
        self.reached.append(mark)

    def settle(self, flat: Any) -> None:
        self.settled += 1

    def begin(self, target: Any, source: Any, after: Any = None) -> Callable[[], None]:
        assert target.dtype == source.dtype == torch.uint8
        assert target.shape == source.shape
        assert isinstance(target, OnCard) or isinstance(source, OnCard)
        if self.fails is not None:
            raise self.fails
        with self._lock:
            self.contexts.add(self.name)
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
            self.contexts.add(self.name)
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
        assert device == self.name
        self.drained += 1

    def ipc_obstacle(self, flat: Any) -> str:
        return self.ipc

    def share(self, flat: Any) -> tuple[Any, ...]:
        with self._lock:
            self.shares += 1
            file, size = self._files[plain(flat).untyped_storage().data_ptr()]
            count = self.counts.take()
            self._shared.setdefault(file, []).append(count)
        return os.getpid(), file, size, *count

    def open(self, shared: tuple[Any, ...], device: str) -> Any:
        pid, number, size, *count = shared
        if self.fails_to_open is not None:
            self.release(shared)
            raise self.fails_to_open
        file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(file, max(1, size))
        finally:
            os.close(file)
        with self._lock:
            self.open_storages += 1
        weakref.finalize(memory, self._closed, os.getpid(), *count).atexit = False
        return self._bytes(memory, size)

    def lent(self, shared: tuple[Any, ...]) -> bool:
        return ipc_count(*shared[3:5]) > 0

    def release(self, shared: tuple[Any, ...]) -> None:
        if self.lent(shared):
            self.counts.drop(*shared[3:5])

    def forget(self, shared: tuple[Any, ...]) -> None:
        remove_ipc_counts(shared[3])

    def collect(self) -> None:
        with self._lock:
            for file in [file for file in self._limbo if not self._is_open_elsewhere(file)]:
                self._limbo.remove(file)
                os.close(file)

    def _bytes(self, memory: mmap.mmap, size: int) -> Any:
        return torch.frombuffer(memory, dtype=torch.uint8)[:size].as_subclass(self._class)

    def _current(self) -> str:
        return getattr(self._thread, "device", "cuda:0")

    def _closed(self, pid: int, file: bytes, number: int) -> None:
        """Torch waits for the stream that is the current one of this thread, on whatever device that has."""
        assert pid == os.getpid(), "a forked child closed what its parent has open"
        with self._lock:
            self.open_storages -= 1
            self.contexts |= {self.name, self._current()}
        self.counts.drop(file, number)

    def _freed(self, start: int, file: int) -> None:
        with self._lock:
            if self._files.get(start, (None,))[0] != file:
                return  # this card was closed before
            del self._files[start]
            self._limbo.add(file)
        self.collect()

    def _is_open_elsewhere(self, file: int) -> bool:
        return any(ipc_count(*count) > 0 for count in self._shared.get(file, ()))
