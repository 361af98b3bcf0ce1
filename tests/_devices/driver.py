"""A driver with several cards, and torch.cuda on top of it, as far as choosing a device goes.

The rules of the real ones: whatever asks the driver anything initialises it, and that reads CUDA_VISIBLE_DEVICES, once; each
thread has a current device, which is the first at the beginning; `_lazy_call` has things done when torch initialises its
devices, on the thread that makes it do so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from monarch._devices import visible


class FakeDriver:
    """A machine's cards, seen from one process."""

    def __init__(self, cards: int) -> None:
        self.uuids = [f"GPU-{index:04d}" for index in range(cards)]
        self._seen: list[int] | None = None
        self._current = threading.local()

    @property
    def seen(self) -> list[int]:
        if self._seen is None:
            self._seen = visible.shown("cuda", os.environ, self.uuids) or []
        return self._seen

    def current(self) -> int:
        return int(getattr(self._current, "index", 0))

    def set(self, index: int) -> None:
        if not 0 <= index < len(self.seen):
            raise RuntimeError("CUDA error: invalid device ordinal")
        self._current.index = index


class FakeCuda:
    """torch.cuda of one process. `contexts`: cards that hold memory of this process."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.contexts: set[int] = set()
        self.set_on: list[str] = []  # threads
        self._queued: list[Callable[[], None]] = []
        self._initialised = False
        self._lock = threading.RLock()

    def _lazy_call(self, call: Callable[[], None], **kwargs: Any) -> None:
        with self._lock:
            if self._initialised:
                call()
            else:
                self._queued.append(call)

    def init(self) -> None:
        with self._lock:
            if self._initialised or not self.driver.seen:
                return
            queued, self._queued = self._queued, []
            for call in queued:
                call()
            self._initialised = True

    def is_initialized(self) -> bool:
        return self._initialised

    def is_available(self) -> bool:
        return bool(self.driver.seen)

    def device_count(self) -> int:
        """NVML's, until torch has initialised: that does not ask the driver."""
        if self._initialised:
            return len(self.driver.seen)
        return len(visible.shown("cuda", os.environ, self.driver.uuids) or [])

    def current_device(self) -> int:
        return self.driver.current()

    def set_device(self, index: int) -> None:
        self.init()
        self.driver.set(index)
        self.contexts.add(self.driver.seen[index])
        self.set_on.append(threading.current_thread().name)

    def where(self, device: int | None = None) -> int:
        """The card on which this thread's `torch.empty(1, device="cuda")` (`cuda:<device>`) lies."""
        self.init()
        index = self.driver.current() if device is None else device
        if index >= len(self.driver.seen):
            raise RuntimeError("CUDA error: invalid device ordinal")
        card = self.driver.seen[index]
        self.contexts.add(card)
        return card
