"""The result of an operation, worked out without running it: on fake tensors, once for each metadata of its inputs.

A PropagatedOutcome says, for each leaf of the result, whether it is one of the inputs, a view of one, or new; which inputs
the operation changes; and which of them have other metadata or other memory afterwards (`transpose_`, `resize_`, `set_`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import _disable_current_modes

from monarch._linux.locks import RLock
from monarch.tensor import metadata, signature
from monarch.tensor.metadata import Meta

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Args, Kwargs


# Shapes that do not fit are an ordinary error of the program, raised at the call: not to be logged as well.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

_mode: FakeTensorMode | None = None
propagating = RLock()  # torch's fake tensors bear one thread at a time


class _FakeMode(FakeTensorMode):
    """Torch's own, without what hides it from torch.compile: that imports the whole compiler at the first operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        return self.dispatch(func, types, args, kwargs or {})


def fake_mode() -> FakeTensorMode:
    """Returns the one mode of this process. Nothing is allocated, whatever device a tensor claims to be on."""
    global _mode
    if _mode is None:
        _mode = _FakeMode(allow_non_fake_inputs=False)
    return _mode


class Leaf:
    """One leaf of a result. `same`: the input that it is; `view`: the input whose storage it shares, or `-2 - k` for that of
    the k-th new tensor of the same result; otherwise -1. `value`: what it is if it is no tensor."""

    __slots__ = ("meta", "same", "value", "view")

    def __init__(self, meta: Meta | None, same: int = -1, view: int = -1, value: object = None) -> None:
        self.meta = meta
        self.same = same
        self.view = view
        self.value = value


