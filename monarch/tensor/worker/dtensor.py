"""A bridge to torch's DTensor, inside remote functions: the processes of a mesh as a torch DeviceMesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from monarch._linux.locks import Lock
from monarch.tensor.worker import current
from monarch.tensor.worker.stream_group import Arrived, StreamGroup
from monarch.tensor.worker.worker_mesh import WorkerMesh

if TYPE_CHECKING:
    pass

_making = Lock()


def to_dtensor(local: torch.Tensor, mesh: WorkerMesh, placements: Sequence[object]) -> Any:
    """A DTensor over the processes of `mesh` whose local tensor here is `local`.

    In a remote function only: `mesh` is the DeviceMesh that was passed to it, which is a WorkerMesh there.
    `placements`: one of torch's Shard, Replicate, Partial for each dimension of the mesh. Every rank of the mesh has
    to take part, and in whatever operation moves data. The shape of the whole follows from the local one, which is
    not compared between ranks.

    RuntimeError outside of remote functions, ValueError for a number of placements other than that of the mesh's
    dimensions.
    """
    from torch.distributed.tensor import DTensor

    if len(placements) != len(mesh.names):
        raise ValueError(
            f"{len(placements)} placements for a mesh with dimensions {mesh.names}: it takes one for each of them"
        )
    found = torch_mesh(mesh, local.device.type)
    return DTensor.from_local(local, found, list(placements), run_check=False)


def from_dtensor(tensor: torch.Tensor) -> torch.Tensor:
    """The local tensor of a DTensor, to be returned by a remote function. TypeError for anything else, RuntimeError
    for partial sums, of which no rank has the value: `redistribute` them first."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        raise TypeError(f"from_dtensor takes a DTensor, and not a {type(tensor).__name__}")
    if any(placement.is_partial() for placement in tensor.placements):
        raise RuntimeError(
            f"the DTensor has placements {tensor.placements}: its values are still to be summed over ranks. "
            f"Redistribute it first"
        )
    found: torch.Tensor = tensor.to_local()
    return found


def torch_mesh(mesh: WorkerMesh, device: str = "cpu") -> Any:
    """The torch DeviceMesh of a WorkerMesh, with its dimensions' names; the same one each time. For `device`s of one
    kind."""
    from torch.distributed.device_mesh import DeviceMesh

    worker = current.worker()
    if not mesh.names:
        raise ValueError("a mesh without dimensions is one process: there is nothing to distribute")
    key = (mesh.names, mesh.sizes, mesh.ranks)
    rank = worker.executor.rank
    with _making:
        kept = worker.executor.extras.setdefault("torch meshes", {})
        known = worker.executor.extras.setdefault("arrived", Arrived())
        groups, made = kept.get((key, device), (None, None))
        if groups is None:
            label = f"mesh {'.'.join(mesh.names)} {'.'.join(map(str, mesh.sizes))} {'.'.join(map(str, mesh.ranks))}"
            groups = []
            for name in mesh.names:
                members = tuple(mesh.along(rank, (name,)))
                groups.append(StreamGroup(worker, f"{label} {name}", members))
                groups[-1] = known.setdefault((f"{label} {name}", members), groups[-1])
    for group in groups:
        group.register()
        if group not in mesh.groups:
            mesh.groups.append(group)
    if made is None:
        every = torch.tensor(mesh.ranks, dtype=torch.int).reshape(mesh.sizes)
        made = DeviceMesh.from_group(groups, device, mesh=every, mesh_dim_names=mesh.names)
        with _making:
            groups, made = kept.setdefault((key, device), (groups, made))
    return made
