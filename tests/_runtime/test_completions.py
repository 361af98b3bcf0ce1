"""Futures in the order in which they complete."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from monarch._runtime.completions import Completions, as_completed
from monarch._runtime.future import Future, Slot, done_future, make_future
from monarch._runtime.returns_future import returns_future
from tests.support.patience import TIMEOUT


def slots(count: int) -> tuple[list[Slot], list[Future[Any]]]:
    made = [Slot() for _ in range(count)]
    return made, [make_future(slot) for slot in made]


def test_futures_come_in_the_order_in_which_they_complete() -> None:
    made, futures = slots(3)
    completed = as_completed(futures)
    made[2].set("c")
    made[0].set("a")
    assert next(completed) is futures[2]
    assert next(completed) is futures[0]
    threading.Timer(0.0, made[1].set, ["b"]).start()
    assert next(completed).get() == "b"
    with pytest.raises(StopIteration):
        next(completed)


def test_one_that_failed_is_given_like_the_others() -> None:
    (slot,), futures = slots(1)
    slot.fail(KeyError("k"))
    (future,) = as_completed(futures)
    with pytest.raises(KeyError):
        future.get()


def test_each_is_given_once_also_those_that_were_observed() -> None:
    seen, fresh = done_future(1), done_future(2)
    assert seen.get() == 1
    assert list(as_completed([seen, fresh, seen])) == [seen, fresh]
    assert list(as_completed([])) == []


def test_after_the_timeout_it_says_how_many_are_missing_and_the_futures_go_on() -> None:
    made, futures = slots(2)
    made[0].set(1)
    completed = as_completed(futures, timeout=0.01)
    assert next(completed).get() == 1
    with pytest.raises(TimeoutError, match=r"1 of 2 Futures have no result after 0.01 s.*go on"):
        next(completed)
    made[1].set(2)
    assert futures[1].get(TIMEOUT) == 2


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(ValueError, match="invalid timeout"):
        as_completed([], timeout=timeout)


def test_anything_but_a_future_is_refused() -> None:
    with pytest.raises(TypeError, match="takes Futures of this runtime"):
        as_completed([1])  # type: ignore[list-item]


def test_in_a_loop_with_async_for() -> None:
    made, futures = slots(3)

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        loop.call_soon(made[1].set, 1)
        loop.call_soon(made[0].set, 0)
        loop.call_soon(lambda: threading.Thread(target=made[2].set, args=[2]).start())
        return [await future async for future in as_completed(futures)]

    assert asyncio.run(main()) == [1, 0, 2]


def test_in_a_loop_the_timeout_ends_it_and_so_does_cancelling() -> None:
    made, futures = slots(1)

    async def main() -> None:
        with pytest.raises(TimeoutError, match="1 of 1"):
            await anext(as_completed(futures, timeout=0.01))
        completed = as_completed(futures)
        task = asyncio.ensure_future(anext(completed))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        made[0].set("still there")
        assert await (await anext(completed)) == "still there"

    asyncio.run(main())


def test_iterating_on_the_thread_of_a_loop_works_and_warns() -> None:
    (slot,), futures = slots(1)

    def set_when_waited_for() -> None:
        while not slot.noted():
            pass
        slot.set()

    async def main() -> None:
        threading.Thread(target=set_when_waited_for, daemon=True).start()
        with pytest.warns(UserWarning, match=r"as_completed\(\) was iterated.*async for"):
            assert next(as_completed(futures)) is futures[0]

    asyncio.run(main())


def test_functions_under_returns_future_begin_side_by_side() -> None:
    both = threading.Barrier(2, timeout=TIMEOUT)

    @returns_future
    async def meet(number: int) -> int:
        await asyncio.to_thread(both.wait)
        return number

    assert sorted(future.get() for future in as_completed([meet(1), meet(2)])) == [1, 2]


def test_dropping_it_leaves_nothing_at_the_futures() -> None:
    (slot,), futures = slots(1)
    completed = as_completed(futures)
    assert slot._wakers
    gone = weakref.ref(completed)
    del completed
    gc.collect()
    assert gone() is None
    assert not slot._wakers


def test_who_waits_is_noted_at_each_of_them_as_one_of_several() -> None:
    made, futures = slots(2)
    waits = Completions()
    for number, slot in enumerate(made):
        waits.add(number, slot)
    assert made[0].noted() == []
    thread = threading.Thread(target=waits.wait, args=[TIMEOUT], daemon=True)
    thread.start()
    while not made[1].noted():
        pass
    ((waker, note, alone),) = made[0].noted()
    assert (note[0], note[3], alone) == (thread.ident, True, False)
    assert made[1].noted() == [(waker, note, False)]
    made[0].set()
    thread.join(TIMEOUT)
    assert made[1].noted() == []
    assert waits.take() == 0
    thread = threading.Thread(target=waits.wait, args=[TIMEOUT], daemon=True)
    thread.start()
    while not made[1].noted():
        pass
    assert made[1].noted()[0][2]  # nothing else can wake it now
    made[1].set()
    thread.join(TIMEOUT)
    assert futures[1].get() is None


def test_many_cost_no_more_each_than_few() -> None:
    """Each is looked at when it completes, not at every wait."""
    made, futures = slots(20_000)
    completed = as_completed(futures)
    for slot, future in zip(reversed(made), reversed(futures), strict=True):
        slot.set(None)
        assert next(completed) is future
