"""Programs that run the same code on every rank: torch.distributed on the processes of a mesh.

    setup_torch_distributed(procs).get()          # monarch.actor: environment, device, process group
    setup_torch_elastic_env(procs)                # the environment alone: init_process_group() in the ranks does the rest
    torch_device_mesh()                           # in a rank: the mesh as torch's, for FSDP2 and DTensor

General layout, from the inside out:

    layout  who is which rank of what (pure)
    device_mesh
            the mesh of a rank as torch's DeviceMesh
    gloo_sockets, group_guard
            the end of a process's groups when one of their ranks dies
    ranks   the actor that does it in each process
    setup   the program's side
    main_program, spmd_actor
            a program as `__main__` of a process; a rank that a program steers by hand
"""

from __future__ import annotations

from monarch.actor import setup_torch_distributed
from monarch.spmd.device_mesh import torch_device_mesh
from monarch.spmd.setup import setup_torch_elastic_env, setup_torch_elastic_env_async
from monarch.spmd.spmd_actor import SPMDActor

__all__ = [
    "SPMDActor",
    "setup_torch_distributed",
    "setup_torch_elastic_env",
    "setup_torch_elastic_env_async",
    "torch_device_mesh",
]
