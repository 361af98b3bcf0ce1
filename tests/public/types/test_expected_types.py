"""The types that checkers know of the public API: `make check` has mypy --strict and pyright read this file. The suite
runs it, so that what is said of types holds of the values. wrong_uses.py has what both must refuse.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar, assert_type

import pytest

from monarch.actor import (
    Accumulator,
    Actor,
    ActorMesh,
    Channel,
    Context,
    Endpoint,
    Extent,
    Future,
    HostMesh,
    MeshFailure,
    Point,
    Port,
    PortReceiver,
    ProcMesh,
    RankedPortReceiver,
    RestartPolicy,
    ValueMesh,
    as_endpoint,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
    get_or_spawn_controller,
    returns_future,
    send,
    this_host,
    this_proc,
)
from monarch.testing import InProcessCluster

pytestmark = pytest.mark.usefixtures("no_leaks", "cluster")
T = TypeVar("T")


class Counter(Actor):
    def __init__(self, start: int, *, step: int = 1) -> None:
        self.value = start
        self.step = step

    @endpoint
    def add(self, amount: int, twice: bool = False) -> int:
        """Adds, and returns the sum."""
        self.value += amount * self.step * (2 if twice else 1)
        return self.value

    @endpoint
    async def name(self, rank: int) -> str:
        # In an actor an endpoint is the method.
        assert_type(self.add(0), int)
        assert_type(await self.slow(0.0), float)
        return f"counter {rank}"

    @concurrent_endpoint
    async def slow(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @endpoint(propagate="inspect", instrument=False)
    def plain_option(self, text: str) -> bytes:
        return text.encode()

    @endpoint(instrument=False)
    async def async_option(self, text: str) -> bytes:
        return text.encode()

    @concurrent_endpoint(instrument=False)
    async def concurrent_option(self, text: str) -> bytes:
        return text.encode()

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[str], times: int) -> None:
        port.send("later" * times)

    @concurrent_endpoint(explicit_response_port=True)
    async def much_later(self, port: Port[str], times: int) -> None:
        self.later(port, times)

    @endpoint
    def anything(self, given: Any) -> Any:
        return given

    @endpoint
    def nothing(self) -> None: ...

    def not_an_endpoint(self, by: int) -> float:
        return self.value / by

    def __supervise__(self, failure: MeshFailure) -> bool:
        assert_type(failure.report(), str)
        return True


class FromZero(Counter):
    """Overrides as any method: more may be taken, less be returned."""

    def __init__(self) -> None:
        super().__init__(0)

    @endpoint
    def add(self, amount: int, twice: bool = False, thrice: bool = False) -> bool:
        return super().add(amount * 3 if thrice else amount, twice) > 0


class Box(Actor, Generic[T]):
    def __init__(self, content: T) -> None:
        self.content = content

    @endpoint
    def take(self) -> T:
        return self.content


def two_counters() -> Counter:
    return assert_type(this_host(), HostMesh).spawn_procs({"gpus": 2}).spawn("counters", Counter, 10, step=1)


def test_adverbs() -> None:
    counters = two_counters()
    one = counters.slice(gpus=0)
    assert_type(counters, Counter)
    assert_type(counters.add.call(1), Future[ValueMesh[int]])
    assert_type(one.add.call_one(amount=1, twice=True), Future[int])
    assert_type(counters.add.choose(1), Future[int])
    assert_type(counters.add.broadcast(0), None)
    assert_type(counters.add.with_timeout(9.5).call(1), Future[ValueMesh[int]])
    assert_type(counters.nothing.call(), Future[ValueMesh[None]])
    for answer in counters.add.stream(1):
        assert_type(answer, Future[int])
        assert isinstance(answer.get(), int)


def test_a_coroutine_is_what_it_returns() -> None:
    counters = two_counters()
    one = counters.slice(gpus=1)
    assert_type(one.name.call_one(1), Future[str])
    assert_type(counters.slow.call(0.0), Future[ValueMesh[float]])
    assert_type(next(counters.name.stream(1)), Future[str])
    assert one.name.call_one(1).get() == "counter 1"
    assert counters.slow.call(0.0).get().values() == [0.0, 0.0]


def test_options() -> None:
    one = two_counters().slice(gpus=0)
    assert assert_type(one.plain_option.call_one("x"), Future[bytes]).get() == b"x"
    assert assert_type(one.async_option.call_one("x"), Future[bytes]).get() == b"x"
    assert assert_type(one.concurrent_option.call_one("x"), Future[bytes]).get() == b"x"
    # The caller leaves out the port, and gets what is sent to it.
    assert assert_type(one.later.call_one(2), Future[str]).get() == "laterlater"
    assert assert_type(one.much_later.call(times=1), Future[ValueMesh[str]]).get().values() == ["later"]


def test_any_stays_any() -> None:
    one = two_counters().slice(gpus=0)
    assert_type(one.anything.call_one(1), Future[Any])
    assert one.anything.call_one([1]).get()[0] == 1


def test_results() -> None:
    sums = two_counters().add.call(0).get()
    assert_type(sums, ValueMesh[int])
    assert_type(sums.values(), list[int])
    assert_type(sums.item(gpus=1), int)
    assert_type(sums.slice(gpus=0), ValueMesh[int])
    for point, value in sums:
        assert_type(point, Point)
        assert_type(value, int)
    assert_type([value for _, value in sums.items()], list[int])
    wider: ValueMesh[float] = sums
    assert wider.values() == [10, 10]


def test_futures() -> None:
    counters = two_counters()
    future = counters.add.call(1)
    wider: Future[ValueMesh[object]] = future
    assert_type(future.get(timeout=300), ValueMesh[int])
    assert_type(future.result(), ValueMesh[int])
    assert_type(future.exception(), BaseException | None)
    assert wider.get() is future.get()

    async def program() -> None:
        assert_type(await counters.add.call(1), ValueMesh[int])
        first, second = await asyncio.gather(counters.slice(gpus=0).add.call_one(1), counters.name.choose(3))
        assert_type(first, int)
        assert_type(second, str)
        assert_type(await counters.name.choose(1).as_asyncio(), str)

    asyncio.run(program())

    @returns_future
    async def later(text: str) -> int:
        return len(text)

    assert assert_type(later("four"), Future[int]).get() == 4


def test_meshes() -> None:
    host = this_host()
    procs = host.spawn_procs({"gpus": 2})
    assert_type(procs, ProcMesh)
    assert_type(procs.slice(gpus=0), ProcMesh)
    assert_type(procs.extent, Extent)
    assert_type(procs.initialized, Future[bool])
    assert_type(this_proc(), ProcMesh)
    counters = procs.spawn("counters", Counter, 1)
    assert_type(counters.slice(gpus=slice(0, 1)), Counter)
    assert_type(counters.flatten("rank"), Counter)
    assert_type(counters.rename(gpus="rank"), Counter)
    assert_type(counters.sizes, dict[str, int])
    assert_type(counters.extent, Extent)
    assert_type(len(counters), int)
    assert_type(counters.initialized, Future[None])
    assert_type(counters.restart(gpus=1), Future[None])
    with RestartPolicy():
        procs.spawn("other", Counter, start=1)
    # What spawn returns is an ActorMesh, and where that matters it says so.
    assert isinstance(counters, ActorMesh)
    assert_type(counters.stop(), Future[None])


def test_ways_to_spawn() -> None:
    procs = this_host().spawn_procs()
    assert assert_type(procs.spawn("zero", FromZero).add.call_one(1, thrice=True), Future[bool]).get()
    assert assert_type(procs.spawn("box", Box[str], "x").take.call_one(), Future[str]).get() == "x"
    controller = get_or_spawn_controller("the counter", Counter, 5)
    assert_type(controller, Future[Counter])
    assert controller.get().add.call_one(1).get() == 6

    async def program() -> int:
        async with procs.spawn("entered", Counter, 1) as counter:
            assert_type(counter, Counter)
            return await counter.add.call_one(1)

    assert asyncio.run(program()) == 2


def test_channels() -> None:
    port, receiver = Channel[int].open()
    assert_type(port, Port[int])
    assert_type(receiver, PortReceiver[int])
    port.send(1)
    assert assert_type(receiver.recv(), Future[int]).get() == 1
    narrower: Port[bool] = port
    narrower.send(True)
    ranked = Channel[str].open_ranked()
    assert_type(ranked, tuple[Port[str], RankedPortReceiver[str]])
    assert_type(ranked[1].recv(), Future[tuple[int, str]])
    untyped, _ = Channel.open(once=True)
    assert_type(untyped, Port[Any])


def test_endpoints_as_values() -> None:
    counters = two_counters()
    one = counters.slice(gpus=0)

    def use(add: Endpoint[..., int]) -> Future[int]:
        return add.choose(1)

    assert use(counters.add.with_timeout(30.0)).get() == 11
    assert assert_type(as_endpoint(one.not_an_endpoint).call_one(2), Future[float]).get() >= 5
    total = Accumulator(counters.add, 0, lambda sum, value: sum + value)
    assert assert_type(total.accumulate(0), Future[int]).get() > 20
    port, receiver = Channel[int].open()
    send(counters.add, (1,), {}, port)
    assert isinstance(receiver.recv().get(), int)


def test_context() -> None:
    assert_type(context(), Context)
    assert_type(context().message_rank, Point)
    assert_type(context().actor_instance.name, str)
    assert_type(context().actor_instance.proc, ProcMesh)
    assert_type(current_rank()["gpus"] if len(current_rank()) else 0, int)
    assert_type(current_size(), dict[str, int])


def test_a_cluster_takes_what_spawn_returns(cluster: InProcessCluster) -> None:
    counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", FromZero)
    assert_type(cluster.address_of(counters, 1), str)
    cluster.kill(counters, 1)
    cluster.next_failure()
