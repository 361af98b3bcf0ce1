"""The adverbs: how many actors run, who waits for what, and where an endpoint thinks it is. Orders: tests/procs."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import pytest

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    Port,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
    send,
)
from monarch.testing import InProcessCluster
from tests.support.patience import TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks")


class Worker(Actor):
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.gate = asyncio.Event()

    @endpoint
    async def add(self, a: int, b: int = 0) -> int:
        return a + b

    @endpoint
    async def options(self, *args: int, key: str = "", **more: int) -> tuple[Any, ...]:
        return args, key, more

    @endpoint
    async def rank(self) -> int:
        return current_rank().rank

    @endpoint
    async def where(self) -> tuple[int, dict[str, int], dict[str, int], dict[str, int]]:
        """(rank and coordinates in the addressed view, its sizes, coordinates in the spawning mesh)"""
        return current_rank().rank, dict(current_rank()), current_size(), dict(context().actor_instance.rank)

    @endpoint
    async def note(self, what: Any, payload: bytes = b"") -> tuple[Any, int]:
        self.log.append(what)
        return what, len(payload)

    @endpoint
    async def notes(self) -> list[Any]:
        return self.log

    @endpoint
    async def hold(self, port: Port[Any]) -> Any:
        opened, receiver = Channel[Any].open()
        port.send((current_rank().rank, opened))
        result = await receiver.recv()
        if isinstance(result, Exception):
            raise result
        return result

    @endpoint
    async def fail(self, ranks: list[int] | None = None) -> str:
        if ranks is None or current_rank().rank in ranks:
            raise ValueError(f"rank {current_rank().rank} fails")
        return "fine"

    @concurrent_endpoint
    async def wait(self) -> str:
        await self.gate.wait()
        return "opened"

    @endpoint
    async def open(self) -> None:
        self.gate.set()


def hold(mesh: Any, adverb: str) -> tuple[Any, dict[int, Port[Any]]]:
    """Calls `hold` on every actor; (what the adverb gave, rank -> the port that lets that actor go on)."""
    port, receiver = Channel[Any].open()
    result = getattr(mesh.hold, adverb)(port)
    return result, dict(receiver.recv().get(timeout=TIMEOUT) for _ in range(len(mesh)))


@pytest.fixture
def workers(cluster: InProcessCluster) -> Any:
    return cluster.this_host().spawn_procs({"a": 2, "b": 2}).spawn("worker", Worker)


@pytest.fixture
def one(workers: Any) -> Any:
    return workers.slice(a=0, b=0)


# --- call


def test_arguments_by_position_and_by_name(one: Any) -> None:
    assert one.add.call_one(1, 2).get(timeout=TIMEOUT) == 3
    assert one.add.call_one(a=1, b=2).get(timeout=TIMEOUT) == 3
    assert one.options.call_one(1, 2, key="k", x=3).get(timeout=TIMEOUT) == ((1, 2), "k", {"x": 3})


def test_ranks_do_not_share_the_objects_they_answered(workers: Any) -> None:
    first, second, *_ = workers.notes.call().get(timeout=TIMEOUT).values()
    first.append("mine")
    assert second == []


# --- call_one, choose


def test_choose_runs_on_one_rank_and_in_time_on_all(workers: Any) -> None:
    chosen = [workers.where.choose() for _ in range(200)]
    ranks = [f.get(timeout=TIMEOUT)[0] for f in chosen]
    assert set(ranks) == {0, 1, 2, 3}  # missing one has a chance of 4 * 0.75**200
    for n in range(20):
        workers.note.choose(n).get(timeout=TIMEOUT)
    notes = workers.notes.call().get(timeout=TIMEOUT).values()
    assert sorted(n for log in notes for n in log) == list(range(20))


def test_choose_sees_the_chosen_point_of_the_view(workers: Any) -> None:
    rank, point, sizes, home = workers.slice(a=1).where.choose().get(timeout=TIMEOUT)
    assert point == {"b": rank} and sizes == {"b": 2} and home == {"a": 1, "b": rank}


# --- stream


def test_a_streams_futures_take_answers_in_the_order_they_are_observed(workers: Any) -> None:
    answers, held = hold(workers, "stream")
    first, second, third, fourth = answers
    held[2].send("arrives first")
    assert fourth.get(timeout=TIMEOUT) == "arrives first"
    held[0].send("arrives second")
    assert first.get(timeout=TIMEOUT) == "arrives second"
    assert fourth.get(timeout=TIMEOUT) == "arrives first"
    held[1].send("last")
    held[3].send("last")
    assert [second.get(timeout=TIMEOUT), third.get(timeout=TIMEOUT)] == ["last", "last"]


def test_each_future_of_a_stream_has_its_own_exception(workers: Any) -> None:
    results = [future.exception(timeout=TIMEOUT) for future in workers.fail.stream([1, 2])]
    assert sum(error is None for error in results) == 2
    assert sum(isinstance(error, ActorError) for error in results) == 2


def test_a_stream_can_be_awaited(workers: Any) -> None:
    async def main() -> set[int]:
        return {await future for future in workers.rank.stream()}

    assert asyncio.run(main()) == {0, 1, 2, 3}


# --- send


def test_send_brings_one_answer_per_rank_to_the_port(workers: Any) -> None:
    port, receiver = Channel[Any].open()
    send(workers.add, (1,), {"b": 2}, port=port)
    assert [receiver.recv().get(timeout=TIMEOUT) for _ in range(4)] == [3] * 4


def test_send_brings_the_ranks_to_a_ranked_port(workers: Any) -> None:
    port, receiver = Channel[Any].open_ranked()
    send(workers.slice(a=1).rank, (), {}, port=port)
    assert sorted(receiver.recv().get(timeout=TIMEOUT) for _ in range(2)) == [(0, 0), (1, 1)]


# --- Accumulator


def test_accumulate_folds_the_answers(workers: Any) -> None:
    total = Accumulator(workers.rank, 10, lambda acc, value: acc + value).accumulate()
    assert total.get(timeout=TIMEOUT) == 16
    assert total.get(timeout=TIMEOUT) == 16


def test_accumulate_folds_every_answer_once_whatever_the_order_of_arrival(workers: Any) -> None:
    port, receiver = Channel[Any].open()
    folded = Accumulator(workers.hold, [], lambda acc, value: [*acc, value]).accumulate(port)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        result = pool.submit(folded.get, TIMEOUT)
        held = dict(receiver.recv().get(timeout=TIMEOUT) for _ in range(4))
        for rank in (1, 3, 0, 2):
            held[rank].send(rank)
        assert sorted(result.result(TIMEOUT)) == [0, 1, 2, 3]


def test_accumulate_takes_arguments_and_can_be_awaited(workers: Any) -> None:
    async def main() -> int:
        return await Accumulator(workers.add, 0, lambda acc, value: acc + value).accumulate(1, b=1)

    assert asyncio.run(main()) == 8


def test_accumulate_raises_what_a_rank_raised(workers: Any) -> None:
    with pytest.raises(ActorError, match="rank 2 fails"):
        Accumulator(workers.fail, 0, lambda acc, _: acc).accumulate([2]).get(timeout=TIMEOUT)


# --- with_timeout


def test_a_timed_out_call_stays_timed_out_and_harms_nobody(workers: Any) -> None:
    future = workers.wait.with_timeout(0.1).call()
    first = future.exception(timeout=TIMEOUT)
    assert isinstance(first, TimeoutError)
    workers.open.call().get(timeout=TIMEOUT)
    assert future.exception(timeout=TIMEOUT) is first
    assert workers.wait.call().get(timeout=TIMEOUT).values() == ["opened"] * 4


# --- where an endpoint thinks it is


def test_ranks_in_the_whole_mesh(workers: Any) -> None:
    seen = workers.where.call().get(timeout=TIMEOUT)
    for point, (rank, here, sizes, home) in seen:
        assert rank == point.rank and here == dict(point) == home and sizes == {"a": 2, "b": 2}


def test_ranks_in_a_slice_are_of_the_slice(workers: Any) -> None:
    seen = workers.slice(b=1).where.call().get(timeout=TIMEOUT).values()
    assert seen == [(n, {"a": n}, {"a": 2}, {"a": n, "b": 1}) for n in range(2)]


def test_ranks_in_a_single_actor_have_no_coordinates(workers: Any) -> None:
    assert workers.slice(a=1, b=0).where.call_one().get(timeout=TIMEOUT) == (0, {}, {}, {"a": 1, "b": 0})


def test_ranks_in_a_renamed_view_have_its_labels(workers: Any) -> None:
    seen = workers.rename(a="rows").where.call().get(timeout=TIMEOUT).values()
    assert [(here, sizes) for _, here, sizes, _ in seen] == [
        ({"rows": i, "b": j}, {"rows": 2, "b": 2}) for i in range(2) for j in range(2)
    ]


def test_ranks_in_a_flattened_view_are_in_one_line(workers: Any) -> None:
    seen = workers.flatten("rank").where.call().get(timeout=TIMEOUT).values()
    assert [(rank, here, sizes) for rank, here, sizes, _ in seen] == [(n, {"rank": n}, {"rank": 4}) for n in range(4)]
    assert seen[2][3] == {"a": 1, "b": 0}


def test_ranks_in_a_split_view(workers: Any) -> None:
    seen = workers.flatten("rank").split(rank=("p", "q"), q=4).where.call().get(timeout=TIMEOUT).values()
    assert [here for _, here, _, _ in seen] == [{"p": 0, "q": n} for n in range(4)]


def test_a_message_point_selects_the_same_actor_again(workers: Any) -> None:
    for point, rank in workers.rank.call().get(timeout=TIMEOUT):
        assert workers.slice(**point).where.call_one().get(timeout=TIMEOUT)[3] == dict(point)
        assert rank == point.rank
