"""A service of two replicas: requests in batches, and answers that come as a stream."""

import asyncio
from collections.abc import AsyncIterator

from monarch.actor import Actor, endpoint, this_host
from monarch.service import batched, serve


class Generator(Actor):
    @endpoint
    @batched(max_batch=4)
    async def generate(self, prompts: list[str]) -> list[str]:
        return [prompt.upper() for prompt in prompts]

    @endpoint
    async def words(self, text: str) -> AsyncIterator[str]:
        for word in text.split():
            yield word


async def main() -> None:
    async with serve(this_host(), Generator, replicas=2, queue=16) as service:
        answers = [service.generate.route(prompt) for prompt in ["a", "b", "c"]]
        print(await asyncio.gather(*answers))  # ['A', 'B', 'C']
        print([word async for word in service.words.stream("one two")])  # ['one', 'two']


if __name__ == "__main__":
    asyncio.run(main())
