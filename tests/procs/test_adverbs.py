"""The adverbs: how many actors run, who waits for what, and in which order messages are handled."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
from typing import Any

import pytest

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    Port,
    ProcMesh,
    ValueMesh,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
    send,
)

pytestmark = pytest.mark.procs
TIMEOUT = 30


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
def workers(procs4: ProcMesh) -> Any:
    return procs4.spawn("worker", Worker)


@pytest.fixture
def one(workers: Any) -> Any:
    return workers.slice(a=0, b=0)


# --- call


def test_call_gives_every_ranks_value_in_the_shape_of_the_mesh(workers: Any) -> None:
    result = workers.rank.call().get(timeout=TIMEOUT)
    assert isinstance(result, ValueMesh)
    assert result.extent == workers.extent and result.values() == [0, 1, 2, 3]


def test_call_on_a_slice_runs_there_only(workers: Any) -> None:
    assert workers.slice(a=1).note.call("x").get(timeout=TIMEOUT).extent.labels == ["b"]
    assert workers.notes.call().get(timeout=TIMEOUT).values() == [[], [], ["x"], ["x"]]


def test_call_is_in_rank_order_whatever_the_order_of_the_answers(workers: Any) -> None:
    future, held = hold(workers, "call")
    for rank in (2, 0, 3, 1):
        held[rank].send(f"value {rank}")
    assert future.get(timeout=TIMEOUT).values() == [f"value {rank}" for rank in range(4)]


def test_call_raises_the_error_of_the_lowest_rank(workers: Any) -> None:
    with pytest.raises(ActorError, match="rank 1 fails"):
        workers.fail.call([3, 1]).get(timeout=TIMEOUT)
    with pytest.raises(ActorError, match="rank 0 fails"):
        workers.fail.call().get(timeout=TIMEOUT)
    assert workers.add.call(1).get(timeout=TIMEOUT).values() == [1] * 4


def test_call_raises_only_when_every_rank_has_answered(workers: Any) -> None:
    future, held = hold(workers, "call")
    held[3].send(KeyError("the highest rank"))
    held[0].send("fine")
    held[2].send("fine")
    with pytest.raises(TimeoutError):
        future.get(timeout=0.2)
    held[1].send(KeyError("a lower rank"))
    with pytest.raises(ActorError, match="a lower rank") as caught:
        future.get(timeout=TIMEOUT)
    assert isinstance(caught.value.exception, KeyError)


def test_arguments_by_position_and_by_name(one: Any) -> None:
    assert one.add.call_one(1, 2).get(timeout=TIMEOUT) == 3
    assert one.add.call_one(a=1, b=2).get(timeout=TIMEOUT) == 3
    assert one.options.call_one(1, 2, key="k", x=3).get(timeout=TIMEOUT) == ((1, 2), "k", {"x": 3})


def test_arguments_are_taken_when_the_call_is_made(one: Any) -> None:
    held, ports = hold(one, "call_one")
    mine = ["as it was"]
    later = one.note.call_one(mine)
    mine[0] = "changed"
    ports[0].send(None)
    held.get(timeout=TIMEOUT)
    assert later.get(timeout=TIMEOUT)[0] == ["as it was"]


def test_messages_leave_when_the_adverb_is_called(workers: Any) -> None:
    workers.note.call("call")
    workers.note.stream("stream")
    workers.slice(a=0, b=0).note.call_one("call_one")
    assert (
        workers.notes.call().get(timeout=TIMEOUT).values()
        == [["call", "stream", "call_one"]] + [["call", "stream"]] * 3
    )


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


def test_choose_raises_what_the_chosen_one_raised(workers: Any) -> None:
    with pytest.raises(ActorError, match="fails"):
        workers.fail.choose().get(timeout=TIMEOUT)


# --- broadcast


def test_broadcast_gives_nothing_and_runs_everywhere(workers: Any) -> None:
    assert workers.note.broadcast("x") is None
    assert workers.notes.call().get(timeout=TIMEOUT).values() == [["x"]] * 4


class Secretive(Actor):
    @endpoint
    def unpicklable(self) -> Any:
        return (x for x in ())

    @endpoint
    def alive(self) -> bool:
        return True


def test_the_value_of_a_broadcast_is_never_pickled(procs2: ProcMesh) -> None:
    mesh = procs2.spawn("secretive", Secretive)
    mesh.unpicklable.broadcast()
    assert mesh.alive.call().get(timeout=TIMEOUT).values() == [True, True]


# --- stream


def test_stream_gives_answers_in_the_order_they_arrive(workers: Any) -> None:
    answers, held = hold(workers, "stream")
    answers = iter(answers)
    for rank in (3, 1, 0, 2):
        held[rank].send(rank)
        assert next(answers).get(timeout=TIMEOUT) == rank
    with pytest.raises(StopIteration):
        next(answers)


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


def test_send_without_a_port_is_a_broadcast(workers: Any) -> None:
    assert send(workers.note, ("x",), {}) is None
    assert workers.notes.call().get(timeout=TIMEOUT).values() == [["x"]] * 4


def test_send_brings_one_answer_per_rank_to_the_port(workers: Any) -> None:
    port, receiver = Channel[Any].open()
    send(workers.add, (1,), {"b": 2}, port=port)
    assert [receiver.recv().get(timeout=TIMEOUT) for _ in range(4)] == [3] * 4


def test_send_brings_the_ranks_to_a_ranked_port(workers: Any) -> None:
    port, receiver = Channel[Any].open_ranked()
    send(workers.slice(a=1).rank, (), {}, port=port)
    assert sorted(receiver.recv().get(timeout=TIMEOUT) for _ in range(2)) == [(0, 0), (1, 1)]


def test_send_to_a_chosen_one(workers: Any) -> None:
    port, receiver = Channel[Any].open()
    send(workers.note, ("x",), {}, port=port, selection="choose")
    assert receiver.recv().get(timeout=TIMEOUT) == ("x", 0)
    assert sorted(workers.notes.call().get(timeout=TIMEOUT).values()) == [[], [], [], ["x"]]


def test_send_brings_errors_to_the_port(workers: Any) -> None:
    port, receiver = Channel[Any].open()
    send(workers.fail, (), {}, port=port)
    for _ in range(4):
        with pytest.raises(ActorError, match="fails"):
            receiver.recv().get(timeout=TIMEOUT)


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


# --- checks at the call


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((1, 2, 3), {}, "too many positional arguments"),
        ((), {}, "missing a required argument: 'a'"),
        ((1,), {"foo": 2}, "got an unexpected keyword argument 'foo'"),
        ((1,), {"a": 2}, "multiple values for argument 'a'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_the_call(
    one: Any, args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        one.add.call(*args, **kwargs)
    with pytest.raises(TypeError, match=text):
        send(one.add, args, kwargs)


# --- order


def test_messages_are_handled_in_the_order_sent_over_all_adverbs_views_and_sizes(workers: Any) -> None:
    """200 messages to one actor: mixed adverbs, mixed views of it, from nothing to a megabyte."""
    choice = random.Random(7)
    views = [
        workers,
        workers.slice(a=0),
        workers.slice(b=0),
        workers.slice(a=0, b=0),
        workers.flatten("rank").slice(rank=slice(0, 3)),
        workers.rename(a="x", b="y").slice(x=0),
    ]
    single = views[3]
    port, _receiver = Channel[Any].open()
    expected = []
    futures = []
    for n in range(200):
        payload = b"x" * choice.choice([0, 10, 1_000, 70_000, 1_000_000 if n % 20 == 0 else 100])
        view = choice.choice(views)
        adverb = choice.choice(["call", "call_one", "choose", "broadcast", "stream", "send"])
        if adverb == "send":
            send(view.note, (n, payload), {}, port=port)
        elif adverb in ("call_one", "choose"):
            futures.append(getattr(single.note, adverb)(n, payload))
        elif adverb == "stream":
            futures += list(view.note.stream(n, payload))
        elif adverb == "call":
            futures.append(view.note.call(n, payload))
        else:
            view.note.broadcast(n, payload)
        expected.append(n)
    assert single.notes.call_one().get(timeout=TIMEOUT) == expected
    for future in futures:
        future.get(timeout=TIMEOUT)
    for log in workers.notes.call().get(timeout=TIMEOUT).values():
        assert log == sorted(log)


class Relay(Actor):
    @endpoint
    async def relay(self, target: Any, count: int) -> None:
        for n in range(count):
            (target if n % 2 else target.slice(a=0)).note.broadcast(n)

    @endpoint
    def relay_sync(self, target: Any, count: int) -> None:
        for n in range(count):
            (target if n % 2 else target.slice(a=0)).note.broadcast(n)


@pytest.mark.parametrize("how", ["relay", "relay_sync"])
def test_order_holds_between_two_actors_too(procs2: ProcMesh, workers: Any, how: str) -> None:
    relay = procs2.slice(gpus=0).spawn("relay", Relay)
    getattr(relay, how).call_one(workers, 100).get(timeout=TIMEOUT)

    async def until_complete() -> list[int]:
        while True:  # no order is promised between the relay's messages and ours
            log: list[int] = await workers.slice(a=0, b=1).notes.call_one()
            if len(log) == 100:
                return log

    assert asyncio.run(asyncio.wait_for(until_complete(), TIMEOUT)) == list(range(100))


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
