"""Accumulators whose answers are folded on two hosts of this machine, in processes there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from monarch.actor import Accumulator, Actor, ActorError, HostMesh, current_rank, endpoint, hosts_from_config
from monarch.references import ObjectRef, put
from monarch.references import store as stores
from tests.references.settling import until
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytestmark = pytest.mark.procs


class Worker(Actor):
    @endpoint
    def rank(self, plus: int = 0) -> int:
        return current_rank().rank + plus

    @endpoint
    def names(self) -> list[int]:
        return [current_rank().rank]

    @endpoint
    def kept(self) -> list[ObjectRef[int]]:
        return [put(current_rank().rank)]

    @endpoint
    def left(self) -> int:
        return stores.store().number

    @endpoint
    def array(self, size: int) -> Any:
        return numpy.full(size, float(current_rank().rank))

    @endpoint
    def refuse(self, who: int) -> int:
        if current_rank().rank == who:
            raise ValueError(f"rank {who} refuses")
        return 1


def where(one: Any, other: Any) -> set[int]:
    """The processes in which answers were folded."""
    return {os.getpid()} | (one if isinstance(one, set) else set()) | (other if isinstance(other, set) else set())


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    hosts = hosts_from_config("two")
    yield hosts
    hosts.shutdown().get(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def workers(hosts: HostMesh) -> Any:
    return hosts.spawn_procs({"gpus": 3}).spawn("workers", Worker)


def accumulated(*of: Any, args: tuple[Any, ...] = (), **how: Any) -> Any:
    return Accumulator(*of, **how).accumulate(*args).get(timeout=TIMEOUT)


def test_it_comes_to_the_same_as_folding_here(workers: Any) -> None:
    assert accumulated(workers.rank, 100, "sum", args=(10,)) == 100 + sum(range(10, 16))
    assert accumulated(workers.rank, 100, lambda a, b: a + b, args=(10,)) == 100 + sum(range(10, 16))
    assert accumulated(workers.rank, 99, "min") == 0
    assert accumulated(workers.rank, 0, "max") == 5


def test_the_order_is_that_of_ranks_also_when_those_of_a_host_are_no_neighbours(workers: Any) -> None:
    assert accumulated(workers.names, [], "concat") == list(range(6))
    assert accumulated(workers.slice(gpus=slice(1, 3)).names, [], "concat") == list(range(4))
    assert accumulated(workers.flatten("all").split(all=("a", "b"), b=2).names, [], "concat") == list(range(6))


def test_the_caller_folds_one_value_a_host(workers: Any) -> None:
    found = accumulated(workers.rank, set(), where, associative=True)
    assert os.getpid() in found and len(found) == 3  # one process of each host, and this


@full
def test_references_come_to_who_folds_and_are_freed(workers: Any) -> None:
    refs = accumulated(workers.kept, [], "concat")
    assert [ref.get(TIMEOUT) for ref in refs] == list(range(6))
    assert workers.left.call().get().values() == [1] * 6
    refs.clear()
    until(lambda: workers.left.call().get().values() == [0] * 6)
    assert stores.store().is_clean


def test_large_arrays_come_out_of_band(workers: Any) -> None:
    total = accumulated(workers.array, numpy.zeros(200_000), "sum", args=(200_000,))
    assert total.shape == (200_000,) and set(total.tolist()) == {15.0}


def test_an_exception_of_an_endpoint_is_raised(workers: Any) -> None:
    with pytest.raises(ActorError, match="rank 4 refuses"):
        accumulated(workers.refuse, 0, "sum", args=(4,))


def test_an_exception_of_the_combine_function_is_raised_with_its_place(workers: Any) -> None:
    def combine(one: Any, other: Any) -> Any:
        raise KeyError("cannot combine")

    with pytest.raises(ActorError, match=r"(?s)combine function of an Accumulator failed.*cannot combine"):
        accumulated(workers.rank, 0, combine, associative=True)


def test_a_combine_function_that_cannot_be_sent_is_refused_before_anything_is_sent(workers: Any) -> None:
    lock = __import__("threading").Lock()
    with pytest.raises(TypeError, match="lock"):
        accumulated(workers.rank, 0, lambda a, b: (lock, a + b)[1], associative=True)
    assert accumulated(workers.rank, 0, "sum") == 15
