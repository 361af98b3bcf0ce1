from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._shape.extent import Extent, Point
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._shape.value_mesh import ValueMesh, dense

EXTENT = Extent(["hosts", "gpus"], [2, 3])
SHAPE = Shape(["hosts", "gpus"], NDSlice.new_row_major([2, 3]))


@pytest.fixture
def mesh() -> ValueMesh[str]:
    return dense(EXTENT, list("abcdef"))


def test_iterating_gives_points_and_values_in_rank_order(mesh: ValueMesh[str]) -> None:
    assert list(mesh) == list(mesh.items()) == [(Point(rank, EXTENT), "abcdef"[rank]) for rank in range(6)]
    assert mesh.values() == list("abcdef") and len(mesh) == 6
    assert mesh.extent == EXTENT
    assert mesh.size("gpus") == 3 and dict(mesh.sizes) == {"hosts": 2, "gpus": 3}


def test_values_by_rank_and_by_coordinates(mesh: ValueMesh[str]) -> None:
    for rank in range(6):
        assert mesh.get(rank) == mesh.item(hosts=rank // 3, gpus=rank % 3) == "abcdef"[rank]
        assert mesh.get(rank - 6) == mesh.item(hosts=rank // 3 - 2, gpus=rank % 3 - 3) == "abcdef"[rank]


@pytest.mark.parametrize(
    ("coordinates", "error", "text"),
    [
        ({"hosts": 0}, KeyError, "gpus"),
        ({}, KeyError, "hosts"),
        ({"hosts": 0, "gpus": 0, "x": 1}, KeyError, "extra dimensions: .*x"),
        ({"hosts": 2, "gpus": 0}, IndexError, r"index 2 of dimension 'hosts' is out of range \(size 2\)"),
        ({"hosts": 0, "gpus": -4}, IndexError, "index -4 of dimension 'gpus'"),
    ],
)
def test_item_needs_every_dimension_and_no_other(
    mesh: ValueMesh[str], coordinates: dict[str, int], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        mesh.item(**coordinates)


@pytest.mark.parametrize("rank", [-7, 6])
def test_get_out_of_range(mesh: ValueMesh[str], rank: int) -> None:
    with pytest.raises(ValueError, match=rf"index {rank} out of range \(len=6\)"):
        mesh.get(rank)


def test_item_without_a_dimension_says_what_it_takes(mesh: ValueMesh[str]) -> None:
    with pytest.raises(KeyError, match="gpus") as caught:
        mesh.item(hosts=1)
    assert caught.value.__notes__ == [
        "item takes an index of every dimension: item(hosts=0, gpus=0); get(rank) takes a rank"
    ]
    with pytest.raises(KeyError) as caught:
        mesh.item(hosts=1, gpu=0)
    assert caught.value.__notes__[1:] == ["there is no dimension 'gpu'"]


def test_slices_are_numbered_from_zero(mesh: ValueMesh[str]) -> None:
    column = mesh.slice(gpus=1)
    assert column.values() == ["b", "e"]
    assert [point.rank for point, _ in column] == [0, 1]
    assert list(column.extent.items()) == [("hosts", 2)]
    assert mesh.slice(hosts=1).slice(gpus=slice(1, 3)).values() == ["e", "f"]
    assert mesh.slice(hosts=0, gpus=2).item() == "c"
    assert mesh.slice(hosts=1).get(0) == "d"
    assert mesh.slice() is not mesh


def test_values_follow_flatten_split_and_rename(mesh: ValueMesh[str]) -> None:
    flat = mesh.flatten("rank")
    assert flat.item(rank=4) == "e"
    assert flat.split(rank=("a", "b"), a=3).item(a=2, b=1) == "f"
    assert mesh.rename(gpus="devices").item(hosts=0, devices=2) == "c"


def test_a_slice_can_be_flattened_unless_it_is_sparse(mesh: ValueMesh[str]) -> None:
    assert mesh.slice(hosts=1).flatten("rank").values() == ["d", "e", "f"]
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        mesh.slice(gpus=slice(0, 2)).flatten("rank")


@given(st.permutations(range(6)))
def test_from_indexed_takes_any_order(order: list[int]) -> None:
    assert ValueMesh.from_indexed(SHAPE, [(rank, rank * 10) for rank in order]).values() == [
        0,
        10,
        20,
        30,
        40,
        50,
    ]


@pytest.mark.parametrize("ranks", [range(5), range(7), [], [0, 1, 2, 3, 4, 6]])
def test_from_indexed_needs_every_rank(ranks: Any) -> None:
    with pytest.raises(ValueError, match="expected 6 ranks"):
        ValueMesh.from_indexed(SHAPE, [(rank, rank) for rank in ranks])


def test_from_indexed_the_last_one_of_a_rank_wins() -> None:
    pairs = [(rank, "old") for rank in range(6)] + [(2, "new")]
    assert ValueMesh.from_indexed(SHAPE, pairs).get(2) == "new"


def test_values_must_be_a_list_of_the_right_length() -> None:
    with pytest.raises(TypeError, match="expects its values as a list, got tuple"):
        ValueMesh(SHAPE, (1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected 6 values for shape .*, got 2"):
        ValueMesh(SHAPE, [1, 2])


def test_the_list_is_the_callers(mesh: ValueMesh[str]) -> None:
    mesh.values().clear()
    assert len(mesh.values()) == 6


def test_pickling(mesh: ValueMesh[str]) -> None:
    for one in (mesh, mesh.slice(gpus=1), copy.copy(mesh)):
        again = pickle.loads(pickle.dumps(one))
        assert list(again) == list(one) and again.extent == one.extent


def test_repr_shows_extent_and_values(mesh: ValueMesh[str]) -> None:
    assert repr(mesh).startswith(f"ValueMesh({EXTENT}):\n")
    assert all(repr(value) in repr(mesh) for value in "abcdef") and "'gpus': 1/3" in repr(mesh)


def test_it_is_generic_and_equal_to_itself_only(mesh: ValueMesh[str]) -> None:
    assert ValueMesh[int] is not None
    assert mesh != dense(EXTENT, list("abcdef"))
    with pytest.raises(TypeError):
        mesh[0]  # type: ignore[index]


def test_one_that_is_taken_for_a_value_says_where_the_values_are(mesh: ValueMesh[str]) -> None:
    with pytest.raises(
        AttributeError, match=r"no attribute 'upper': .*all 6, \.item\(hosts=0, gpus=0\) the one at a point"
    ):
        mesh.upper()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"for \+: 'ValueMesh' and 'int': .*\.values\(\) is the list of all 6"):
        mesh + 1  # type: ignore[operator]
    with pytest.raises(
        TypeError, match=r"for \*: 'int' and 'ValueMesh': .*that of the only one is \.get\(0\), or what call_one"
    ):
        2 * dense(Extent([], []), ["a"])  # type: ignore[operator]
    assert not hasattr(mesh, "__array__") and not hasattr(mesh, "shape_of_a_tensor")
    assert mesh != 1 and mesh == mesh
