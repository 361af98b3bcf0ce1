"""reduce and reduce_: every reduction over every choice of dimensions equals the same computed here from all tensors."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import monarch
from monarch.actor import ProcMesh
from monarch.tensor import RemoteException, inspect
from monarch.tensor.controller.stream import Stream
from monarch.tensor.remote.remote_function import remote
from monarch.tensor.worker import reductions
from tests.tensor.failing import fail_on

RANKS = [(host, gpu) for host in range(2) for gpu in range(2)]


@pytest.fixture
def mesh(square: ProcMesh) -> Iterator[Any]:
    with square.activate() as active:
        yield active


def parts(tensor: Any) -> dict[tuple[int, int], torch.Tensor]:
    """The local tensors of all ranks."""
    return {(host, gpu): inspect(tensor, host=host, gpu=gpu) for host, gpu in RANKS}


def along(rank: tuple[int, int], dims: tuple[str, ...]) -> list[tuple[int, int]]:
    """The ranks that differ from `rank` in `dims` alone."""
    return [
        other for other in RANKS if ("host" in dims or other[0] == rank[0]) and ("gpu" in dims or other[1] == rank[1])
    ]


def combined(tensors: list[torch.Tensor], reduction: str) -> torch.Tensor:
    """Returns what a reduction means, on local tensors. Halves are summed in float32, as documented."""
    kind = tensors[0].dtype
    whole = torch.stack(tensors)
    if kind is torch.bool:
        return {
            "sum": lambda: whole.any(0),
            "max": lambda: whole.any(0),
            "bor": lambda: whole.any(0),
            "product": lambda: whole.all(0),
            "min": lambda: whole.all(0),
            "band": lambda: whole.all(0),
            "bxor": lambda: whole.sum(0) % 2 == 1,
        }[reduction]()
    wide = whole.float() if kind in (torch.float16, torch.bfloat16) else whole
    if reduction == "sum":
        return wide.sum(0).to(kind)
    if reduction == "avg":
        total = wide.sum(0)
        if kind.is_floating_point or kind.is_complex:
            return (total / len(tensors)).to(kind)
        return total.div(len(tensors), rounding_mode="trunc").to(kind)
    if reduction == "product":
        return wide.prod(0).to(kind)
    if reduction in ("min", "max"):
        return getattr(torch, f"a{reduction}")(whole, 0)
    function = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[reduction]
    return functools.reduce(function, tensors)


def values(mesh: Any, dtype: torch.dtype, shape: tuple[int, ...] = (2, 3)) -> Any:
    """Small integers that differ between ranks and places, some negative where the dtype has such."""
    rank = mesh.rank(("host", "gpu"))
    count = 1
    for size in shape:
        count *= size
    numbers = (torch.arange(count).reshape(shape) * 7 + rank * 5) % 11
    if dtype.is_signed:
        numbers = numbers - 4
    return (numbers % 2 == 0) if dtype is torch.bool else numbers.to(dtype)


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_reduction_equals_a_local_one(mesh: Any, dtype: torch.dtype) -> None:
    tensor = values(mesh, dtype)
    before = parts(tensor)
    reductions_ = [name for name in reductions.REDUCTIONS if name != "stack" and not reductions.obstacle(dtype, name)]
    results = {(name, dims): tensor.reduce(dims, name) for name in reductions_ for dims in ("gpu", ("gpu", "host"))}
    scattered = {name: tensor.reduce("host", name, scatter=True) for name in reductions_}
    with monarch.tensor.no_mesh.activate():
        for (name, dims), result in results.items():
            for rank in RANKS:
                names = (dims,) if isinstance(dims, str) else dims
                wanted = combined([before[other] for other in along(rank, names)], name)
                got = inspect(result, host=rank[0], gpu=rank[1])
                assert got.dtype == dtype
                torch.testing.assert_close(got, wanted, msg=lambda text, n=name, d=dims: f"{n} over {d}: {text}")
        for name, result in scattered.items():
            for rank in RANKS:
                wanted = combined([before[other] for other in along(rank, ("host",))], name)[rank[0]]
                torch.testing.assert_close(inspect(result, host=rank[0], gpu=rank[1]), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.int16, torch.complex64], ids=str)
def test_stack_and_all_to_all_move_what_is_there(mesh: Any, dtype: torch.dtype) -> None:
    tensor = values(mesh, dtype)
    before = parts(tensor)
    stacked, exchanged, scalar = (
        tensor.reduce("gpu", "stack"),
        tensor.reduce("gpu", "stack", scatter=True),
        mesh.rank("gpu"),
    )
    assert stacked.shape == (2, 2, 3)
    assert exchanged.shape == (2, 3)
    for host, gpu in RANKS:
        with monarch.tensor.no_mesh.activate():
            every = torch.stack([before[other] for other in along((host, gpu), ("gpu",))])
            assert torch.equal(inspect(stacked, host=host, gpu=gpu), every)
            assert torch.equal(inspect(exchanged, host=host, gpu=gpu), every[:, gpu])
    assert inspect(scalar.reduce("gpu", "stack")).tolist() == [0, 1]


def test_all_dimensions_by_default_and_in_any_order(mesh: Any) -> None:
    tensor = 24 * mesh.rank("host") + 12 * mesh.rank("gpu") + torch.arange(12)
    for dims in ((), ("gpu", "host"), ("host", "gpu"), ["host", "gpu"]):
        assert inspect(tensor.reduce(dims), host=1, gpu=0).tolist() == [72 + 4 * i for i in range(12)]
    assert inspect(tensor.reshape(2, 6).reduce("gpu", scatter=True), host=0, gpu=1).tolist() == [
        24 + 2 * i for i in range(6)
    ]


def test_only_the_ranks_of_a_smaller_mesh_take_part(mesh: Any) -> None:
    right = mesh.slice(gpu=1)
    with right.activate():
        tensor = torch.ones(3) + right.rank("host")
        assert inspect(tensor.reduce("host"), host=0).tolist() == [3, 3, 3]
        assert inspect(tensor.reduce(), host=1).tolist() == [3, 3, 3]
    single = mesh.slice(gpu=slice(0, 1), host=slice(0, 1))
    with single.activate():
        tensor = torch.ones(1, 3)
        assert inspect(tensor.reduce(("host", "gpu"), "avg")).tolist() == [[1, 1, 1]]
        assert inspect(tensor.reduce("gpu", "stack")).shape == (1, 1, 3)
        assert inspect(tensor.reduce("gpu", "stack", scatter=True)).shape == (1, 3)
        assert inspect(tensor.reduce("gpu", scatter=True)).shape == (3,)


def test_results_are_new_memory(mesh: Any) -> None:
    single = mesh.slice(gpu=slice(0, 1), host=slice(0, 1))
    with single.activate():
        tensor = torch.ones(3)
        total = tensor.reduce("gpu")
        tensor.add_(1)
        assert inspect(total).tolist() == [1, 1, 1]


def test_empty_and_strided_tensors(mesh: Any) -> None:
    assert inspect(torch.empty(0, 3).reduce("gpu"), host=0, gpu=0).shape == (0, 3)
    assert inspect(torch.empty(0).reduce("gpu", "stack"), host=0, gpu=0).shape == (2, 0)
    tensor = torch.arange(6.0).reshape(2, 3).t()
    assert inspect(tensor.reduce("gpu"), host=0, gpu=0).tolist() == [[0, 6], [2, 8], [4, 10]]
    wide = torch.zeros(4, 4)
    wide[:, 1].add_(1)
    wide[:, 1].reduce_("gpu")
    assert inspect(wide.sum(), host=0, gpu=0).item() == 8


def test_in_place_and_again(mesh: Any) -> None:
    rank = mesh.rank(("host", "gpu"))
    tree = {"a": torch.zeros(3) + rank, "b": [torch.ones(2) + rank], "c": 5}
    view = tree["a"][1:]
    returned = monarch.reduce_(tree)
    assert returned["a"] is tree["a"] and returned["b"][0] is tree["b"][0] and returned["c"] == 5
    assert inspect(tree["a"], host=1, gpu=1).tolist() == [6, 6, 6]
    assert inspect(view, host=1, gpu=1).tolist() == [6, 6]
    assert inspect(tree["b"][0], host=0, gpu=1).tolist() == [10, 10]
    again = monarch.reduce(tree)
    assert inspect(again["a"], host=0, gpu=1).tolist() == [24, 24, 24]
    assert inspect(again["b"][0], host=0, gpu=1).tolist() == [40, 40]
    assert again["c"] == 5
    assert inspect(tree["a"], host=0, gpu=1).tolist() == [6, 6, 6]


def test_a_tensor_twice_in_a_tree_is_reduced_twice(mesh: Any) -> None:
    tensor = torch.ones(2)
    monarch.reduce_([tensor, tensor[:1]], "gpu")
    assert inspect(tensor, host=0, gpu=0).tolist() == [4, 2]


def test_many_tensors_of_several_dtypes_in_one_command(mesh: Any) -> None:
    rank = mesh.rank("gpu")
    tree = [torch.full((size,), 1.0) + rank for size in (1, 7, 1000, 100_000)]
    tree += [(torch.arange(5) + rank).to(dtype) for dtype in (torch.int16, torch.float64, torch.bfloat16)]
    mine = [inspect(tensor, host=0, gpu=0) for tensor in tree]
    theirs = [inspect(tensor, host=0, gpu=1) for tensor in tree]
    results = [inspect(tensor, host=0, gpu=0) for tensor in monarch.reduce(tree, "gpu")]
    monarch.reduce_(tree, "gpu", "avg")
    averages = [inspect(tensor, host=0, gpu=1) for tensor in tree]
    with monarch.tensor.no_mesh.activate():
        for one, other, total, average in zip(mine, theirs, results, averages, strict=True):
            assert torch.equal(total, one + other)
            assert torch.equal(average, combined([one, other], "avg"))


def test_into_a_tensor(mesh: Any) -> None:
    tensor, out = torch.ones(2, 6), torch.zeros(6)
    alias = out.view(2, 3)
    result = tensor.reduce("gpu", scatter=True, out=out)
    assert result is out
    assert inspect(alias.sum(), host=0, gpu=0).item() == 12
    with pytest.raises(ValueError, match="Reduce expects the shape to be"):
        tensor.reduce("gpu", scatter=True, out=torch.zeros(2, 3))


def test_what_cannot_be_asked_for(mesh: Any) -> None:
    tensor = torch.ones(3, 4)
    with pytest.raises(KeyError, match="'cpu'"):
        tensor.reduce("cpu")
    with pytest.raises(ValueError, match="named twice"):
        tensor.reduce(("gpu", "gpu"))
    with pytest.raises(ValueError, match="'mean' is not one of stack, sum"):
        tensor.reduce("gpu", "mean")
    with pytest.raises(ValueError, match="is not valid for multiple dimensions"):
        tensor.reduce(("gpu", "host"), "stack")
    with pytest.raises(ValueError, match="is not valid for multiple dimensions"):
        tensor.reduce((), scatter=True)
    with pytest.raises(TypeError, match=r"^When scattering results the outer most dimension"):
        tensor.reduce("gpu", scatter=True)
    with pytest.raises(NotImplementedError):
        tensor.reduce("gpu", mesh=mesh)
    with pytest.raises(ValueError, match="another shape"):
        tensor.reduce_("gpu", "stack")
    with pytest.raises(ValueError, match="another shape"):
        tensor.reduce_("gpu", scatter=True)
    with pytest.raises(TypeError, match="band is for integers"):
        tensor.reduce("gpu", "band")
    with pytest.raises(TypeError, match="WRONG_STREAM"), Stream("other").activate():
        tensor.reduce("gpu")
    with pytest.raises(TypeError, match="REQUIRES_GRAD"):
        torch.ones(3, requires_grad=True).reduce("gpu")
    with torch.no_grad():
        assert inspect(torch.ones(3, requires_grad=True).reduce("gpu"), host=0, gpu=0).tolist() == [2, 2, 2]
    with monarch.tensor.no_mesh.activate():
        local = torch.ones(3)
        with pytest.raises(TypeError, match="NO_MESH"):
            monarch.reduce([local], "gpu")
    with pytest.raises(TypeError, match="LOCAL_TENSOR"):
        monarch.reduce([tensor, local], "gpu")


def test_a_failure_on_one_rank_does_not_stop_the_others(mesh: Any) -> None:
    tensor = torch.ones(3)
    broken = fail_on(tensor, 1)
    total = broken.reduce("gpu")
    for rank in RANKS:
        with pytest.raises(RemoteException, match="not on this rank"):
            inspect(total, host=rank[0], gpu=rank[1])
    gathered = broken.reduce("gpu", "stack")
    with pytest.raises(RemoteException, match="not on this rank"):
        inspect(gathered[1], host=1, gpu=0)
    assert inspect(tensor.reduce("gpu"), host=0, gpu=0).tolist() == [2, 2, 2]
    assert inspect(tensor + 1, host=0, gpu=1).tolist() == [2, 2, 2]


def test_what_a_failure_reached_through_a_collective_stays_bad_when_it_moves_away(mesh: Any) -> None:
    total = fail_on(torch.ones(3), 1).reduce("gpu")
    left = mesh.slice(gpu=0)
    apart = total.slice_mesh(gpu=0).to_mesh(left)
    for _ in range(2):
        with pytest.raises(RemoteException, match="not on this rank"):
            inspect(apart * 2, host=0)
    other = Stream("elsewhere")
    aside = total.slice_mesh(gpu=0).to_mesh(left, stream=other)
    with other.activate(), pytest.raises(RemoteException, match="not on this rank"):
        inspect(aside * 2, host=0)


def test_in_place_with_a_failure_loses_the_tensor_everywhere(mesh: Any) -> None:
    broken = fail_on(torch.ones(3), 3)
    good = torch.ones(2)
    monarch.reduce_([good, broken], "gpu")
    with pytest.raises(RemoteException, match="not on this rank"):
        inspect(good, host=1, gpu=0)
    with pytest.raises(RemoteException, match="not on this rank"):
        inspect(broken, host=1, gpu=0)


@remote(propagate=lambda tensor: torch.empty(3))
def another_shape(tensor: Any) -> Any:
    from monarch.tensor.worker import current

    return torch.ones(3 if current.worker().executor.rank else 4)


def test_a_local_tensor_of_an_unexpected_shape_is_told(mesh: Any) -> None:
    total = another_shape(torch.ones(1)).reduce("gpu")
    with pytest.raises(RemoteException, match=r"another_shape gave float32\[4\] .* says float32\[3\]"):
        inspect(total, host=0, gpu=1)


def test_scalars_that_were_known_are_not_any_more(mesh: Any) -> None:
    scalar = torch.tensor(1.0)
    assert scalar.item() == 1
    scalar.reduce_("gpu")
    with pytest.raises(RuntimeError, match=r"monarch\.inspect"):
        scalar.item()
    assert inspect(scalar, host=0, gpu=0).item() == 2


def test_buckets_hold_what_is_small() -> None:
    small, large = torch.zeros(100), torch.zeros(100_000)
    found = reductions.buckets([small, large, small.int(), small.clone(), torch.zeros(0)])
    assert [[tuple(tensor.shape) for tensor in bucket] for bucket in found] == [
        [(100,), (100,)],
        [(100_000,)],
        [(100,)],
    ]
    many = reductions.buckets([torch.zeros(60_000) for _ in range(120)])
    assert [len(bucket) for bucket in many] == [109, 11]
