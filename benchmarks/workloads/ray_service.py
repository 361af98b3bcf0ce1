"""The same on Ray Serve, by handles, without HTTP."""

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

    async def pid(self) -> int:
        return os.getpid()


def started(params: Params) -> Any:
    deployment = serve.deployment(Empty).options(num_replicas=params["replicas"], max_ongoing_requests=100)
    return serve.run(deployment.bind(), name="empty", route_prefix=None)


def empty(params: Params) -> Samples:
    handle = started(params)

    async def work() -> None:
        await handle.work.remote()

    return asyncio.run(_service.empty(work, params))


def death(params: Params) -> Samples:
    handle = started(params)

    async def work() -> None:
        await handle.work.remote()

    async def pid() -> int:
        return await handle.pid.remote()

    return asyncio.run(_service.death(work, pid, params))


if __name__ == "__main__":
    main({"empty": empty, "death": death})
