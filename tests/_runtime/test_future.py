"""Futures as the contract has them, on results that the test sets."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from monarch._errors import SupervisionError
from monarch._runtime import future as module
from monarch._runtime.event_loops import Blocking
from monarch._runtime.future import All, Done, Future, Slot, Source, Then, done_future, make_future
from tests.support.patience import TIMEOUT
from tests.support.threads import join, start


class Observed(Slot):
    """Says when somebody has begun to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = threading.Semaphore(0)

    def on_ready(self, wake: Callable[[], Any]) -> None:
        super().on_ready(wake)
        self.waited.release()


class Interrupted(Slot):
    """Its wait ends with what a handler of signals has raised."""

    def __init__(self, raised: BaseException, missing: str) -> None:
        super().__init__()
        self.raised, self.missing = raised, missing

    def wait(self, timeout: float | None, since: float | None = None) -> bool:
        raise self.raised

    def awaited(self) -> str:
        return self.missing


@pytest.mark.parametrize("source", [Slot("the start"), Then(Slot(), bool, "the start"), Then(Slot("the start"), bool)])
def test_what_is_waited_for_is_named(source: Source) -> None:
    future = make_future(source)
    with pytest.raises(TimeoutError, match=r"no result after 0\.0 s from the start; the operation goes on"):
        future.get(timeout=0)
    assert repr(future).startswith("<Future of the start, pending;")


@pytest.mark.parametrize("timeout", [None, 1.0])
def test_ctrl_c_says_what_was_waited_for_without_the_frames_of_the_wait(timeout: float | None) -> None:
    future = make_future(Interrupted(KeyboardInterrupt(), " from t.step(), rank(s) 1, 3"))
    with pytest.raises(
        KeyboardInterrupt, match=r"^while it waited for a result from t\.step\(\), rank\(s\) 1, 3$"
    ) as caught:
        future.get(timeout)
    assert [entry.name for entry in caught.traceback][1:] == ["get"]


@pytest.mark.parametrize(
    ("raised", "missing"), [(KeyboardInterrupt(), ""), (KeyboardInterrupt("mine"), " from t.step()")]
)
def test_an_interrupt_with_words_of_its_own_keeps_them(raised: KeyboardInterrupt, missing: str) -> None:
    before = raised.args
    with pytest.raises(KeyboardInterrupt) as caught:
        make_future(Interrupted(raised, missing)).get()
    assert caught.value is raised and raised.args == before


# --- get


def test_get_returns_the_same_object_each_time() -> None:
    value: list[int] = []
    future = done_future(value)
    assert future.get() is future.get(1.0) is future.result() is value
    assert future.exception() is None


def test_get_raises_the_same_exception_each_time() -> None:
    error = KeyError("x")
    slot = Slot()
    slot.fail(error)
    future = make_future(slot)
    for observe in (future.get, future.result):
        for _ in range(2):
            with pytest.raises(KeyError) as caught:
                observe()
            assert caught.value is error
    assert future.exception() is error is future.exception(0)


def test_get_waits_for_another_thread() -> None:
    slot = Observed()
    future = make_future(slot)
    got: list[Any] = []
    threads = [start(lambda: got.append(future.get(TIMEOUT))) for _ in range(5)]
    for _ in threads:
        assert slot.waited.acquire(timeout=TIMEOUT)
    assert got == []
    slot.set(value := object())
    join(*threads)
    assert got == [value] * 5 and future.get() is value


def test_a_time_limit_ends_the_wait_and_not_the_operation() -> None:
    slot = Slot()
    future = make_future(slot)
    with pytest.raises(TimeoutError, match=r"no result after 0\.0 s; the operation goes on"):
        future.get(timeout=0)
    assert isinstance(future.exception(timeout=0), TimeoutError)
    with pytest.raises(TimeoutError):
        future.result(0.001)
    assert "pending" in repr(future)
    slot.set(5)
    assert "ready" in repr(future)
    assert future.get(0) == 5 and "done" in repr(future)
    assert not slot._wakers  # those who gave up left nothing behind


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("inf"), float("-inf"), "1", 1j])
@pytest.mark.parametrize("observe", [Future.get, Future.result])
def test_an_impossible_time_limit(observe: Any, timeout: Any) -> None:
    with pytest.raises(ValueError, match="invalid timeout"):
        observe(make_future(Slot()), timeout)


