"""Older forms of the API, for programs written before hosts and processes were separate meshes.

`proc_mesh(gpus=2, hosts=1, env={...})` makes processes on this machine; awaiting it waits until they run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from monarch._mesh.meshes.host_mesh import this_host
from monarch._mesh.meshes.proc_mesh import ProcMesh


def device_count() -> int:
    """Accelerators of this machine, as torch counts them when the program uses torch; 1 without any."""
    torch = sys.modules.get("torch")
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        return max(1, int(accelerator.device_count()))
    return 1


def proc_mesh(
    *,
    gpus: int | None = None,
    hosts: int = 1,
    env: Mapping[str, str | None] | None = None,
    setup: Callable[[], Any] | None = None,
) -> ProcMesh:
    """Processes on this machine with dimensions `hosts` and `gpus` (default: one an accelerator, at least one).

    `env` is set in each before it imports anything; `setup` runs once in each before any actor.
    """
    per_host = {"hosts": hosts, "gpus": device_count() if gpus is None else gpus}
    return this_host().spawn_procs(per_host, bootstrap=setup, env=env)


def local_proc_mesh(*, gpus: int | None = None, hosts: int = 1) -> ProcMesh:
    """The same as `proc_mesh`, without environment or setup."""
    return proc_mesh(gpus=gpus, hosts=hosts)
