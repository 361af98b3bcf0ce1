"""The rank of a worker, as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from monarch.tensor.signature import Runner
    from monarch.tensor.worker.executor import Executor


class Coordinate:
    """The signature of `rank_tensor` and, without dims, `process_tensor`."""

    keeps: tuple[int, ...] | None = None
    mutates: tuple[int, ...] = ()

    def __init__(self, mesh: int, dims: tuple[str, ...] | None) -> None:
        self._mesh = mesh
        self._dims = dims

    def name(self) -> str:
        return "process_idx" if self._dims is None else f"rank({self._dims})"

    def prepare(self, executor: Executor) -> Runner:
        rank = executor.rank
        value = rank if self._dims is None else executor.meshes[self._mesh].along(rank, self._dims).index(rank)
        return lambda tensors, numbers: torch.tensor(value, dtype=torch.int64)
