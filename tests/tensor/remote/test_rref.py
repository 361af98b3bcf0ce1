"""`endpoint.rref`: what actors make of distributed tensors stays where they made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import Actor, Port, as_endpoint, current_rank, endpoint
from monarch.tensor import RemoteException


def like(tensor: Any, *_rest: Any) -> Any:
    return tensor.clone()


class Worker(Actor):
    def __init__(self) -> None:
        self.calls: list[str] = []

    @endpoint(propagate=lambda x, by=2.0: x * by)
    def scaled(self, x: Any, by: float = 2.0) -> Any:
        self.calls.append("scaled")
        return x * by

    @endpoint(propagate=lambda x: {"sum": x.sum(), "rows": [x[0], x[1]], "note": "fixed"})
    def parted(self, x: Any) -> Any:
        return {"sum": x.sum(), "rows": [x[0], x[1]], "note": "fixed"}

    @endpoint(propagate=lambda x: x.add_(0))
    def add_rank(self, x: Any) -> Any:
        return x.add_(current_rank().rank)

    @endpoint(propagate=lambda: torch.empty(()))
    def rank(self) -> Any:
        return torch.tensor(float(current_rank().rank))

    @endpoint(propagate="inspect")
    def note(self, x: Any) -> str:
        self.calls.append(f"note {float(x.sum())}")
        return "ignored"

    @endpoint(propagate=like)
    async def later(self, x: Any) -> Any:
        return x + 1

    @endpoint(propagate=like)
    def fails_on(self, x: Any, rank: int) -> Any:
        if current_rank().rank == rank:
            raise ValueError("not on this one")
        return x

    @endpoint(propagate=lambda x: (x + 1, x + 2))
    def too_few(self, x: Any) -> Any:
        return (x,)

    @endpoint(propagate=like)
    def no_tensor(self, x: Any) -> Any:
        return "text"

    @endpoint
    def unknown(self, x: Any) -> Any:
        return x

    @endpoint(propagate="cached")
    def cached(self, x: Any) -> Any:
        return x

    @endpoint(propagate=like, explicit_response_port=True)
    def by_port(self, port: Port[Any], x: Any) -> None:
        port.send(x)

    @endpoint
    def called(self) -> list[str]:
        return self.calls

    def plain(self, x: Any, y: Any) -> Any:
        return x - y


@pytest.fixture(scope="module")
def workers(procs: Any) -> Iterator[Any]:
    workers = procs.spawn("workers", Worker)
    yield workers
    workers.stop().get(timeout=300)


def test_the_result_is_a_distributed_tensor(procs: Any, workers: Any) -> None:
    with procs.activate():
        t = torch.arange(3.0)
        r = workers.scaled.rref(t)
        assert isinstance(r, monarch.Tensor) and r.shape == (3,) and r.mesh is t.mesh
        assert monarch.inspect(r + 1, gpus=1).tolist() == [1.0, 3.0, 5.0]
        assert monarch.inspect(workers.scaled.rref(t, by=-1.0)).tolist() == [0.0, -1.0, -2.0]


def test_each_rank_has_its_own(procs: Any, workers: Any) -> None:
    r = workers.rank.rref()  # no tensor and no active mesh: the mesh of the actors
    assert [monarch.inspect(r, gpus=rank).item() for rank in range(2)] == [0.0, 1.0]
    with procs.activate():
        r = workers.rank.rref() * 10
    assert [monarch.inspect(r, gpus=rank).item() for rank in range(2)] == [0.0, 10.0]


def test_nested_results(procs: Any, workers: Any) -> None:
    with procs.activate():
        got = workers.parted.rref(torch.ones(2, 3))
        assert got["note"] == "fixed"
        assert monarch.inspect(got["sum"]).item() == 6.0
        assert [monarch.inspect(row).tolist() for row in got["rows"]] == [[1.0] * 3] * 2


def test_changes_in_place_are_seen_in_order(procs: Any, workers: Any) -> None:
    with procs.activate():
        t = torch.zeros(2)
        same = workers.add_rank.rref(t)
        t.mul_(10)
        workers.add_rank.rref(t)
    assert t._version == 3
    assert [monarch.inspect(same, gpus=rank).tolist() for rank in range(2)] == [[0.0, 0.0], [11.0, 11.0]]
    assert [monarch.inspect(t, gpus=rank).tolist() for rank in range(2)] == [[0.0, 0.0], [11.0, 11.0]]


def test_chains_run_without_waiting_here(procs: Any, workers: Any) -> None:
    with procs.activate():
        t = torch.ones(4)
        for _ in range(50):
            t = workers.scaled.rref(t, by=1.0) + 1
    assert monarch.inspect(t).tolist() == [51.0] * 4


def test_inspect_gives_nothing_and_keeps_the_order(procs: Any) -> None:
    workers = procs.spawn("noting", Worker)
    with procs.activate():
        t = torch.ones(2)
        assert workers.note.rref(t) is None
        workers.scaled.rref(t)
        t.add_(1)
        workers.note.rref(t)
    assert [v for _, v in workers.called.call().get(timeout=300).items()] == [["note 2.0", "scaled", "note 4.0"]] * 2
    workers.stop().get(timeout=300)


def test_async_endpoints_and_methods_that_are_none(procs: Any, workers: Any) -> None:
    with procs.activate():
        t = torch.ones(2)
        assert monarch.inspect(workers.later.rref(t)).tolist() == [2.0, 2.0]
        plain = as_endpoint(workers.plain, propagate=lambda x, y: x - y)
        assert monarch.inspect(plain.rref(t, 5)).tolist() == [-4.0, -4.0]
    with pytest.raises(ValueError, match="expected a method of a spawned actor"):
        as_endpoint(workers.later, propagate=like)


def test_part_of_the_actors(procs: Any, workers: Any) -> None:
    second = workers.slice(gpus=1)
    r = second.rank.rref()
    assert r.mesh.names == () and list(r.mesh.processes) == [1]
    assert monarch.inspect(r).item() == 0.0  # its rank in the slice
    with procs.activate():
        whole = torch.ones(2)
    part = second.scaled.rref(whole)
    assert list(part.mesh.processes) == [1]
    assert monarch.inspect(part).tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="must share the same processes"):
        workers.scaled.rref(part)


def test_without_propagation(procs: Any, workers: Any) -> None:
    with procs.activate():
        t = torch.ones(2)
        for name in ("unknown", "cached", "by_port"):
            with pytest.raises(NotImplementedError):
                getattr(workers, name).rref(t)
        with pytest.raises(NotImplementedError, match="propagate is None"):
            as_endpoint(workers.plain).rref(t, 1)


def test_what_an_endpoint_raises_poisons_the_results_alone(procs: Any, workers: Any) -> None:
    with procs.activate():
        t = torch.ones(2)
        bad = workers.fails_on.rref(t, 1)
        good = workers.scaled.rref(t)
        worse = workers.scaled.rref(bad + 1)
    assert monarch.inspect(good, gpus=1).tolist() == [2.0, 2.0]
    for tensor in (bad, worse):
        with pytest.raises(RemoteException, match="not on this one") as info:
            monarch.inspect(tensor, gpus=0)
        assert info.value.rank == 1
    assert any("workers.fails_on.rref(t, 1)" in (frame.line or "") for frame in info.value.controller_frames)


def test_results_other_than_promised(procs: Any, workers: Any) -> None:
    with procs.activate():
        t = torch.ones(2)
        with pytest.raises(RemoteException, match="returned 1 values, and its `propagate` says 2"):
            monarch.inspect(workers.too_few.rref(t)[0].clone())
        with pytest.raises(RemoteException, match="returned str where"):
            monarch.inspect(workers.no_tensor.rref(t))


def test_actors_that_end_leave_nobody_waiting(procs: Any) -> None:
    ended = procs.spawn("ended", Worker)
    ended.stop().get(timeout=300)
    with procs.activate():
        t = torch.ones(2)
        with pytest.raises(RemoteException, match="stopped"):
            monarch.inspect(ended.scaled.rref(t))
        assert monarch.inspect(t + 1).tolist() == [2.0, 2.0]


def test_nothing_is_left_in_the_processes(procs: Any, workers: Any) -> None:
    probes = procs.spawn("probes", Probe)
    with procs.activate():
        monarch.inspect(workers.scaled.rref(torch.ones(2)))
    before = list(probes.left.call().get(timeout=300).values())
    with procs.activate():
        for _ in range(20):
            r = workers.parted.rref(torch.ones(2, 3))
            workers.called.call().get(timeout=300)
        monarch.inspect(r["sum"])
    assert list(probes.left.call().get(timeout=300).values()) == before
    probes.stop().get(timeout=300)


class Probe(Actor):
    @endpoint
    def left(self) -> int:
        from monarch.tensor.worker.actor_transfers import waiting

        return len(waiting)
