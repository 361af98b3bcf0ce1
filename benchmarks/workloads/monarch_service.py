"""A service of ours whose endpoint does nothing."""

from __future__ import annotations

import asyncio
import os

import _service
from _workload import Params, Samples, main

from monarch.actor import Actor, endpoint, this_host
from monarch.service import retried, serve


class Empty(Actor):
    @endpoint
    @retried(3)
    async def work(self) -> None:
        pass

    @endpoint
    async def pid(self) -> int:
        return os.getpid()


def empty(params: Params) -> Samples:
    with serve(this_host(), Empty, replicas=params["replicas"], concurrency=8, queue=64) as service:
        while sum(one.state == "up" for one in service.status().get().replicas) < params["replicas"]:
            pass
        return asyncio.run(_service.empty(service.work.route, params))


def death(params: Params) -> Samples:
    with serve(this_host(), Empty, replicas=params["replicas"], concurrency=8, queue=64) as service:
        while sum(one.state == "up" for one in service.status().get().replicas) < params["replicas"]:
            pass
        return asyncio.run(_service.death(service.work.route, service.pid.route, params))


if __name__ == "__main__":
    main({"empty": empty, "death": death})
