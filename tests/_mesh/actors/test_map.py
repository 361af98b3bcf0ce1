"""`mesh.endpoint.map(items)` and `as_completed` on an in-process cluster, with actors that are killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._mesh.actors import map_results
from monarch._mesh.actors.map_chunks import run_length
from monarch._runtime import log_thread
from monarch._runtime.context import home
from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    Port,
    RestartPolicy,
    SupervisionError,
    as_completed,
    concurrent_endpoint,
    current_rank,
    endpoint,
    this_host,
    wait_graph,
)
from monarch.testing import InProcessCluster, Local, VirtualClock
from monarch.testing.cluster import UnsupervisedFailure
from tests.support.actors import TIMEOUT, fails


class Script:
    """The script of a test's actors: what they do with an item; what they were given, in the order in which they began."""

    def __init__(self, run: Callable[[Any], Any] = lambda item: item) -> None:
        self.run = run
        self.begun: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self.gates: dict[Any, threading.Event] = {}

    def gate(self, *items: Any) -> None:
        """They wait until `open`."""
        self.gates.update({item: threading.Event() for item in items})

    def open(self, *items: Any) -> None:
        for item in items or tuple(self.gates):
            self.gates[item].set()

    def next(self) -> tuple[Any, int]:
        return self.begun.get(timeout=TIMEOUT)

    def seen(self) -> list[tuple[Any, int]]:
        found = []
        while not self.begun.empty():
            found.append(self.begun.get_nowait())
        return found


class Worker(Actor):
    def __init__(self, script: Local[Script]) -> None:
        self.script = script.value

    @endpoint
    def run(self, item: Any) -> Any:
        self.script.begun.put((item, current_rank().rank))
        gate = self.script.gates.get(item)
        if gate is not None:
            assert gate.wait(TIMEOUT)
        return self.script.run(item)

    @endpoint
    def two(self, first: int, second: int) -> int:
        return first + second

    @endpoint
    async def later(self, item: int) -> int:
        await asyncio.sleep(0)
        return -item

    @concurrent_endpoint
    async def run_later(self, item: int) -> Any:
        await asyncio.sleep(0)
        return self.script.run(item)

    @endpoint(explicit_response_port=True)
    def by_port(self, port: Port[int], item: int) -> None:
        port.send(item)


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.open()


@pytest.fixture
def here(no_leaks: None) -> Iterator[InProcessCluster]:
    with InProcessCluster() as cluster:
        yield cluster


@pytest.fixture
def deadly(no_leaks: None) -> Iterator[InProcessCluster]:
    """For tests that are about the errors of calls: whether the owner is told as well does not matter to them."""
    cluster = InProcessCluster()
    with contextlib.suppress(UnsupervisedFailure), cluster:
        yield cluster


def workers(script: Script, count: int = 3) -> Any:
    return this_host().spawn_procs({"gpus": count}).spawn("workers", Worker, Local(script))


def square(item: int) -> int:
    return item * item


# --- results


@pytest.mark.parametrize("in_flight", [1, 3])
def test_results_come_in_the_order_of_the_items(here: InProcessCluster, script: Script, in_flight: int) -> None:
    script.run = square
    assert list(workers(script).run.map(range(50), in_flight=in_flight)) == [square(item) for item in range(50)]
    assert sorted(item for item, _rank in script.seen()) == list(range(50))


def test_or_as_they_are_there(here: InProcessCluster, script: Script) -> None:
    script.gate(0)
    results = workers(script).run.map(range(6), ordered=False)
    first = [next(results) for _ in range(5)]
    assert sorted(first) == [1, 2, 3, 4, 5]
    script.open(0)
    assert list(results) == [0]


