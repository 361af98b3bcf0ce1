"""A card whose work is queued, as a real one's is: what a program gives it to do is done when somebody waits for that, and
copies on streams of their own wait for nothing but the marks they are told to come after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests._devices.fake import FakeCard, plain


class QueuedCard(FakeCard):
    """Kernels are begun by `launch`. `order` says what was done, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Callable[[], None]] = []
        self.order: list[str] = []
        self._marked: dict[int, int] = {}  # a mark: how many kernels had been launched before it
        self._launched = 0

    def launch(self, kernel: Callable[[], None]) -> None:
        self._launched += 1
        self.queue.append(kernel)

    def fill(self, tensor: Any, value: float) -> None:
        """A kernel that fills a tensor."""
        self.launch(lambda: plain(tensor).fill_(value))

    def mark(self, flat: Any) -> Any:
        made = super().mark(flat)
        self._marked[id(made)] = self._launched
        return made

    def settle(self, flat: Any) -> None:
        super().settle(flat)
        self._run(self._launched)

    def drain(self, device: str) -> None:
        super().drain(device)
        self.order.append("drained")
        self._run(self._launched)

    def begin(self, target: Any, source: Any, after: Any = None) -> Callable[[], None]:
        return self.begin_all(((target, source),), () if after is None else (after,))

    def begin_all(self, copies: Sequence[tuple[Any, Any]], after: Sequence[Any] = ()) -> Callable[[], None]:
        wait = super().begin_all(copies, after)
        until = max((self._marked[id(mark)] for mark in after), default=0)

        def done() -> None:
            self._run(until)
            self.order.append("copied")
            wait()

        return done

    def _run(self, until: int) -> None:
        """The kernels up to that number: a card does them in order."""
        while self.queue and self._launched - len(self.queue) < until:
            self.queue.pop(0)()

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
        """A tensor on the card that another process can be given."""
        count = torch.Size(shape).numel()
        return self.tensor(bytes(count * dtype.itemsize), dtype).view(shape)