class PropagatedOutcome:
    """`leaves` in the order of `signature.flatten`, `structure` to put them together again (None: a single tensor).
    `moved`: inputs that lie elsewhere afterwards, each with the input whose storage that is, or -1."""

    __slots__ = ("changed", "fresh", "keeps", "leaves", "moved", "mutates", "structure")

    def __init__(
        self,
        leaves: list[Leaf],
        structure: Callable[[list[Any]], PyTree] | None,
        mutates: tuple[int, ...],
        changed: tuple[tuple[int, Meta], ...],
        moved: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.moved = moved
        self.leaves = leaves
        self.structure = structure
        self.mutates = mutates
        self.changed = changed
        self.fresh = [leaf for leaf in leaves if leaf.meta is not None and leaf.same < 0]
        keeps = tuple(i for i, leaf in enumerate(leaves) if leaf.meta is not None and leaf.same < 0)
        self.keeps = None if structure is None and keeps == (0,) else keeps


def propagate(op: OpOverload, args: Sequence[object], kwargs: Kwargs, inputs: Sequence[Meta]) -> PropagatedOutcome:
    """Returns the outcome of `op` with the TensorHoles of `args` and `kwargs` filled by tensors of metadata `inputs`.

    Raises what the operation raises for such inputs (torch's own RuntimeError for shapes that do not fit), and the two
    exceptions of torch's fake tensors for results that depend on values.
    """
    with (
        propagating,
        _disable_current_modes(),
        torch._C._DisableAutocast(),  # has had its say before an operation comes here
        torch.inference_mode(False),
        torch.no_grad(),
        fake_mode(),
    ):
        fakes = [meta.fake() for meta in inputs]
        before = [_layout(fake) for fake in fakes]
        homes = [_storage(fake) for fake in fakes]
        filled = fill(args, fakes)
        result = _run(op, filled, {name: fill(value, fakes) for name, value in kwargs.items()})
        result = _unasked_left_out(op, args, kwargs, result)
        changed = tuple(
            (place, metadata.of(fake)) for place, fake in enumerate(fakes) if _layout(fake) != before[place]
        )
        moved = tuple(
            (place, homes.index(now) if (now := _storage(fake)) in homes else -1)
            for place, fake in enumerate(fakes)
            if _storage(fake) != homes[place]
        )
        return describe(result, fakes, written(op, args, kwargs), changed, moved)


def describe(
    result: object,
    fakes: Sequence[torch.Tensor],
    mutates: tuple[int, ...],
    changed: tuple[tuple[int, Meta], ...],
    moved: tuple[tuple[int, int], ...] = (),
) -> PropagatedOutcome:
    """Returns the outcome of a computation that was run on `fakes` and gave `result`, in nested lists and tuples."""
    leaves: list[Leaf] = []
    storages = {_storage(fake): place for place, fake in reversed(list(enumerate(fakes)))}
    fresh = 0
    for value in signature.flatten(result):
        if not isinstance(value, torch.Tensor):
            leaves.append(Leaf(None, value=value))
            continue
        metadata.check_dense(value)
        same = next((place for place, fake in enumerate(fakes) if fake is value), -1)
        if same >= 0:
            leaves.append(Leaf(metadata.of(value), same=same))
            continue
        view = storages.setdefault(_storage(value), -2 - fresh)
        leaves.append(Leaf(metadata.of(value), view=-1 if view == -2 - fresh else view))
        fresh += 1
    structure = None if isinstance(result, torch.Tensor) else _rebuilder(result)
    return PropagatedOutcome(leaves, structure, mutates, changed, moved)


def fill(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Returns `value` with tensors in the place of its TensorHoles."""
    kind = type(value)
    if kind is signature.TensorHole:
        return tensors[value]
    if kind in (list, tuple):
        return kind(fill(item, tensors) for item in value)
    return value


def _run(op: OpOverload, args: Sequence[Any], kwargs: Kwargs) -> Any:
    if op._schema.name == "aten::_grouped_mm" and args[0].dtype is not torch.bfloat16:
        return _grouped_mm(*args, **kwargs)
    return op(*args, **kwargs)


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Describes what torch's own description refuses: products of groups in other dtypes than bfloat16, which its kernels
    compute. Groups are rows, columns or the dimension that is summed over, and `offs` says where each ends."""
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError(f"contraction dimension of mat_a and mat_b must match: {a.shape[-1]} and {b.shape[-2]}")
    shape = [*a.shape[:-1], b.shape[-1]]
    if a.dim() == 3 and b.dim() == 2:
        shape = shape[1:]
    elif a.dim() == 2 and b.dim() == 2 and offs is not None:
        shape = [offs.shape[0], *shape]
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


def _unasked_left_out(op: OpOverload, args: Sequence[object], kwargs: Kwargs, result: Any) -> Any:
    """Returns the gradients that `output_mask` asks for, None for the others: so do kernels, and not all fake ones."""
    for place, argument in enumerate(op._schema.arguments):
        if argument.name == "output_mask":
            mask: Any = args[place] if place < len(args) else kwargs.get(argument.name)
            return tuple(given if wanted else None for given, wanted in zip(result, mask, strict=True))
    return result


def written(op: OpOverload, args: Sequence[object], kwargs: Kwargs) -> tuple[int, ...]:
    """Returns the inputs that `op` writes to, by its schema."""
    schema = op._schema
    if not schema.is_mutable:
        return ()
    found: list[int] = []
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        found += [int(leaf) for leaf in signature.flatten(value) if type(leaf) is signature.TensorHole]
    return tuple(found)


def _rebuilder(result: object) -> Callable[[list[Any]], object]:
    """Returns a function that puts leaves in the place of those of `result`."""
    shape = _skeleton(result)

    return lambda leaves: _build(shape, iter(leaves))


def _build(node: Any, rest: Iterator[Any]) -> object:
    if node is None:
        return next(rest)
    kind, items = node
    return kind(_build(item, rest) for item in items)


def _skeleton(result: PyTree) -> object:
    if type(result) in (list, tuple):
        return type(result), [_skeleton(item) for item in result]
    return None


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()


def _storage(tensor: torch.Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "Leaf",
    "PropagatedOutcome",
    "UnsupportedOperatorException",
    "describe",
    "fake_mode",
    "fill",
    "propagate",
    "propagating",
    "written",
]