def test_the_client_says_how_far_it_is_while_it_waits(
    here: InProcessCluster, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int | str] = []

    class Told:
        def __init__(self, title: str, items: Any) -> None:
            told.append(f"{title}: {len(items)}")

        def waits(self, done: int) -> None:
            told.append(done)
            script.open(done)

        def goes_on(self) -> None:
            told.append("given")

        def end(self, done: int) -> None:
            told.append(f"{done} in all")

    monkeypatch.setattr(map_results, "AwaitedProgress", Told)
    script.gate(0, 1)
    results = workers(script, 1).run.map(range(2))
    assert list(results) == [0, 1] and list(results) == []
    assert told == ["workers.run.map(): 2", 0, "given", 1, "given", "2 in all"]


def test_indexed_says_whose_result_it_is(here: InProcessCluster, script: Script) -> None:
    script.run = str
    found = dict(workers(script).run.map([10, 20, 30, 40], ordered=False).indexed())
    assert found == {0: "10", 1: "20", 2: "30", 3: "40"}


def test_with_async_for(here: InProcessCluster, script: Script) -> None:
    mesh = workers(script)

    async def main() -> list[int]:
        return [result async for result in mesh.later.map(range(20))]

    assert asyncio.run(main()) == [-item for item in range(20)]


def test_a_free_rank_is_sent_the_next_item_whatever_the_others_do(here: InProcessCluster, script: Script) -> None:
    script.gate("slow")
    results = workers(script, 2).run.map(["slow", *range(5)], ordered=False)
    assert [next(results) for _ in range(5)] == list(range(5))
    script.open()
    assert next(results) == "slow"
    ranks = {rank for item, rank in script.seen() if item != "slow"}
    assert len(ranks) == 1


def test_of_nothing(here: InProcessCluster, script: Script) -> None:
    assert list(workers(script).run.map([])) == []


def test_a_view_of_the_mesh_uses_its_ranks_only(here: InProcessCluster, script: Script) -> None:
    mesh = workers(script, 4)
    assert list(mesh.slice(gpus=slice(2, 4)).run.map(range(10))) == list(range(10))
    # Within the view: `current_rank` is the position in what was addressed.
    assert {rank for _item, rank in script.seen()} == {0, 1}


# --- items


def test_items_are_pulled_as_ranks_become_free(here: InProcessCluster, script: Script) -> None:
    pulled: list[int] = []

    def items() -> Iterator[int]:
        for item in range(1000):
            pulled.append(item)
            yield item

    results = workers(script, 2).run.map(items())
    assert pulled == [0, 1]
    assert next(results) == 0
    assert len(pulled) <= 8
    for expected in range(1, 100):
        assert next(results) == expected
        assert len(pulled) <= expected + 9
    results.close()
    assert len(pulled) < 120


def test_an_error_of_the_iterable_comes_after_what_was_pulled_before(here: InProcessCluster, script: Script) -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("no more")

    results = workers(script).run.map(items())
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(OSError, match="no more") as caught:
        next(results)
    assert caught.value.__notes__ == ["raised by the iterable of workers.run.map(), in place of item 2"]
    assert list(results) == []


def test_an_item_that_cannot_be_sent_is_an_error_of_that_item(here: InProcessCluster, script: Script) -> None:
    results = workers(script).run.map([0, threading.Lock(), 2])
    assert next(results) == 0
    with pytest.raises(TypeError, match="pickle") as caught:
        next(results)
    assert any("item 1 of workers.run.map()" in note for note in caught.value.__notes__)
    assert next(results) == 2


# --- errors


def fail_on(*bad: Any) -> Callable[[Any], Any]:
    def run(item: Any) -> Any:
        if item in bad:
            raise ValueError(f"{item} is bad")
        return item

    return run


def test_an_error_names_item_endpoint_and_rank_and_the_next_result_can_be_had(
    here: InProcessCluster, script: Script
) -> None:
    script.run = fail_on(1)
    results = workers(script).run.map(range(4))
    assert next(results) == 0
    with pytest.raises(ActorError, match="1 is bad") as caught:
        next(results)
    rank = dict(script.seen())[1]
    assert caught.value.__notes__ == [f"item 1 of workers.run.map(), sent to rank {rank}"]
    assert list(results) == [2, 3]
    assert results.progress == (4, 0, 4, 1, 4, 0)


