"""The same on Ray Serve, by handles, and by HTTP where that is asked."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import _service
from _workload import Params, Samples, main
from ray import serve


class Empty:
    async def work(self) -> None:
        pass

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.01)
    async def generate(self, prompts: list[int]) -> list[int]:
        await asyncio.sleep(_service.STEP)
        return prompts

    async def __call__(self, request: Any) -> str:
        return "done"

    async def pid(self) -> int:
        return os.getpid()


def started(params: Params, route: str | None = None) -> Any:
    deployment = serve.deployment(Empty).options(num_replicas=params["replicas"], max_ongoing_requests=100)
    return serve.run(deployment.bind(), name="empty", route_prefix=route)


def empty(params: Params) -> Samples:
    handle = started(params)

    async def work() -> None:
        await handle.work.remote()

    return asyncio.run(_service.empty(work, params))


def batch(params: Params) -> Samples:
    handle = started(params)

    async def generate() -> None:
        await handle.generate.remote(1)

    return asyncio.run(_service.empty(generate, params))


def http(params: Params) -> Samples:
    started(params, "/work")
    return asyncio.run(_service.http(8000, "/work", params))


def death(params: Params) -> Samples:
    handle = started(params)

    async def work() -> None:
        await handle.work.remote()

    async def pid() -> int:
        return await handle.pid.remote()

    return asyncio.run(_service.death(work, pid, params))


if __name__ == "__main__":
    main({"empty": empty, "batch": batch, "http": http, "death": death})
