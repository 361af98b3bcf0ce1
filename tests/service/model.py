"""An actor that services of tests have, and what they wait with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

from monarch.actor import (
    Actor,
    Port,
    ProcMesh,
    concurrent_endpoint,
    current_rank,
    endpoint,
    this_proc,
)
from monarch.service import (
    Service,
    batched,
    prefixed,
    retried,
)
from monarch.testing import Local

Event = Local[threading.Event]


def new_event() -> Event:
    return Local(threading.Event())


class Model(Actor):
    """A toy: it multiplies."""

    def __init__(self, scale: int = 2) -> None:
        self.scale = scale
        self.sick = False

    @endpoint
    def times(self, number: int) -> int:
        return self.scale * number

    @endpoint
    async def later(self, number: int, *, plus: int = 0) -> int:
        await asyncio.sleep(0)
        return self.scale * number + plus

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def where(self) -> ProcMesh:
        return this_proc()

    @endpoint
    def wait(self, entered: Event, gate: Event) -> int:
        entered.value.set()
        gate.value.wait()
        return self.scale

    @endpoint
    @retried(2)
    def wait_again(self, entered: Local[Any], gate: Event) -> str:
        entered.value.put(this_proc())
        gate.value.wait()
        return "done"

    @concurrent_endpoint
    async def beside(self, port: Port[int], number: int) -> None:
        port.send(number)
        await asyncio.Event().wait()

    @endpoint
    @batched(max_batch=4, max_wait=0.0)
    def many(self, numbers: list[int]) -> list[Any]:
        return [ValueError("thirteen") if number == 13 else self.scale * number for number in numbers]

    @endpoint
    @batched(max_batch=4)
    def too_few(self, numbers: list[int]) -> list[int]:
        return numbers[1:]

    @endpoint
    def divide(self, number: int) -> float:
        return self.scale / number

    @endpoint
    @prefixed(lambda text: text, block=2)
    def complete(self, text: str) -> str:
        return text.upper()

    @endpoint
    def load(self, scale: int) -> None:
        if scale < 0:
            raise ValueError("negative weights")
        self.scale = scale

    @endpoint
    def fetch(self, scale: int, entered: Event, gate: Event) -> int:
        entered.value.set()
        gate.value.wait()
        if scale < 0:
            raise ValueError("negative weights")
        return scale

    @endpoint
    def use(self, scale: int) -> None:
        self.scale = scale

    @endpoint
    def become_sick(self) -> None:
        self.sick = True

    @endpoint
    def check(self) -> None:
        if self.sick:
            raise RuntimeError("not well")

    @endpoint
    def count(self, most: int, made: Local[list[int]]) -> Iterator[int]:
        try:
            for number in range(most):
                made.value.append(number)
                yield self.scale * number
        finally:
            made.value.append(-1)

    @endpoint
    async def acount(self, most: int) -> Any:
        for number in range(most):
            await asyncio.sleep(0)
            yield self.scale * number
        if most == 3:
            raise ValueError("three")


def until_up(service: Service, replicas: int = 1) -> None:
    """Waits until so many replicas are up: a request waits for the first, a probe of the others is the status."""
    while sum(one.state == "up" for one in service.status().get().replicas) < replicas:
        pass


def until_outstanding(service: Service, requests: int) -> None:
    """Waits until the router has so many requests."""
    while service.status().get().outstanding < requests:
        pass
