from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._shape.extent import Extent, Point, UnknownDimensionError
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._shape.view import MeshTrait


class Ranks(MeshTrait):
    """The smallest mesh: nothing but its shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @property
    def _ndslice(self) -> NDSlice:
        return self.shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self.shape.labels)

    def _new_with_shape(self, shape: Shape) -> Ranks:
        return Ranks(shape)

    @property
    def ranks(self) -> list[int]:
        return self.shape.ranks()


def dense(**sizes: int) -> Ranks:
    return Ranks(Shape(list(sizes), NDSlice.new_row_major(list(sizes.values()))))


MESH = dense(hosts=2, gpus=3)


class Integer:
    """An integer of somebody else's, as numpy has them."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def table(mesh: Ranks) -> dict[tuple[int, ...], int]:
    """Rank by coordinate: what a mesh means, with nothing clever in it."""
    return dict(zip(product(*map(range, mesh.sizes.values())), mesh.ranks, strict=True))


@st.composite
def meshes(draw: st.DrawFn) -> Ranks:
    sizes = draw(st.lists(st.integers(1, 6), max_size=3))
    return dense(**dict(zip("abc", sizes, strict=False)))


@st.composite
def selections(draw: st.DrawFn, mesh: Ranks) -> dict[str, Any]:
    """Keywords that `slice` accepts on a dense mesh, in any order."""
    selection: dict[str, Any] = {}
    for label in draw(st.permutations(mesh.extent.labels)):
        size = mesh.size(label)
        kind = draw(st.sampled_from(["whole", "int", "slice"]))
        start = draw(st.integers(0, size - 1))
        from_end = draw(st.booleans())
        if kind == "int":
            selection[label] = start - size * from_end
        elif kind == "slice":
            selection[label] = slice(start - size * from_end, draw(st.integers(start + 1, size + 2)))
    return selection


@st.composite
def factors(draw: st.DrawFn, size: int) -> list[int]:
    """Numbers whose product is `size`."""
    found: list[int] = []
    while size > 1 and len(found) < 3:
        found.append(draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])))
        size //= found[-1]
    return [*found, size]


def test_a_mesh_must_say_what_its_shape_is() -> None:
    with pytest.raises(TypeError, match="abstract"):
        MeshTrait()  # type: ignore[abstract]


# Sizes


def test_sizes() -> None:
    assert MESH.sizes == {"hosts": 2, "gpus": 3}
    assert list(dense(z=1, a=2).sizes) == ["z", "a"]
    assert MESH.extent == Extent(["hosts", "gpus"], [2, 3])
    assert len(MESH) == 6
    assert len(MESH.slice(hosts=0, gpus=0)) == 1


def test_size_of_everything_of_one_dimension_and_of_several() -> None:
    assert MESH.size() == 6
    assert MESH.size("gpus") == 3
    assert MESH.size(["hosts", "gpus"]) == 6
    assert MESH.size(("gpus",)) == 3
    assert MESH.size(()) == 1


@pytest.mark.parametrize("dim", ["x", ["hosts", "x"]])
def test_size_of_an_unknown_dimension(dim: str | list[str]) -> None:
    with pytest.raises(KeyError) as caught:
        MESH.size(dim)
    assert str(caught.value) == (
        "Ranks {hosts: 2, gpus: 3} does not have dimension 'x': the dimensions are 'hosts', 'gpus'"
    )
    assert isinstance(caught.value, UnknownDimensionError)


# slice


def test_an_integer_drops_its_dimension_and_a_slice_keeps_it() -> None:
    assert table(MESH.slice(hosts=1)) == {(0,): 3, (1,): 4, (2,): 5}
    assert MESH.slice(hosts=1).sizes == {"gpus": 3}
    assert MESH.slice(hosts=slice(1, 2)).sizes == {"hosts": 1, "gpus": 3}
    assert MESH.slice(gpus=slice(-2, None)).ranks == [1, 2, 4, 5]
    assert MESH.slice(gpus=slice(0, 99)).ranks == MESH.ranks
    assert MESH.slice(hosts=1, gpus=2).ranks == [5]


def test_slice_without_arguments_is_the_whole_mesh() -> None:
    assert MESH.slice().shape == MESH.shape


def test_the_order_of_keywords_does_not_matter() -> None:
    one = MESH.slice(gpus=slice(1, 3), hosts=slice(0, 1))
    assert one.shape == MESH.slice(hosts=slice(0, 1), gpus=slice(1, 3)).shape
    assert list(one.sizes) == ["hosts", "gpus"]


def test_whatever_is_like_an_integer_is_one() -> None:
    assert MESH.slice(hosts=True).ranks == [3, 4, 5]
    assert MESH.slice(gpus=Integer(2)).ranks == [2, 5]


