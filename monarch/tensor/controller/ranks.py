"""Tensors that tell each process who it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor import metadata
from monarch.tensor.controller.groups import dims_of
from monarch.tensor.controller.records import Record, Storage
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.tensor import Tensor, make

if TYPE_CHECKING:
    from monarch.tensor.controller.mesh import DeviceMesh


def rank_tensor(mesh: DeviceMesh, dim: str | Sequence[str]) -> Tensor:
    """Each process's coordinate along `dim` of `mesh`, int64 without dimensions; several combined, the first outermost.

    KeyError for a dimension the mesh does not have, ValueError for a repeated one.
    """
    return _scalar(mesh, dims_of(mesh, dim))


def process_tensor(mesh: DeviceMesh) -> Tensor:
    """Each process's rank in the engine's mesh, int64 without dimensions."""
    return _scalar(mesh, None)


def _scalar(mesh: DeviceMesh, dims: tuple[str, ...] | None) -> Tensor:
    place = mesh.place(get_active_stream())
    engine = place.engine
    signature = engine.define(("rank", place.mesh_number, dims), Coordinate(place.mesh_number, dims))
    meta = metadata.contiguous((), torch.int64, "cpu")
    return make(Record(engine.run(place, signature, (), (), 1), meta, place, Storage()))


class Coordinate:
    """The signature of `rank_tensor` and, without dims, `process_tensor`."""

    keeps: tuple[int, ...] | None = None
    mutates: tuple[int, ...] = ()

    def __init__(self, mesh: int, dims: tuple[str, ...] | None) -> None:
        self._mesh = mesh
        self._dims = dims

    def name(self) -> str:
        return "process_idx" if self._dims is None else f"rank({self._dims})"

    def prepare(self, executor: Any) -> Callable[..., Any]:
        rank = executor.rank
        value = rank if self._dims is None else executor.meshes[self._mesh].along(rank, self._dims).index(rank)
        return lambda tensors, numbers: torch.tensor(value, dtype=torch.int64)
