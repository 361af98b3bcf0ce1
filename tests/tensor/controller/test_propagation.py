"""Tests of what an operation will give, worked out on fake tensors; metadata, numbers that cannot change it, taints."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monarch.tensor import metadata, propagation
from monarch.tensor.controller import taint
from monarch.tensor.controller.dispatch import free_numbers
from monarch.tensor.signature import TensorHole

aten = torch.ops.aten


def meta(*shape: int, dtype: Any = torch.float32) -> metadata.Meta:
    return metadata.contiguous(shape, dtype, "cpu")


def outcome(op: Any, args: list[Any], *inputs: metadata.Meta) -> propagation.PropagatedOutcome:
    return propagation.propagate(op, args, {}, list(inputs))


def test_metadata_is_interned_and_forgotten() -> None:
    first = meta(2, 31)  # which no other test has
    assert meta(2, 31) is first is metadata.of(torch.empty(2, 31))
    assert meta(31, 2) is not first and metadata.of(torch.empty(31, 2).t()) is not first
    number = id(first)
    del first
    gc.collect()
    assert not any(id(known) == number for known in metadata._table.values())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(2, 3),
        torch.empty(3, 2).t(),
        torch.empty(4, 4)[1:, ::2],
        torch.empty(()),
        torch.empty(0, 3),
        torch.empty(2).expand(3, 2),
        torch.empty(2, dtype=torch.complex64).conj(),
        torch.empty(2, dtype=torch.complex64).conj().imag,
    ],
)
def test_a_fake_has_the_metadata(tensor: torch.Tensor) -> None:
    made = metadata.of(tensor)
    with propagation.fake_mode():
        assert metadata.of(made.fake()) is made
    assert made.is_contiguous() == tensor.is_contiguous() or not tensor.numel()


def test_a_new_tensor() -> None:
    found = outcome(aten.add.Tensor, [TensorHole(0), TensorHole(1)], meta(2, 1), meta(3))
    (leaf,) = found.leaves
    assert (tuple(leaf.meta.shape), leaf.same, leaf.view) == ((2, 3), -1, -1)
    assert (found.keeps, found.mutates, found.changed, found.moved) == (None, (), (), ())


def test_a_view() -> None:
    found = outcome(aten.t.default, [TensorHole(0)], meta(2, 3))
    (leaf,) = found.leaves
    assert (leaf.view, leaf.meta.stride, leaf.meta.nbytes) == (0, (1, 3), 24)


def test_in_place() -> None:
    found = outcome(aten.add_.Tensor, [TensorHole(0), 1], meta(2))
    assert found.leaves[0].same == 0
    assert (found.mutates, found.fresh, found.keeps) == ((0,), [], ())


def test_out() -> None:
    found = propagation.propagate(
        aten.add.out, [TensorHole(0), TensorHole(1)], {"out": TensorHole(2)}, [meta(2), meta(2), meta(2)]
    )
    assert found.leaves[0].same == 2 and found.mutates == (2,)


def test_several_tensors_that_share_storages() -> None:
    found = outcome(aten.split.Tensor, [TensorHole(0), 1], meta(3))
    assert [leaf.view for leaf in found.leaves] == [0, 0, 0]
    assert found.keeps == (0, 1, 2)
    assert found.structure is not None and found.structure([1, 2, 3]) == [1, 2, 3]
    pair = outcome(aten.sort.default, [TensorHole(0)], meta(3))
    assert [leaf.view for leaf in pair.leaves] == [-1, -1]
    assert pair.structure is not None and pair.structure([1, 2]) == (1, 2)


def test_views_of_a_new_tensor_of_the_same_result() -> None:
    with propagation.fake_mode():
        made = torch.ones(4)
        found = propagation.describe([made, [made[1:], 5]], [], (), ())
    assert [(leaf.view, leaf.value) for leaf in found.leaves] == [(-1, None), (-2, None), (-1, 5)]
    assert found.keeps == (0, 1)
    assert found.structure is not None and found.structure(list("abc")) == ["a", ["b", "c"]]


@pytest.mark.parametrize(
    ("op", "args", "shape"),
    [
        (aten.transpose_.default, [TensorHole(0), 0, 1], (3, 2)),
        (aten.t_.default, [TensorHole(0)], (3, 2)),
        (aten.unsqueeze_.default, [TensorHole(0), 0], (1, 2, 3)),
        (aten.squeeze_.default, [TensorHole(0)], (2, 3)),
        (aten.resize_.default, [TensorHole(0), [4, 5]], (4, 5)),
    ],
)
def test_metadata_that_changes_in_place(op: Any, args: list[Any], shape: tuple[int, ...]) -> None:
    found = outcome(op, args, meta(2, 3))
    assert found.leaves[0].same == 0
    changed = [(place, tuple(after.shape)) for place, after in found.changed]
    assert changed == ([(0, shape)] if shape != (2, 3) else [])


def test_memory_that_changes_in_place() -> None:
    found = outcome(aten.set_.source_Tensor, [TensorHole(0), TensorHole(1)], meta(2), meta(2))
    assert found.moved == ((0, 1),) and found.changed == ()
    assert outcome(aten.set_.default, [TensorHole(0)], meta(2)).moved == ((0, -1),)


def test_nothing_is_left_of_what_the_thread_has_switched_on() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.enable_grad():
        found = outcome(aten.mm.default, [TensorHole(0), TensorHole(1)], meta(2, 2), meta(2, 2))
    assert found.leaves[0].meta.dtype is torch.float32


def test_results_that_depend_on_values() -> None:
    with pytest.raises(propagation.DynamicOutputShapeException):
        outcome(aten.nonzero.default, [TensorHole(0)], meta(2))
    with pytest.raises(propagation.DataDependentOutputException):
        outcome(aten._local_scalar_dense.default, [TensorHole(0)], meta())


@pytest.mark.parametrize(
    ("op", "places", "names"),
    [
        (aten.add.Tensor, {0, 1}, {"self", "other", "alpha"}),
        (aten.mul.Scalar, {0, 1}, {"self", "other"}),
        (aten.full.default, {1}, {"fill_value"}),
        (aten.select.int, {0}, {"self"}),
        (aten.arange.start, set(), set()),
        (aten.linspace.default, set(), set()),
        (torch.ops.profiler._record_function_exit._RecordFunction, set(), set()),
    ],
)
def test_numbers_that_leave_metadata_alone(op: Any, places: set[int], names: set[str]) -> None:
    assert free_numbers(op) == (places, names)


# --- taints ------------------------------------------------------------------------------------------------


def node(ident: int, *parents: taint.Taint) -> taint.Taint:
    return taint.Taint(ident, SimpleNamespace(), parents)


def test_merging_taints() -> None:
    first, second = node(1), node(2)
    third = node(3, first)
    assert taint.merge(None, None) is None
    assert taint.merge(first, None) is first is taint.merge(None, first) is taint.merge(first, first)
    assert taint.merge(first, third) is third is taint.merge(third, first)
    both = taint.merge(first, second)
    assert both is not None and set(both.parents) == {first, second}
    assert set(taint.unconfirmed([taint.merge(both, third), None])) == {first, second, third}


def test_a_long_chain_of_taints_is_walked_once() -> None:
    last = node(0)
    for ident in range(1, 5000):
        last = node(ident, last, last)
    assert len(taint.unconfirmed([last, last])) == 5000
