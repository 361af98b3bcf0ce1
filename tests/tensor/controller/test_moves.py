"""to_mesh and slice_mesh: whose tensor goes where, and that nothing waits for ever on the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import ProcMesh
from monarch.tensor import RemoteException, inspect
from monarch.tensor.controller.engines import spawn_tensor_engine
from monarch.tensor.controller.moves import routes
from monarch.tensor.controller.stream import Stream
from tests.support.devices import every_device, skip_with_fewer_gpus
from tests.tensor.failing import fail_on

pytestmark = every_device


@pytest.fixture
def mesh(square: ProcMesh, device: str) -> Iterator[Any]:
    if device == "cuda":
        skip_with_fewer_gpus(4)
    with square.activate() as active:
        yield active


def numbered(mesh: Any) -> Any:
    """A tensor whose first element is the rank."""
    return torch.arange(3.0) + mesh.process_idx()


def first(tensor: Any, **where: int) -> float:
    found: float = inspect(tensor, **where).tolist()[0]
    return found


def test_part_of_a_mesh_to_itself_and_to_another_part(mesh: Any) -> None:
    tensor = numbered(mesh)
    top, bottom = mesh.slice(host=0), mesh.slice(host=1)
    same = tensor.slice_mesh(host=0).to_mesh(top)
    other = monarch.slice_mesh(tensor, host=0).to_mesh(bottom)
    assert same.mesh is top and other.mesh is bottom
    assert [first(same, gpu=gpu) for gpu in range(2)] == [0, 1]
    assert [first(other, gpu=gpu) for gpu in range(2)] == [0, 1]
    back = other.to_mesh(top)
    assert [first(back + same, gpu=gpu) for gpu in range(2)] == [0, 2]


def test_dimensions_are_matched_by_name(mesh: Any) -> None:
    tensor = numbered(mesh)
    turned = mesh.rename(host="gpu", gpu="host")
    moved = tensor.to_mesh(turned)
    for host, gpu in itertools.product(range(2), range(2)):
        assert first(moved, host=host, gpu=gpu) == host * 2 + gpu
    assert [first(tensor, host=0, gpu=1), first(moved, gpu=0, host=1)] == [1, 2]


def test_a_copy_along_dimensions_that_the_source_lacks(mesh: Any) -> None:
    tensor = numbered(mesh)
    with pytest.warns(UserWarning, match="broadcasting along gpu is inefficient"):
        rows = tensor.slice_mesh(gpu=1).to_mesh(mesh)
    assert [first(rows, host=h, gpu=g) for h in range(2) for g in range(2)] == [1, 1, 3, 3]
    with pytest.warns(UserWarning, match="broadcasting along host, gpu is inefficient"):
        everywhere = tensor.slice_mesh(host=1, gpu=0).to_mesh(mesh)
    assert [first(everywhere, host=h, gpu=g) for h in range(2) for g in range(2)] == [2, 2, 2, 2]


def test_what_does_not_fit(mesh: Any) -> None:
    tensor = numbered(mesh)
    with pytest.raises(ValueError, match=r"destination mesh does not have dimensions \{'gpu'\}"):
        tensor.to_mesh(mesh.slice(gpu=0))
    with pytest.raises(ValueError, match="gpu=1 for 2"):
        tensor.to_mesh(mesh.slice(gpu=slice(0, 1)))
    with pytest.raises(TypeError, match="takes a DeviceMesh or a ProcMesh"):
        tensor.to_mesh("gpu")
    with pytest.raises(TypeError, match="REQUIRES_GRAD"):
        torch.ones(2, requires_grad=True).to_mesh(mesh)
    with pytest.raises(TypeError, match="row"):
        tensor.slice_mesh(row=1)
    dropped = torch.ones(2)
    dropped.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        dropped.to_mesh(mesh)
    with monarch.tensor.no_mesh.activate():
        local = torch.ones(2)
        with pytest.raises(TypeError, match="LOCAL_TENSOR"):
            monarch.to_mesh(local, mesh)


def test_meshes_of_two_engines(square: ProcMesh, mesh: Any) -> None:
    other = spawn_tensor_engine(square)
    try:
        with pytest.raises(ValueError, match="different engines"):
            numbered(mesh).to_mesh(other)
    finally:
        other.exit()


def test_a_copy_is_a_snapshot(mesh: Any, square: ProcMesh) -> None:
    tensor = numbered(mesh)
    copy, sent = tensor.to_mesh(square), tensor.slice_mesh(host=0).to_mesh(mesh.slice(host=1))
    tensor.add_(100)
    assert first(copy, host=1, gpu=1) == 3
    assert first(sent, gpu=1) == 1
    copy.add_(50)
    assert first(tensor, host=1, gpu=1) == 103


def test_a_tree_and_every_kind_of_tensor(mesh: Any) -> None:
    bottom = mesh.slice(host=1)
    index = mesh.process_idx()
    tree = {
        "scalar": index * 1,
        "half": [(torch.ones(3) * index).bfloat16(), 7],
        "bool": index > 0,
        "strided": (torch.arange(6.0).reshape(2, 3) + index).t(),
        "empty": torch.empty(0, 2),
        "complex": torch.ones(2, dtype=torch.complex64) * index,
    }
    moved = monarch.to_mesh(monarch.slice_mesh(tree, host=0), bottom)
    assert moved["half"][1] == 7
    got = inspect(moved, gpu=1)
    with monarch.tensor.no_mesh.activate():
        assert got["scalar"].item() == 1 and got["bool"].item() is True
        assert got["half"][0].tolist() == [1, 1, 1] and got["half"][0].dtype is torch.bfloat16
        assert got["strided"].tolist() == [[1, 4], [2, 5], [3, 6]]
        assert got["empty"].shape == (0, 2)
        assert got["complex"].tolist() == [1, 1]


def test_onto_another_stream(mesh: Any) -> None:
    other = Stream("other")
    tensor = numbered(mesh)
    here, there = tensor.to_mesh(mesh, stream=other), tensor.slice_mesh(host=0).to_mesh(mesh.slice(host=1), other)
    turned = tensor.to_mesh(mesh.rename(host="gpu", gpu="host"), other)
    tensor.zero_()
    with other.activate():
        assert here.stream is other and there.stream is other
        assert first(here + 1, host=1, gpu=0) == 3
        assert first(there + 1, gpu=1) == 2
        assert first(turned, gpu=0, host=1) == 2


def test_rings_of_moves_do_not_wait_for_each_other(mesh: Any) -> None:
    """Every rank sends before it receives, in circles of two, three and four, over and over, on two streams."""
    single = [mesh.slice(host=host, gpu=gpu) for host in range(2) for gpu in range(2)]
    streams = [monarch.tensor.controller.stream.MAIN, Stream("second")]
    tensors = {(place, stream): numbered(mesh).slice_mesh(host=place // 2, gpu=place % 2).to_mesh(single[place], stream)
               for place in range(4) for stream in streams}  # fmt: skip
    for ring in ((0, 1), (0, 1, 2), (3, 2, 1, 0), (0, 2, 1, 3)) * 3:
        for stream in streams:
            moved = {
                place: tensors[before, stream].to_mesh(single[place])
                for before, place in zip(ring, (*ring[1:], ring[0]), strict=True)
            }
            tensors |= {(place, stream): tensor for place, tensor in moved.items()}
    order = [0, 1, 2, 3]
    for ring in ((0, 1), (0, 1, 2), (3, 2, 1, 0), (0, 2, 1, 3)) * 3:
        after = list(order)
        for before, place in zip(ring, (*ring[1:], ring[0]), strict=True):
            after[place] = order[before]
        order = after
    for stream in streams:
        with stream.activate():
            assert [first(tensors[place, stream]) for place in range(4)] == order


def test_a_failed_tensor_arrives_as_a_failure(mesh: Any) -> None:
    top, bottom = mesh.slice(host=0), mesh.slice(host=1)
    broken = fail_on(numbered(mesh), 1)
    moved = broken.slice_mesh(host=0).to_mesh(bottom)
    for _ in range(2):
        with pytest.raises(RemoteException, match="not on this rank"):
            inspect(moved + 1, gpu=1)
    again = moved.to_mesh(top)
    with pytest.raises(RemoteException, match="not on this rank"):
        inspect(again.reduce("gpu"), gpu=0)
    assert first(numbered(mesh).slice_mesh(host=0).to_mesh(bottom), gpu=1) == 1


def test_routes(mesh: Any) -> None:
    top = mesh.slice(host=0)
    assert routes(mesh, mesh) == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert routes(top, mesh.slice(host=1)) == ((0, 2), (1, 3))
    with pytest.warns(UserWarning, match="broadcasting along host"):
        assert routes(top, mesh) == ((0, 0), (1, 1), (0, 2), (1, 3))
    assert routes(mesh.slice(host=slice(1, 2)), mesh.slice(host=slice(0, 1))) == ((2, 0), (3, 1))


def test_a_pipeline_of_two_stages(mesh: Any) -> None:
    """Forward and backward by hand across two halves, as the whole computed here."""
    front, back = mesh.slice(host=0), mesh.slice(host=1)
    with front.activate():
        w1 = torch.full((3, 4), 0.5, requires_grad=True)
        x = torch.ones(2, 3)
        h = x @ w1
        with torch.no_grad():
            sent = h.detach().to_mesh(back)
    with back.activate():
        w2 = torch.full((4, 1), 0.25, requires_grad=True)
        sent.requires_grad_()
        loss = (sent @ w2).square().sum()
        loss.backward()
        with torch.no_grad():
            grad = sent.grad.to_mesh(front)
    with front.activate():
        h.backward(grad)
    with monarch.tensor.no_mesh.activate():
        v1 = torch.full((3, 4), 0.5, requires_grad=True)
        v2 = torch.full((4, 1), 0.25, requires_grad=True)
        (torch.ones(2, 3) @ v1 @ v2).square().sum().backward()
        assert torch.equal(inspect(w1.grad, gpu=1), v1.grad)
        assert torch.equal(inspect(w2.grad, gpu=0), v2.grad)
