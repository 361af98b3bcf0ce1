"""`monarch.reduce`: tensors of the ranks along some dimensions of a mesh, combined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch.tensor import metadata
from monarch.tensor.controller import misuse
from monarch.tensor.controller.activation import active_mesh
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.groups import dims_of
from monarch.tensor.controller.handles import is_distributed, make
from monarch.tensor.controller.misuse import OperandProblem
from monarch.tensor.controller.pending import STREAM, begin
from monarch.tensor.controller.records import KNOWN, TensorRecord, TensorStorage
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.worker import reductions
from monarch.tensor.worker.collectives import ReduceTensor, shape_of
from monarch.tensor.worker.reductions import REDUCTIONS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch.utils._pytree import PyTree

    from monarch.tensor.controller.mesh import DeviceMesh
    from monarch.tensor.controller.tensor import Tensor


def reduce(
    tree: PyTree, dims: str | Sequence[str] = (), reduction: str = "sum", scatter: bool = False,
    mesh: DeviceMesh | None = None, async_op: bool = False, _inplace: bool = False,
) -> PyTree:  # fmt: skip
    """`tree` with each distributed tensor replaced by its reduction over the ranks along `dims` of its mesh.

    `dims`: a name, several, or () for all. `reduction`: sum, avg, product, min, max, band, bor, bxor, or stack. With
    n ranks:

    - sum and so on: every rank gets the combination of all n tensors, of their shape;
    - the same with `scatter`: the tensors have n rows (of their outermost dimension); each rank gets its row of the
      combination;
    - stack: every rank gets all n, stacked: [n, *shape];
    - stack with `scatter`: of n rows, each rank sends row r to rank r, and gets n rows (all to all).

    Tensors of one mesh that are combined without `scatter` travel in one command, small ones together in buckets of
    25 MB: if one of them is a failure on some rank, none of the results of that command can be fetched. How dtypes
    are computed with is told in `monarch.tensor.worker.reductions`. Results have the order of the group's ranks, and are the
    same on all of them. A rank that waits more than five minutes for the others fails, and so does its group from
    then on.

    With `async_op` the result is a PendingReduce, and operations issued until its `wait()` run beside the reduction, on a
    stream of its own. The tensors may be read meanwhile, but not changed.

    KeyError for a dimension the mesh does not have; ValueError for a repeated one, an unknown reduction, and several
    dims with stack or scatter; TypeError for tensors that cannot be used here (those that require grad, while grad
    mode is on), and for a number of rows other than n. NotImplementedError for `mesh`.
    """
    if async_op:
        _look(tree, dims, reduction, scatter, mesh, _inplace)
        return begin(tree, _inplace, lambda lent: reduce(lent, dims, reduction, scatter, mesh, _inplace=_inplace))
    leaves, spec = pytree.tree_flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if reduction != "stack" and not scatter:
        for group in _together([leaves[place] for place in places], _inplace):
            made = _issue([leaves[places[index]] for index in group], dims, reduction, scatter, mesh, _inplace, None)
            for index, result in zip(group, made, strict=True):
                leaves[places[index]] = result
    else:
        for place in places:
            leaves[place] = _issue([leaves[place]], dims, reduction, scatter, mesh, _inplace, None)[0]
    return pytree.tree_unflatten(leaves, spec)


def reduce_(
    tree: PyTree, dims: str | Sequence[str] = (), reduction: str = "sum", scatter: bool = False,
    mesh: DeviceMesh | None = None, async_op: bool = False,
) -> PyTree:  # fmt: skip
    """`reduce`, with the results in the memory of the tensors themselves. ValueError where results have another
    shape: stack without `scatter`, and others with it. With `async_op` nobody may use the tensors until `wait()`."""
    return reduce(tree, dims, reduction, scatter, mesh, async_op, _inplace=True)


def reduce_tensor(
    tensor: Tensor, dims: str | Sequence[str], reduction: str, scatter: bool, mesh: DeviceMesh | None,
    inplace: bool, out: Tensor | None,
    async_op: bool = False,
) -> Any:  # fmt: skip
    """`reduce` of one tensor; `out`: a tensor of the result's shape and dtype that becomes the result."""
    if async_op:
        if out is not None:
            raise ValueError("reduce(async_op=True) gives its result with wait(): leave out `out`")
        return reduce(tensor, dims, reduction, scatter, mesh, True, inplace)
    return _issue([tensor], dims, reduction, scatter, mesh, inplace, out)[0]


def _look(
    tree: PyTree, dims: str | Sequence[str], reduction: str, scatter: bool, mesh: DeviceMesh | None, inplace: bool
) -> None:
    """Raises what stands in the way of a reduction, before anything is lent for it."""
    tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise ValueError("reduce(async_op=True) of no tensors: there would be nothing to wait for")
    if get_active_stream() is STREAM:
        raise RuntimeError("a reduction with async_op=True cannot begin on the stream on which these run")
    for tensor in tensors:
        _checked([tensor], dims, reduction, scatter, mesh, inplace, None)


