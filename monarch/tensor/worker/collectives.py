"""A collective as workers carry it out: what each rank takes part with, and where the result goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor.failures import Failed, GroupLost, is_echo
from monarch.tensor.worker import current, reductions
from monarch.tensor.worker.expected import Expected, problem_with
from monarch.tensor.worker.handover import used_here
from monarch.tensor.worker.process_groups import groups_of

if TYPE_CHECKING:
    from monarch.tensor.signature import Runner, Scalar
    from monarch.tensor.worker.executor import Executor
    from monarch.tensor.worker.reductions import Backend


class ReduceTensor:
    """The signature of a reduction. `expected`: (shape, dtype, device) of each tensor; the last input is `out`, if
    there is one."""

    between_ranks = True

    def __init__(
        self, mesh: int, stream: int, dims: tuple[str, ...], reduction: str, scatter: bool, inplace: bool, has_out: bool,
        expected: tuple[Expected, ...],
    ) -> None:  # fmt: skip
        self._mesh = mesh
        self._stream = stream
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

    def prepare(self, executor: Executor) -> Runner:
        groups = groups_of(current.worker())
        members = tuple(executor.meshes[self._mesh].along(executor.rank, self._dims))
        device = self._expected[0][2].type

        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
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

    def _own(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Exception | None]:
        """Returns what this rank takes part with: zeros in place of what it does not have, and then why."""
        mine: list[torch.Tensor] = []
        problem: Exception | None = None
        for tensor, expected in zip(tensors, self._expected, strict=False):
            wrong = problem_with(tensor, expected)
            if wrong is None:
                used_here(tensor)  # another stream may have lent it
                mine.append(tensor)
                continue
            problem = problem or wrong
            shape, dtype, device = expected
            mine.append(torch.zeros(shape, dtype=dtype, device=device.type))
        out = tensors[-1]
        if self._has_out and type(out) is Failed:
            problem = problem or RuntimeError(out.text)
        return mine, problem

    def _between(self, backend: Backend, mine: list[torch.Tensor], good: bool, size: int) -> list[torch.Tensor]:
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

    def _placed(self, tensors: Sequence[torch.Tensor], made: list[torch.Tensor]) -> Any:
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


def shape_of(tensor: torch.Tensor, reduction: str, scatter: bool, size: int) -> tuple[int, ...]:
    shape = tuple(tensor.shape)
    if scatter and (not shape or shape[0] != size):
        raise TypeError(
            f"When scattering results the outer most dimension has to be the number of ranks, {size}, and the tensor's "
            f"shape is {shape}: reshape it to ({size}, ...) first"
        )
    if reduction == "stack":
        return shape if scatter else (size, *shape)
    return shape[1:] if scatter else shape