def test_a_very_long_time_limit_is_a_time_limit() -> None:
    slot = Slot()
    thread = start(lambda: slot.set(1))
    assert make_future(slot).get(1e300) == 1
    join(thread)


def test_only_the_first_result_counts() -> None:
    slot = Slot()
    slot.set(1)
    slot.set(2)
    slot.fail(ValueError())
    assert make_future(slot).get() == 1


def test_a_value_is_made_once_by_its_first_observer() -> None:
    made: list[str] = []

    class Counted(Done):
        def value(self) -> Any:
            made.append(threading.current_thread().name)
            return super().value()

    future = make_future(Counted(1))
    assert made == []
    thread = threading.Thread(target=future.get, name="first")
    thread.start()
    join(thread)
    assert future.get() == 1 and made == ["first"]


def test_many_observers_of_one_value_make_it_once() -> None:
    made: list[object] = []
    go = threading.Barrier(6, timeout=TIMEOUT)

    class Slow(Done):
        def value(self) -> Any:
            made.append(value := object())
            return value

    for _ in range(50):
        future = make_future(Slow(None))
        got: list[object] = []

        def observe(future: Future[Any] = future, got: list[object] = got) -> None:
            go.wait()
            got.append(future.get(TIMEOUT))

        threads = [start(observe) for _ in range(6)]
        join(*threads)
        assert len(made) == 1 and set(got) == set(made)
        made.clear()


