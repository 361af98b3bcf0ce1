"""Values come back: `fetch_shard`, `inspect`, `show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from monarch.actor import Future
from monarch.tensor.controller import misuse
from monarch.tensor.controller.activation import active_mesh
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.tensor import Tensor

if TYPE_CHECKING:
    import torch
    from torch.utils._pytree import PyTree

    from monarch.tensor.controller.mesh import DeviceMesh


def fetch_shard(obj: PyTree, shard: Mapping[str, int] | None = None, **coordinates: int) -> Future[Any]:
    """A Future of `obj`, a tree of distributed tensors and other values, with the local tensors of one rank on the CPU.

    The rank is the one at `shard` (or the keywords) in the mesh of the tensors, by default coordinate 0 of each dimension.
    The Future waits until every rank has what the values depend on. It raises RemoteException when any of it failed, with the
    line that issued it and the worker's traceback, and SupervisionError when a worker has ended. Values that are no
    distributed tensors pass through.

    Here: ValueError when a coordinate is missing or outside the mesh, KeyError for a dimension it does not have,
    TypeError for tensors of different meshes or streams.
    """
    leaves, spec = pytree.tree_flatten(obj)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if tensors:
        place = tensors[0]._record.place
    else:
        mesh = active_mesh()
        if mesh is None:
            raise AssertionError(
                "fetching needs a distributed tensor or an active mesh: activate one, or pass a tensor of it"
            )
        place = mesh.place(get_active_stream())
    problems = [problem for tensor in tensors if (problem := trouble(tensor, place, False)) is not None]
    if problems:
        raise misuse.incorrect("fetch_shard", (obj,), {}, problems, place.mesh, place.stream)
    rank = rank_at(place.mesh, shard, coordinates)
    records = [tensor._record for tensor in tensors]

    def rebuild(values: list[torch.Tensor]) -> PyTree:
        found = iter(values)
        return pytree.tree_unflatten([next(found) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)

    return place.engine.fetch(
        place.mesh,
        rank,
        [record.ref for record in records],
        [record.storage.taint for record in records],
        rebuild,
        place.stream,
    )


def rank_at(mesh: DeviceMesh, shard: Mapping[str, int] | None, coordinates: Mapping[str, int]) -> int:
    """The engine's rank at a coordinate of `mesh`; without any, at the first."""
    if shard is None and not coordinates:
        return next(iter(mesh.processes))
    wanted = {**(shard or {}), **coordinates}
    names = mesh.names
    for name in wanted:
        if name not in names:
            raise KeyError(f"the mesh has no dimension {name!r}: its dimensions are {names}")
    for name in names:
        if name not in wanted:
            raise ValueError(f"Missing key {name!r} in shard map. Need all of {names}")
        if not isinstance(wanted[name], int):
            raise TypeError(
                f"coordinate {name}={wanted[name]!r} is not a number: give the index along {name!r}, from 0 on"
            )
        if not 0 <= wanted[name] < mesh.size(name):
            raise ValueError(
                f"coordinate {name}={wanted[name]} is outside the mesh, which has size {mesh.size(name)} there"
            )
    offset: int = mesh.processes.offset
    return offset + sum(wanted[name] * stride for name, stride in zip(names, mesh.processes.strides, strict=True))


def inspect(obj: PyTree, shard: Mapping[str, int] | None = None, **coordinates: int) -> PyTree:
    """Returns what `fetch_shard(...)` gives; waits for it."""
    return fetch_shard(obj, shard, **coordinates).get()


def show(obj: PyTree, shard: Mapping[str, int] | None = None, **coordinates: int) -> Any:
    """`inspect(...)`, shown as a picture by the package torchshow. ImportError when that is not installed."""
    try:
        import torchshow
    except ImportError:
        raise ImportError("monarch.show draws with torchshow: pip install torchshow", name="torchshow") from None
    return torchshow.show(inspect(obj, shard, **coordinates))