def test_errors_as_results(here: InProcessCluster, script: Script) -> None:
    script.run = fail_on(1)
    first, error, third = workers(script).run.map(range(3), return_exceptions=True)
    assert (first, third) == (0, 2)
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, ValueError)


def test_exceptions_are_tried_again_only_when_asked(here: InProcessCluster, script: Script) -> None:
    failures = iter([1, 2, 3])

    def flaky(item: int) -> int:
        if item == 5 and next(failures, None):
            raise ConnectionError("again")
        return item

    script.run = flaky
    mesh = workers(script, 2)
    with pytest.raises(ActorError):
        list(mesh.run.map([5], retries=9))
    with pytest.raises(ActorError):
        list(mesh.run.map([5], retries=9, retry_on=(KeyError, TimeoutError)))
    results = mesh.run.map([5], retries=1, retry_on=ConnectionError)
    assert list(results) == [5]
    assert results.progress.sent_again == 1


def test_the_last_error_says_how_often_it_was_sent(here: InProcessCluster, script: Script) -> None:
    script.run = fail_on(0)
    (error,) = workers(script, 2).run.map([0], retries=2, retry_on=ValueError, return_exceptions=True)
    assert error.__notes__[-1].endswith(", the last of 3 times that it was sent")


def test_each_item_has_the_time_limit_of_its_endpoint(no_leaks: None, script: Script) -> None:
    with InProcessCluster(clock=(clock := VirtualClock())):
        mesh = workers(script, 2)
        script.gate("stuck")
        results = mesh.run.with_timeout(5).map(["stuck", 1], ordered=False)
        assert next(results) == 1
        clock.advance(6)
        with pytest.raises(TimeoutError, match=r"workers\.run") as caught:
            next(results)
        assert caught.value.__notes__[0].startswith("item 0 of workers.run.map()")
        script.open()
        assert list(results) == []


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"in_flight": 0}, ValueError, "in_flight"),
        ({"in_flight": True}, ValueError, "in_flight"),
        ({"retries": -1}, ValueError, "retries"),
        ({"retry_on": ValueError}, ValueError, "no effect without retries"),
        ({"retry_on": "ValueError", "retries": 1}, TypeError, "retry_on is an exception class"),
    ],
)
def test_arguments_that_make_no_sense(
    here: InProcessCluster, script: Script, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        workers(script).run.map([1], **arguments)


def test_an_endpoint_that_does_not_take_one_argument(here: InProcessCluster, script: Script) -> None:
    with pytest.raises(TypeError, match=r"Worker\.two\(first: .*second"):
        workers(script).two.map([1])


def test_async_items_are_refused_with_the_way_out(here: InProcessCluster, script: Script) -> None:
    async def items() -> Any:
        yield 1

    with pytest.raises(TypeError, match="async for"):
        workers(script).run.map(items())


# --- the end


def test_closing_it_leaves_nothing_behind_and_sends_no_more(here: InProcessCluster, script: Script) -> None:
    script.gate(*range(10))
    mesh = workers(script, 2)
    before = len(home().ports)
    with mesh.run.map(range(10)) as results:
        assert sorted(script.next()[0] for _ in range(2)) == [0, 1]
    assert len(home().ports) == before
    assert list(results) == []
    script.open()
    assert mesh.run.call("later").get(TIMEOUT)
    assert {item for item, _ in script.seen()} == {"later"}


def test_leaving_a_loop_and_dropping_it_is_enough(here: InProcessCluster, script: Script) -> None:
    mesh = workers(script)
    before = len(home().ports)
    for result in mesh.run.map(range(1000)):
        if result == 3:
            break
    gc.collect()
    assert len(home().ports) == before


def test_a_task_that_is_cancelled_while_it_waits_may_go_on_later(here: InProcessCluster, script: Script) -> None:
    script.gate(0)
    mesh = workers(script, 1)

    async def main() -> None:
        results = mesh.run.map([0, 1])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(results), 0.01)
        script.open()
        assert [result async for result in results] == [0, 1]

    asyncio.run(main())


