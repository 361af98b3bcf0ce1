"""ValueMesh: results in the shape of the mesh they came from. Needs no process."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from monarch.actor import Extent, Point, ValueMesh

pytestmark = pytest.mark.procs


def mesh(labels: list[str], sizes: list[int], values: list[Any] | None = None) -> ValueMesh[Any]:
    extent = Extent(labels, sizes)
    shape = extent.region.as_shape()
    return ValueMesh(shape, [f"v{n}" for n in range(extent.nelements)] if values is None else values)


@pytest.fixture
def grid() -> ValueMesh[Any]:
    """2 x 3: v0 ... v5"""
    return mesh(["hosts", "gpus"], [2, 3])


def test_iteration_gives_points_with_values(grid: ValueMesh[Any]) -> None:
    pairs = list(grid)
    assert [value for _, value in pairs] == ["v0", "v1", "v2", "v3", "v4", "v5"]
    assert [point.rank for point, _ in pairs] == [0, 1, 2, 3, 4, 5]
    assert dict(pairs[4][0]) == {"hosts": 1, "gpus": 1}
    assert all(isinstance(point, Point) for point, _ in pairs)
    assert list(grid.items()) == pairs


def test_values_is_a_list_in_rank_order(grid: ValueMesh[Any]) -> None:
    assert grid.values() == ["v0", "v1", "v2", "v3", "v4", "v5"]


def test_len_and_shape(grid: ValueMesh[Any]) -> None:
    assert len(grid) == 6 and grid.extent == Extent(["hosts", "gpus"], [2, 3])
    assert grid.size("gpus") == 3 and dict(grid.sizes) == {"hosts": 2, "gpus": 3}


def test_item_takes_every_dimension(grid: ValueMesh[Any]) -> None:
    assert grid.item(hosts=1, gpus=2) == "v5"
    assert grid.item(gpus=0, hosts=1) == "v3"


def test_item_without_a_dimension_is_a_key_error_with_its_name(grid: ValueMesh[Any]) -> None:
    with pytest.raises(KeyError) as caught:
        grid.item(hosts=0)
    assert caught.value.args[0] == "gpus"


def test_item_with_an_unknown_dimension_is_a_key_error(grid: ValueMesh[Any]) -> None:
    with pytest.raises(KeyError, match=r"item has extra dimensions.*racks"):
        grid.item(hosts=0, gpus=0, racks=0)


@pytest.mark.parametrize("gpus", [3, -1, 100])
def test_item_out_of_range_is_an_index_error(grid: ValueMesh[Any], gpus: int) -> None:
    with pytest.raises(IndexError):
        grid.item(hosts=0, gpus=gpus)


def test_item_of_a_single_value_takes_nothing() -> None:
    assert mesh([], [], ["only"]).item() == "only"


def test_get_is_by_position(grid: ValueMesh[Any]) -> None:
    assert [grid.get(n) for n in range(6)] == grid.values()
    with pytest.raises(ValueError, match=r"index 6 out of range \(len=6\)"):
        grid.get(6)


def test_it_is_not_subscriptable(grid: ValueMesh[Any]) -> None:
    with pytest.raises(TypeError):
        grid[0]  # type: ignore[index]


def test_values_follow_a_slice(grid: ValueMesh[Any]) -> None:
    column = grid.slice(gpus=1)
    assert column.values() == ["v1", "v4"] and column.extent == Extent(["hosts"], [2])
    assert [(point.rank, dict(point)) for point, _ in column] == [(0, {"hosts": 0}), (1, {"hosts": 1})]
    assert grid.slice(hosts=1, gpus=slice(1, 3)).values() == ["v4", "v5"]
    assert grid.slice(hosts=1, gpus=2).item() == "v5"
    assert grid.slice(hosts=1).get(0) == "v3"


def test_values_follow_flatten_split_and_rename(grid: ValueMesh[Any]) -> None:
    flat = grid.flatten("rank")
    assert flat.item(rank=4) == "v4"
    assert flat.split(rank=("a", "b"), a=3).item(a=2, b=1) == "v5"
    assert grid.rename(gpus="devices").item(hosts=0, devices=2) == "v2"


def test_a_sparse_slice_cannot_be_flattened(grid: ValueMesh[Any]) -> None:
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        grid.slice(gpus=slice(0, 2)).flatten("rank")


def test_a_dense_slice_can_be_flattened(grid: ValueMesh[Any]) -> None:
    assert grid.slice(hosts=1).flatten("rank").values() == ["v3", "v4", "v5"]


def test_every_operation_gives_a_new_object(grid: ValueMesh[Any]) -> None:
    assert grid.slice() is not grid


@pytest.mark.parametrize("count", [0, 5, 7])
def test_there_is_one_value_for_each_rank(grid: ValueMesh[Any], count: int) -> None:
    with pytest.raises(ValueError):
        mesh(["hosts", "gpus"], [2, 3], [None] * count)


def test_values_must_be_a_list() -> None:
    with pytest.raises(TypeError):
        mesh(["gpus"], [2], (1, 2))  # type: ignore[arg-type]


def test_from_indexed_takes_the_last_value_of_a_rank() -> None:
    shape = Extent(["gpus"], [3]).region.as_shape()
    built = ValueMesh.from_indexed(shape, [(2, "c"), (0, "first"), (1, "b"), (0, "a")])
    assert built.values() == ["a", "b", "c"]


def test_from_indexed_needs_every_rank() -> None:
    shape = Extent(["gpus"], [3]).region.as_shape()
    with pytest.raises(ValueError, match="expected 3 ranks, but contains 2"):
        ValueMesh.from_indexed(shape, [(0, "a"), (2, "c")])


def test_the_repr_shows_shape_and_items() -> None:
    text = repr(mesh(["hosts", "gpus"], [1, 2]))
    assert text.startswith("ValueMesh({hosts: 1, gpus: 2}):\n")
    assert "v0" in text and "'gpus': 1/2" in text


def test_equality_is_identity(grid: ValueMesh[Any]) -> None:
    assert grid == grid and grid != mesh(["hosts", "gpus"], [2, 3])


def test_it_is_generic() -> None:
    assert ValueMesh[int] is not None


def test_it_can_be_pickled_sliced_or_not(grid: ValueMesh[Any]) -> None:
    for original in (grid, grid.slice(gpus=1), copy.copy(grid)):
        again = pickle.loads(pickle.dumps(original))
        assert again.extent == original.extent and again.values() == original.values()
