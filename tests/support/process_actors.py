"""Actors that tests in real processes are made of."""

from __future__ import annotations

import asyncio
import os

from monarch.actor import Actor, MeshFailure, endpoint


class Pid(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


class AsyncPid(Actor):
    @endpoint
    async def pid(self) -> int:
        return os.getpid()


class Told(Actor):
    """An owner: keeps what it is told of, and handles it."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()

    @endpoint
    async def next(self) -> str:
        return await self.told.get()

    @endpoint
    async def more(self) -> int:
        return self.told.qsize()

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.put_nowait(failure.report())
        return True
