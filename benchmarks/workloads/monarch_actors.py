"""Actors of the workloads. In a module of their own, so that processes import them by name (not pickled by
value).
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from monarch.actor import Actor, Port, endpoint


class Echo(Actor):
    """Answers at once, from plain endpoints."""

    def __init__(self) -> None:
        self.hits = 0

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def take(self, value: Any) -> None:
        """Answers without it."""

    @endpoint
    def length(self, value: Any) -> int:
        return len(value)

    @endpoint
    def square(self, value: int) -> int:
        return value * value

    @endpoint
    def hit(self) -> None:
        self.hits += 1

    @endpoint
    def count(self) -> int:
        return self.hits

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class AsyncEcho(Actor):
    """The same with `async` endpoints, for the workloads that compare the two styles."""

    def __init__(self) -> None:
        self.hits = 0

    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def hit(self) -> None:
        self.hits += 1

    @endpoint
    async def count(self) -> int:
        return self.hits


class Waiter(Actor):
    """Says who it is and never answers."""

    @endpoint
    async def wait(self, port: Port[int]) -> None:
        port.send(os.getpid())
        await asyncio.Event().wait()
