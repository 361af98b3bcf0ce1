"""An older path of what `monarch.actor` has: meshes of processes."""

from __future__ import annotations

import warnings

from monarch.actor import (
    HostMesh,
    ProcMesh,
    get_active_proc_meshes,
    local_proc_mesh,
    proc_mesh,
    register_proc_mesh_spawn_callback,
    this_host,
    this_proc,
    unregister_proc_mesh_spawn_callback,
)

__all__ = [
    "HostMesh",
    "ProcMesh",
    "get_active_proc_meshes",
    "local_proc_mesh",
    "proc_mesh",
    "register_proc_mesh_spawn_callback",
    "this_host",
    "this_proc",
    "unregister_proc_mesh_spawn_callback",
]

warnings.warn("monarch.proc_mesh is an older path: import from monarch.actor instead", DeprecationWarning, stacklevel=2)
