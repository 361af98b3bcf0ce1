"""Callers of a service, in one event loop: each makes a request, waits for the answer, and makes the next."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Awaitable, Callable

from _workload import Params, Samples

Request = Callable[[], Awaitable[object]]


async def _callers(request: Request, callers: int, count: int, took: list[float], at: list[float]) -> int:
    """Makes `count` requests; notes how long each took and when it was answered. Returns how many failed."""
    left, failed = count, 0

    async def call() -> None:
        nonlocal left, failed
        while left > 0:
            left -= 1
            start = time.perf_counter()
            try:
                await request()
            except Exception as exc:
                print(f"failed: {type(exc).__name__}: {str(exc).splitlines()[0][:200]}", flush=True)
                failed += 1
            now = time.perf_counter()
            took.append(now - start)
            at.append(now)

    await asyncio.gather(*(call() for _ in range(callers)))
    return failed


async def empty(request: Request, params: Params) -> Samples:
    """How long a request takes, and how many are answered a second."""
    await _callers(request, params["callers"], params["warmup"], [], [])
    took: list[float] = []
    start = time.perf_counter()
    await _callers(request, params["callers"], params["count"], took, [])
    return {"latency": took, "rate": [params["count"] / (time.perf_counter() - start)]}


STEP = 0.005  # seconds of a batch, whatever its size


async def http(port: int, path: str, params: Params) -> Samples:
    """Does the same as `empty` by POST, each caller with a connection that stays open."""
    host, body = "localhost", b"{}"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    message = head.encode() + b"\r\n\r\n" + body
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(params["callers"])]
    free = list(connections)

    async def post() -> None:
        reader, writer = connection = free.pop()
        writer.write(message)
        answer = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in answer.splitlines()[1:] if line)
        if b"content-length" in fields:
            await reader.readexactly(int(fields[b"content-length"]))
        else:  # in chunks
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        free.append(connection)
        if b" 200 " not in answer:
            raise RuntimeError(answer.splitlines()[0].decode())

    found = await empty(post, params)
    for _, writer in connections:
        writer.close()
    return found


async def death(request: Request, pid: Request, params: Params) -> Samples:
    """A replica is killed after a third of the requests."""
    await _callers(request, params["callers"], params["warmup"], [], [])
    victim, at = await pid(), list[float]()
    assert isinstance(victim, int)

    async def kill() -> None:
        while len(at) < params["count"] // 3:
            await asyncio.sleep(0)
        os.kill(victim, signal.SIGKILL)

    killing = asyncio.create_task(kill())
    failed = await _callers(request, params["callers"], params["count"], [], at)
    await killing
    at.sort()
    return {"failed": [float(failed)], "gap": [max(after - before for before, after in itertools.pairwise(at))]}
