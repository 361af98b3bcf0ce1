"""Tests of who waits for whom, circles of waits and endpoints that run long, on an in-process cluster in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import pickle
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import monarch
from monarch._mesh.failures.watchdog import Watchdog
from monarch._mesh.inspection import wait_graph as module
from monarch._runtime import log_thread
from monarch._runtime.context import home
from monarch._runtime.proc import Proc
from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    DeadlockError,
    Port,
    WaitGraph,
    concurrent_endpoint,
    current_rank,
    endpoint,
    this_host,
    wait_graph,
)
from monarch.testing import InProcessCluster, Local, VirtualClock
from tests.support.actors import TIMEOUT, Gate, fails

LIMIT = 0.5  # real seconds, of waits that are to end
LONG = 100.0  # virtual seconds, after which whatever the runtime would do by itself is done


class Plain(Actor):
    """Runs what a test gives it."""

    @endpoint
    def do(self, fn: Local[Callable[[], Any]]) -> Any:
        return fn.value()

    @endpoint
    def nothing(self) -> int:
        return current_rank().rank

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[Any], fn: Local[Callable[[Port[Any]], Any]]) -> None:
        fn.value(port)


class Looped(Actor):
    """The same with an event loop."""

    @endpoint
    async def do(self, fn: Local[Callable[[], Awaitable[Any]]]) -> Any:
        return await fn.value()

    @concurrent_endpoint
    async def beside(self, fn: Local[Callable[[], Awaitable[Any]]]) -> Any:
        return await fn.value()

    @endpoint
    def block(self, fn: Local[Callable[[], Any]]) -> Any:
        return fn.value()

    @endpoint
    async def nothing(self) -> int:
        return current_rank().rank


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cluster(no_leaks: None, clock: VirtualClock) -> Iterator[InProcessCluster]:
    with monarch.configured(deadlock_after="1s", slow_handler_after="60s"), InProcessCluster(clock=clock) as cluster:
        yield cluster


def spawn(cls: type, count: int = 1, name: str = "a") -> list[ActorMesh[Any]]:
    mesh = this_host().spawn_procs({"gpus": count}).spawn(name, cls)
    return [mesh.slice(gpus=rank) for rank in range(count)]


def graph_with(edges: int = 0, handlers: int = 0) -> WaitGraph:
    """The wait graph, once it has so many."""
    while True:
        graph = wait_graph().get(TIMEOUT)
        if len(graph.edges) >= edges and len(graph.handlers) >= handlers:
            return graph


def asks(endpoint: Any, *args: Any) -> Local[Callable[[], Any]]:
    """Returns what an actor is given to do: calls that endpoint and waits."""
    return Local(lambda: endpoint.call_one(*args).get())


def awaits(endpoint: Any, *args: Any) -> Local[Callable[[], Awaitable[Any]]]:
    async def run() -> Any:
        return await endpoint.call_one(*args)

    return Local(run)


def root_cause(error: BaseException | None) -> BaseException:
    while isinstance(error, ActorError):
        error = error.exception
    assert error is not None
    return error


KINDS = [(Plain, asks), (Looped, awaits)]
both_kinds = pytest.mark.parametrize(("cls", "waits_for"), KINDS, ids=["thread", "loop"])


# --- circles


@both_kinds
def test_an_actor_that_waits_for_itself(
    cluster: InProcessCluster, clock: VirtualClock, cls: type, waits_for: Any
) -> None:
    (a,) = spawn(cls)
    future = a.do.call_one(waits_for(a.nothing))
    graph_with(edges=1)
    clock.advance(LONG)
    error = root_cause(future.exception(TIMEOUT))
    assert isinstance(error, DeadlockError)
    (line,) = error.cycle
    assert "Plain a" in line or "Looped a" in line
    assert "in do(), waits for a.nothing(), rank(s) 0," in line and f"{__file__}:" in line and "(rank 0," in line
    assert "an actor waits for itself" in str(error) and line in str(error) and "concurrent_endpoint" in str(error)
    assert a.nothing.call_one().get(TIMEOUT) == 0  # it lives on


@both_kinds
def test_two_actors_that_wait_for_each_other(
    cluster: InProcessCluster, clock: VirtualClock, cls: type, waits_for: Any
) -> None:
    a, b = spawn(cls, 2)
    future = a.do.call_one(waits_for(b.do, waits_for(a.nothing)))
    graph_with(edges=2)
    clock.advance(LONG)
    error = root_cause(future.exception(TIMEOUT))
    assert isinstance(error, DeadlockError)
    assert len(error.cycle) == 2 and "2 actors wait for each other" in str(error)
    assert {"(rank 0,", "(rank 1,"} == {
        part for line in error.cycle for part in ("(rank 0,", "(rank 1,") if part in line
    }
    assert [mesh.nothing.call_one().get(TIMEOUT) for mesh in (a, b)] == [0, 0]


def test_three_actors_of_different_kinds_and_one_victim(cluster: InProcessCluster, clock: VirtualClock) -> None:
    a, b = spawn(Plain, 2)
    (c,) = spawn(Looped, name="c")
    failed: list[str] = []

    def noting(name: str, endpoint: Any, *args: Any) -> Local[Callable[[], Any]]:
        def run() -> Any:
            try:
                return endpoint.call_one(*args).get()
            except DeadlockError:
                failed.append(name)
                raise

        return Local(run)

    async def asks_a() -> Any:
        try:
            return await a.nothing.call_one()
        except DeadlockError:
            failed.append("c")
            raise

    future = a.do.call_one(noting("a", b.do, noting("b", c.do, Local(asks_a))))
    graph_with(edges=3)
    clock.advance(LONG)
    error = root_cause(future.exception(TIMEOUT))
    assert isinstance(error, DeadlockError) and len(error.cycle) == 3
    assert len(failed) == 1


@both_kinds
def test_two_circles_are_broken_once_each(
    cluster: InProcessCluster, clock: VirtualClock, cls: type, waits_for: Any
) -> None:
    a, b = spawn(cls, 2)
    futures = [mesh.do.call_one(waits_for(mesh.nothing)) for mesh in (a, b)]
    graph_with(edges=2)
    clock.advance(LONG)
    for future in futures:
        error = root_cause(future.exception(TIMEOUT))
        assert isinstance(error, DeadlockError) and len(error.cycle) == 1


@both_kinds
def test_a_call_to_all_ranks_of_ones_own_mesh(
    cluster: InProcessCluster, clock: VirtualClock, cls: type, waits_for: Any
) -> None:
    mesh = this_host().spawn_procs({"gpus": 4}).spawn("a", cls)

    async def awaited() -> Any:
        return await mesh.nothing.call()

    run = Local(awaited) if cls is Looped else Local(lambda: mesh.nothing.call().get())
    future = mesh.slice(gpus=2).do.call_one(run)
    graph = graph_with(edges=1)
    while graph.edges[0].unanswered > 1:
        graph = graph_with(edges=1)
    assert graph.edges[0].ranks == [2]
    clock.advance(LONG)
    assert isinstance(root_cause(future.exception(TIMEOUT)), DeadlockError)


def test_the_last_answer_of_a_stream(cluster: InProcessCluster, clock: VirtualClock) -> None:
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("a", Plain)
    future = mesh.slice(gpus=0).do.call_one(Local(lambda: [f.get() for f in mesh.nothing.stream()]))
    while graph_with(edges=1).edges[0].unanswered > 1:
        pass
    clock.advance(LONG)
    assert isinstance(root_cause(future.exception(TIMEOUT)), DeadlockError)


def test_a_plain_endpoint_that_blocks_the_loop_of_its_actor(cluster: InProcessCluster, clock: VirtualClock) -> None:
    """Then nothing goes on there, concurrent endpoints neither."""
    a, b = spawn(Looped, 2)
    entered, go = threading.Event(), asyncio.Event()

    async def parked() -> Any:
        entered.set()
        await go.wait()

    waiting = a.beside.call_one(Local(parked))
    assert entered.wait(TIMEOUT)
    blocked = a.block.call_one(asks(b.do, awaits(a.beside, Local(parked))))
    graph_with(edges=2)
    clock.advance(LONG)
    assert isinstance(root_cause(blocked.exception(TIMEOUT)), DeadlockError)

    async def opens() -> None:
        go.set()

    a.beside.call_one(Local(opens)).get(TIMEOUT)
    waiting.get(TIMEOUT)


def test_a_concurrent_message_in_a_circle(cluster: InProcessCluster, clock: VirtualClock) -> None:
    a, b = spawn(Looped, 2)
    future = b.do.call_one(awaits(a.beside, awaits(b.nothing)))
    graph_with(edges=2)
    assert a.nothing.call_one().get(TIMEOUT) == 0  # the actor itself is free
    clock.advance(LONG)
    error = root_cause(future.exception(TIMEOUT))
    assert isinstance(error, DeadlockError) and len(error.cycle) == 2


class Selfish(Actor):
    def __init__(self, told: Local[threading.Event], mesh: Local[list[Any]]) -> None:
        assert told.value.wait(TIMEOUT)
        mesh.value[0].nothing.call_one().get()

    @endpoint
    def nothing(self) -> None: ...


def test_a_constructor_that_waits_for_its_own_actor(cluster: InProcessCluster, clock: VirtualClock) -> None:
    told, box = Local(threading.Event()), Local[list[Any]]([])
    mesh = this_host().spawn_procs().spawn("a", Selfish, told, box)
    box.value.append(mesh)
    told.value.set()
    graph_with(edges=1)
    clock.advance(LONG)
    assert "an actor waits for itself" in cluster.next_failure().report()


def test_nobody_waits_for_the_message_so_its_owner_is_told(cluster: InProcessCluster, clock: VirtualClock) -> None:
    (a,) = spawn(Plain)
    a.do.broadcast(asks(a.nothing))
    graph_with(edges=1)
    clock.advance(LONG)
    failure = cluster.next_failure()
    assert "DeadlockError: an actor waits for itself" in failure.report() and failure.crashed_ranks == [0]


def test_off_when_the_setting_is_0(cluster: InProcessCluster, clock: VirtualClock) -> None:
    with monarch.configured(deadlock_after="0s"):
        (a,) = spawn(Plain)
        future = a.do.call_one(asks(a.nothing))
        graph_with(edges=1)
        clock.advance(LONG)
        cluster.settle()
        graph_with(edges=1)
        monarch.configure(deadlock_after="1s")
        clock.advance(LONG)
        assert isinstance(root_cause(future.exception(TIMEOUT)), DeadlockError)


# --- what is no circle


def stands_after(clock: VirtualClock, cluster: InProcessCluster, edges: int) -> None:
    """Time passes, and as many waits are there as were before."""
    before = len(graph_with(edges=edges).edges)
    clock.advance(LONG)
    cluster.settle()
    assert len(wait_graph().get(TIMEOUT).edges) == before


@both_kinds
def test_a_call_with_a_limit_ends_by_itself(
    cluster: InProcessCluster, clock: VirtualClock, cls: type, waits_for: Any
) -> None:
    a, b = spawn(cls, 2)
    future = a.do.call_one(waits_for(b.do.with_timeout(2 * LONG), waits_for(a.nothing)))
    stands_after(clock, cluster, 2)
    assert {edge.target: edge.limited for edge in wait_graph().get(TIMEOUT).edges} == {"a.do": True, "a.nothing": False}
    clock.advance(2 * LONG)
    assert isinstance(root_cause(future.exception(TIMEOUT)), TimeoutError)
    cluster.settle()
    assert b.nothing.call_one().get(TIMEOUT) == 0


def test_an_observation_with_a_limit_ends_by_itself(cluster: InProcessCluster, clock: VirtualClock) -> None:
    a, b = spawn(Plain, 2)
    there = Local(lambda: b.do.call_one(asks(a.nothing)).get(timeout=LIMIT))
    future = a.do.call_one(there)
    while len(wait_graph().get(TIMEOUT).edges) < 2 and "ready" not in repr(future):
        pass
    clock.advance(LONG)
    assert isinstance(root_cause(future.exception(TIMEOUT)), TimeoutError)


async def with_timeout_of_asyncio(future: Any) -> Any:
    async with asyncio.timeout(LIMIT):
        return await future


async def with_wait_for(future: Any) -> Any:
    return await asyncio.wait_for(future, LIMIT)


async def with_a_watchdog(future: Any) -> Any:
    task = asyncio.current_task()
    assert task is not None

    async def bark() -> None:
        await asyncio.sleep(LIMIT)
        task.cancel()

    dog = asyncio.create_task(bark())
    try:
        return await future
    except asyncio.CancelledError:
        raise TimeoutError from None
    finally:
        await dog


@pytest.mark.parametrize("endpoint", ["do", "beside"])
@pytest.mark.parametrize("wait", [with_timeout_of_asyncio, with_wait_for, with_a_watchdog])
def test_a_limit_of_the_endpoints_own(
    cluster: InProcessCluster, clock: VirtualClock, endpoint: str, wait: Callable[[Any], Awaitable[Any]]
) -> None:
    a, b = spawn(Looped, 2)

    async def run() -> Any:
        return await wait(b.nothing.call_one())

    future = b.do.call_one(awaits(getattr(a, endpoint), Local(run)))
    while len(wait_graph().get(TIMEOUT).edges) < 2 and "ready" not in repr(future):
        pass
    clock.advance(LONG)
    assert isinstance(root_cause(future.exception(TIMEOUT)), TimeoutError)


async def in_a_gather(future: Any, other: Awaitable[Any]) -> Any:
    return await asyncio.gather(future, other)


async def the_first_of(future: Any, other: Awaitable[Any]) -> Any:
    tasks = [asyncio.ensure_future(other), future.as_asyncio()]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done.pop().result()


async def in_a_group(future: Any, other: Awaitable[Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(other)  # type: ignore[arg-type]
        return await future


@pytest.mark.parametrize("wait", [in_a_gather, the_first_of, in_a_group])
def test_something_else_may_end_it(
    cluster: InProcessCluster, clock: VirtualClock, wait: Callable[..., Awaitable[Any]]
) -> None:
    a, b = spawn(Looped, 2)
    opened: list[Callable[[], None]] = []

    async def run() -> Any:
        event = asyncio.Event()
        loop = asyncio.get_running_loop()
        opened.append(lambda: loop.call_soon_threadsafe(event.set))

        async def fails() -> None:
            await event.wait()
            raise LookupError("the way out")

        return await wait(b.do.call_one(awaits(a.nothing)), fails())

    future = a.do.call_one(Local(run))
    stands_after(clock, cluster, 2)
    opened[0]()
    error = root_cause(future.exception(TIMEOUT))
    if isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, LookupError)


def test_a_timer_of_another_message_is_none_of_this_one(cluster: InProcessCluster, clock: VirtualClock) -> None:
    """An actor may have background tasks that sleep and wake for ever."""
    (a,) = spawn(Looped)

    async def starts() -> None:
        async def beats() -> None:
            while True:
                await asyncio.sleep(3600)

        task = asyncio.create_task(beats())
        asyncio.get_running_loop().__dict__["kept"] = task

    a.do.call_one(Local(starts)).get(TIMEOUT)
    future = a.do.call_one(awaits(a.nothing))
    graph_with(edges=1)
    clock.advance(LONG)
    assert isinstance(root_cause(future.exception(TIMEOUT)), DeadlockError)


def test_an_endpoint_that_answers_through_a_port_may_be_answered_by_others(
    cluster: InProcessCluster, clock: VirtualClock
) -> None:
    a, b = spawn(Plain, 2)
    ports: list[Port[Any]] = []

    def passes_on(port: Port[Any]) -> None:
        ports.append(port)
        a.nothing.call_one().get()

    future = a.do.call_one(asks(b.later, Local(passes_on)))
    stands_after(clock, cluster, 2)
    ports[0].send("from elsewhere")
    assert future.get(TIMEOUT) == "from elsewhere"


def test_any_of_several_answers_of_a_stream_will_do(cluster: InProcessCluster, clock: VirtualClock, gate: Gate) -> None:
    (a,) = spawn(Plain)
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("both", Plain)

    def answers() -> int:
        if current_rank().rank:
            gate.stand()
        else:
            a.nothing.call_one().get()
        return current_rank().rank

    def first() -> Any:
        stream = mesh.do.stream(Local(answers))
        return next(stream).get()

    future = a.do.call_one(Local(first))
    stands_after(clock, cluster, 2)
    gate.open()
    assert future.get(TIMEOUT) == 1


def test_an_answer_on_its_way(cluster: InProcessCluster, clock: VirtualClock, gate: Gate) -> None:
    """The actor that gave it has gone on to another message and is blocked by that one."""
    a, b, c = spawn(Plain, 3)
    called = threading.Event()

    def asks_a_first() -> Any:
        future = a.nothing.call_one()
        called.set()
        gate.stand()
        return future.get()

    with cluster.network.hold(cluster.address_of(a), cluster.address_of(b)):
        first = b.do.call_one(Local(asks_a_first))
        assert called.wait(TIMEOUT)
        second = a.do.call_one(asks(c.do, asks(b.nothing)))
        graph_with(edges=2)
        clock.advance(0.1)
        gate.open()
        stands_after(clock, cluster, 3)
    assert first.get(TIMEOUT) == second.get(TIMEOUT) == 0


@pytest.mark.parametrize("wait", [with_timeout_of_asyncio, with_wait_for])
def test_an_event_loop_of_the_endpoints_own(
    cluster: InProcessCluster, clock: VirtualClock, wait: Callable[[Any], Awaitable[Any]]
) -> None:
    (a,) = spawn(Plain)

    async def run() -> Any:
        return await wait(a.nothing.call_one())

    future = a.do.call_one(Local(lambda: asyncio.run(run())))
    while len(wait_graph().get(TIMEOUT).edges) < 1 and "ready" not in repr(future):
        pass
    clock.advance(LONG)
    assert isinstance(root_cause(future.exception(TIMEOUT)), TimeoutError)


def test_a_thread_beside_the_actor_waits_for_itself_only(
    cluster: InProcessCluster, clock: VirtualClock, gate: Gate
) -> None:
    a, b = spawn(Plain, 2)
    started: list[threading.Thread] = []

    def starts() -> None:
        thread = threading.Thread(target=monarch.actor.bind_context(lambda: b.do.call_one(asks(a.nothing)).get()))
        started.append(thread)
        thread.start()
        gate.stand()

    future = a.do.call_one(Local(starts))
    stands_after(clock, cluster, 2)
    gate.open()
    future.get(TIMEOUT)
    started[0].join(TIMEOUT)
    assert not started[0].is_alive()


def test_a_chain_that_ends_at_one_who_works(cluster: InProcessCluster, clock: VirtualClock, gate: Gate) -> None:
    a, b, c = spawn(Plain, 3)
    future = a.do.call_one(asks(b.do, asks(c.do, Local(lambda: gate.opened.wait(TIMEOUT)))))
    stands_after(clock, cluster, 2)
    gate.open()
    assert future.get(TIMEOUT) is True


# --- the graph


@both_kinds
def test_who_waits_for_whom_and_where(
    cluster: InProcessCluster, clock: VirtualClock, cls: type, waits_for: Any, gate: Gate
) -> None:
    a, b = spawn(cls, 2)

    async def held() -> None:
        await asyncio.to_thread(gate.stand)

    hold = Local(held) if cls is Looped else Local(lambda: gate.opened.wait(TIMEOUT))
    future = a.do.call_one(waits_for(b.do, hold))
    graph_with(edges=1, handlers=2)
    with monarch.configured(deadlock_after="0s", slow_handler_after="0s"):
        clock.advance(12.0)
    graph = wait_graph().get(TIMEOUT)
    (edge,) = graph.edges
    shown = f"<root>.<{__name__}.{cls.__name__} a{{'gpus': 0/2}}>"
    assert (edge.who, edge.rank, edge.doing, edge.target) == (shown, 0, "do", "a.do")
    assert (edge.ranks, edge.unanswered, edge.limited) == ([1], 1, False)
    assert edge.seconds == 12.0 and edge.file == __file__
    assert edge.address == cluster.address_of(a)
    assert {(h.rank, h.endpoint, h.seconds, h.file) for h in graph.handlers} == {
        (0, "do", 12.0, __file__),
        (1, "do", 12.0, __file__),
    }
    text = str(graph)
    assert f"{shown} (rank 0, host " in text and "in do(), waits for a.do(), rank(s) 1, for 12.0 s" in text
    assert f", at {__file__}:{edge.line} in {edge.function}" in text and "has been running do() for 12.0 s" in text
    assert len(text.splitlines()) == 2 + 3 and graph.silent == {}
    gate.open()
    future.get(TIMEOUT)


def test_the_client_is_in_the_graph(cluster: InProcessCluster, gate: Gate) -> None:
    (a,) = spawn(Plain)
    future = a.do.call_one(Local(gate.stand))
    thread = threading.Thread(target=future.get)
    thread.start()
    (edge,) = graph_with(edges=1).edges
    assert (edge.who, edge.doing, edge.target, edge.file) == ("<root>", "", "a.do", "")
    gate.open()
    thread.join(TIMEOUT)


def test_a_wait_under_gather_is_shown_where_the_endpoint_is(cluster: InProcessCluster, gate: Gate) -> None:
    (a,) = spawn(Looped)
    (b,) = spawn(Plain)

    async def run() -> None:
        await asyncio.gather(b.do.call_one(Local(gate.stand)))

    future = a.do.call_one(Local(run))
    (edge,) = graph_with(edges=1).edges
    assert edge.file == __file__ and edge.function.endswith("run")
    gate.open()
    future.get(TIMEOUT)


def test_an_empty_graph_says_so(cluster: InProcessCluster) -> None:
    assert str(wait_graph().get(TIMEOUT)) == "no endpoint runs, and nobody waits for one"


def test_from_an_actor(cluster: InProcessCluster) -> None:
    (a,) = spawn(Plain)
    (b,) = spawn(Looped)

    async def awaited() -> WaitGraph:
        return await wait_graph()

    graphs = [a.do.call_one(Local(lambda: wait_graph().get())).get(TIMEOUT), b.do.call_one(Local(awaited)).get(TIMEOUT)]
    for name, graph in zip(("Plain", "Looped"), graphs, strict=True):
        # The one that answered before may not have noted yet that it is done.
        assert [handler.endpoint for handler in graph.handlers if f".{name} " in handler.who] == ["do"]
        assert graph.silent == {}


def test_it_can_be_sent(cluster: InProcessCluster, gate: Gate) -> None:
    (a,) = spawn(Plain)
    future = a.do.call_one(Local(gate.stand))
    graph = graph_with(handlers=1)
    assert pickle.loads(pickle.dumps(graph)) == graph
    gate.open()
    future.get(TIMEOUT)


def test_a_process_that_does_not_answer_is_named(cluster: InProcessCluster, clock: VirtualClock) -> None:
    a, b = spawn(Plain, 2)
    a.nothing.call_one().get(TIMEOUT)
    b.nothing.call_one().get(TIMEOUT)
    address = cluster.address_of(b)
    with cluster.network.hold(cluster.address_of("client"), address):
        future = wait_graph(2.0)
        clock.advance(2.0)
        assert future.get(TIMEOUT).silent == {address: "did not answer within 2 s"}
        assert address in str(future.get())
        client = home()
        assert client is not None
        client.suspected[address] = "stopped by a signal"
        future = wait_graph(2.0)
        clock.advance(2.0)
        assert future.get(TIMEOUT).silent == {address: "stopped by a signal"}
        client.suspected.clear()


def test_a_process_that_ends_meanwhile_is_not_waited_for(cluster: InProcessCluster, clock: VirtualClock) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = procs.spawn("a", Plain)
    mesh.nothing.call().get(TIMEOUT)
    with cluster.network.hold(cluster.address_of("client"), cluster.address_of(procs, 1)):
        future = wait_graph()
        cluster.kill(procs, 1)
        assert future.get(TIMEOUT).silent == {}
    cluster.next_failure()
    assert wait_graph().get(TIMEOUT).silent == {}


def test_at_most_so_many(cluster: InProcessCluster, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 1)
    (a,) = spawn(Plain)
    (b,) = spawn(Looped)
    held = a.do.call_one(Local(gate.stand))
    futures = [b.beside.call_one(awaits(a.nothing)) for _ in range(4)]
    graph = graph_with(edges=1, handlers=2)
    while graph.left_out < 6:
        graph = graph_with()
    assert (len(graph.edges), len(graph.handlers), graph.left_out) == (1, 2, 6)
    assert "(6 more waits and endpoints are left out)" in str(graph)
    gate.open()
    for future in [held, *futures]:
        future.get(TIMEOUT)


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf")])
def test_an_impossible_timeout(cluster: InProcessCluster, timeout: float) -> None:
    with pytest.raises(ValueError, match="invalid timeout"):
        wait_graph(timeout)


# --- endpoints that run long


class Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[Callable[[], list[str]]]:
    """Gives what was logged so far about endpoints that run long."""
    handler = Logged()
    logger = logging.getLogger("monarch")
    logger.addHandler(handler)

    def texts() -> list[str]:
        assert log_thread.flush(TIMEOUT)
        return handler.texts

    yield texts
    logger.removeHandler(handler)


@both_kinds
def test_an_endpoint_that_runs_long_is_logged_once(
    cluster: InProcessCluster,
    clock: VirtualClock,
    logged: Callable[[], list[str]],
    cls: type,
    waits_for: Any,
    gate: Gate,
) -> None:
    (a,) = spawn(cls)
    (b,) = spawn(Plain, name="b")
    future = a.do.call_one(waits_for(b.do, Local(gate.stand)))
    graph_with(edges=1, handlers=2)
    clock.advance(59.0)
    assert logged() == []
    clock.advance(1000.0)
    assert len(logged()) == 2
    text = next(text for text in logged() if "endpoint do() of <root>." in text and " a{" in text)
    assert "(rank 0) has been running for " in text and "slow_handler_after" in text
    assert "waits for b.do(), rank(s) 0, for " in text
    assert "Stack (most recent call last):" in text and f'  File "{__file__}", line ' in text
    assert "monarch/_" not in text and "asyncio" not in text.replace("asyncio.to_thread", "")
    gate.open()
    future.get(TIMEOUT)


def test_an_endpoint_that_has_answered_runs_no_more(
    cluster: InProcessCluster, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks at once: the caller who has the answer may ask before the actor's thread is ready for its next message."""
    reply = Proc.reply

    def then_wait(proc: Proc, *args: Any) -> None:
        reply(proc, *args)
        gate.opened.wait(TIMEOUT)

    (a,) = spawn(Plain)
    monkeypatch.setattr(Proc, "reply", then_wait)
    a.do.call_one(Local(lambda: None)).get(TIMEOUT)
    assert wait_graph().get(TIMEOUT).handlers == []
    gate.open()


