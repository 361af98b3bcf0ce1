"""The block at whose end a service, or its HTTP front, is shut down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from monarch.actor import Future


class ShutdownBlock(ABC):
    """A `with` or `async with` block. At its end what is under way has 30 seconds; none where the block raised."""

    @abstractmethod
    def shutdown(self, grace: float = 30.0) -> Future[None]:
        """Ends it; what it has may go on for `grace` seconds."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown(30.0 if exc[0] is None else 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown(30.0 if exc[0] is None else 0.0).get()
