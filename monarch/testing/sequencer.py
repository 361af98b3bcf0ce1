"""An order forced on threads and tasks that would otherwise race."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from monarch._linux.locks import Condition
from monarch.testing.local import Local


class SequenceBroken(RuntimeError):
    """A block raised, was cancelled or came too late: those behind it will never have their turn."""


class Sequencer:
    """Numbered blocks that run one after the other, in whatever threads and tasks they are.

        seq = Sequencer()

        def writer():                        async def reader():
            with seq(1):                         async with seq(2):
                write("a")                           assert await read() == "a"
            with seq(3):
                write("b")

    Block n begins when blocks 1 to n-1 have ended. A block that raises breaks the sequence: everybody behind
    it raises SequenceBroken. So does waiting longer than `timeout` real seconds for one's turn (TimeoutError
    there), so that a wrong test fails and does not hang. Each number is used once: ValueError for one below
    1, RuntimeError for one that was used.

    A Sequencer can be an argument of actors that live in this operating-system process (InProcessCluster).
    """

    def __init__(self, timeout: float = 30.0) -> None:
        self.timeout = timeout
        self._changed = Condition()
        self._used: set[int] = set()
        self._turn = 1
        self._broken = ""
        self._tasks: list[Callable[[], Any]] = []
        self._local = Local(self)

    def __repr__(self) -> str:
        state = f"broken: {self._broken}" if self._broken else f"at {self._turn}"
        return f"<Sequencer {state}>"

    def __call__(self, position: int) -> _Block:
        if isinstance(position, bool) or not isinstance(position, int) or position < 1:
            raise ValueError(f"positions of a Sequencer are whole numbers of 1 or more, got {position!r}")
        with self._changed:
            if position in self._used:
                raise RuntimeError(f"position {position} of the sequence is used twice")
            self._used.add(position)
        return _Block(self, position)

    def __reduce__(self) -> Any:
        return _same, (self._local,)

    def _ready(self, position: int) -> bool:
        return self._turn == position or bool(self._broken)

    def _begin(self, position: int) -> None:
        if self._broken:
            raise SequenceBroken(f"block {position} never has its turn: {self._broken}")

    def _late(self, position: int) -> TimeoutError:
        self._break(f"block {position} waited {self.timeout:g} s for block {self._turn}")
        return TimeoutError(
            f"block {position} of the sequence waited {self.timeout:g} s, and block {self._turn} has not "
            + ("ended" if self._turn in self._used else "been reached by anybody")
        )

    def _break(self, why: str) -> None:
        with self._changed:
            self._broken = self._broken or why
        self._tell()

    def _end(self, position: int, error: BaseException | None) -> None:
        if error is not None:
            self._break(f"block {position} raised {type(error).__name__}: {error}")
            return
        with self._changed:
            self._turn = position + 1
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
            tasks, self._tasks = self._tasks, []
        for wake in tasks:
            wake()

    def _wait(self, position: int) -> None:
        with self._changed:
            ready = self._changed.wait_for(lambda: self._ready(position), self.timeout)
        if not ready:
            raise self._late(position)
        self._begin(position)

    async def _wait_async(self, position: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout
        while True:
            waiter: asyncio.Future[None] = loop.create_future()
            with self._changed:
                if self._ready(position):
                    break
                self._tasks.append(lambda waiter=waiter: _wake(loop, waiter))  # type: ignore[misc]
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                raise self._late(position) from None
            except asyncio.CancelledError:
                self._break(f"block {position} was cancelled before its turn")
                raise
        self._begin(position)


class _Block:
    """One numbered block, for `with` and `async with`."""

    def __init__(self, sequencer: Sequencer, position: int) -> None:
        self._sequencer = sequencer
        self._position = position

    def __enter__(self) -> None:
        self._sequencer._wait(self._position)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sequencer._end(self._position, error)

    async def __aenter__(self) -> None:
        await self._sequencer._wait_async(self._position)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sequencer._end(self._position, error)


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    def finish() -> None:
        if not waiter.done():
            waiter.set_result(None)

    try:
        loop.call_soon_threadsafe(finish)
    except RuntimeError:  # that loop is closed; nobody waits there any more
        pass


def _same(local: Local[Sequencer]) -> Sequencer:
    return local.value
