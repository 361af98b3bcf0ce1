"""The container that a mesh's pods run, in short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ImageSpec:
    """An image for `KubernetesJob.add_mesh`; the rest of the pod is made by the job.

    `image`: has a `python` on its PATH that can `import monarch`, of the client's minor version.
    `resources`: `{"cpu": 4, "memory": "16Gi", "nvidia.com/gpu": 8}`, both what is asked for and the most that may be used.
    `enable_fuse`: mounts /dev/fuse, for `remote_mount`; that takes a privileged container.
    `shared_memory_size`: the size of /dev/shm, "16Gi"; without it a container has 64 MiB, too little for torch's loaders.
    """

    image: str
    resources: Mapping[str, str | int | float] | None = None
    enable_fuse: bool = False
    shared_memory_size: str | None = None
