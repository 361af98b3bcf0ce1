"""Classes of jobs by their names: its own, as in a project's file, or that of a scheduler, as in older launch scripts."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.job.job_trait import JobTrait

CLASSES = {
    "LocalJob": "monarch.job.local",
    "ProcessJob": "monarch.job.process",
    "SlurmJob": "monarch.job.slurm.job",
    "SSHJob": "monarch.job.ssh.job",
    "KubernetesJob": "monarch.job.kubernetes",
    "RayJob": "monarch.job.ray.job",
    "SkyPilotJob": "monarch.job.skypilot",
}
SCHEDULERS = {"process": "ProcessJob", "slurm": "SlurmJob", "kubernetes": "KubernetesJob"}


def job_of(scheduler: str, meshes: Mapping[str, int], arguments: Mapping[str, Any]) -> JobTrait:
    """Returns the job that asks one of SCHEDULERS for `meshes` (name -> hosts). `arguments`: of its class; for kubernetes
    those of its `add_mesh` are under "mesh"."""
    name = SCHEDULERS[scheduler]
    kind: Any = getattr(importlib.import_module(CLASSES[name]), name)
    if scheduler != "kubernetes":
        return kind(dict(meshes), **arguments)  # type: ignore[no-any-return]
    arguments = dict(arguments)
    each = arguments.pop("mesh", {})
    job = kind(**arguments)
    for mesh, count in meshes.items():
        job.add_mesh(mesh, count, **each)
    return job  # type: ignore[no-any-return]
