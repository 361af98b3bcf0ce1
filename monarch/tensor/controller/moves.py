"""`monarch.to_mesh` and `monarch.slice_mesh`: tensors go from the ranks of one mesh to those of another."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch._linux.locks import Lock
from monarch.tensor import metadata
from monarch.tensor.controller import misuse
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.events import follow_stream
from monarch.tensor.controller.handles import is_distributed, make
from monarch.tensor.controller.mesh import DeviceMesh
from monarch.tensor.controller.misuse import OperandProblem
from monarch.tensor.controller.records import TensorRecord, TensorStorage
from monarch.tensor.controller.stream import Stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.worker.moves import AdoptTensors, CopyTensor, ReceiveTensor, SendTensor

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

    from monarch.tensor.controller.tensor import Tensor

_numbers = itertools.count(1)
_moving = Lock()  # the two halves of a move are issued together


def to_mesh(tree: PyTree, mesh: object, stream: Stream | None = None) -> PyTree:
    """`tree` with each distributed tensor, or MeshSliceTensor, replaced by a copy on `mesh` (a DeviceMesh or ProcMesh).

    The copy of a rank comes from the rank with the same coordinates: dimensions are matched by name and have equal
    sizes. Along those that the source does not have, all ranks get a copy, and a warning says so. It lives on
    `stream`, by default that of the source, and shows nothing that is done to the source later. Data goes directly
    from process to process; a sender does not wait for its receivers.

    ValueError when the source has dimensions that `mesh` does not have, for other sizes, and for meshes of different
    engines; TypeError for tensors that cannot be used, or that require grad while grad mode is on.
    """
    there = _device_mesh(mesh)
    leaves, spec = pytree.tree_flatten(tree, is_leaf=lambda leaf: isinstance(leaf, MeshSliceTensor))
    moved = [
        _moved(leaf, there, stream) if isinstance(leaf, MeshSliceTensor | torch.Tensor) else leaf for leaf in leaves
    ]
    return pytree.tree_unflatten(moved, spec)


def slice_mesh(tree: PyTree, **dims: object) -> PyTree:
    """`tree` with each distributed tensor replaced by a MeshSliceTensor: its part on the ranks of `mesh.slice(**dims)`."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: _sliced(tensor, dims), tree)


class MeshSliceTensor:
    """Part of the ranks of `tensor`: those of the mesh `slicing`. It can be sent with `to_mesh`, and nothing else."""

    def __init__(self, tensor: Tensor, slicing: DeviceMesh) -> None:
        self.tensor = tensor
        self.slicing = slicing

    def to_mesh(self, mesh: object, stream: Stream | None = None) -> Tensor:
        """Copies it to another mesh; see `monarch.to_mesh`."""
        return _moved(self, _device_mesh(mesh), stream)

    def __repr__(self) -> str:
        return f"MeshSliceTensor({self.tensor!r}, {self.slicing!r})"


def _sliced(tensor: Tensor, dims: dict[str, Any]) -> MeshSliceTensor:
    if not is_distributed(tensor):
        raise misuse.incorrect("slice_mesh", (tensor,), dims, [OperandProblem(tensor, "LOCAL_TENSOR")], None, None)
    return MeshSliceTensor(tensor, tensor.mesh.slice(**dims))


def _device_mesh(mesh: object) -> DeviceMesh:
    found = mesh if isinstance(mesh, DeviceMesh) else getattr(mesh, "_device_mesh", None)
    if not isinstance(found, DeviceMesh):
        raise TypeError(f"to_mesh takes a DeviceMesh or a ProcMesh, and not {mesh!r}")
    return found


