from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from monarch._runtime.future import Future
from monarch._runtime.returns_future import returns_future
from tests.support.patience import TIMEOUT
from tests.support.threads import join, start

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_only_async_functions() -> None:
    with pytest.raises(TypeError, match="returns_future expects an async function"):
        returns_future(lambda: 1)  # type: ignore[arg-type,return-value]


def test_the_body_begins_with_the_first_observation_and_runs_once() -> None:
    runs: list[int] = []

    @returns_future
    async def body(x: int, *, y: int = 0) -> int:
        """Returns what it does."""
        runs.append(threading.get_ident())
        return x + y

    assert (body.__name__, body.__doc__) == ("body", "Returns what it does.")
    future = body(1, y=2)
    assert isinstance(future, Future) and runs == []
    assert future.get() == 3 == future.get(1.0)
    assert runs == [threading.get_ident()]


def test_await_runs_it_on_the_awaiting_loop() -> None:
    @returns_future
    async def body() -> Any:
        return asyncio.get_running_loop()

    async def observe() -> None:
        future = body()
        assert await future is asyncio.get_running_loop()
        assert await future is asyncio.get_running_loop()

    asyncio.run(observe())


def test_get_on_a_running_loop_uses_a_thread_of_its_own() -> None:
    @returns_future
    async def body() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    async def observe() -> None:
        with pytest.warns(UserWarning, match="active event loop"):
            assert body().get() != threading.get_ident()

    asyncio.run(observe())


@pytest.mark.parametrize("await_it", [False, True])
def test_it_raises_what_the_body_raised_each_time(await_it: bool) -> None:
    error = ValueError("x")

    @returns_future
    async def body() -> None:
        raise error

    future = body()

    async def observe() -> None:
        await future

    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            asyncio.run(observe()) if await_it else future.get()
        assert caught.value is error
    assert future.exception() is error


def test_a_timeout_of_the_owning_get_cancels_the_body_for_good() -> None:
    cancelled: list[bool] = []

    @returns_future
    async def body() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    future = body()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            future.get(timeout=0.01)
    assert cancelled == [True]
    assert isinstance(future.exception(), TimeoutError)


def test_cancelling_the_owning_await_fails_it_for_good() -> None:
    @returns_future
    async def body() -> None:
        await asyncio.Event().wait()

    future = body()

    async def observe() -> None:
        task = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(observe())
    with pytest.raises(asyncio.CancelledError):
        future.get(TIMEOUT)


def test_others_who_observe_meanwhile_get_the_same_result() -> None:
    begun, go_on = threading.Event(), threading.Event()

    @returns_future
    async def body() -> object:
        begun.set()
        assert go_on.wait(TIMEOUT)
        return object()

    future = body()
    got: list[object] = []

    def get() -> None:
        got.append(future.get(TIMEOUT))

    first = start(get)
    assert begun.wait(TIMEOUT)
    with pytest.raises(TimeoutError):
        future.get(0)  # this one only looks; the body goes on
    others = [start(get), start(get)]
    go_on.set()
    join(first, *others)
    assert len(got) == 3 and set(got) == {future.get()}


@pytest.mark.parametrize("await_it", [False, True])
def test_the_body_sees_a_copy_of_the_callers_context(await_it: bool) -> None:
    @returns_future
    async def body() -> str:
        seen = variable.get()
        variable.set("changed by the body")
        return seen

    token = variable.set("the caller's")
    future = body()
    variable.set("later")
    try:

        async def observe() -> str:
            return await future

        assert (asyncio.run(observe()) if await_it else future.get()) == "the caller's"
        assert variable.get() == "later"
    finally:
        variable.reset(token)


def test_methods() -> None:
    class Thing:
        x = 4

        @returns_future
        async def plus(self, y: int) -> int:
            return self.x + y

    assert Thing().plus(1).get() == 5
