"""References as arguments of services, in memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import Actor, concurrent_endpoint, endpoint, this_host
from monarch.references import Fetched, ObjectRef, put
from monarch.references import store as stores
from monarch.service import batched, serve
from monarch.testing import InProcessCluster
from tests.service.model import Model, until_up


class Summer(Actor):
    def __init__(self) -> None:
        self.weights: list[int] = []

    @endpoint
    def total(self, ref: ObjectRef[list[int]]) -> int:
        return sum(ref.get(60))

    @endpoint
    def within(self, refs: dict[str, ObjectRef[list[int]]]) -> int:
        return sum(sum(ref.get(60)) for ref in refs.values())

    @endpoint
    def fetched(self, numbers: Fetched[list[int]]) -> int:
        return sum(numbers)

    @concurrent_endpoint
    async def fetched_beside(self, *numbers: Fetched[list[int]]) -> int:
        return sum(map(sum, numbers))

    @endpoint
    @batched(max_batch=4)
    def many(self, refs: list[ObjectRef[list[int]]]) -> list[int]:
        return [sum(ref.get(60)) for ref in refs]

    @endpoint
    def load(self, weights: Fetched[list[int]]) -> None:
        self.weights = weights

    @endpoint
    async def prepare(self, weights: ObjectRef[list[int]]) -> list[int]:
        return await weights

    @endpoint
    def use(self, weights: list[int]) -> None:
        self.weights = weights

    @endpoint
    def held(self) -> int:
        return sum(self.weights)

    @endpoint
    def gives(self) -> ObjectRef[int]:
        return put(3)

    @endpoint
    @batched(max_batch=4)
    def each(self, numbers: list[int]) -> list[ObjectRef[int]]:
        return [put(number) for number in numbers]

    @endpoint
    def made(self, count: int) -> Iterator[ObjectRef[int]]:
        for number in range(count):
            yield put(number)


def _freed(until: Callable[[], bool]) -> None:
    """Waits until everything is freed; each round is an answer of the service, or of the thread that frees."""
    while not until():
        gc.collect()
        told = threading.Event()
        stores.store().dropped.put(told.set)
        assert told.wait(60)


@pytest.mark.parametrize("group", [None, {"gpus": 2}])
def test_a_reference_is_an_argument_of_a_service(cluster: InProcessCluster, group: dict[str, int] | None) -> None:
    ref = put([1, 2, 3])
    with serve(this_host(), Summer, replicas=2, per_replica=group) as service:
        until_up(service, 2)
        for asked in (
            service.total.route(ref),
            service.within.route({"a": ref}),
            service.fetched.route(ref),
            service.fetched.route(numbers=[6]),
            service.fetched_beside.route(ref),
            service.many.route(ref),
        ):
            got: Any = asked.get(60)
            assert (got if group is None else set(got.values())) == (6 if group is None else {6})
        assert len(service.total.fanout(ref).get(60)) == 2
        del ref, asked
        _freed(lambda: not stores.store().number)


def test_an_update_holds_its_references_for_later_replicas(cluster: InProcessCluster) -> None:
    with serve(this_host(), Summer) as service:
        assert service.update("load", put([1, 2])).get(60) == 1
        assert service.held.route().get(60) == 3
        assert service.update_in_place("prepare", put([3, 4]), then="use").get(60) == 2
        assert service.held.route().get(60) == 7
        service.scale(2).get(60)
        until_up(service, 2)
        assert service.held.fanout().get(60) == [7, 7]


@pytest.mark.parametrize("group", [None, {"gpus": 2}])
def test_a_reference_is_an_answer_of_a_service(cluster: InProcessCluster, group: dict[str, int] | None) -> None:
    with serve(this_host(), Summer, replicas=2, per_replica=group) as service:
        until_up(service, 2)
        got: Any = service.gives.route().get(60)
        refs = [got] if group is None else got.values()
        assert [ref.get(60) for ref in refs] == [3] * len(refs)
        got = service.each.route(4).get(60)
        refs += [got] if group is None else got.values()
        assert [ref.get(60) for ref in refs[len(refs) // 2 :]] == [4] * (len(refs) // 2)
        owners = [kept for kept in stores._stores.values() if kept.process[0] in {ref.owner for ref in refs}]
        assert sum(kept.number for kept in owners) == len(refs)
        assert len(service.gives.fanout().get(60)) == 2
        del refs, got
        _freed(lambda: not any(kept.number for kept in owners))


def test_references_come_in_a_stream(cluster: InProcessCluster) -> None:
    with serve(this_host(), Summer) as service:
        refs = list(service.made.stream(3))
        assert [ref.get(60) for ref in refs] == [0, 1, 2]
        (owner,) = [kept for kept in stores._stores.values() if kept.process[0] == refs[0].owner]
        assert owner.number == 3
        del refs
        _freed(lambda: not owner.number)


def test_what_cannot_be_sent_is_named(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model) as service:
        with pytest.raises(TypeError) as raised:
            service.times.route({"a": [put(1), threading.Lock()]})
        (note,) = raised.value.__notes__
        assert "arguments of model.times(): nothing was sent" in note and "['a'][1] cannot be sent" in note
    with pytest.raises(TypeError) as raised:
        put({"m": [put(2), threading.Lock()]})
    assert "value['m'][1] cannot be sent" in raised.value.__notes__[0]
