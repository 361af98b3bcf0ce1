"""`monarch.reduce`: tensors of the ranks along some dimensions of a mesh, combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch.tensor import metadata
from monarch.tensor.controller import misuse
from monarch.tensor.controller.activation import active_mesh
from monarch.tensor.controller.dispatch import trouble
from monarch.tensor.controller.groups import dims_of
from monarch.tensor.controller.misuse import Problem
from monarch.tensor.controller.records import KNOWN, Record, Storage
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.tensor import Tensor, make
from monarch.tensor.failures import Failed, GroupLost, is_echo
from monarch.tensor.worker import reductions
from monarch.tensor.worker.process_groups import groups_of
from monarch.tensor.worker.reductions import REDUCTIONS

if TYPE_CHECKING:
    from monarch.tensor.controller.mesh import DeviceMesh, Place


def reduce(
    tree: Any, dims: str | Sequence[str] = (), reduction: str = "sum", scatter: bool = False, mesh: Any = None,
    _inplace: bool = False,
) -> Any:  # fmt: skip
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

    KeyError for a dimension the mesh does not have; ValueError for a repeated one, an unknown reduction, and several
    dims with stack or scatter; TypeError for tensors that cannot be used here (those that require grad, while grad
    mode is on), and for a number of rows other than n. NotImplementedError for `mesh`.
    """
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
    tree: Any, dims: str | Sequence[str] = (), reduction: str = "sum", scatter: bool = False, mesh: Any = None
) -> Any:
    """`reduce`, with the results in the memory of the tensors themselves. ValueError where results have another
    shape: stack without `scatter`, and others with it."""
    return reduce(tree, dims, reduction, scatter, mesh, _inplace=True)


def reduce_tensor(
    tensor: Any, dims: str | Sequence[str], reduction: str, scatter: bool, mesh: Any, inplace: bool, out: Any
) -> Any:
    """`reduce` of one tensor; `out`: a tensor of the result's shape and dtype that becomes the result."""
    return _issue([tensor], dims, reduction, scatter, mesh, inplace, out)[0]


def _together(tensors: Sequence[Any], inplace: bool) -> list[list[int]]:
    """Which tensors go in one command: those of one mesh and device; in place only if no two share memory."""
    groups: dict[Any, list[int]] = {}
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


def _issue(
    tensors: list[Any], dims: str | Sequence[str], reduction: str, scatter: bool, mesh: Any, inplace: bool, out: Any
) -> list[Any]:
    if mesh is not None:
        raise NotImplementedError("reduce(mesh=...): reduce first, then bring the result there with .to_mesh(...)")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
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
    shape = _shape(tensors[0], reduction, scatter, size)
    for tensor in tensors:
        if why := reductions.obstacle(tensor.dtype, reduction):
            raise TypeError(f"tensors of {tensor.dtype} cannot be reduced with {reduction!r}: {why}")
    if out is not None and (tuple(out.shape) != shape or out.dtype != tensors[0].dtype):
        raise ValueError(
            f"Reduce expects the shape to be {shape} of {tensors[0].dtype}, and `out` has {tuple(out.shape)} of {out.dtype}"
        )
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
    call = Reduce(place, wanted, reduction, scatter, inplace, out is not None, expected)
    storages = [tensor._record.storage for tensor in inputs]
    fresh = 0 if inplace or out is not None else len(tensors)
    ident = engine.run(place, engine.define(key, call), [tensor._record.ref for tensor in inputs], (), fresh)
    taint = engine.taints.issued(ident, place, [storage.taint for storage in storages])
    if not fresh:
        written = tensors if inplace else [out]
        for tensor in written:
            storage = tensor._record.storage
            storage.taint, storage.known, storage.flags = taint, None, storage.flags & ~KNOWN
        torch.autograd.graph.increment_version(written)
        return written
    results = []
    for index, tensor in enumerate(tensors):
        meta = metadata.contiguous(shape if len(tensors) == 1 else tensor.shape, tensor.dtype, tensor.device)
        results.append(make(Record(ident + index, meta, place, Storage(taint))))
    return results


def _usable(
    name: str, inputs: list[Any], dims: Any, reduction: str, scatter: bool, inplace: bool, has_out: bool
) -> Place:
    """Where it runs. TypeError when one of the tensors cannot be used."""
    stream = get_active_stream()
    first = next((tensor for tensor in inputs if type(tensor) is Tensor), None)
    mesh: DeviceMesh | None = first._record.place.mesh if first is not None else active_mesh()
    problems = []
    for index, tensor in enumerate(inputs):
        writes = inplace or (has_out and index == len(inputs) - 1)
        if mesh is None or type(tensor) is not Tensor:
            problems.append(Problem(tensor, "LOCAL_TENSOR" if mesh is not None else "NO_MESH"))
        elif problem := trouble(tensor, mesh.place(stream), writes):
            problems.append(problem)
        elif tensor.requires_grad and torch.is_grad_enabled():
            problems.append(Problem(tensor, "REQUIRES_GRAD"))
    if problems:
        raise misuse.incorrect(name, (*inputs, dims, reduction, scatter), {}, problems, mesh, stream)
    assert mesh is not None
    return mesh.place(stream)