def test_dimensions_may_be_called_anything() -> None:
    mesh = dense(self=2, selection=3)
    assert mesh.slice(self=1, selection=2).ranks == [5]
    assert mesh.rename(self="dimensions").sizes == {"dimensions": 2, "selection": 3}
    assert mesh.split(self=("names", "name"), name=2).size("name") == 2


def test_a_point_slices_out_its_own_rank() -> None:
    for rank in MESH.ranks:
        assert MESH.slice(**Point(rank, MESH.extent)).ranks == [rank]


@pytest.mark.parametrize(
    ("selection", "error", "message"),
    [
        (
            {"x": 0},
            TypeError,
            "Shape does not have dimension labeled 'x': the dimensions are 'hosts', 'gpus'",
        ),
        (
            {"gpu": 0},
            TypeError,
            "Shape does not have dimension labeled 'gpu': the dimensions are 'hosts', 'gpus'. Did you mean 'gpus'?",
        ),
        ({"x": slice(1)}, TypeError, "Shape does not have dimension labeled 'x'"),
        ({"gpus": 3}, IndexError, "index out of range: gpus=3"),
        ({"gpus": -4}, IndexError, "index out of range: gpus=-4, but dimension 'gpus' has size 3"),
        ({"gpus": "a"}, TypeError, "gpus='a': a dimension is cut with an integer or a slice, not str"),
        ({"gpus": [0, 1]}, TypeError, "not list"),
        ({"gpus": 1.0}, TypeError, "not float"),
        ({"gpus": None}, TypeError, "not NoneType"),
        ({"gpus": slice("a")}, TypeError, "slice indices"),
        ({"gpus": slice(2, 1)}, ValueError, "empty range 2:1:1 for dimension 'gpus' of size 3"),
        ({"gpus": slice(None, None, -1)}, ValueError, "negative step"),
        ({"gpus": slice(0, 3, 2)}, ValueError, "nonrectangular shape"),
    ],
)
def test_slices_that_are_refused(selection: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MESH.slice(**selection)


def test_negative_numbers_count_from_the_end() -> None:
    assert MESH.slice(gpus=-1).ranks == [2, 5]
    assert MESH.slice(hosts=-2, gpus=-3).ranks == [0]
    assert MESH.slice(gpus=slice(-2, None)).ranks == [1, 2, 4, 5]
    assert MESH.slice(hosts=-1, gpus=slice(0, -1)).ranks == [3, 4]
    assert MESH.slice(hosts=slice(-1, None)).slice(gpus=-1).ranks == [5]


def test_steps_that_the_layout_can_express() -> None:
    assert dense(hosts=4, gpus=6).slice(gpus=slice(0, 6, 2)).sizes == {"hosts": 4, "gpus": 3}
    assert dense(hosts=4, gpus=6).slice(hosts=slice(1, None, 2), gpus=0).ranks == [6, 18]
    # Without the other dimension there is nothing the step could collide with.
    assert MESH.slice(gpus=slice(0, 3, 2), hosts=1).ranks == [3, 5]


@given(meshes(), st.data())
def test_slicing_a_mesh_is_slicing_the_table_of_its_ranks(mesh: Ranks, data: st.DataObject) -> None:
    selection = data.draw(selections(mesh))
    kept = [range(size)[selection.get(label, slice(None))] for label, size in mesh.sizes.items()]
    expected = {}
    for at, rank in table(mesh).items():
        if all(c == k if isinstance(k, int) else c in k for c, k in zip(at, kept, strict=True)):
            where = tuple(k.index(c) for c, k in zip(at, kept, strict=True) if isinstance(k, range))
            expected[where] = rank
    assert table(mesh.slice(**selection)) == expected


@given(meshes(), st.data())
def test_a_slice_of_a_slice_is_one_slice(mesh: Ranks, data: st.DataObject) -> None:
    first = data.draw(selections(mesh))
    view = mesh.slice(**first)
    second = data.draw(selections(view))
    inner = view.slice(**second)
    together: dict[str, Any] = {label: chosen for label, chosen in first.items() if label not in view.sizes}
    for label, chosen in second.items():
        before = range(mesh.size(label))[first.get(label, slice(None))]
        after = before[chosen]
        together[label] = after if isinstance(after, int) else slice(after.start, after.stop)
    together |= {label: chosen for label, chosen in first.items() if label not in together}
    assert mesh.slice(**together).shape == inner.shape


# flatten


def test_a_dense_mesh_flattens_at_any_offset() -> None:
    assert (MESH.flatten("all").sizes, MESH.flatten("all").ranks) == ({"all": 6}, MESH.ranks)
    assert MESH.slice(hosts=slice(1, 2)).flatten("all").ranks == [3, 4, 5]
    assert MESH.slice(hosts=1, gpus=slice(1, 3)).flatten("all").ranks == [4, 5]
    assert MESH.flatten("hosts").sizes == {"hosts": 6}


def test_a_mesh_without_dimensions_flattens_to_one_of_size_one() -> None:
    point = MESH.slice(hosts=1, gpus=1).flatten("all")
    assert (point.sizes, point.ranks) == ({"all": 1}, [4])


@pytest.mark.parametrize(
    "selection",
    [{"gpus": 0}, {"gpus": slice(0, 1)}, {"gpus": slice(0, 2)}, {"hosts": 0, "gpus": slice(0, 3, 2)}],
)
def test_a_sparse_mesh_does_not_flatten(selection: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot flatten sparse mesh: the strides"):
        MESH.slice(**selection).flatten("all")


@given(meshes(), st.data())
def test_flatten_succeeds_exactly_on_row_major_strides(mesh: Ranks, data: st.DataObject) -> None:
    view = mesh.slice(**data.draw(selections(mesh)))
    sizes = list(view.sizes.values())
    if view._ndslice.strides == [prod(sizes[dim + 1 :]) for dim in range(len(sizes))]:
        assert view.flatten("all").ranks == view.ranks
        assert view.flatten("all").sizes == {"all": len(view)}
    else:
        with pytest.raises(ValueError, match="sparse"):
            view.flatten("all")


# split


def test_split_breaks_a_dimension_and_leaves_the_others() -> None:
    mesh = dense(hosts=2, gpus=6).split(gpus=("node", "local"), local=3)
    assert mesh.sizes == {"hosts": 2, "node": 2, "local": 3}
    assert mesh.ranks == list(range(12))
    assert mesh.slice(node=1).ranks == [3, 4, 5, 9, 10, 11]


@pytest.mark.parametrize(
    ("dimensions", "sizes"),
    [
        ({}, {"hosts": 2, "gpus": 3}),
        ({"gpus": ["a"]}, {"hosts": 2, "a": 3}),
        ({"gpus": ("a", "b"), "a": 3}, {"hosts": 2, "a": 3, "b": 1}),
        ({"gpus": ("a", "b"), "b": 3}, {"hosts": 2, "a": 1, "b": 3}),
        ({"gpus": ("a", "b"), "a": 3, "b": 1}, {"hosts": 2, "a": 3, "b": 1}),
        ({"gpus": ("gpus", "b"), "b": 3}, {"hosts": 2, "gpus": 1, "b": 3}),
        ({"gpus": ("a", "b"), "hosts": ("c", "d"), "b": 1, "c": 1}, {"c": 1, "d": 2, "a": 3, "b": 1}),
        ({"gpus": ("hosts",), "hosts": ("gpus",)}, {"gpus": 2, "hosts": 3}),
        ({"gpus": ("a", "b"), "a": Integer(3)}, {"hosts": 2, "a": 3, "b": 1}),
    ],
)
def test_split_infers_the_missing_size(dimensions: dict[str, Any], sizes: dict[str, int]) -> None:
    mesh = MESH.split(**dimensions)
    assert list(mesh.sizes.items()) == list(sizes.items())
    assert mesh.ranks == MESH.ranks


def test_a_dimension_of_size_one_may_be_split_into_nothing() -> None:
    assert MESH.slice(hosts=slice(1, 2)).split(hosts=()).sizes == {"gpus": 3}


@pytest.mark.parametrize(
    ("dimensions", "message"),
    [
        ({"gpus": "ab"}, "expected a sequence of dimensions, but got 'ab'"),
        ({"gpus": 3}, "expected a sequence of dimensions for the existing dimension 'gpus', but got 3"),
        ({"gpus": (1,)}, "expected names for the existing dimension 'gpus', but got 1"),
        ({"gpus": ("a", "b")}, r"Cannot infer size of \('a', 'b'\) because a and b have unknown size"),
        (
            {"gpus": ("a", "b"), "a": 2},
            r"Dimension 'gpus' of size 3 is not evenly divided by \('a', 'b'\) with sizes \(2, '\?'\)",
        ),
        ({"gpus": ("a", "b"), "a": 3, "b": 2}, r"not evenly divided by \('a', 'b'\) with sizes \(3, 2\)"),
        ({"gpus": ("a", "b"), "a": 1, "b": 1}, r"not evenly divided by \('a', 'b'\) with sizes \(1, 1\)"),
        ({"gpus": ()}, r"Dimension 'gpus' of size 3 is not evenly divided by \(\)"),
        ({"gpus": ("a", "b"), "a": 1, "c": 2}, r"unused size constraints: \('c',\)"),
        ({"c": 2}, r"unused size constraints: \('c',\)"),
        ({"gpus": ("a", "b"), "a": 0}, "a=0: the size of a new dimension must be at least 1"),
        ({"gpus": ("a", "b"), "a": -3}, "a=-3: the size of a new dimension must be at least 1"),
        ({"x": ("a", "b"), "a": 1}, "'x' is not an existing dim. Expected an integer size constraint"),
        ({"gpus": ("a",), "a": "3"}, "'a' is not an existing dim"),
        ({"gpus": ("a",), "a": 3.0}, "'a' is not an existing dim"),
        ({"gpus": ("hosts",)}, "Duplicate dimension name 'hosts'"),
        ({"gpus": ("a", "a"), "a": 1}, "not evenly divided"),
        ({"hosts": ("a",), "gpus": ("a",)}, "Duplicate dimension name 'a'"),
    ],
)
def test_splits_that_are_refused(dimensions: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MESH.split(**dimensions)


@given(meshes().filter(lambda mesh: mesh.sizes), st.data())
def test_split_then_flatten_is_flatten(mesh: Ranks, data: st.DataObject) -> None:
    label = data.draw(st.sampled_from(mesh.extent.labels))
    counts = data.draw(factors(mesh.size(label)))
    names = [f"part{number}" for number in range(len(counts))]
    constraints = dict(zip(names, counts, strict=True))
    constraints.pop(data.draw(st.sampled_from(names)))
    split = mesh.split(**{label: names}, **constraints)
    assert [split.size(name) for name in names] == counts
    assert split.flatten("all").shape == mesh.flatten("all").shape


@given(meshes().filter(lambda mesh: mesh.sizes), st.data())
def test_split_of_a_view_is_refused_or_keeps_every_rank_in_its_place(mesh: Ranks, data: st.DataObject) -> None:
    view = mesh.slice(**data.draw(selections(mesh)))
    if not view.sizes:
        return
    label = data.draw(st.sampled_from(view.extent.labels))
    counts = data.draw(factors(view.size(label)))
    names = [f"part{number}" for number in range(len(counts))]
    try:
        split = view.split(**{label: names}, **dict(zip(names, counts, strict=True)))
    except ValueError as refused:
        assert "stride" in str(refused)
        assert view.shape != mesh.shape
        assert len(names) > 1
        return
    assert split.ranks == view.ranks
    assert list(split.sizes) == [new for old in view.sizes for new in (names if old == label else [old])]


def test_a_split_of_a_view_whose_strides_do_not_nest() -> None:
    view = dense(hosts=2, gpus=5).slice(gpus=slice(0, 4))
    with pytest.raises(ValueError, match="nonrectangular shape: stride 5 is no multiple of stride 2"):
        view.split(gpus=("node", "local"), local=2)


# rename


def test_rename_changes_the_labels_only() -> None:
    assert MESH.rename(gpus="local").shape == Shape(["hosts", "local"], MESH._ndslice)
    assert MESH.rename(gpus="hosts", hosts="gpus").sizes == {"gpus": 2, "hosts": 3}
    assert MESH.rename().shape == MESH.shape


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"x": "a"}, "'x' is not an existing dim"),
        ({"gpus": "hosts"}, "Duplicate dimension name 'hosts'"),
        ({"gpus": 5}, "expected names for the existing dimension 'gpus'"),
    ],
)
def test_renames_that_are_refused(names: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MESH.rename(**names)


@given(meshes(), st.data())
def test_renaming_commutes_with_slicing(mesh: Ranks, data: st.DataObject) -> None:
    selection = data.draw(selections(mesh))
    names = {label: f"new_{label}" for label in mesh.sizes}
    renamed = {names[label]: chosen for label, chosen in selection.items()}
    view = mesh.slice(**selection)
    kept = {label: names[label] for label in view.sizes}
    assert mesh.rename(**names).slice(**renamed).shape == view.rename(**kept).shape


@pytest.mark.parametrize(
    "view", [lambda m: m.slice(), lambda m: m.split(), lambda m: m.rename(), lambda m: m.flatten("x")]
)
def test_every_view_is_made_by_the_mesh_itself(view: Callable[[Ranks], Ranks]) -> None:
    assert type(view(MESH)) is Ranks


def test_the_table_has_a_cell_a_rank_and_a_line_for_all_but_the_last_dimension() -> None:
    mesh = dense(host=2, gpu=2)
    assert mesh.to_table().splitlines() == [
        "+----------------+----------------+",
        "| host[0].gpu[0] | host[0].gpu[1] |",
        "+----------------+----------------+",
        "| host[1].gpu[0] | host[1].gpu[1] |",
        "+----------------+----------------+",
    ]
    assert mesh.slice(host=1).to_table().splitlines()[1] == "| gpu[0] | gpu[1] |"
    assert Ranks(Shape.unity()).to_table().splitlines()[1] == "| [] |"