def _together(tensors: Sequence[Tensor], inplace: bool) -> list[list[int]]:
    """Groups the tensors that go in one command: those of one mesh and device; in place only if no two share memory."""
    groups: dict[Hashable, list[int]] = {}
    seen: set[int] = set()
    shared = []
    for index, tensor in enumerate(tensors):
        record = getattr(tensor, "_record", None)
        if inplace and record is not None:
            if id(record.storage) in seen:
                shared.append([index])
                continue
            seen.add(id(record.storage))
        groups.setdefault((id(record.place), record.meta.device) if record is not None else 0, []).append(index)
    return [*groups.values(), *shared]


def _checked(
    tensors: list[Tensor],
    dims: str | Sequence[str],
    reduction: str,
    scatter: bool,
    mesh: DeviceMesh | None,
    inplace: bool,
    out: Tensor | None,
) -> tuple[StreamPlacement, tuple[str, ...], tuple[int, ...]]:
    """Returns where it runs, along which dimensions, and the shape of its result."""
    if mesh is not None:
        raise NotImplementedError("reduce(mesh=...): reduce first, then bring the result there with .to_mesh(...)")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")
    name = "reduce_" if inplace else "reduce"
    inputs = tensors if out is None else [*tensors, out]
    place = _usable(name, inputs, dims, reduction, scatter, inplace, out is not None)
    wanted = dims_of(place.mesh, dims)
    if len(wanted) > 1 and (scatter or reduction == "stack"):
        how = f"{reduction!r}{' with scatter' if scatter else ''}"
        raise ValueError(f"reduction {how} is not valid for multiple dimensions: {wanted} are {len(wanted)}")
    if inplace and scatter != (reduction == "stack"):
        raise ValueError(
            f"reduce_ with {reduction!r} and scatter={scatter}: the result has another shape than the tensor"
        )
    size = int(place.mesh.size(wanted)) if wanted else 1
    shape = shape_of(tensors[0], reduction, scatter, size)
    for tensor in tensors:
        if why := reductions.obstacle(tensor.dtype, reduction):
            raise TypeError(f"tensors of {tensor.dtype} cannot be reduced with {reduction!r}: {why}")
    if out is not None and (tuple(out.shape) != shape or out.dtype != tensors[0].dtype):
        raise ValueError(
            f"Reduce expects the shape to be {shape} of {tensors[0].dtype}, and `out` has {tuple(out.shape)} of {out.dtype}"
        )
    return place, wanted, shape


def _issue(
    tensors: list[Tensor],
    dims: str | Sequence[str],
    reduction: str,
    scatter: bool,
    mesh: DeviceMesh | None,
    inplace: bool,
    out: Tensor | None,
) -> list[Tensor]:
    place, wanted, shape = _checked(tensors, dims, reduction, scatter, mesh, inplace, out)
    inputs = tensors if out is None else [*tensors, out]
    engine = place.engine
    expected = tuple((tuple(tensor.shape), tensor.dtype, tensor.device) for tensor in tensors)
    key = (
        "reduce",
        place.mesh_number,
        place.stream_number,
        wanted,
        reduction,
        scatter,
        inplace,
        out is not None,
        expected,
    )
    call = ReduceTensor(
        place.mesh_number, place.stream_number, wanted, reduction, scatter, inplace, out is not None, expected
    )
    storages = [tensor._record.storage for tensor in inputs]
    fresh = 0 if inplace or out is not None else len(tensors)
    ident = engine.run(place, engine.define(key, call), [tensor._record.ref for tensor in inputs], (), fresh)
    taint = engine.taints.issued(ident, place, [storage.taint for storage in storages])
    if not fresh:
        written = [out] if out is not None else tensors
        for tensor in written:
            storage = tensor._record.storage
            storage.taint, storage.known, storage.flags = taint, None, storage.flags & ~KNOWN
        torch.autograd.graph.increment_version(written)
        return written
    results = []
    for index, tensor in enumerate(tensors):
        meta = metadata.contiguous(shape if len(tensors) == 1 else tensor.shape, tensor.dtype, tensor.device)
        results.append(make(TensorRecord(ident + index, meta, place, TensorStorage(taint))))
    return results


def _usable(
    name: str, inputs: list[Tensor], dims: object, reduction: str, scatter: bool, inplace: bool, has_out: bool
) -> StreamPlacement:
    """Returns where it runs. TypeError when one of the tensors cannot be used."""
    stream = get_active_stream()
    first = next((tensor for tensor in inputs if is_distributed(tensor)), None)
    mesh: DeviceMesh | None = first._record.place.mesh if first is not None else active_mesh()
    problems = []
    for index, tensor in enumerate(inputs):
        writes = inplace or (has_out and index == len(inputs) - 1)
        if mesh is None or not is_distributed(tensor):
            problems.append(OperandProblem(tensor, "LOCAL_TENSOR" if mesh is not None else "NO_MESH"))
        elif problem := trouble(tensor, mesh.place(stream), writes):
            problems.append(problem)
        elif tensor.requires_grad and torch.is_grad_enabled():
            problems.append(OperandProblem(tensor, "REQUIRES_GRAD"))
    if problems:
        raise misuse.incorrect(name, (*inputs, dims, reduction, scatter), {}, problems, mesh, stream)
    assert mesh is not None
    return mesh.place(stream)
