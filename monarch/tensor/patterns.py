"""The results of a remote function: which tensors come out, which of them share memory with what went in, what it changes.

A pattern is found by running something on stand-ins for the inputs (fakes here, copies in a worker) and looking at what came
out. Tensors that are inputs count as views of them: each result is a reference of its own to what the worker returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from monarch._devices import torch_versions
from monarch.tensor import metadata, propagation
from monarch.tensor.metadata import Meta
from monarch.tensor.propagation import Leaf, PropagatedOutcome

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree, TreeSpec


class _Inside(threading.local):
    propagating = False


_inside = _Inside()


def propagating() -> bool:
    """True if this thread is inside a `propagate` function."""
    return _inside.propagating


def nothing() -> PropagatedOutcome:
    """Returns the outcome of a function whose result is not wanted."""
    return PropagatedOutcome([], lambda leaves: None, (), ())


def propagated(
    propagate: Callable[..., PyTree], fill: Callable[[Sequence[torch.Tensor]], PyTree], inputs: Sequence[object]
) -> PropagatedOutcome:
    """Returns the outcome that `propagate` says. `fill` makes its (args, kwargs) of tensors that stand for the
    distributed `inputs`."""
    with propagation.propagating, _disable_current_modes(), propagation.fake_mode(), torch.enable_grad():
        fakes = _fakes(inputs)
        before = [fake._version for fake in fakes]
        args, kwargs = fill([fake.detach() for fake in fakes])
        _inside.propagating = True
        try:
            result = propagate(*args, **kwargs)
        finally:
            _inside.propagating = False
        return outcome(result, fakes, written(fakes, before))


def _fakes(inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Makes stand-ins for distributed tensors, in shared memory where these share theirs."""
    wholes: dict[int, torch.Tensor] = {}
    found = []
    for tensor in inputs:
        record = tensor._record
        meta: Meta = record.meta
        whole = wholes.get(id(record.storage))
        if whole is None:
            whole = torch.empty(meta.nbytes, dtype=torch.uint8, device=meta.device)
            wholes[id(record.storage)] = whole
        size = meta.dtype.itemsize
        part = whole[: meta.nbytes // size * size].view(meta.dtype)
        found.append(torch.as_strided(part, meta.shape, meta.stride, meta.offset))
    return found


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies local tensors, in shared memory where these share theirs."""
    storages: dict[int, Any] = {}
    found = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        copy = storages.get(storage._cdata)
        if copy is None:
            copy = storages[storage._cdata] = storage.clone()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        found.append(made.set_(copy, tensor.storage_offset(), tensor.shape, tensor.stride()))
    return found


def written(tensors: Sequence[torch.Tensor], before: Sequence[int]) -> tuple[int, ...]:
    """Returns the places of those whose memory was written to since their versions were `before`."""
    changed = {_storage(tensor) for tensor, version in zip(tensors, before, strict=True) if tensor._version != version}
    return tuple(place for place, tensor in enumerate(tensors) if _storage(tensor) in changed)


def outcome(result: object, inputs: Sequence[torch.Tensor], mutates: tuple[int, ...]) -> PropagatedOutcome:
    """Returns the PropagatedOutcome of what was run on `inputs` and gave `result`, any pytree."""
    values, spec = pytree.tree_flatten(result)
    found = leaves(values, inputs)
    return PropagatedOutcome(found, structure(spec, found), mutates, ())


def leaves(values: Sequence[object], inputs: Sequence[torch.Tensor]) -> list[Leaf]:
    storages = {_storage(tensor): place for place, tensor in reversed(list(enumerate(inputs)))}
    found, fresh = [], 0
    for value in values:
        if not isinstance(value, torch.Tensor):
            found.append(Leaf(None, value=value))
            continue
        own = -2 - fresh
        view = storages.setdefault(_storage(value), own)
        found.append(Leaf(metadata.of(value), view=-1 if view == own else view))
        fresh += 1
    return found


def structure(spec: TreeSpec, found: list[Leaf]) -> Callable[[list[Any]], PyTree] | None:
    """Returns what puts the leaves of a result together again; None for a single tensor."""
    if spec.is_leaf():
        return None if found[0].meta is not None else lambda leaves: leaves[0]
    if spec.type in (tuple, list) and all(child.is_leaf() for child in torch_versions.children(spec)):
        return spec.type  # type: ignore[no-any-return]
    return lambda found: pytree.tree_unflatten(found, spec)


# --- from a worker to the controller --------------------------------------------------------------------------


class SentOutcome(NamedTuple):
    """An outcome as it travels: `tree` is the result with the numbers of its leaves in their place, `mutates` the inputs that
    were written to."""

    tree: PyTree
    leaves: list[Leaf]
    mutates: tuple[int, ...]


def to_send(result: PyTree, inputs: Sequence[torch.Tensor], mutates: tuple[int, ...]) -> SentOutcome:
    """Describes what a function gave that was run on `inputs` in a worker."""
    values, spec = pytree.tree_flatten(result)
    return SentOutcome(pytree.tree_unflatten(list(range(len(values))), spec), leaves(values, inputs), mutates)


def received(sent: SentOutcome) -> PropagatedOutcome:
    """Returns, in the controller, the outcome that a worker described by `to_send`."""
    found = structure(pytree.tree_structure(sent.tree), sent.leaves)
    return PropagatedOutcome(sent.leaves, found, sent.mutates, ())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]
