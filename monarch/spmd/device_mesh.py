"""The mesh of a rank as torch's DeviceMesh, for what torch spreads over named dimensions: FSDP2, DTensor, tensor parallel."""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Mapping
from typing import Any

from monarch._linux.locks import Lock


def torch_distributed() -> Any:
    """Returns torch.distributed. ImportError that says where torch is missing, and how it is installed."""
    try:
        import torch.distributed
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        raise ImportError(
            f"torch is not installed where this rank runs (host {socket.gethostname()}, interpreter {sys.executable}): pip "
            f"install 'pymonarch[torch]' there",
            name="torch",
        ) from None
    from monarch._devices import torch_versions  # noqa: F401 -- refuses a torch that is too old

    return torch.distributed


class Ranks:
    """The dimensions of the mesh whose processes are the ranks of this process's group, and torch's meshes of it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._dims: dict[str, int] = {}
        self._group: Any = None  # that `_made` are of
        self._made: dict[tuple[str, tuple[tuple[str, int], ...]], Any] = {}

    def are(self, dims: Mapping[str, int]) -> None:
        """Names the dimensions of the group that comes next."""
        with self._lock:
            self._dims = dict(dims)

    def mesh(self, dims: Mapping[str, int] | None, device: str | None) -> Any:
        dist = torch_distributed()
        from torch.distributed.device_mesh import init_device_mesh

        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "this process is in no torch process group, so it has no device mesh: have the controller call "
                "setup_torch_distributed(procs) first"
            )
        kind = device or ("cuda" if "nccl" in dist.get_backend() else "cpu")
        with self._lock:  # torch makes groups here, which all ranks do in the same order
            if self._group is not dist.group.WORLD:
                self._group, self._made = dist.group.WORLD, {}
            wanted = sizes_of(self._dims if dims is None else dims, dist.get_world_size())
            key = kind, tuple(wanted.items())
            if key not in self._made:
                self._made[key] = init_device_mesh(kind, tuple(wanted.values()), mesh_dim_names=tuple(wanted))
            return self._made[key]


def sizes_of(dims: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The size of each dimension over so many ranks; one that is -1 is what the others leave. A mesh without dimensions is
    one of a single dimension, "rank". ValueError where they do not make up the ranks."""
    if not dims:
        return {"rank": ranks}
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or not (size >= 1 or size == -1):
            raise ValueError(
                f"dimension {name!r} of a device mesh has {size!r} ranks: give a number from 1, or -1 for the rest"
            )
    open_ = [name for name, size in dims.items() if size == -1]
    given = math.prod(size for size in dims.values() if size != -1)
    if len(open_) > 1:
        raise ValueError(f"dimensions {', '.join(open_)} are -1: only one of them follows from the others")
    if ranks % given if open_ else ranks != given:
        listed = " x ".join(f"{name} {size}" for name, size in dims.items())
        raise ValueError(f"a device mesh of {listed} does not fit the {ranks} ranks of the process group")
    return {name: ranks // given if size == -1 else size for name, size in dims.items()}


ranks = Ranks()


def torch_device_mesh(dims: Mapping[str, int] | None = None, *, device: str | None = None) -> Any:
    """The processes of the mesh that was given to `setup_torch_distributed`, as a torch DeviceMesh with the same dimensions.

    In the process of a rank, in any actor there: what `fully_shard`, `parallelize_module`, `distribute_tensor` and
    torch.distributed.checkpoint take. A mesh {"dp": 2, "tp": 4} gives a DeviceMesh whose `["dp"]` and `["tp"]` are torch's
    submeshes. `dims`: names and sizes of another arrangement of the same ranks, in row-major order; a size of -1 is what the
    others leave. `device`: torch's name of the kind of device, "cuda" where the group's backend is nccl and else "cpu".

    Torch makes a process group a dimension, which waits for all ranks: each rank has to make the same call, the first time
    with the same `dims`. After that the same object is given again, until `setup_torch_distributed` is called anew.

    RuntimeError in a process that is in no group, ValueError for sizes that are not those of the ranks. Whatever torch raises
    when a rank does not come (its `timeout`, see `setup_torch_distributed`).
    """
    return ranks.mesh(dims, device)
