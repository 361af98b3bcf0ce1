"""DTensors in remote functions, over the processes of a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import ProcMesh, this_host
from monarch.tensor import RemoteException, inspect
from monarch.tensor.remote.remote_function import remote
from monarch.tensor.worker.dtensor import to_dtensor
from monarch.tensor.worker.worker_mesh import WorkerMesh
from tests.support.patience import TIMEOUT

RANKS = [(row, column) for row in range(2) for column in range(2)]


@pytest.fixture(scope="module")
def square() -> Iterator[ProcMesh]:
    """Four processes in a square."""
    mesh = this_host().spawn_procs({"row": 2, "column": 2}, name="square")
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def mesh(square: ProcMesh) -> Iterator[Any]:
    with square.activate() as active:
        yield active


@remote(propagate=lambda part, mesh: (torch.empty(2, 2), torch.empty(())))
def square_of(part: Any, mesh: Any) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    from monarch.tensor.worker.dtensor import from_dtensor, to_dtensor

    whole = to_dtensor(part, mesh, [Shard(0), Shard(1)])
    assert whole.shape == (4, 4) and whole.device_mesh.mesh_dim_names == ("row", "column")
    product = (whole @ whole).redistribute(placements=[Shard(0), Shard(1)])
    return from_dtensor(product), from_dtensor(whole.sum().redistribute(placements=[Replicate(), Replicate()]))


def test_a_product_of_shards(mesh: Any) -> None:
    part = 10.0 * mesh.rank("row") + mesh.rank("column") + torch.arange(4.0).reshape(2, 2)
    product, total = square_of(part, mesh)
    again, _ = square_of(part, mesh)
    with monarch.tensor.no_mesh.activate():
        rows = [torch.cat([inspect(part, row=row, column=column) for column in range(2)], 1) for row in range(2)]
        whole = torch.cat(rows, 0)
        wanted = whole @ whole
        for row, column in RANKS:
            piece = wanted[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert torch.equal(inspect(product, row=row, column=column), piece)
            assert torch.equal(inspect(again, row=row, column=column), piece)
            assert inspect(total, row=row, column=column) == whole.sum()


@remote(propagate=lambda x, w, mesh: (torch.empty(()), torch.empty_like(w)))
def tensor_parallel(x: Any, w: Any, mesh: Any) -> Any:
    """A column-parallel layer, forward and backward, in one function."""
    from torch.distributed.tensor import Replicate, Shard

    from monarch.tensor.worker.dtensor import from_dtensor, to_dtensor

    with torch.enable_grad():
        weight = to_dtensor(w.detach().requires_grad_(), mesh, [Shard(1)]).detach().requires_grad_()
        loss = (to_dtensor(x, mesh, [Replicate()]) @ weight).square().sum()
        loss.backward()
    return loss.full_tensor().detach(), from_dtensor(weight.grad)


def test_gradients_of_a_layer_in_two_parts(mesh: Any) -> None:
    line = mesh.slice(row=0)
    with line.activate():
        x = torch.arange(6.0).reshape(2, 3)
        w = torch.ones(3, 2) + line.rank("column")
        loss, grad = tensor_parallel(x, w, line)
    with monarch.tensor.no_mesh.activate():
        whole = torch.cat([torch.ones(3, 2), torch.full((3, 2), 2.0)], 1).requires_grad_()
        wanted = (torch.arange(6.0).reshape(2, 3) @ whole).square().sum()
        wanted.backward()
        assert inspect(loss, column=1).item() == wanted.item()
        assert torch.equal(inspect(grad, column=1), whole.grad[:, 2:])


@remote(propagate=lambda part, mesh: torch.empty(2))
def fails_on_one(part: Any, mesh: Any) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    from monarch.tensor.worker import current
    from monarch.tensor.worker.dtensor import from_dtensor, to_dtensor

    whole = to_dtensor(part, mesh, [Shard(0)])
    if current.worker().executor.rank == 3:
        raise ValueError("not on this rank")
    return from_dtensor(whole.redistribute(placements=[Replicate()]))[:2]


def test_a_failure_ends_the_wait_of_the_others(mesh: Any) -> None:
    line = mesh.slice(row=1)
    with line.activate():
        result = fails_on_one(torch.ones(2), line)
        with pytest.raises(RemoteException, match="not on this rank"):
            inspect(result, column=0)


@remote(propagate=lambda part, mesh: torch.empty(2))
def partial(part: Any, mesh: Any) -> Any:
    from torch.distributed.tensor import Partial, Replicate

    from monarch.tensor.worker.dtensor import from_dtensor, to_dtensor

    return from_dtensor(to_dtensor(part, mesh, [Partial(), Replicate()]))


def test_partial_sums_are_no_values(mesh: Any) -> None:
    with pytest.raises(RemoteException, match="still to be summed"):
        inspect(partial(torch.ones(2), mesh), row=0, column=0)


def test_only_in_remote_functions() -> None:
    mesh = WorkerMesh(("a",), (1,), (0,))
    with pytest.raises(ValueError, match="2 placements for a mesh with dimensions"):
        to_dtensor(torch.ones(2), mesh, [None, None])
    with pytest.raises(RuntimeError, match="inside a remote function"):
        to_dtensor(torch.ones(2), mesh, [None])
