"""Future: that of a call to a real process. What one is, tests/_runtime/test_future.py says of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, Channel, Port, ProcMesh, endpoint
from tests.support.tiers import full

pytestmark = pytest.mark.procs
TIMEOUT = 30


class Answerer(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    async def list(self) -> list[int]:
        return [1, 2]

    @endpoint
    async def fail(self) -> None:
        raise KeyError("missing")

    @endpoint
    async def counted(self) -> int:
        self.count += 1
        return self.count

    @endpoint
    async def hold(self, port: Port[Any]) -> Any:
        opened, receiver = Channel[Any].open()
        port.send(opened)
        result = await receiver.recv()
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture(scope="module")
def actor(proc: ProcMesh) -> Any:
    return proc.spawn("answerer", Answerer)


class Held:
    """A call under way: `future` is pending until `send`."""

    def __init__(self, actor: Any) -> None:
        port, receiver = Channel[Any].open()
        self.future = actor.hold.call_one(port)
        self.send = receiver.recv().get(timeout=TIMEOUT).send


@pytest.fixture
def held(actor: Any) -> Iterator[Held]:
    call = Held(actor)
    yield call
    call.send(None)  # so that the actor is free again whatever the test did; ignored when it already went on
    actor.counted.call_one().get(timeout=TIMEOUT)


# --- get


def test_get_again_gives_the_same_object(actor: Any) -> None:
    future = actor.list.call_one()
    assert future.get(timeout=TIMEOUT) is future.get() is future.result()


def test_a_failed_future_raises_the_same_exception_each_time(actor: Any) -> None:
    future = actor.fail.call_one()
    seen = []
    for observe in (future.get, future.result):
        with pytest.raises(ActorError, match="missing") as caught:
            observe(timeout=TIMEOUT)
        seen.append(caught.value)
    assert seen[0] is seen[1] is future.exception()


def test_after_a_timeout_the_operation_goes_on(held: Held) -> None:
    with pytest.raises(TimeoutError):
        held.future.get(timeout=0.05)
    assert isinstance(held.future.exception(timeout=0.05), TimeoutError)
    with pytest.raises(TimeoutError):
        held.future.result(0)
    held.send("at last")
    assert held.future.get(timeout=TIMEOUT) == "at last"


# --- await


def test_await_and_get_mix(actor: Any) -> None:
    future = actor.list.call_one()

    async def main() -> Any:
        return await future, await future

    first, second = asyncio.run(main())
    assert first is second is future.get()
    third, _ = asyncio.run(main())  # another loop
    assert third is first


def test_wait_for_gives_up_waiting_and_not_the_operation(held: Held) -> None:
    async def main() -> Any:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(held.future, 0.05)
        held.send("still came")
        return await asyncio.wait_for(held.future, TIMEOUT)

    assert asyncio.run(main()) == "still came"


def test_gather_ensure_future_and_as_completed(actor: Any) -> None:
    async def main() -> list[int]:
        first = await asyncio.gather(*[actor.counted.call_one() for _ in range(3)])
        first.append(await asyncio.ensure_future(actor.counted.call_one()))
        for done in asyncio.as_completed([actor.counted.call_one() for _ in range(2)]):
            first.append(await done)
        return first

    numbers = asyncio.run(main())
    assert sorted(numbers) == list(range(numbers[0], numbers[0] + 6))


# --- lifetime


def test_a_dropped_future_is_harmless(actor: Any) -> None:
    before = actor.counted.call_one().get(timeout=TIMEOUT)
    for _ in range(10):
        actor.counted.call_one()
        actor.fail.call_one()
    assert actor.counted.call_one().get(timeout=TIMEOUT) == before + 11


@full
def test_ctrl_c_interrupts_a_waiting_get(scripts: Any) -> None:
    scripts.run(
        """
        import os, signal, threading
        from monarch.actor import Channel

        port, receiver = Channel.open()
        waiting = receiver.recv()
        try:
            waiting.get(timeout=0.01)
        except TimeoutError:
            pass
        try:
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
            waiting.get(timeout=30)
        except KeyboardInterrupt:
            pass
        else:
            raise SystemExit("not interrupted")
        port.send("still usable")
        assert waiting.get(timeout=30) == "still usable"
        """
    )


# --- other futures


def test_stop_and_initialized_are_futures_too(spawn_procs: Any) -> None:
    async def main() -> None:
        procs = spawn_procs()
        actor = procs.spawn("answerer", Answerer)
        assert await procs.initialized is True
        assert await actor.initialized is None
        assert await actor.list.call_one() == [1, 2]
        assert await actor.stop() is None
        assert await procs.stop() is None

    asyncio.run(main())
