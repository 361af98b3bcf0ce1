"""References as arguments of services, in memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, concurrent_endpoint, endpoint, this_host
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


def test_a_reference_is_no_answer_of_a_service(cluster: InProcessCluster) -> None:
    with serve(this_host(), Summer) as service, pytest.raises(ActorError, match="not in the answer of a service"):
        service.gives.route().get(60)


def test_what_cannot_be_sent_is_named(cluster: InProcessCluster) -> None:
    with serve(this_host(), Model) as service:
        with pytest.raises(TypeError) as raised:
            service.times.route({"a": [put(1), threading.Lock()]})
        (note,) = raised.value.__notes__
        assert "arguments of model.times(): nothing was sent" in note and "['a'][1] cannot be sent" in note
    with pytest.raises(TypeError) as raised:
        put({"m": [put(2), threading.Lock()]})
    assert "value['m'][1] cannot be sent" in raised.value.__notes__[0]
