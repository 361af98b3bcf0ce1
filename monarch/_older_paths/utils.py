"""An older path: ranks as those of torch.distributed, as `monarch.spmd` sets them up."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from monarch.spmd import setup_torch_elastic_env_async

if TYPE_CHECKING:
    from monarch.actor import ProcMesh

__all__ = ["setup_env_for_distributed"]


async def setup_env_for_distributed(
    proc_mesh: ProcMesh, master_addr: str | None = None, master_port: int | None = None
) -> None:
    """Sets the variables by which the processes of a mesh find each other; see `setup_torch_elastic_env_async`."""
    warnings.warn(
        "monarch.utils.setup_env_for_distributed is of an older release: call monarch.spmd.setup_torch_elastic_env",
        DeprecationWarning,
        stacklevel=2,
    )
    await setup_torch_elastic_env_async(proc_mesh, master_addr, master_port)
