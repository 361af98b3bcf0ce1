"""DeviceMesh: shapes, names, ranks, here and in the workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monarch.actor import NDSlice, Shape
from monarch.tensor import DeviceMesh, inspect
from monarch.tensor.remote.remote_function import remote
from monarch.tensor.worker.worker_mesh import WorkerMesh
from tests.tensor.loopback import Loopback


@pytest.fixture(scope="module")
def large() -> DeviceMesh:
    """60 hosts of 24, of which nothing runs."""
    engine = Loopback(gpus=1)
    return engine.mesh(Shape(["host", "gpu"], NDSlice.new_row_major([60, 24])))


def sizes(mesh: Any) -> tuple[Any, ...]:
    return tuple(mesh.names), tuple(mesh.processes.sizes), tuple(mesh.processes.strides)


def test_slices(large: DeviceMesh) -> None:
    row = large.slice(host=3)
    assert row.names == ("gpu",) and list(row.processes)[:2] == [72, 73]
    stepped = large.slice(host=slice(1, 60, 20), gpu=slice(0, 24, 12))
    assert stepped.sizes == {"host": 3, "gpu": 2}
    assert list(stepped.processes) == [24, 36, 504, 516, 984, 996]
    assert large.slice(host=3) is row
    with pytest.raises(TypeError):
        large.slice(rack=1)
    with pytest.raises(IndexError, match="out of range"):
        large.slice(host=60)
    with pytest.warns(DeprecationWarning):
        assert large(host=3) is row


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"pp": 4}, (15, 4, 24)),
        ({"dp": 4}, (4, 15, 24)),
        ({"dp": 60}, (60, 1, 24)),
        ({"pp": 60}, (1, 60, 24)),
    ],
)
def test_split(large: DeviceMesh, given: dict[str, int], wanted: tuple[int, ...]) -> None:
    found = large.split(host=("dp", "pp"), gpu=("tp",), **given)
    assert tuple(found.names) == ("dp", "pp", "tp")
    assert tuple(found.processes.sizes) == wanted
    assert tuple(found.processes.strides) == (24 * wanted[1], 24, 1)


def test_split_that_cannot_be(large: DeviceMesh) -> None:
    for call, text in (
        (lambda: large.split(host=("dp", "pp")), "Cannot infer size"),
        (lambda: large.split(host=("dp", "pp"), pp=7), "evenly divided by"),
        (lambda: large.split(host=("dp", "pp"), pp=4, x=2), "unused size constraints"),
        (lambda: large.split(host=("dp", "gpu"), dp=4), "Duplicate dimension name"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_rename_flatten_and_size(large: DeviceMesh) -> None:
    assert sizes(large.rename(host="h")) == (("h", "gpu"), (60, 24), (24, 1))
    assert sizes(large.flatten("all")) == (("all",), (1440,), (1,))
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        large.slice(gpu=slice(0, 24, 2)).flatten("all")
    assert large.size(["host", "gpu"]) == large.size() == len(large) == 1440
    assert large.size("gpu") == 24
    with pytest.raises(KeyError):
        large.size("rack")


def test_ranks_of_each_process(mesh: Any) -> None:
    assert set(mesh.ranks) == {"gpus"}
    rank = mesh.rank("gpus")
    assert rank.dtype is torch.int64 and rank.shape == ()
    assert [inspect(rank, gpus=gpu).item() for gpu in range(2)] == [0, 1]
    assert [inspect(mesh.process_idx(), gpus=gpu).item() for gpu in range(2)] == [0, 1]
    with pytest.raises(KeyError, match="'row'"):
        mesh.rank("row")
    right = mesh.slice(gpus=slice(1, 2))
    assert inspect(right.rank("gpus"), gpus=0).item() == 0
    assert inspect(right.process_idx(), gpus=0).item() == 1
    split = mesh.split(gpus=("a", "b"), b=1)
    assert inspect(split.rank(("a", "b")), a=1, b=0).item() == 1
    assert inspect(split.rank(("b", "a")), a=1, b=0).item() == 1
    assert mesh.to_tensor().tolist() == [0, 1]


def test_ranks_combined_in_the_order_asked_for() -> None:
    square = WorkerMesh(("a", "b"), (3, 4), tuple(range(12)))
    assert square.along(6, ("a", "b")).index(6) == 6
    assert square.along(6, ("b", "a")).index(6) == 7
    a, b = square.dim(6, "a"), square.dim(6, "b")
    assert (a.members, a.rank, a.size) == ([2, 6, 10], 1, 3)
    assert (b.members, b.rank, b.size) == ([4, 5, 6, 7], 2, 4)


def test_what_a_worker_sees_of_a_mesh(mesh: Any) -> None:
    @remote(propagate=lambda mesh: torch.empty(4, dtype=torch.int64))
    def look(mesh: Any) -> Any:
        dim = mesh.dims["gpus"]
        return torch.tensor([dim.rank, dim.size, *dim.members])

    assert inspect(look(mesh), gpus=1).tolist() == [1, 2, 0, 1]


def test_dimensions_of_size_one(mesh: Any) -> None:
    cube = mesh.split(gpus=("a", "b", "c"), a=1, c=1)
    with cube.activate():
        tensor = torch.ones(2) + cube.rank("b")
        assert inspect(tensor.reduce(("a", "b", "c")), a=0, b=1, c=0).tolist() == [3, 3]
        assert inspect(tensor.reduce("a"), a=0, b=1, c=0).tolist() == [2, 2]
