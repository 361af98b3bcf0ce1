"""Remote functions in real processes: adverbs, order, failures, what waits for what."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import Channel, SupervisionError, send, this_host
from monarch.mesh_controller import spawn_tensor_engine
from monarch.tensor import RemoteException, Stream, inspect
from monarch.tensor.remote.remote_function import call_on_shard_and_fetch, remote
from monarch.tensor.worker import current
from tests.support.patience import TIMEOUT

HELPERS = "monarch.worker._testing_function"

bogus = remote(f"{HELPERS}.do_bogus_tensor_work", propagate=lambda x, y, fail_rank=None: x)


@remote(propagate=lambda x: x)
def plus_rank(x: Any) -> Any:
    return x + current.worker().executor.rank


def test_every_process_runs_it(mesh: Any) -> None:
    pids = remote(os.getpid).call().get(TIMEOUT).values()
    assert len({*pids, os.getpid()}) == 3
    x = torch.ones(3)
    assert [inspect(plus_rank(x), gpus=rank).tolist() for rank in range(2)] == [[1, 1, 1], [2, 2, 2]]
    assert [future.get(TIMEOUT).shape for future in plus_rank.stream(x)] == [(3,)] * 2
    assert plus_rank.choose(x).get(TIMEOUT).shape == (3,)
    assert call_on_shard_and_fetch(plus_rank, x, shard={"gpus": 1}).get(TIMEOUT).tolist() == [2, 2, 2]
    with mesh.slice(gpus=1).activate():
        assert plus_rank.call_one(x).get(TIMEOUT).tolist() == [2, 2, 2]
        assert [value.tolist() for value in plus_rank.call(x).get(TIMEOUT).values()] == [[2, 2, 2]]


def test_send_takes_a_remote_function(mesh: Any) -> None:
    port, receiver = Channel[Any].open()
    x = torch.ones(1)
    send(plus_rank, (x,), {}, port)
    assert sorted(receiver.recv().get(TIMEOUT).item() for _ in range(2)) == [1, 2]
    send(plus_rank, (x,), {}, port, selection="choose")
    assert receiver.recv().get(TIMEOUT).item() in (1, 2)
    send(plus_rank, (x,), {})
    with pytest.raises(ValueError, match="Invalid selection"):
        send(plus_rank, (x,), {}, port, selection="some")
    y = torch.ones(5)
    send(bogus, (x, y), {"fail_rank": 1}, port)
    assert sorted(str(type(receiver.recv().exception(TIMEOUT)).__name__) for _ in range(2)) == [
        "NoneType",
        "RemoteException",
    ]


def test_calls_see_what_was_issued_before(mesh: Any) -> None:
    x = torch.zeros(2)
    found = []
    for _ in range(50):
        x.add_(1)
        found.append(plus_rank.call(x))
    assert [future.get(TIMEOUT).get(0).tolist() for future in found] == [[n, n] for n in range(1, 51)]


def test_large_results_come_back_as_they_were(mesh: Any) -> None:
    x = torch.arange(300_000, dtype=torch.float32)
    future = remote(lambda x: x).call(x)
    x.zero_()
    values = future.get(TIMEOUT)
    with monarch.no_mesh.activate():
        assert torch.equal(values.get(1), torch.arange(300_000, dtype=torch.float32))


def test_a_failure_reaches_what_depends_on_it_and_nothing_else(mesh: Any) -> None:
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    bad = bogus(x, y, fail_rank=1)
    worse = bad + 1
    good = x + y
    for rank in range(2):
        with pytest.raises(RemoteException, match="do_bogus_tensor_work") as caught:
            inspect(worse, gpus=rank)
        assert caught.value.rank == 1
    assert inspect(good, gpus=1).tolist() == [[2.0] * 4] * 3
    assert "test_remote_procs.py" in str(caught.value)


def test_two_streams_run_beside_each_other(mesh: Any) -> None:
    barrier = remote(f"{HELPERS}.new_barrier_hackery", propagate=lambda n: torch.zeros((), dtype=torch.int64))(2)
    wait = remote(f"{HELPERS}.wait_barrier_hackery", propagate="inspect")
    other = Stream("beside")
    borrowed, borrow = other.borrow(barrier)
    with other.activate():
        wait(borrowed)
    wait(barrier)
    inspect(barrier)
    borrow.drop()


def test_the_end_of_a_process_ends_the_call() -> None:
    procs = this_host().spawn_procs({"gpus": 2}, name="dying")
    with procs.activate() as mesh:
        x = torch.ones(1)
        with mesh.slice(gpus=1).activate():
            waiting = remote(os._exit).call(3)
        with pytest.raises(SupervisionError):
            waiting.get(TIMEOUT)
        with pytest.raises(RuntimeError, match="engine"):
            plus_rank.call(x).get(TIMEOUT)
    procs.stop().get(TIMEOUT)


def test_a_failure_nobody_fetched_is_raised_by_exit(procs: Any) -> None:
    mesh = spawn_tensor_engine(procs)
    with mesh.activate():
        bogus(torch.ones(3, 4), torch.ones(3, 4))
        remote(lambda: None, propagate="inspect").broadcast()
    with pytest.raises(RemoteException, match="mat1 and mat2"):
        mesh.exit()


def test_training_in_the_workers(mesh: Any) -> None:
    state = remote(f"{HELPERS}.setup_state_worker", propagate=lambda: monarch.OpaqueRef(None))()
    step = remote(f"{HELPERS}.iteration_worker", propagate=lambda state: torch.empty(()))
    losses = [step(state) for _ in range(20)]
    values = [value.item() for value in inspect(losses)]
    assert values[-1] < values[0]
