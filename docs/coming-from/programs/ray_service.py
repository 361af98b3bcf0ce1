"""A service of two replicas: requests in batches, and answers that come as a stream."""

import asyncio

from ray import serve


@serve.deployment(num_replicas=2, max_ongoing_requests=16)
class Generator:
    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.01)
    async def generate(self, prompts):
        return [prompt.upper() for prompt in prompts]

    async def words(self, text):
        for word in text.split():
            yield word


async def main():
    service = serve.run(Generator.bind())
    answers = [service.generate.remote(prompt) for prompt in ["a", "b", "c"]]
    print(await asyncio.gather(*answers))  # ['A', 'B', 'C']
    print([word async for word in service.options(stream=True).words.remote("one two")])  # ['one', 'two']
    serve.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