def test_concurrent_endpoints_that_run_long_are_logged_each(
    cluster: InProcessCluster, clock: VirtualClock, logged: Callable[[], list[str]]
) -> None:
    (a,) = spawn(Looped)
    events: list[asyncio.Event] = []

    async def held() -> None:
        events.append(asyncio.Event())
        await events[-1].wait()

    async def opens() -> None:
        for event in events:
            event.set()

    futures = [a.beside.call_one(Local(held)) for _ in range(3)]
    while len(events) < 3:
        graph_with(handlers=3)
    a.nothing.call_one().get(TIMEOUT)  # in the same loop, which has gone on: all three wait
    clock.advance(LONG)
    texts = logged()
    assert len(texts) == 3 and all("endpoint beside()" in text and ".held" in text for text in texts)
    a.do.call_one(Local(opens)).get(TIMEOUT)
    for future in futures:
        future.get(TIMEOUT)


def test_never_when_the_setting_is_0(
    cluster: InProcessCluster, clock: VirtualClock, logged: Callable[[], list[str]], gate: Gate
) -> None:
    with monarch.configured(slow_handler_after="0s"):
        (a,) = spawn(Plain)
        future = a.do.call_one(Local(gate.stand))
        graph_with(handlers=1)
        clock.advance(10_000.0)
        assert logged() == []
        gate.open()
        future.get(TIMEOUT)


