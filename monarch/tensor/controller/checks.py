"""Checks that a tensor may be used where an operation runs, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from monarch.tensor.controller import misuse
from monarch.tensor.controller.handles import is_distributed
from monarch.tensor.controller.misuse import OperandProblem
from monarch.tensor.controller.records import BORROWED, DROPPED, LENT, RETURNED, UNSEEN, recorder, recorders
from monarch.tensor.controller.stream import _active as _streams
from monarch.tensor.controller.stream_placement import StreamPlacement

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from monarch.tensor.controller.mesh import DeviceMesh
    from monarch.tensor.controller.tensor import Tensor
    from monarch.tensor.signature import Args, Kwargs


def check(
    func: OpOverload,
    args: Args,
    kwargs: Kwargs,
    inputs: list[Tensor],
    mutates: tuple[int, ...],
    place: StreamPlacement,
    mesh: DeviceMesh | None,
) -> StreamPlacement:
    """Returns where the operation runs. Raises every reason why an input cannot be used."""
    stream = _streams.stream
    if place.stream is not stream and torch._C._current_graph_task_id() != -1:
        stream = place.stream  # derivatives run where their operations ran
    wanted = place.mesh.place(stream)
    problems = []
    for index, tensor in enumerate(inputs):
        problem = trouble(tensor, wanted, index in mutates)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise misuse.incorrect(func, args, kwargs, problems, mesh, stream)
    return wanted


def trouble(tensor: Tensor, place: StreamPlacement, writes: bool) -> OperandProblem | None:
    """Returns why `tensor` cannot be used at `place`, or None."""
    if not is_distributed(tensor):
        return OperandProblem(tensor, "LOCAL_TENSOR")
    if recorders and (here := recorder()) is not None:
        here.read((tensor,))
    record = tensor._record
    storage = record.storage
    flags = storage.flags
    if flags and storage.borrows is not None:
        flags = storage.borrows.look(storage)
    if flags & (DROPPED | RETURNED):
        return OperandProblem(tensor, "DROPPED", why=storage.why)
    if flags & LENT:
        return OperandProblem(tensor, "BORROWED", why=storage.why)
    if writes and flags & BORROWED:
        return OperandProblem(tensor, "MUTATING_BORROW", why=storage.why)
    if record.place.mesh is not place.mesh:
        return OperandProblem(tensor, "WRONG_MESH", mesh=record.place.mesh)
    if record.place.stream is not place.stream:
        return OperandProblem(tensor, "WRONG_STREAM", stream=record.place.stream)
    if flags & UNSEEN:
        storage.borrows.first_use(storage)
    return None
