"""The reading end of a stream: values as a replica makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from monarch.actor import Future, Port, PortReceiver
from monarch.actor.lowlevel import in_thread, when_ready
from monarch.service.router import Replied

_leaving: set[PortReceiver[Any]] = set()  # of readers that left before it had begun


class ServiceStream:
    """The values of `service.endpoint.stream(...)`: an iterator and an async iterator, for one reader. Since 0.2.0."""

    def __init__(
        self,
        receiver: PortReceiver[Any],
        window: int,
        convert: Callable[[Replied], Any],
        cancel: Callable[[], object],
    ) -> None:
        self._receiver: PortReceiver[Any] | None = receiver
        # Of the next message; one that was not waited for to the end still takes it.
        self._claim: Future[Any] | None = None
        self._convert = convert
        self._cancel = cancel
        self._credits: Port[int] | None = None  # once the replica has begun
        self._at_once = max(1, window // 2)  # as many credits are given back together
        self._owed = self._taken = 0
        self._total: int | None = None
        # At the end: the version that made it, and its replica's number.
        self.version: int | None = None
        self.replica: int | None = None

    def __repr__(self) -> str:
        state = "ended" if self._receiver is None else "open"
        return f"<ServiceStream {state}, {self._taken} values taken>"

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while (coming := self._waits()) is not None:
            found, value = self._read(coming.get)
            if found:
                return value
        raise StopIteration

    async def __anext__(self) -> Any:
        while (coming := self._waits()) is not None:
            try:
                message = await coming
            except Exception:
                self.close()
                raise
            found, value = self._read(lambda message=message: message)  # type: ignore[misc]
            if found:
                return value
        raise StopAsyncIteration

    def close(self) -> None:
        """Leaves: the replica makes no more values than it may without being asked, and goes on with other requests."""
        receiver, self._receiver = self._receiver, None
        claim, self._claim = self._claim, None
        if receiver is None:
            return
        if self._credits is not None:
            self._credits.send(-1)
        elif self._total is None:
            self._cancel()
            _leave_when_it_begins(receiver, claim or receiver.recv())

    def __del__(self) -> None:
        if getattr(self, "_receiver", None) is not None:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def _waits(self) -> Future[Any] | None:
        """Returns the next message; None at the end."""
        if self._total is not None and self._taken >= self._total:
            self._receiver = None
        if self._receiver is not None and self._claim is None:
            self._claim = self._receiver.recv()
        return None if self._receiver is None else self._claim

    def _read(self, take: Callable[[], Any]) -> tuple[bool, Any]:
        """Takes a message; (True, value) for a value. Raises what ends the stream."""
        try:
            message = take()
            self._claim = None
            if isinstance(message, Replied):
                self._total = self._convert(message)
                self.version, self.replica = message.version, message.replica
                return False, None
        except Exception:
            self.close()
            raise
        kind, content = message
        if kind == "begin":
            self._credits = content
            return False, None
        self._taken, self._owed = self._taken + 1, self._owed + 1
        if self._owed >= self._at_once and self._credits is not None:
            self._credits.send(self._owed)
            self._owed = 0
        return True, content


def _leave_when_it_begins(receiver: PortReceiver[Any], coming: Future[Any]) -> None:
    """Tells the replica, once it says where, that nobody reads."""
    _leaving.add(receiver)

    def tell() -> None:
        _leaving.discard(receiver)
        try:
            message = coming.get()
        except Exception:  # it will not begin
            return
        if not isinstance(message, Replied):
            _kind, port = message
            port.send(-1)

    when_ready(coming, lambda: in_thread(tell, "monarch-leaving"))  # it comes on any thread, also on a loop's