def test_idle_actors_cost_little(
    cluster: InProcessCluster, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four looks in `slow_handler_after`, and none in a process without actors and waits."""
    looks: list[str] = []
    monkeypatch.setattr(Watchdog, "_look_for_slow", lambda sweep: looks.append(sweep._proc.address))
    (a,) = spawn(Plain)
    a.nothing.call_one().get(TIMEOUT)
    clock.advance(LONG)
    looks.clear()
    clock.advance(600.0)
    assert looks == [cluster.address_of(a)] * 40


# --- nothing is left behind


@pytest.fixture
def held(cluster: InProcessCluster, gate: Gate) -> ActorMesh[Any]:
    """Two actors that do nothing for now."""
    mesh = this_host().spawn_procs({"gpus": 2}).spawn("a", Plain)
    mesh.nothing.call().get(TIMEOUT)
    mesh.do.broadcast(Local(gate.stand))
    return mesh


def ports() -> int:
    gc.collect()
    proc = home()
    assert proc is not None
    return len(proc.ports)


def limits() -> int:
    """Timers of calls with a limit that wait to fire."""
    proc = home()
    assert proc is not None
    loop = proc.loop
    timers = [entry[2] for entry in list(loop._timers)] + list(loop._new_timers)
    return sum("expire_after" in timer.fn.__qualname__ for timer in timers)


CALLS: dict[str, Callable[[Any], Any]] = {
    "call": lambda endpoint: endpoint.call(),
    "call_one": lambda endpoint: endpoint.call_one(),
    "choose": lambda endpoint: endpoint.choose(),
    "stream": lambda endpoint: next(endpoint.stream()),
}


def endpoint_for(adverb: str, mesh: ActorMesh[Any]) -> Any:
    return (mesh.slice(gpus=0) if adverb == "call_one" else mesh).nothing


@pytest.mark.parametrize("limit", [None, LONG])
@pytest.mark.parametrize("adverb", CALLS)
def test_a_dropped_future(held: ActorMesh[Any], gate: Gate, adverb: str, limit: float | None) -> None:
    endpoint = endpoint_for(adverb, held)
    before = ports()
    future = CALLS[adverb](endpoint if limit is None else endpoint.with_timeout(limit))
    assert ports() == before + 1 and limits() == (limit is not None)
    del future
    assert ports() == before and limits() == 0
    gate.open()
    assert [value for _, value in held.nothing.call().get(TIMEOUT)] == [0, 1]  # late answers harm nobody


@pytest.mark.parametrize("adverb", CALLS)
def test_a_future_that_timed_out_and_is_dropped(held: ActorMesh[Any], adverb: str) -> None:
    before = ports()
    future = CALLS[adverb](endpoint_for(adverb, held))
    with contextlib.suppress(TimeoutError):
        future.get(timeout=0)
    assert ports() == before + 1  # it may be observed again
    del future
    assert ports() == before


@pytest.mark.parametrize("how", ["await", "wait_for", "as_asyncio", "gather"])
@pytest.mark.parametrize("adverb", CALLS)
def test_a_cancelled_task(held: ActorMesh[Any], adverb: str, how: str) -> None:
    proc = home()
    assert proc is not None
    before = ports()
    endpoint = endpoint_for(adverb, held).with_timeout(LONG)

    async def observe() -> None:
        future = CALLS[adverb](endpoint)
        if how == "await":
            await future
        elif how == "wait_for":
            await asyncio.wait_for(future, TIMEOUT)
        elif how == "as_asyncio":
            await future.as_asyncio()
        else:
            await asyncio.gather(future, future)

    async def main() -> None:
        task = asyncio.create_task(observe())
        while not len(proc.waits):
            await asyncio.sleep(0)
        assert ports() == before + 1 and limits() == 1
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        del task
        await asyncio.sleep(0)  # asyncio holds the CancelledError, and with it the frames, until this task's next step
        assert ports() == before and limits() == 0 and len(proc.waits) == 0

    asyncio.run(main())


def test_a_dropped_stream(held: ActorMesh[Any]) -> None:
    before = ports()
    stream = held.nothing.stream()
    futures = list(stream)
    for future in futures:
        assert isinstance(future.exception(timeout=0), TimeoutError)  # both have a claim to an answer now
    del stream, future
    assert ports() == before + 1
    futures.pop()
    assert ports() == before + 1
    futures.pop()
    assert ports() == before


@pytest.mark.parametrize("adverb", CALLS)
def test_a_limit_ends_each_adverb(held: ActorMesh[Any], clock: VirtualClock, adverb: str) -> None:
    before = ports()
    future = CALLS[adverb](endpoint_for(adverb, held).with_timeout(5.0))
    clock.advance(4.9)
    assert isinstance(future.exception(timeout=0), TimeoutError) and limits() == 1
    clock.advance(0.2)
    fails(future, r"a\.nothing\(\) got no answer within 5 s from rank\(s\) ", error=TimeoutError)
    assert ports() == before and limits() == 0


def test_a_limit_says_that_a_process_is_suspected(
    held: ActorMesh[Any], cluster: InProcessCluster, clock: VirtualClock
) -> None:
    proc = home()
    assert proc is not None
    proc.suspected[cluster.address_of(held, 1)] = "stopped by SIGSTOP"
    future = held.nothing.with_timeout(5.0).call()
    clock.advance(5.0)
    fails(future, r"The process of rank\(s\) 1 is suspected: stopped by SIGSTOP", error=TimeoutError)
    proc.suspected.clear()


def test_choose_does_not_care_for_those_it_did_not_choose(cluster: InProcessCluster, gate: Gate) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = procs.spawn("a", Plain)
    future = mesh.do.choose(Local(lambda: gate.opened.wait(TIMEOUT) and current_rank().rank))
    (handler,) = graph_with(handlers=1).handlers
    cluster.kill(procs, 1 - handler.rank)
    cluster.next_failure()
    gate.open()
    assert future.get(TIMEOUT) == handler.rank
