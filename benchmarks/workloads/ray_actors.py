"""Ray's actors of the workloads. num_cpus=0: Ray then counts no core for them and starts as many as asked
for.
"""

from __future__ import annotations

import os
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