def test_first_observers_and_the_result_race() -> None:
    """Two threads that begin to wait at the same moment are both woken."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            slot = Slot()
            future = make_future(slot)
            go = threading.Barrier(4, timeout=TIMEOUT)

            def observe(go: threading.Barrier = go, future: Future[Any] = future) -> None:
                go.wait()
                future.get(TIMEOUT)

            threads = [start(observe) for _ in range(3)]
            go.wait()
            slot.set(1)
            join(*threads)
    finally:
        sys.setswitchinterval(before)


def test_an_interrupt_while_decoding_is_not_the_result() -> None:
    class Interrupted(Done):
        interrupts = 1

        def value(self) -> Any:
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            return super().value()

    future = make_future(Interrupted(7))
    with pytest.raises(KeyboardInterrupt):
        future.get()
    assert future.get() == 7


def test_ctrl_c_interrupts_a_blocked_get_promptly() -> None:
    program = (
        "import os, signal, threading\n"
        "from monarch._runtime.future import Slot, make_future\n"
        "class Waited(Slot):\n"
        "    def on_ready(self, wake):\n"
        "        super().on_ready(wake)\n"
        "        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    make_future(Waited()).get()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


# --- await


def test_await_as_often_as_one_likes_and_on_different_loops() -> None:
    future = done_future(value := object())

    async def observe() -> Any:
        return await future, await future

    assert asyncio.run(observe()) == (value, value)
    assert asyncio.run(observe()) == (value, value)
    assert future.get() is value


def test_await_is_woken_from_another_thread() -> None:
    slot = Observed()
    future = make_future(slot)

    async def observe() -> Any:
        return await asyncio.gather(future, asyncio.ensure_future(future), asyncio.wait_for(future, TIMEOUT))

    def settle() -> None:
        for _ in range(3):
            assert slot.waited.acquire(timeout=TIMEOUT)
        slot.set(3)

    thread = start(settle)
    assert asyncio.run(observe()) == [3, 3, 3]
    join(thread)


def test_get_in_one_thread_and_await_in_another() -> None:
    slot = Observed()
    future = make_future(slot)
    got: list[Any] = []

    async def observe() -> None:
        got.append(await future)

    threads = [start(lambda: got.append(future.get(TIMEOUT))), start(lambda: asyncio.run(observe()))]
    for _ in threads:
        assert slot.waited.acquire(timeout=TIMEOUT)
    slot.set("x")
    join(*threads)
    assert got == ["x", "x"]


def test_await_raises_the_exception_itself() -> None:
    slot = Slot()
    slot.fail(error := ValueError("x"))
    future = make_future(slot)

    async def observe() -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="x") as caught:
                await future
            assert caught.value is error

    asyncio.run(observe())


def test_cancelling_an_observer_cancels_nothing_else() -> None:
    slot = Slot()
    future = make_future(slot)

    async def observe() -> Any:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.0)
        task = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not slot._wakers
        slot.set(1)
        return await future

    assert asyncio.run(observe()) == 1


def test_as_completed_gives_them_as_they_come() -> None:
    slots = [Slot() for _ in range(3)]
    futures = [make_future(slot) for slot in slots]

    async def observe() -> list[int]:
        got = []
        order = iter([2, 0, 1])
        slots[first := next(order)].set(first)
        for done in asyncio.as_completed(futures):
            got.append(await done)
            for number in order:
                slots[number].set(number)
                break
        return got

    assert asyncio.run(observe()) == [2, 0, 1]


def test_create_task_refuses_a_future() -> None:
    async def observe() -> None:
        with pytest.raises(TypeError):
            task = asyncio.create_task(done_future(1))  # type: ignore[arg-type]
            await task

    asyncio.run(observe())


def test_an_observer_whose_loop_is_closed_is_forgotten() -> None:
    slot = Slot()
    future = make_future(slot)
    loop = asyncio.new_event_loop()
    task = loop.create_task(_observe(future))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    slot.set(1)  # wakes nobody, and does not raise
    assert future.get() == 1
    del task


async def _observe(future: Future[Any]) -> Any:
    try:
        return await future
    except GeneratorExit:  # the loop was closed over it
        raise


def test_await_outside_a_loop_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="__await__ with no active event loop: use get"):
        make_future(Slot()).__await__().send(None)


def test_as_asyncio() -> None:
    slot = Slot()
    future = make_future(slot)
    with pytest.raises(RuntimeError, match="needs a running event loop"):
        future.as_asyncio()

    async def observe() -> Any:
        here = future.as_asyncio()
        assert isinstance(here, asyncio.Future) and not here.done()
        slot.set(4)
        return await here

    assert asyncio.run(observe()) == 4 == future.get()


def test_get_on_a_running_loop_works_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    async def observe() -> Any:
        with pytest.warns(UserWarning, match=r"Future\.get\(\) was called from within an active event loop"):
            return done_future(1).get()

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(observe()) == 1
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 1


def test_what_blocks_a_loop_several_times_says_so_once_as_the_program_calls_it() -> None:
    async def observe() -> None:
        with Blocking("both() was called", "Await it"):
            done_future(1).get()
            with Blocking("one() was called", "Await it"):
                done_future(2).get()

    with pytest.warns(UserWarning, match="active event loop") as told:
        asyncio.run(observe())
    assert [str(one.message).partition(" from")[0] for one in told] == ["both() was called"]
    assert str(told[0].message).endswith("Await it")
    assert told[0].filename == __file__


# --- what it is not


def test_a_future_is_made_by_the_runtime_only() -> None:
    for args in ((), (Slot(),), (object(), Slot())):
        with pytest.raises(TypeError, match="Future objects are returned by Monarch operations"):
            Future(*args)


def test_a_future_is_not_picklable_and_says_what_to_do() -> None:
    for attempt in (pickle.dumps, cloudpickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="send its result"):
            attempt(done_future(1))


def test_there_are_no_callbacks() -> None:
    for name in ("done", "add_done_callback", "cancel", "set_result"):
        assert not hasattr(done_future(1), name)


def test_failed_futures_say_so() -> None:
    slot = Slot()
    slot.fail(ValueError("x"))
    future = make_future(slot)
    future.exception()
    assert repr(future) == "<Future failed: ValueError>"


# --- sources of sources


def test_then_converts_in_the_observer_once() -> None:
    slot = Slot()
    calls: list[int] = []

    def convert(value: int) -> int:
        calls.append(value)
        return value + 1

    future = make_future(Then(slot, convert))
    slot.set(1)
    assert calls == []
    assert (future.get(), future.get(), calls) == (2, 2, [1])


def test_then_passes_failures_and_the_beginning_on() -> None:
    class Lazy(Slot):
        def begin(self) -> None:
            self.fail(ValueError("begun"))

    with pytest.raises(ValueError, match="begun"):
        make_future(Then(Lazy(), lambda value: value)).get(TIMEOUT)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_all_waits_for_every_source_and_keeps_their_order(order: list[int]) -> None:
    slots = [Slot() for _ in range(3)]
    future = make_future(All([*slots]))
    for number in order:
        assert isinstance(future.exception(0), TimeoutError)
        slots[number].set(number)
    assert future.get() == [0, 1, 2]
    assert make_future(All([])).get() == []
    assert make_future(All([Done(1), Done(2)])).get() == [1, 2]


def test_all_raises_the_first_failure_in_order_after_all_ended() -> None:
    slots = [Slot() for _ in range(3)]
    future = make_future(All([*slots]))
    slots[2].fail(KeyError())
    slots[1].fail(ValueError())
    assert isinstance(future.exception(0), TimeoutError)
    slots[0].set(0)
    with pytest.raises(ValueError):
        future.get()


def test_all_settled_from_many_threads() -> None:
    slots = [Slot() for _ in range(8)]
    future = make_future(All([*slots]))
    threads = [start(lambda s=slot: s.set(1)) for slot in slots]  # type: ignore[misc]
    assert future.get(TIMEOUT) == [1] * 8
    join(*threads)


def test_a_handler_of_signals_waits_in_the_midst_of_a_first_wait() -> None:
    """Interrupts where the queue of those who wait is made."""

    def interrupted() -> None:
        with module._creating:
            Slot().on_ready(lambda: None)

    join(start(interrupted))


def test_every_observer_is_woken_though_one_of_them_was_woken_before() -> None:
    source = Source()
    woken: list[int] = []
    source.on_ready(lambda: woken.append(1))
    source.set_ready()
    source.set_ready()
    source.on_ready(lambda: woken.append(2))
    source.discard(lambda: None)
    assert woken == [1, 2]


def test_asyncio_is_not_loaded_by_programs_that_do_not_use_it() -> None:
    program = (
        "import sys\nfrom monarch._runtime.future import done_future\n"
        "done_future(1).get(1)\nprint('asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
    assert module.running_loop() is None


# --- who waits, and who no longer does


def test_who_waits_is_noted_while_it_lasts() -> None:
    slot = Observed()
    future = make_future(slot)
    thread = start(lambda: future.get(TIMEOUT))
    assert slot.waited.acquire(timeout=TIMEOUT)
    ((_waker, (ident, task, _since, limited, running), _alone),) = slot.noted()
    assert (ident, task, limited, running) == (thread.ident, None, True, None)
    slot.set()
    join(thread)
    assert slot.noted() == []

    async def main() -> None:
        other = Observed()
        awaiting = asyncio.ensure_future(make_future(other).as_asyncio())
        await asyncio.sleep(0)
        ((_waker, (ident, task, _since, limited, running), _alone),) = other.noted()
        assert (ident, task, limited, running) == (threading.get_ident(), awaiting, False, None)
        awaiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaiting
        assert other.noted() == []

    asyncio.run(main())


def test_wakers_of_other_sources_are_no_waits() -> None:
    slot = Slot()
    All([slot, Then(slot, str)])
    assert slot._wakers and slot.noted() == []


@pytest.mark.parametrize("observed", [False, True])
def test_a_source_is_told_when_its_future_is_dropped_without_a_result(observed: bool) -> None:
    told: list[int] = []

    class Kept(Slot):
        def abandon(self) -> None:
            told.append(1)

    slot = Kept()
    slot.set(1)
    future = make_future(slot)
    if observed:
        assert future.get() == 1
    del future
    assert told == ([] if observed else [1])


def test_a_future_that_was_never_made_is_dropped_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError):
        Future()
    assert capfd.readouterr().err == ""


def test_a_promise_is_kept_once() -> None:
    from monarch.actor import Promise

    kept: Promise[int] = Promise()
    assert "pending" in repr(kept.future)
    kept.set(3)
    kept.fail(ValueError("too late"))
    assert kept.future.get() == 3
    broken: Promise[int] = Promise()
    broken.fail(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        broken.future.get()
    for error in (None, ValueError("settled")):
        settled: Promise[None] = Promise()
        settled.settle(error)
        assert settled.future.exception() is error


class Fails(Slot):
    """Its value raises."""

    def value(self) -> Any:
        raise SupervisionError("it ended", None)


@pytest.mark.parametrize("how", ["get", "await", "exception"])
def test_a_future_that_failed_is_freed_without_the_collector(how: str) -> None:
    futures: list[weakref.ref[Any]] = []

    def made() -> Future[Any]:
        slot = Fails()
        slot.set(1)
        future = module.follow(make_future(slot), str, lambda error: error)
        futures.append(weakref.ref(future))
        return future

    async def awaited() -> None:
        with contextlib.suppress(SupervisionError):
            await made()

    gc.disable()
    try:
        if how == "exception":
            assert isinstance(made().exception(), SupervisionError)
        elif how == "get":
            with contextlib.suppress(SupervisionError):
                made().get()
        else:
            asyncio.run(awaited())
        assert futures[0]() is None, "its exception has it"
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["get", "exception", "await"])
def test_an_error_in_making_the_value_is_in_no_circle_with_its_future(how: str) -> None:
    futures: list[weakref.ref[Any]] = []

    def convert(value: int) -> None:
        raise LookupError(value)

    def made() -> Future[Any]:
        slot = Slot()
        slot.set(1)
        future = module.follow(make_future(slot), convert)
        futures.append(weakref.ref(future))
        return future

    async def awaited() -> None:
        with contextlib.suppress(LookupError):
            await made()

    gc.disable()
    try:
        if how == "exception":
            assert isinstance(made().exception(), LookupError)
        elif how == "get":
            with contextlib.suppress(LookupError):
                made().get()
        else:
            asyncio.run(awaited())
        assert futures[0]() is None, "a frame of its exception has it"
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["get", "await"])
def test_an_error_that_its_source_keeps_is_in_no_circle_with_it(how: str) -> None:
    class Keeps(Slot):
        def __init__(self) -> None:
            super().__init__()
            self.error = SupervisionError("it ended", None)

        def value(self) -> Any:
            raise self.error

    errors: list[weakref.ref[Any]] = []

    def made() -> Future[Any]:
        slot = Keeps()
        slot.set(1)
        errors.append(weakref.ref(slot.error))
        return make_future(slot)

    async def awaited() -> None:
        with contextlib.suppress(SupervisionError):
            await made()

    gc.disable()
    try:
        if how == "get":
            with contextlib.suppress(SupervisionError):
                made().get()
        else:
            asyncio.run(awaited())
        assert errors[0]() is None, "a frame of it has its source"
    finally:
        gc.enable()


def test_the_exception_of_a_future_has_no_frame_that_asked_for_it() -> None:
    slot = Fails()
    slot.set(1)
    future = make_future(slot)
    gone = weakref.ref(future)
    errors = [future.exception(), future.exception()]
    gc.disable()
    try:
        del future
        assert gone() is None and errors[0] is errors[1]
    finally:
        gc.enable()
