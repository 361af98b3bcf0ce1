"""Future: observed from threads and loops, as often as one likes, while the operation goes its own way."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from monarch.actor import Actor, ActorError, Channel, Future, Port, ProcMesh, endpoint, returns_future

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


def test_programs_do_not_make_futures() -> None:
    with pytest.raises(TypeError):
        Future()
    with pytest.raises(TypeError):
        Future(None)


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


def test_exception_is_none_of_a_success(actor: Any) -> None:
    assert actor.list.call_one().exception(timeout=TIMEOUT) is None


def test_after_a_timeout_the_operation_goes_on(held: Held) -> None:
    with pytest.raises(TimeoutError):
        held.future.get(timeout=0.05)
    assert isinstance(held.future.exception(timeout=0.05), TimeoutError)
    with pytest.raises(TimeoutError):
        held.future.result(0)
    held.send("at last")
    assert held.future.get(timeout=TIMEOUT) == "at last"


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("inf"), float("-inf")])
def test_a_timeout_is_finite_and_not_negative(held: Held, timeout: float) -> None:
    with pytest.raises(ValueError, match="invalid timeout"):
        held.future.get(timeout=timeout)


def test_several_threads_may_wait_for_one_future(held: Held) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(held.future.get, TIMEOUT) for _ in range(4)]
        held.send(["one object"])
        first, *others = [wait.result(TIMEOUT) for wait in waits]
    assert first == ["one object"] and all(other is first for other in others)


def test_get_works_in_a_running_loop_and_warns(actor: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> Any:
        return actor.list.call_one().get(timeout=TIMEOUT)

    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        assert asyncio.run(main()) == [1, 2]
    text = "Future.get() was called from within an active event loop"
    assert [w.category for w in caught if text in str(w.message)] == [UserWarning]
    assert sum("within an active event loop" in record.getMessage() for record in caplog.records) == 1


def test_get_outside_a_loop_does_not_warn(actor: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert actor.list.call_one().get(timeout=TIMEOUT) == [1, 2]


# --- await


def test_await_and_get_mix(actor: Any) -> None:
    future = actor.list.call_one()

    async def main() -> Any:
        return await future, await future

    first, second = asyncio.run(main())
    assert first is second is future.get()
    third, _ = asyncio.run(main())  # another loop
    assert third is first


def test_await_raises_the_same_exception_as_get(actor: Any) -> None:
    future = actor.fail.call_one()

    async def main() -> ActorError:
        with pytest.raises(ActorError) as caught:
            await future
        return caught.value

    assert asyncio.run(main()) is future.exception()


def test_one_thread_waits_while_another_awaits(held: Held) -> None:
    async def main() -> Any:
        return await held.future

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waiting, awaiting = pool.submit(held.future.get, TIMEOUT), pool.submit(asyncio.run, main())
        held.send({"same": True})
        assert waiting.result(TIMEOUT) is awaiting.result(TIMEOUT)


def test_wait_for_gives_up_waiting_and_not_the_operation(held: Held) -> None:
    async def main() -> Any:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(held.future, 0.05)
        held.send("still came")
        return await asyncio.wait_for(held.future, TIMEOUT)

    assert asyncio.run(main()) == "still came"


def test_cancelling_one_observer_leaves_the_others(held: Held) -> None:
    async def observe() -> Any:
        return await held.future

    async def main() -> Any:
        gone, stays = asyncio.create_task(observe()), asyncio.create_task(observe())
        await asyncio.sleep(0)  # both are waiting now
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        held.send("for the others")
        return await stays

    assert asyncio.run(main()) == "for the others"


def test_gather_ensure_future_and_as_completed(actor: Any) -> None:
    async def main() -> list[int]:
        first = await asyncio.gather(*[actor.counted.call_one() for _ in range(3)])
        first.append(await asyncio.ensure_future(actor.counted.call_one()))
        for done in asyncio.as_completed([actor.counted.call_one() for _ in range(2)]):
            first.append(await done)
        return first

    numbers = asyncio.run(main())
    assert sorted(numbers) == list(range(numbers[0], numbers[0] + 6))


def test_create_task_takes_coroutines_only(actor: Any) -> None:
    async def main() -> None:
        with pytest.raises(TypeError):
            await asyncio.create_task(actor.list.call_one())

    asyncio.run(main())


def test_as_asyncio_is_a_future_of_the_running_loop(actor: Any) -> None:
    async def main() -> Any:
        future = actor.list.call_one().as_asyncio()
        assert isinstance(future, asyncio.Future)
        done, _ = await asyncio.wait([future], timeout=TIMEOUT)
        assert done == {future}
        return future.result()

    assert asyncio.run(main()) == [1, 2]


def test_as_asyncio_without_a_loop_leaves_the_future_alone(actor: Any) -> None:
    future = actor.list.call_one()
    with pytest.raises(RuntimeError):
        future.as_asyncio()
    assert future.get(timeout=TIMEOUT) == [1, 2]


def test_await_outside_a_loop_is_a_value_error(held: Held) -> None:
    with pytest.raises(ValueError, match="__await__ with no active event loop"):
        next(held.future.__await__())


# --- lifetime


def test_a_dropped_future_is_harmless(actor: Any) -> None:
    before = actor.counted.call_one().get(timeout=TIMEOUT)
    for _ in range(10):
        actor.counted.call_one()
        actor.fail.call_one()
    assert actor.counted.call_one().get(timeout=TIMEOUT) == before + 11


def test_futures_cannot_be_pickled(actor: Any) -> None:
    future = actor.list.call_one()
    for dumps in (pickle.dumps, cloudpickle.dumps):
        with pytest.raises(TypeError):
            dumps(future)
    assert future.get(timeout=TIMEOUT) == [1, 2]


def test_futures_have_neither_done_nor_callbacks(actor: Any) -> None:
    future = actor.list.call_one()
    assert not hasattr(future, "done") and not hasattr(future, "add_done_callback")
    future.get(timeout=TIMEOUT)


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


# --- returns_future


def test_returns_future_runs_when_first_observed() -> None:
    ran = []

    @returns_future
    async def work(n: int) -> int:
        ran.append(n)
        await asyncio.sleep(0)
        return n + 1

    future = work(1)
    assert isinstance(future, Future) and ran == []
    assert future.get(timeout=TIMEOUT) == 2 and future.get() == 2
    assert ran == [1]


def test_returns_future_awaited_runs_on_the_awaiting_loop() -> None:
    @returns_future
    async def work() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def main() -> bool:
        return await work() is asyncio.get_running_loop()

    assert asyncio.run(main())


def test_returns_future_got_runs_in_the_calling_thread() -> None:
    @returns_future
    async def work() -> int:
        return threading.get_ident()

    assert work().get(timeout=TIMEOUT) == threading.get_ident()


def test_returns_future_can_be_got_inside_a_running_loop() -> None:
    @returns_future
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def main() -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work().get(timeout=TIMEOUT)

    assert asyncio.run(main()) == "done"


def test_returns_future_passes_exceptions_and_arguments_on() -> None:
    @returns_future
    async def work(a: int, *, b: int) -> int:
        """Divides."""
        return a // b

    assert work(6, b=3).get(timeout=TIMEOUT) == 2
    with pytest.raises(ZeroDivisionError):
        work(1, b=0).get(timeout=TIMEOUT)
    assert work.__name__ == "work" and work.__doc__ == "Divides."


def test_returns_future_sees_the_callers_context_variables() -> None:
    variable = contextvars.ContextVar("variable", default="default")

    @returns_future
    async def work() -> str:
        return variable.get()

    token = variable.set("of the caller")
    try:
        assert work().get(timeout=TIMEOUT) == "of the caller"
    finally:
        variable.reset(token)


def test_a_timeout_of_the_owning_get_cancels_the_body_for_good() -> None:
    cancelled = threading.Event()

    @returns_future
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    future = work()
    with pytest.raises(TimeoutError):
        future.get(timeout=0.05)
    assert cancelled.wait(TIMEOUT)
    with pytest.raises(TimeoutError):
        future.get()


def test_returns_future_is_for_async_functions() -> None:
    with pytest.raises(TypeError):

        @returns_future  # type: ignore[arg-type]
        def work() -> int:
            return 1


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
