"""An HTTP server of completions, in the shape that clients of OpenAI's API expect: JSON, or tokens as they are made.

    python examples/completions.py --replicas 2          # asks itself a few things, and ends
    python examples/completions.py --port 8000 --serve   # goes on until Ctrl-C

The "model" knows which letter follows which in a few lines of text. What is shown is the front: batches, a stream that ends
with its reader, a session that keeps what it has said, statuses that clients understand.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator
from typing import Any

from monarch.actor import Actor, concurrent_endpoint, endpoint, this_host
from monarch.service import HealthCheck, ServiceRoutes, batched, retried, serve, serve_http

TEXT = "the cat sat on the mat and the dog sat on the cat until the man sat on the dog and that was that "
MODEL = "letters-1"


class Letters(Actor):
    def __init__(self, text: str) -> None:
        self.following: dict[str, str] = {}
        for first, second in itertools.pairwise(text):
            self.following[first] = self.following.get(first, "") + second

    def next(self, so_far: str, seed: int) -> str:
        drawn = random.Random(f"{so_far[-8:]} {len(so_far)} {seed}")
        return drawn.choice(self.following.get(so_far[-1:], "the "))

    @endpoint
    @retried(2)
    @batched(max_batch=16)
    def complete(self, prompts: list[str], lengths: list[int], seeds: list[int]) -> list[str]:
        texts = list(prompts)
        for step in range(max(lengths)):  # all of them in step, as a real model would
            for place, seed in enumerate(seeds):
                if step < lengths[place]:
                    texts[place] += self.next(texts[place], seed)
        return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]

    @endpoint
    async def tokens(self, prompt: str, length: int, seed: int) -> AsyncIterator[str]:
        for _ in range(length):
            token = self.next(prompt, seed)
            prompt += token
            yield token
            await asyncio.sleep(0)

    @concurrent_endpoint
    async def well(self) -> None:
        assert self.next("th", 0), "the model has forgotten everything"


def error(status: int, text: str) -> Any:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "code": status}}


def routes(front: ServiceRoutes) -> list[Any]:
    """Returns the routes of the API, in the process of the front."""

    def completion(identifier: str, text: str, reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
        made = {"id": identifier, "object": "text_completion", "created": int(time.time()), "model": MODEL}
        return {**made, "choices": [choice]}

    async def completions(request: Any) -> Any:
        body = await front.body(request)
        prompt, length, seed = body.get("prompt", ""), body.get("max_tokens", 16), body.get("seed", 0)
        if not isinstance(prompt, str) or not isinstance(seed, int):
            return front.json(error(400, "prompt is a text, and seed a number"), 400)
        if not isinstance(length, int) or not 0 < length <= 4096:
            return front.json(error(400, f"max_tokens is between 1 and 4096, not {length}"), 400)
        asked = {"prompt": prompt, "length": length, "seed": seed}
        service, identifier = front.with_headers(request), f"cmpl-{uuid.uuid4().hex}"
        if body.get("stream"):
            return await front.events(
                request,
                service.tokens,
                asked,
                shown=lambda token: completion(identifier, token, None),
                last=lambda stream: "[DONE]",
                error_body=error,
            )
        answer = await front.ask(request, service.complete, prompt, length, seed)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": length, "total_tokens": len(prompt) + length}
        made = {**completion(identifier, answer.value, "length"), "usage": usage}
        return front.json({**made, "system_fingerprint": f"v{answer.version}"})

    async def models(request: Any) -> Any:
        return front.json({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "you"}]})

    return [front.post("/v1/completions", completions, error), front.get("/v1/models", models)]


def ask(url: str, **body: Any) -> Any:
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    return urllib.request.urlopen(request)


def main(replicas: int, port: int, stay: bool) -> None:
    with (
        serve(this_host(), Letters, TEXT, replicas=replicas, queue=64, health=HealthCheck("well")) as service,
        serve_http(service, routes=routes, port=port) as front,
    ):
        url = front.url().get()
        print(f"completions at {url}/v1/completions")
        if stay:
            try:
                while True:
                    time.sleep(3600)
            except KeyboardInterrupt:
                return
        with ask(url, prompt="the ", max_tokens=20, seed=1) as answer:
            whole = json.load(answer)["choices"][0]["text"]
        with ask(url, prompt="the ", max_tokens=20, seed=1, stream=True) as answer:
            events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
        *parts, last = events
        streamed = "".join(json.loads(part)["choices"][0]["text"] for part in parts)
        print(f"whole: {len(whole)} letters, streamed: {len(parts)} events and {last}, the same: {whole == streamed}")
        try:
            ask(url, prompt="the ", max_tokens=100_000)
        except urllib.error.HTTPError as refused:
            with refused:
                print(refused.code, json.load(refused)["error"]["message"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args()
    main(given.replicas, given.port, given.serve)
