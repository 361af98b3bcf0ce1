"""A program with a service and a dashboard: prints the URL once its requests have their answers, and ends with its input."""

from __future__ import annotations

import asyncio
import sys

import monarch.dashboard
from monarch.actor import Actor, endpoint, this_host
from monarch.service import Service, ServiceOverloaded, batched, serve

NAME = "generator <b>of text</b>"


class Generator(Actor):
    @endpoint
    @batched(max_batch=4)
    async def generate(self, prompts: list[int]) -> list[int]:
        await asyncio.sleep(0.01)
        return prompts


async def ask(service: Service) -> None:
    await asyncio.gather(*(service.options(wait=True).generate.route(number) for number in range(40)))
    answers = await asyncio.gather(*(service.generate.route(number) for number in range(100)), return_exceptions=True)
    assert any(isinstance(answer, ServiceOverloaded) for answer in answers)


def main() -> None:
    url = monarch.dashboard.start(port=0)
    with serve(this_host(), Generator, replicas=2, queue=4, name=NAME) as service:
        asyncio.run(ask(service))
        print(f"serves {url}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
