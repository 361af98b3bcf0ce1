"""A service of ours whose endpoint does nothing."""

from __future__ import annotations

import asyncio
import os

import _service
from _workload import Params, Samples, main

from monarch.actor import Actor, endpoint, this_host
from monarch.service import batched, retried, serve, serve_http


class Empty(Actor):
    @endpoint
    @retried(3)
    async def work(self) -> None:
        pass

    @endpoint
    @retried(3)
    @batched(max_batch=16)
    async def generate(self, prompts: list[int]) -> list[int]:
        await asyncio.sleep(_service.STEP)
        return prompts

    @endpoint
    async def pid(self) -> int:
        return os.getpid()


def empty(params: Params) -> Samples:
    with serve(this_host(), Empty, replicas=params["replicas"], concurrency=8, queue=64) as service:
        while sum(one.state == "up" for one in service.status().get().replicas) < params["replicas"]:
            pass
        return asyncio.run(_service.empty(service.work.route, params))


def batch(params: Params) -> Samples:
    with serve(this_host(), Empty, replicas=params["replicas"], queue=64) as service:
        return asyncio.run(_service.empty(lambda: service.options(wait=True).generate.route(1), params))


def http(params: Params) -> Samples:
    with (
        serve(this_host(), Empty, replicas=params["replicas"], concurrency=8, queue=64) as service,
        serve_http(service, ["work"], port=0) as front,
    ):
        port = int(front.url().get().rpartition(":")[2])
        return asyncio.run(_service.http(port, "/work", params))


def death(params: Params) -> Samples:
    with serve(this_host(), Empty, replicas=params["replicas"], concurrency=8, queue=64) as service:
        while sum(one.state == "up" for one in service.status().get().replicas) < params["replicas"]:
            pass
        return asyncio.run(_service.death(service.work.route, service.pid.route, params))


if __name__ == "__main__":
    main({"empty": empty, "batch": batch, "http": http, "death": death})
