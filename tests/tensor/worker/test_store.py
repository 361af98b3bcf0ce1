"""The store at which groups meet, against torch's own, and the options of nccl groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from monarch.actor import this_proc
from monarch.tensor.worker import process_groups
from monarch.tensor.worker.process_groups import ProcessGroups
from monarch.tensor.worker.reductions import ReductionPlan
from monarch.tensor.worker.rendezvous import MessageStore, Rendezvous
from tests.support.patience import TIMEOUT


@pytest.fixture
def call() -> Iterator[Callable[..., Any]]:
    rendezvous: Any = this_proc().spawn("rendezvous", Rendezvous)

    def ask(name: str, seconds: float, *args: Any) -> Any:
        return getattr(rendezvous, name).call_one(*args).get(timeout=seconds)

    yield ask
    rendezvous.stop().get(timeout=TIMEOUT)


def through_cpp(store: Any) -> Any:
    """Uses it as nccl's threads use it: torch's C++ calls the methods of the store behind a PrefixStore."""
    return dist.PrefixStore("group 1/0.1", store)


STEPS: list[Callable[[Any], Any]] = [
    lambda s: s.check(["a"]),
    lambda s: s.set("a", "1"),
    lambda s: s.check(["a"]),
    lambda s: s.check(["a", "b"]),
    lambda s: s.compare_set("b", "x", "y"),  # there is none: what was expected comes back
    lambda s: s.check(["b"]),
    lambda s: s.compare_set("b", "", "first"),
    lambda s: s.compare_set("b", "", "second"),
    lambda s: s.compare_set("b", "first", "second"),
    lambda s: s.get("b"),
    lambda s: s.add("n", 2),
    lambda s: s.add("n", 5),
    lambda s: s.get("n"),
    lambda s: s.add("n", 1),
    lambda s: s.get("n"),
    lambda s: s.append("log", "one "),
    lambda s: s.append("log", "two"),
    lambda s: s.get("log"),
    lambda s: s.set("a", "2"),
    lambda s: s.get("a"),
    lambda s: s.num_keys(),
    lambda s: s.delete_key("a"),
    lambda s: s.delete_key("a"),
    lambda s: s.check(["a"]),
    lambda s: s.num_keys(),
    lambda s: s.wait(["b", "n"], timedelta(seconds=TIMEOUT)),
    lambda s: s.clone().get("b"),
]


def test_it_does_what_torch_s_own_store_does(call: Any) -> None:
    ours, theirs = MessageStore(call, TIMEOUT), dist.HashStore()
    here, there = through_cpp(ours), through_cpp(theirs)
    assert [step(here) for step in STEPS] == [step(there) for step in STEPS]


def test_a_wait_ends_at_its_timeout(call: Any) -> None:
    ours = MessageStore(call, TIMEOUT)  # torch does not keep the Python part of it alive
    store = through_cpp(ours)
    with pytest.raises(Exception, match="no result after"):
        store.wait(["never"], timedelta(milliseconds=50))
    store.set("never", "now")
    store.wait(["never"], timedelta(seconds=TIMEOUT))


def test_who_waits_for_a_counter_or_a_swap_is_woken(call: Any) -> None:
    store = MessageStore(call, TIMEOUT)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(store.get, "f/n"), pool.submit(store.get, "f/s")]
        store.add("f/n", 3)
        store.compare_set("f/s", "", "x")
        assert [one.result(TIMEOUT) for one in waiting] == [b"3", b"x"]


@pytest.mark.parametrize("given", [None, "1"])
def test_an_nccl_group_is_made_to_fail_without_its_process(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = process_groups.ON_ERROR
    if given is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, given)
    seen = []

    def make(store: Any, rank: int, size: int, options: Any) -> Any:
        seen.append((os.environ.get(name), rank, size, options._timeout.total_seconds()))
        return object()

    make.Options = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setattr(dist, "ProcessGroupNCCL", make, raising=False)
    groups = ProcessGroups(3, "engine", lambda *args: None, "127.0.0.1")
    groups.backend("reduce", (1, 3), 0, "cuda")
    assert seen == [(given or "2", 1, 2, process_groups.TIMEOUT)]
    assert os.environ.get(name) == given


# --- averages ---------------------------------------------------------------------------------------------------


def averaged(plan: ReductionPlan, parts: list[torch.Tensor]) -> torch.Tensor:
    """Returns what gloo makes of it: each rank prepares its own, the sum is the same everywhere."""
    mine = [part.clone() for part in parts]
    for part in mine:
        plan.prepare(part, len(mine))
    total = mine[0]
    for part in mine[1:]:
        total = total + part
    return plan.finish(total, len(mine))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_an_average_cannot_overflow_and_is_the_sum_divided(dtype: torch.dtype, size: int) -> None:
    plan = ReductionPlan(dtype, "avg", "cpu")
    large = torch.tensor([torch.finfo(dtype).max, -torch.finfo(dtype).max], dtype=dtype)
    assert averaged(plan, [large] * size).tolist() == pytest.approx(large.tolist(), rel=1e-6)
    generator = torch.Generator().manual_seed(size)
    parts = [torch.randn(64, dtype=dtype, generator=generator) for _ in range(size)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert torch.equal(averaged(plan, parts), total / size)


def test_averages_of_integers_are_summed_and_rounded_towards_zero() -> None:
    plan = ReductionPlan(torch.int32, "avg", "cpu")
    parts = [torch.tensor([7, -7, 1]), torch.tensor([2, -2, 0])]
    assert averaged(plan, parts).tolist() == [4, -4, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_nccl_averages_itself(dtype: torch.dtype) -> None:
    plan = ReductionPlan(dtype, "avg", "cuda")
    assert plan.op == dist.ReduceOp.AVG
    total = torch.ones(2, dtype=dtype)
    plan.prepare(total, 4)
    assert plan.finish(total, 4).tolist() == [1, 1]
    assert ReductionPlan(torch.int64, "avg", "cuda").op == dist.ReduceOp.SUM
    assert ReductionPlan(dtype, "sum", "cuda").op == dist.ReduceOp.SUM
