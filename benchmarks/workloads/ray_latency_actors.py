"""Ray's actors of the workloads about latency. num_cpus=0: Ray then counts no core for them."""

from __future__ import annotations

from typing import Any

import ray
from _workload import Usage, usage


@ray.remote(num_cpus=0)
class Timed:
    """Answers at once."""

    def echo(self, value: Any) -> Any:
        return value

    def usage(self) -> Usage:
        return usage()


@ray.remote(num_cpus=0)
class AsyncTimed:
    """The same with `async` methods."""

    async def echo(self, value: Any) -> Any:
        return value

    async def usage(self) -> Usage:
        return usage()
