"""Ray's actors of the workloads. num_cpus=0: Ray then counts no core for them and starts as many as asked
for.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import ray


@ray.remote(num_cpus=0)
class Echo:
    """Answers at once."""

    def __init__(self) -> None:
        self.hits = 0

    def echo(self, value: Any) -> Any:
        return value

    def length(self, value: Any) -> int:
        return len(value)

    def hit(self) -> None:
        self.hits += 1

    def count(self) -> int:
        return self.hits

    def pid(self) -> int:
        return os.getpid()


@ray.remote(num_cpus=0, max_concurrency=2)
class Waiter:
    """Never answers `wait` until it is told to; `waits` says that it is at it, and in which process."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.released = threading.Semaphore(0)

    def wait(self) -> None:
        self.entered.release()
        self.released.acquire()

    def waits(self) -> int:
        self.entered.acquire()
        return os.getpid()

    def release(self) -> None:
        self.released.release()
