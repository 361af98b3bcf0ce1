"""Actors of the workloads about latency."""

from __future__ import annotations

from typing import Any

from _workload import Computing, Usage, usage

from monarch.actor import Actor, Port, endpoint

COMPUTING = Computing()  # of the process: one actor stops what another runs


class Timed(Actor):
    """Answers at once, from plain endpoints."""

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def usage(self) -> Usage:
        return usage()

    @endpoint
    def compute(self, begun: Port[None]) -> None:
        begun.send(None)
        COMPUTING.run()

    @endpoint
    def finish(self) -> None:
        COMPUTING.stop()


class AsyncTimed(Actor):
    """The same with `async` endpoints."""

    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def usage(self) -> Usage:
        return usage()

    @endpoint
    async def compute(self, begun: Port[None]) -> None:
        begun.send(None)
        COMPUTING.run()

    @endpoint
    async def finish(self) -> None:
        COMPUTING.stop()
