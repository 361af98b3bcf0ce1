"""Reductions that run beside what the program does next."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch

import monarch
from monarch.tensor import PendingReduce, RemoteException, inspect
from monarch.tensor.controller.pending import STREAM
from monarch.tensor.controller.taint import unconfirmed
from monarch.tensor.remote.remote_function import remote


@pytest.fixture
def mine(mesh: Any) -> Any:
    """Ones on the first rank, twos on the second."""
    return torch.ones(3) * (1 + mesh.rank("gpus"))


def test_the_result_is_that_of_reduce(mine: Any) -> None:
    pending = mine.reduce("gpus", async_op=True)
    assert isinstance(pending, PendingReduce) and isinstance(pending, monarch.PendingReduce)
    assert "1 tensors" in repr(pending) and not pending.waited
    beside = mine * 10  # may be read
    total = pending.wait()
    assert pending.waited
    assert (total.stream, total.mesh) == (mine.stream, mine.mesh)
    assert inspect(total).tolist() == [3, 3, 3]
    assert inspect(total + beside, gpus=1).tolist() == [23, 23, 23]
    mine.add_(1)  # given back
    assert inspect(mine).tolist() == [2, 2, 2]


def test_every_form_of_it(mine: Any) -> None:
    stacked = mine.reduce("gpus", "stack", async_op=True)
    rows = torch.stack([mine, mine * 2]).reduce("gpus", "sum", scatter=True, async_op=True)
    many = monarch.reduce({"a": mine, "b": [mine + 1, 7]}, "gpus", "max", async_op=True)
    assert inspect(stacked.wait()).tolist() == [[1, 1, 1], [2, 2, 2]]
    assert inspect(rows.wait(), gpus=1).tolist() == [6, 6, 6]
    found = many.wait()
    assert found["b"][1] == 7
    assert inspect(found["a"]).tolist() == [2, 2, 2]
    assert inspect(found["b"][0]).tolist() == [3, 3, 3]


def test_in_place_nobody_may_use_the_tensors_meanwhile(mine: Any) -> None:
    other = mine * 2
    pending = monarch.reduce_([mine, other], "gpus", "avg", async_op=True)
    with pytest.raises(TypeError, match="borrowed"):
        mine + 1
    assert [id(one) for one in pending.wait()] == [id(mine), id(other)]
    assert inspect(mine).tolist() == [1.5, 1.5, 1.5]
    assert inspect(other).tolist() == [3, 3, 3]


def test_what_is_lent_to_read_cannot_be_changed(mine: Any) -> None:
    pending = mine.reduce("gpus", async_op=True)
    with pytest.raises(TypeError, match="borrowed"):
        mine.add_(1)
    assert inspect(pending.wait()).tolist() == [3, 3, 3]


def test_the_inputs_may_go_first(mesh: Any) -> None:
    pending = (torch.ones(2) * (1 + mesh.rank("gpus"))).reduce("gpus", async_op=True)
    gc.collect()
    assert inspect(pending.wait()).tolist() == [3, 3]


def test_it_runs_beside_the_program(mesh: Any) -> None:
    """Shows that what is issued after it can be fetched while nobody waits for it."""
    with torch.no_grad():
        x = torch.ones(1) * (1 + mesh.rank("gpus"))
    pending = x.reduce("gpus", async_op=True)
    y = x
    for _ in range(20):
        y = y + 1
    assert inspect(y, gpus=1).tolist() == [22]  # fetched before anybody waits for the reduction
    assert inspect(pending.wait()).tolist() == [3]


def test_it_is_waited_for_once(mine: Any) -> None:
    pending = mine.reduce("gpus", async_op=True)
    pending.wait()
    with pytest.raises(RuntimeError, match="waited for before") as caught:
        pending.wait()
    assert __file__ in str(caught.value)


def test_one_that_is_dropped_says_so_and_gives_its_tensors_back(mine: Any) -> None:
    pending = mine.reduce_("gpus", async_op=True)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del pending
        gc.collect()
    assert ["never waited for" in str(one.message) for one in found if one.category is ResourceWarning] == [True]
    mine.mul_(0)
    assert inspect(mine).tolist() == [0, 0, 0]


def test_bad_input(mesh: Any, mine: Any) -> None:
    with pytest.raises(ValueError, match="no tensors"):
        monarch.reduce([1, 2], "gpus", async_op=True)
    with pytest.raises(ValueError, match="leave out `out`"):
        mine.reduce("gpus", out=mine.clone(), async_op=True)
    with pytest.raises(KeyError, match="'row'"):
        mine.reduce("row", async_op=True)
    with pytest.raises(TypeError, match="average of bool"):
        (mine > 0).reduce("gpus", "avg", async_op=True)
    with pytest.raises(TypeError, match="requires grad"):
        mine.clone().requires_grad_().reduce("gpus", async_op=True)
    with pytest.raises(TypeError, match="NO_MESH"), monarch.no_mesh.activate():
        monarch.reduce(torch.ones(2), "gpus", async_op=True)
    with pytest.raises(RuntimeError, match="share memory"):
        monarch.reduce_([mine, mine.view(3)], "gpus", async_op=True)
    with STREAM.activate(), pytest.raises(RuntimeError, match="cannot begin on the stream"):
        mine.reduce("gpus", async_op=True)
    mine.add_(1)  # nothing of these has kept it
    assert inspect(mine).tolist() == [2, 2, 2]


def test_a_failure_on_one_rank_is_told_with_the_line(mine: Any) -> None:
    @remote(propagate=lambda t: t.new_empty(3))
    def fails_on_one(t: Any) -> Any:
        assert t[0] < 2, "this rank has no data"
        return t

    pending = fails_on_one(mine).reduce("gpus", async_op=True)
    total = pending.wait()
    with pytest.raises(RemoteException, match="this rank has no data"):
        inspect(total * 2, gpus=0)
    assert inspect(mine.reduce("gpus", async_op=True).wait()).tolist() == [3, 3, 3]


def test_nothing_stays_open_behind_it(mesh: Any, mine: Any) -> None:
    taints = mesh.client.taints
    weight = torch.zeros(3)
    for _ in range(4):
        weight = weight + mine.reduce("gpus", async_op=True).wait()
    mesh.client.sync()
    assert not taints._open
    assert unconfirmed([weight._record.storage.taint]) == []
    assert inspect(weight).tolist() == [12, 12, 12]


# --- recordings -------------------------------------------------------------------------------------------------


def test_in_a_recorded_function(mesh: Any, mine: Any) -> None:
    weight = torch.zeros(3)

    @monarch.function
    def step(x: Any) -> Any:
        pending = x.reduce("gpus", async_op=True)
        beside = (x * 2).sum()
        weight.add_(pending.wait())
        return beside

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [step(mine) for _ in range(5)]
    assert [inspect(one).item() for one in found] == [6.0] * 5
    assert inspect(weight).tolist() == [15, 15, 15]
    mesh.client.sync()
    assert not mesh.client.taints._open


def test_one_that_is_not_waited_for_inside_is_not_recorded(mine: Any) -> None:
    @monarch.function
    def begins(x: Any) -> Any:
        return x.reduce("gpus", async_op=True)

    begins(mine).wait()
    with pytest.warns(RuntimeWarning, match="not waited for in it"):
        pending = begins(mine)
    assert inspect(pending.wait()).tolist() == [3, 3, 3]


def test_one_that_was_begun_outside_cannot_be_waited_for_inside(mine: Any) -> None:
    @monarch.function
    def waits(x: Any) -> Any:
        return x + pending.wait()

    pending = mine.reduce("gpus", async_op=True)
    assert inspect(waits(mine)).tolist() == [4, 4, 4]  # the first call is no recording
    pending = mine.reduce("gpus", async_op=True)
    with pytest.raises(RuntimeError, match="begun outside"):
        waits(mine)
    pending.wait()
