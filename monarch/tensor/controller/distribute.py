"""Tensors of this process become distributed ones on purpose, and whole ones come back: `replicate`, `shard`, `gather`.

The bytes travel beside the commands: a host gets them once, whatever the number of its processes, and hosts pass them on to
each other as they do with casts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from monarch.actor import Future
from monarch.actor.lowlevel import follow
from monarch.tensor import metadata, placements
from monarch.tensor.controller import misuse
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.constants import check_values, on_device_of, replica
from monarch.tensor.controller.handles import make
from monarch.tensor.controller.mesh import DeviceMesh, get_active_mesh
from monarch.tensor.controller.records import TensorRecord, TensorStorage
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.placements import Placement

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

    from monarch.tensor.controller.engine import TensorEngine
    from monarch.tensor.signature import Runner
    from monarch.tensor.worker.executor import Executor

# Bytes that wait for a batch; more leave at once, so that a large model is not copied as a whole first.
AT_ONCE = 64 << 20


def replicate(tree: PyTree, mesh: object = None) -> PyTree:
    """`tree` with each local tensor replaced by a distributed one with its values, the same in each process of `mesh` (a
    DeviceMesh or ProcMesh; by default the active one).

    Shape, dtype, strides (as `clone()` has them), kind of device and requires_grad stay. The values are those of now: what
    is done to the local tensor later changes nothing there. The same tensor twice in `tree` becomes one. Distributed tensors
    and other values pass through. A module becomes a copy of it with distributed parameters and buffers.

    Returns at once; ValueError without a mesh, TypeError for tensors without values (on the meta device, fake ones).
    """
    place = _place(mesh)
    done: dict[int, Any] = {}
    sent = _SendLimit(place.engine)

    def one(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or type(leaf) is Tensor:
            return leaf
        known = done.get(id(leaf))
        if known is None:
            known = done[id(leaf)] = _like(leaf, on_device_of(leaf, replica(place, leaf)))
            sent.add(leaf.numel() * leaf.element_size())
        return known

    if isinstance(tree, torch.nn.Module):
        memo = {id(tensor): one(tensor) for tensor in (*tree.parameters(), *tree.buffers())}
        with _disable_current_modes():
            return copy.deepcopy(tree, memo)
    return pytree.tree_map(one, tree)


def shard(tree: PyTree, dims: str | Placement, dim: int = 0, mesh: object = None) -> PyTree:
    """`tree` with each local tensor replaced by a distributed one, of which each process of `mesh` has its part.

    `dims`: a dimension of the mesh, along which the tensor's dimension `dim` is divided into equal parts, in order; or a
    dict of several, as `{"dp": 0, "tp": 1}`. Along the mesh's other dimensions each process has the same. Otherwise as
    `replicate`, but that strides are those of a fresh tensor. ValueError where a tensor cannot be divided evenly, KeyError
    for a dimension that the mesh does not have.

    Each host gets the whole tensor once. What is too large for that is better made or loaded in the processes
    (`monarch.remote`, `monarch.checkpoint`, `monarch.DataLoaders`).
    """
    place = _place(mesh)
    placement = placements.checked(dims, dim, place.mesh.names)
    sent = _SendLimit(place.engine)

    def one(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or type(leaf) is Tensor:
            return leaf
        made = _like(leaf, _divided(place, leaf, placement))
        sent.add(leaf.numel() * leaf.element_size())
        return made

    return pytree.tree_map(one, tree)


def gather(tree: PyTree, dims: str | Placement, dim: int = 0) -> Future[Any]:
    """A Future of `tree` with each distributed tensor replaced by the whole, on the CPU: the inverse of `shard`.

    `dims` and `dim` as there. One process of those that have the same part is asked. All tensors of the tree come in one
    message from each. Failures as with `fetch_shard`.
    """
    leaves, spec = pytree.tree_flatten(tree)
    tensors = [leaf for leaf in leaves if type(leaf) is Tensor]
    place = tensors[0]._record.place if tensors else _place(None)
    problems = [problem for tensor in tensors if (problem := trouble(tensor, place, False)) is not None]
    if problems:
        raise misuse.incorrect("monarch.gather", (tree,), {}, problems, place.mesh, place.stream)
    mesh = place.mesh
    placement = placements.checked(dims, dim, mesh.names)
    locals_ = [tuple(tensor.shape) for tensor in tensors]
    wholes = [placements.whole_shape(local, placement, mesh.sizes) for local in locals_]
    first = [places[0] for places in placements.holders(placement, mesh.sizes).values()]
    where = list(placements.coordinates(mesh.sizes))
    ranks = list(mesh.processes)
    refs = [tensor._record.ref for tensor in tensors]
    taints = [tensor._record.storage.taint for tensor in tensors]
    asked = [place.engine.fetch(mesh, ranks[each], refs, taints, list, place.stream) for each in first]

    def together(values: list[torch.Tensor]) -> PyTree:
        found = [values, *(future.get() for future in asked[1:])]
        with _disable_current_modes():
            made = [torch.empty(shape, dtype=one.dtype) for shape, one in zip(wholes, values, strict=True)]
            for each, parts in zip(first, found, strict=True):
                for whole, local, value in zip(made, locals_, parts, strict=True):
                    whole[_slices(placements.part(local, placement, mesh.sizes, where[each]))] = value
        rest = iter(made)
        return pytree.tree_unflatten([next(rest) if type(leaf) is Tensor else leaf for leaf in leaves], spec)

    return follow(asked[0], together)


class _SendLimit:
    """Lets bytes leave before many wait."""

    def __init__(self, engine: TensorEngine) -> None:
        self.engine = engine
        self.waiting = 0

    def add(self, nbytes: int) -> None:
        self.waiting += nbytes
        if self.waiting >= AT_ONCE:
            self.engine.flush()
            self.waiting = 0


def _place(mesh: object) -> StreamPlacement:
    found = get_active_mesh() if mesh is None else mesh
    if not isinstance(found, DeviceMesh):
        found = getattr(found, "_device_mesh", None)
    if not isinstance(found, DeviceMesh):
        raise TypeError(f"`mesh` is a DeviceMesh or a ProcMesh, and not {mesh!r}")
    return found.place(get_active_stream())


def _divided(place: StreamPlacement, local: torch.Tensor, placement: Mapping[str, int]) -> Tensor:
    check_values(local)
    mesh = place.mesh
    shape = placements.local_shape(local.shape, placement, mesh.sizes)
    with _disable_current_modes():
        host = local.detach().resolve_conj().resolve_neg().to("cpu", copy=True, memory_format=torch.contiguous_format)
        meta = metadata.contiguous(shape, local.dtype, "cpu")
    parts = {
        rank: placements.part(shape, placement, mesh.sizes, coordinate)
        for rank, coordinate in zip(mesh.processes, placements.coordinates(mesh.sizes), strict=True)
    }
    ident = place.engine.do(place, ShardCall(host, parts, meta), (), 1)
    return on_device_of(local, make(TensorRecord(ident, meta, place, TensorStorage())))


def _like(local: torch.Tensor, made: Tensor) -> torch.Tensor:
    if isinstance(local, torch.nn.Parameter):
        return torch.nn.Parameter(made, local.requires_grad)
    return made.requires_grad_() if local.requires_grad else made


class ShardCall:
    """A `signature.WorkerCall` that gives each rank its part of a tensor of the program. `meta`: what the parts are like;
    it stays here."""

    keeps: tuple[int, ...] | None = None
    mutates: tuple[int, ...] = ()
    repeatable = True

    def __init__(self, whole: torch.Tensor, parts: dict[int, placements.Part], meta: object) -> None:
        self.whole = whole
        self.parts = parts
        self.meta = meta

    def __getstate__(self) -> dict[str, object]:
        return {"whole": self.whole, "parts": self.parts}

    def name(self) -> str:
        return "monarch.shard"

    def prepare(self, executor: Executor) -> Runner:
        mine = self.whole[_slices(self.parts[executor.rank])]
        return lambda tensors, numbers: mine.clone(memory_format=torch.contiguous_format)


def _slices(part: placements.Part) -> tuple[slice, ...]:
    begin, shape = part
    return tuple(slice(start, start + length) for start, length in zip(begin, shape, strict=True))