def test_results_that_nobody_reads_are_told_of(
    here: InProcessCluster, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = workers(script, 2)
    with caplog.at_level(logging.WARNING, "monarch"):
        mesh.run.map(range(10))
        gc.collect()
        here.settle()  # what the collector ends leaves the word about it to the I/O thread
        assert log_thread.flush(TIMEOUT)
    assert "nobody read the results of workers.run.map(): only its first 2 items were sent" in caplog.text


def test_one_reader_at_a_time(here: InProcessCluster, script: Script) -> None:
    script.gate(0)
    results = workers(script, 1).run.map([0])
    reader = threading.Thread(target=lambda: next(results))
    reader.start()
    script.next()
    while not results._busy:
        pass
    with pytest.raises(RuntimeError, match="being read by another thread or task"):
        next(results)
    script.open()
    reader.join(TIMEOUT)


def test_a_client_that_is_closed_ends_it(no_leaks: None, script: Script) -> None:
    with InProcessCluster():
        results = workers(script).run.map(iter(int, 1), return_exceptions=True)
        assert next(results) == 0
    with pytest.raises(RuntimeError, match="InProcessCluster was left"):
        for _ in range(100):
            next(results)
    assert list(results) == []


# --- ranks that die


def test_items_of_a_rank_that_died_run_on_others_if_they_may(deadly: InProcessCluster, script: Script) -> None:
    script.gate("a", "b")
    mesh = workers(script, 2)
    results = mesh.run.map(["a", "b", "c"], retries=1, ordered=False)
    where = dict(script.next() for _ in range(2))
    deadly.kill(mesh, where["a"])
    script.open("b")
    assert next(results) == "b"
    script.open("a")
    assert sorted(results) == ["a", "c"]
    assert {rank for item, rank in script.seen()} == {where["b"]}
    assert results.progress.sent_again == 1


def test_without_retries_the_item_fails_and_the_others_run(deadly: InProcessCluster, script: Script) -> None:
    script.gate("a")
    mesh = workers(script, 2)
    results = mesh.run.map(["a", *range(20)], return_exceptions=True)
    where = dict(script.next() for _ in range(2))
    deadly.kill(mesh, where["a"])
    error, *rest = results
    assert isinstance(error, SupervisionError)
    assert error.__notes__ == [f"item 0 of workers.run.map(), sent to rank {where['a']}"]
    assert rest == list(range(20))
    script.open()


def test_when_no_rank_is_left_it_says_at_which_item_and_ends(deadly: InProcessCluster, script: Script) -> None:
    script.gate(0, 1)
    mesh = workers(script, 2)
    results = mesh.run.map(range(10), retries=3, return_exceptions=True)
    for _ in range(2):
        script.next()
    deadly.kill(mesh)
    first, second = next(results), next(results)
    assert isinstance(first, SupervisionError)
    assert isinstance(second, SupervisionError)
    with pytest.raises(SupervisionError, match=r"no rank is left for item 2 of workers.run.map\(\)"):
        next(results)
    assert list(results) == []
    script.open()


def test_a_mesh_that_is_stopped_ends_it(here: InProcessCluster, script: Script) -> None:
    mesh = workers(script, 2)
    results = mesh.run.map(iter(int, 1))
    assert next(results) == 0
    mesh.stop().get(TIMEOUT)
    with pytest.raises(SupervisionError):
        for _ in range(20):
            next(results)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_ranks_restarted_under_a_policy_are_used_again(
    deadly: InProcessCluster, script: Script, in_flight: int
) -> None:
    with RestartPolicy(max_restarts=5, backoff=0):
        mesh = workers(script, 1)
    script.gate(3)
    results = mesh.run.map(range(8), retries=1, in_flight=in_flight)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    while script.next()[0] != 3:
        pass
    deadly.kill(mesh, 0)
    script.open()
    assert list(results) == [3, 4, 5, 6, 7]


def test_a_rank_that_the_program_restarts_is_used_again(deadly: InProcessCluster, script: Script) -> None:
    script.gate("a", "b")
    procs = this_host().spawn_procs({"gpus": 2})
    mesh = procs.spawn("workers", Worker, Local(script))
    results = mesh.run.map(itertools.chain(["a", "b"], itertools.count()), retries=1, ordered=False)  # type: ignore[arg-type]
    where = dict(script.next() for _ in range(2))
    deadly.kill(procs, where["a"])
    procs.restart(gpus=where["a"]).get(TIMEOUT)
    ActorMesh.restart(mesh, gpus=where["a"]).get(TIMEOUT)  # type: ignore[arg-type]
    script.open()
    ranks = set()
    while where["a"] not in ranks:
        next(results)
        ranks.update(rank for _item, rank in script.seen())
    results.close()


def test_from_an_actor_that_does_not_own_the_mesh(deadly: InProcessCluster, script: Script) -> None:
    class Reader(Actor):
        @endpoint
        def read(self, mesh: Any) -> list[Any]:
            return [
                type(result).__name__ if isinstance(result, Exception) else result
                for result in mesh.run.map(range(6), retries=1, return_exceptions=True)
            ]

    script.gate(0)
    mesh = workers(script, 2)
    reading = this_host().spawn_procs().spawn("reader", Reader).read.call_one(mesh)
    where = script.next()
    while where[0] != 0:
        where = script.next()
    deadly.kill(mesh, where[1])
    script.open()
    assert reading.get(TIMEOUT) == list(range(6))


# --- waits


class Circle(Actor):
    @endpoint
    def go(self, others: Any, own: Any) -> Any:
        return list(others.back.map([own]))

    @endpoint
    def back(self, caller: Any) -> int:
        return caller.ping.call_one().get()  # type: ignore[no-any-return]

    @endpoint
    def ping(self) -> int:
        return 1


def test_a_circle_through_a_map_is_ended() -> None:
    with InProcessCluster():
        one, two = (this_host().spawn_procs().spawn(name, Circle) for name in ("one", "two"))
        fails(one.go.call_one(two, one), "wait for each other in a circle", error=ActorError)


def test_the_wait_graph_shows_who_waits_for_the_results(here: InProcessCluster, script: Script) -> None:
    script.gate(0)
    mesh = workers(script, 1)
    reader = threading.Thread(target=lambda: list(mesh.run.map([0])))
    reader.start()
    script.next()
    while not any(edge.target == "workers.run" for edge in wait_graph().get(TIMEOUT).edges):
        pass
    script.open()
    reader.join(TIMEOUT)


# --- as_completed


def test_as_completed_gives_calls_as_their_answers_come(here: InProcessCluster, script: Script) -> None:
    script.gate(0)
    mesh = workers(script, 2)
    slow = mesh.slice(gpus=0).run.call_one(0)
    fast = mesh.slice(gpus=1).run.call_one(1)
    completed = as_completed([slow, fast])
    assert next(completed) is fast
    script.open()
    assert next(completed).get() == 0


def test_as_completed_gives_calls_to_the_dead(deadly: InProcessCluster, script: Script) -> None:
    script.gate(0)
    mesh = workers(script, 2)
    calls = {mesh.slice(gpus=0).run.call_one(0): 0, mesh.slice(gpus=1).run.call_one(1): 1}
    script.next(), script.next()
    deadly.kill(mesh, 0)
    outcomes = {calls[future]: future.exception() for future in as_completed(calls)}
    assert isinstance(outcomes[0], SupervisionError)
    assert outcomes[1] is None
    script.open()


# --- chunks


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("ordered", [True, False])
def test_chunks_give_the_same_results(here: InProcessCluster, script: Script, size: int, ordered: bool) -> None:
    mesh = workers(script)
    results = mesh.run.map(range(20), chunksize=size, ordered=ordered, in_flight=2).indexed()
    assert sorted(results) == [(item, item) for item in range(20)]
    assert results.progress == (20, 0, 20, 0, 20, 0)
    assert list(mesh.later.map(range(20), chunksize=size)) == [-item for item in range(20)]
    assert list(mesh.run.map([], chunksize=size)) == []


def test_the_items_of_a_chunk_run_on_one_rank_and_ranks_go_on_while_it_is_read(
    here: InProcessCluster, script: Script
) -> None:
    results = workers(script, 2).run.map(range(40), chunksize=5)
    assert [next(results), next(results)] == [0, 1]
    began: dict[int, int] = {}
    while not began.keys() >= {*range(15)}:  # the rank that ran the first chunk has another by now
        began.update([script.next()])
    assert [len({began[item] for item in chunk}) for chunk in (range(5), range(5, 10), range(10, 15))] == [1, 1, 1]
    results.close()
    assert list(results) == [] and results.progress.in_flight == 0


@pytest.mark.parametrize("endpoint_name", ["run", "run_later"])
def test_an_item_of_a_chunk_fails_alone(here: InProcessCluster, script: Script, endpoint_name: str) -> None:
    """Either it raises, or what it returns cannot be sent."""
    script.run = lambda item: threading.Lock() if item == 2 else fail_on(1)(item)
    results = getattr(workers(script, 2), endpoint_name).map(range(5), chunksize=5, return_exceptions=True)
    first, raised, unsendable, *others = results
    assert (first, others) == (0, [3, 4])
    assert isinstance(raised.exception, ValueError) and "1 is bad" in str(raised)
    assert raised.__notes__ == [f"item 1 of workers.{endpoint_name}.map(), sent to rank {raised.rank}"]
    assert isinstance(unsendable.exception, TypeError) and "cannot be sent" in str(unsendable)
    assert results.progress == (5, 0, 5, 2, 5, 0)


def test_an_error_of_the_iterable_comes_after_the_chunk_before(here: InProcessCluster, script: Script) -> None:
    def items() -> Iterator[int]:
        yield from (1, 2, 3)
        raise OSError("no more")

    results = workers(script).run.map(items(), chunksize=2)
    assert [next(results), next(results), next(results)] == [1, 2, 3]
    with pytest.raises(OSError, match="no more") as caught:
        next(results)
    assert caught.value.__notes__ == ["raised by the iterable of workers.run.map(), in place of item 3"]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_chunk_whose_rank_died_fails_or_runs_again(deadly: InProcessCluster, script: Script, retries: int) -> None:
    script.gate(1)
    mesh = workers(script, 2)
    results = mesh.run.map(range(6), chunksize=3, retries=retries, return_exceptions=True)
    where = dict(script.next() for _ in range(5))  # all but 2, which waits for 1
    deadly.kill(mesh, where[1])
    script.open()
    found = list(results)
    if retries:
        assert found == list(range(6)) and results.progress.sent_again == 3
    else:
        assert found[3:] == [3, 4, 5] and results.progress.failed == 3
        assert all(isinstance(error, SupervisionError) for error in found[:3])
        assert found[0].__notes__ == [f"items 0 to 2 of workers.run.map(), sent to rank {where[1]}"]


def test_chunks_with_what_goes_item_by_item_are_refused(here: InProcessCluster, script: Script) -> None:
    mesh = workers(script)
    for size in (0, True, 2.0):
        with pytest.raises(ValueError, match="chunksize is how many items go in one message, 1 or more"):
            mesh.run.map([1], chunksize=size)
    with pytest.raises(ValueError, match="retry_on is for items that are sent one by one"):
        mesh.run.map([1], chunksize=2, retries=1, retry_on=OSError)
    with pytest.raises(ValueError, match="by_port answers through a port"):
        mesh.by_port.map([1], chunksize=2)


def test_progress_counts_the_items_of_chunks_that_are_done_and_not_given(
    here: InProcessCluster, script: Script
) -> None:
    script.run = fail_on(3)
    mesh = workers(script, 1)
    results = mesh.run.map(range(5), chunksize=2, in_flight=3)
    assert next(results) == 0
    assert mesh.two.call_one(1, 2).get() == 3  # answered after the chunks that were sent before it
    assert next(results) == 1
    assert results.progress == (5, 0, 5, 1, 2, 0)


def test_a_run_is_as_long_as_the_program_reads_in_a_millisecond() -> None:
    lengths = [0]
    for _ in range(12):
        lengths.append(run_length(lengths[-1], 0.0001))
    assert lengths[:5] == [0, 1, 3, 7, 15] and lengths[-1] == 512
    assert run_length(512, 0.5) == 1 and run_length(1, 0.01) == 0 and run_length(0, 60.0) == 0


@pytest.mark.parametrize("size", [2, 64])
def test_a_loop_over_chunks_goes_on_behind_an_error(here: InProcessCluster, script: Script, size: int) -> None:
    def run(item: int) -> int:
        if item in (1, 4, 5, 37):
            raise StopIteration("of the item") if item == 4 else ValueError("bad")
        return item

    script.run = run
    results = workers(script, 2).run.map(range(50), chunksize=size)
    loop, found, raised = iter(results), [], 0
    while len(found) + raised < 50:
        try:
            found.append(next(loop))
        except ActorError as exc:
            raised += 1
            assert f"item {len(found) + raised - 1} of" in exc.__notes__[0]
    assert found == [item for item in range(50) if item not in (1, 4, 5, 37)]
    assert list(loop) == [] and results.progress == (50, 0, 50, 4, 50, 0)


def test_readers_of_chunks_take_turns(here: InProcessCluster, script: Script) -> None:
    """A loop, `next`, `async for` and `indexed` go on where the one before has stopped; `progress` knows how far they are."""
    results = workers(script, 2).run.map(range(120), chunksize=30)
    loop = iter(results)
    found = [next(loop) for _ in range(10)]
    assert results.progress.given == 10

    async def more(count: int) -> None:
        async for result in results:
            found.append(result)
            if len(found) == count:
                return

    while len(found) < 60:
        found.append(next(results))
        asyncio.run(more(len(found) + 3))
        found.append(next(loop))
    assert found == list(range(len(found))) and results.progress.given == len(found)
    assert next(results.indexed()) == (len(found), len(found))
    assert next(loop) == (len(found) + 1, len(found) + 1)
    assert dict(results) == {item: item for item in range(len(found) + 2, 120)}
    assert results.progress == (120, 0, 120, 0, 120, 0)


@pytest.mark.parametrize("leave", [False, True])
def test_a_loop_over_chunks_that_is_left(here: InProcessCluster, script: Script, leave: bool) -> None:
    mesh = workers(script, 2)
    before = len(home().ports)
    if leave:
        for result in mesh.run.map(range(1000), chunksize=40):
            if result == 100:
                break
        gc.collect()
    else:
        results = mesh.run.map(range(1000), chunksize=40)
        for result in results:
            if result == 100:
                results.close()
        assert result == 100 and results.progress.given == 101 and list(results) == []
    assert len(home().ports) == before


def test_who_reads_slowly_keeps_the_ranks_busy(here: InProcessCluster, script: Script) -> None:
    """The rank is sent its next chunk when the first result after its answer is read, and not at the end of this chunk."""
    mesh = workers(script, 1)
    results = mesh.run.map(range(40), chunksize=10)
    for expected in range(3):
        assert next(results) == expected
        mesh.two.call_one(1, 2).get()  # behind what the rank has; long enough for it to be a slow reader
        results._began = 0.0  # type: ignore[attr-defined]
    assert results.progress.pulled == 40