def _shape(tensor: Any, reduction: str, scatter: bool, size: int) -> tuple[int, ...]:
    shape = tuple(tensor.shape)
    if scatter and (not shape or shape[0] != size):
        raise TypeError(
            f"When scattering results the outer most dimension has to be the number of ranks, {size}, and the tensor's "
            f"shape is {shape}: reshape it to ({size}, ...) first"
        )
    if reduction == "stack":
        return shape if scatter else (size, *shape)
    return shape[1:] if scatter else shape


# --- in the workers -------------------------------------------------------------------------------------------


class Reduce:
    """The signature of a reduction. `expected`: (shape, dtype, device) of each tensor; the last input is `out`, if
    there is one."""

    between_ranks = True

    def __init__(
        self, place: Place, dims: tuple[str, ...], reduction: str, scatter: bool, inplace: bool, has_out: bool,
        expected: tuple[Any, ...],
    ) -> None:  # fmt: skip
        self._mesh = place.mesh_number
        self._stream = place.stream_number
        self._dims = dims
        self._reduction = reduction
        self._scatter = scatter
        self._inplace = inplace
        self._has_out = has_out
        self._expected = expected
        count = len(expected)
        self.keeps: tuple[int, ...] | None = () if inplace or has_out else tuple(range(count)) if count > 1 else None
        self.mutates = tuple(range(count)) if inplace else (1,) if has_out else ()

    def name(self) -> str:
        return f"reduce({self._reduction!r}, dims={self._dims}{', scatter=True' if self._scatter else ''})"

    def prepare(self, executor: Any) -> Callable[..., Any]:
        from monarch.tensor.worker.executor import current

        groups = groups_of(current())
        members = tuple(executor.meshes[self._mesh].along(executor.rank, self._dims))
        device = self._expected[0][2].type

        def run(tensors: Sequence[Any], numbers: Any) -> Any:
            mine, problem = self._own(tensors)
            if len(members) == 1:
                made = [reductions.local(tensor, self._reduction, self._scatter) for tensor in mine]
            else:
                try:
                    backend = groups.backend("reduce", members, self._stream, device)
                    made = self._between(backend, mine, problem is None, len(members))
                except Exception as exc:
                    # The others may be waiting for this rank: closed connections tell them.
                    groups.lose("reduce", _told(exc, members), members, self._stream)
                    if is_echo(exc):
                        raise GroupLost(_told(exc, members)) from exc
                    raise
            if problem is not None:
                raise problem
            return self._placed(tensors, made)

        return run

    def _own(self, tensors: Sequence[Any]) -> tuple[list[torch.Tensor], Exception | None]:
        """What this rank takes part with: zeros in place of what it does not have, and then why."""
        mine: list[torch.Tensor] = []
        problem: Exception | None = None
        for tensor, (shape, dtype, device) in zip(tensors, self._expected, strict=False):
            if type(tensor) is Failed:
                problem = problem or RuntimeError(tensor.text)
            elif tuple(tensor.shape) != shape or tensor.dtype != dtype:
                problem = problem or RuntimeError(
                    f"the local tensor is {tensor.dtype}{list(tensor.shape)}, and the controller knows it as "
                    f"{dtype}{list(shape)}: what `propagate` gives has to have the shapes of what the function returns"
                )
            else:
                mine.append(tensor)
                continue
            mine.append(torch.zeros(shape, dtype=dtype, device=device))
        out = tensors[-1]
        if self._has_out and type(out) is Failed:
            problem = problem or RuntimeError(out.text)
        return mine, problem

    def _between(self, backend: Any, mine: list[torch.Tensor], good: bool, size: int) -> list[torch.Tensor]:
        if self._reduction == "stack":
            if self._scatter:
                return [reductions.all_to_all(backend, mine[0])]
            return [reductions.all_gather(backend, mine[0], size)]
        if self._scatter:
            return [reductions.reduce_scatter(backend, mine[0], self._reduction, size)]
        # In place, a rank whose tensors are not all there works on copies: the good ones are lost with the command anyway.
        made = mine if self._inplace and good else [t.clone(memory_format=torch.contiguous_format) for t in mine]
        reductions.all_reduce_(backend, made, self._reduction, size)
        return made

    def _placed(self, tensors: Sequence[Any], made: list[torch.Tensor]) -> Any:
        if self._has_out:
            tensors[-1].copy_(made[0])
            return None
        if self._inplace:
            for tensor, result in zip(tensors, made, strict=True):
                if result is not tensor:
                    tensor.copy_(result)
            return None
        return made if len(made) > 1 else made[0]


def _told(exc: Exception, members: tuple[int, ...]) -> str:
    return (
        f"a collective of ranks {list(members)} failed: {exc}. Either another rank ended, failed or was more than five "
        f"minutes late, or this one could not take part; the engine has to be started again"
    )