def _moved(source: Tensor | MeshSliceTensor, mesh: DeviceMesh, stream: Stream | None) -> Tensor:
    tensor = source.tensor if isinstance(source, MeshSliceTensor) else source
    if not is_distributed(tensor):
        raise misuse.incorrect("to_mesh", (tensor, mesh), {}, [OperandProblem(tensor, "LOCAL_TENSOR")], mesh, stream)
    record = tensor._record
    origin: StreamPlacement = record.place
    problem = trouble(tensor, origin, False)
    if problem is None and tensor.requires_grad and torch.is_grad_enabled():
        problem = OperandProblem(tensor, "REQUIRES_GRAD")
    if problem is not None:
        raise misuse.incorrect("to_mesh", (tensor, mesh), {}, [problem], origin.mesh, origin.stream)
    start = source.slicing if isinstance(source, MeshSliceTensor) else origin.mesh
    pairs = routes(start, mesh)
    there = mesh.place(stream if stream is not None else origin.stream)
    meta = metadata.contiguous(tensor.shape, tensor.dtype, tensor.device)
    with _moving:
        if all(sender == receiver for sender, receiver in pairs):
            ident, taint = _copied(record, mesh, there), record.storage.taint
        else:
            ident, taint = _sent(record, start, there, pairs)
    return make(TensorRecord(ident, meta, there, TensorStorage(taint)))


def routes(start: DeviceMesh, mesh: DeviceMesh) -> tuple[tuple[int, int], ...]:
    """(sender, receiver) for each rank of `mesh`, in the engine's numbers. ValueError when they do not fit."""
    if start.client is not mesh.client:
        raise ValueError(
            f"{start} and {mesh} belong to different engines: tensors move between slices of one ProcMesh. Spawn the "
            f"processes as one mesh and slice it"
        )
    if lacking := [name for name in start.names if name not in mesh.names]:
        raise ValueError(
            f"destination mesh does not have dimensions {set(lacking)} of the source, which has {start.names}"
        )
    sizes, theirs = start.sizes, mesh.sizes
    if wrong := [name for name in start.names if sizes[name] != theirs[name]]:
        raise ValueError(
            f"destination mesh has other sizes than the source: {', '.join(f'{n}={theirs[n]} for {sizes[n]}' for n in wrong)}"
        )
    if spread := [name for name in mesh.names if name not in sizes and theirs[name] > 1]:
        warnings.warn(
            f"broadcasting along {', '.join(spread)} is inefficient: every copy is sent from the same rank",
            stacklevel=_outside(),
        )
    strides = dict(zip(start.names, start.processes.strides, strict=True))
    found = []
    for coordinates in itertools.product(*(range(theirs[name]) for name in mesh.names)):
        at = dict(zip(mesh.names, coordinates, strict=True))
        sender = start.processes.offset + sum(strides[name] * at[name] for name in start.names)
        found.append(sender)
    return tuple(zip(found, mesh.processes, strict=True))


def _outside() -> int:
    """Returns how far up the first frame outside this package is, for the `stacklevel` of the caller."""
    import sys

    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("monarch.tensor", "torch.")):
        level, frame = level + 1, frame.f_back
    return level


def _copied(record: TensorRecord, mesh: DeviceMesh, there: StreamPlacement) -> int:
    """A copy on the same ranks, made on the source's stream; another stream waits for it."""
    engine = there.engine
    here = mesh.place(record.place.stream)
    ident = engine.run(here, engine.define("copy", CopyTensor()), (record.ref,), (), 1)
    if here is not there:
        follow_stream(here, there.stream)
        engine.run(there, engine.define("adopt", AdoptTensors()), (ident,), (), 0)
    return ident


def _sent(
    record: TensorRecord, start: DeviceMesh, there: StreamPlacement, pairs: tuple[tuple[int, int], ...]
) -> tuple[int, Any]:
    origin: StreamPlacement = record.place
    engine = origin.engine
    here = start.place(origin.stream)
    meta = record.meta
    what = (tuple(meta.shape), meta.dtype, meta.device)
    streams = (here.stream_number, there.stream_number)
    number = next(_numbers)
    send = engine.define(("send", pairs, streams, what), SendTensor(pairs, streams, what))
    ident = engine.run(here, send, (record.ref,), (number,), 0)
    taint = engine.taints.issued(ident, here, [record.storage.taint])
    receive = engine.define(("receive", pairs, streams, what), ReceiveTensor(pairs, streams, what))
    return engine.run(there, receive, (), (number,), 1), taint
