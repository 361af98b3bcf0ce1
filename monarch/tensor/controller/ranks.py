"""Tensors that tell each process who it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from monarch.tensor import metadata
from monarch.tensor.controller.groups import dims_of
from monarch.tensor.controller.handles import make
from monarch.tensor.controller.place import Mesh
from monarch.tensor.controller.records import Record, Storage
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.worker.ranks import Coordinate


def rank_tensor(mesh: Mesh, dim: str | Sequence[str]) -> torch.Tensor:
    """Each process's coordinate along `dim` of `mesh`, int64 without dimensions; several combined, the first outermost.

    KeyError for a dimension the mesh does not have, ValueError for a repeated one.
    """
    return _scalar(mesh, dims_of(mesh, dim))


def process_tensor(mesh: Mesh) -> torch.Tensor:
    """Each process's rank in the engine's mesh, int64 without dimensions."""
    return _scalar(mesh, None)


def _scalar(mesh: Mesh, dims: tuple[str, ...] | None) -> torch.Tensor:
    place = mesh.place(get_active_stream())
    engine = place.engine
    signature = engine.define(("rank", place.mesh_number, dims), Coordinate(place.mesh_number, dims))
    meta = metadata.contiguous((), torch.int64, "cpu")
    made: torch.Tensor = make(Record(engine.run(place, signature, (), (), 1), meta, place, Storage()))
    return made
