"""Jobs: a program says which hosts it needs, and a scheduler gives them.

    job = SlurmJob({"trainers": 4}, partition="gpu")
    hosts = job.state().trainers                      # waits; the next run of the program finds the same hosts
    procs = hosts.spawn_procs({"gpus": 8})
    job.kill()

General layout, from the inside out:

    names, progress       what is agreed on; what people see
    cache, contexts       the file that keeps a job between runs; several jobs of a project
    job_trait             the life of a job
    scheduled             what all schedulers have in common; a new one says four things
    local, process, ...   one kind of job a file or folder
    schedulers            which class a name means
    mounts                directories that a job brings to its hosts and back
    project_file          jobs that pyproject.toml or monarch.toml describe
    commands              what is done on hosts: exec_command, shell, PortForwarder
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.job.batch import BatchJob
    from monarch.job.commands.interactive_shell import shell
    from monarch.job.commands.port_forwarder import PortForwarder
    from monarch.job.commands.run_command import exec_command
    from monarch.job.components import MeshAdminConfig, TelemetryConfig
    from monarch.job.contexts import load_current_job, set_current_job
    from monarch.job.identities import (
        SERVICE_PROC_IDS_ENV,
        SERVICE_PROC_RANK_ENV,
        deserialize_service_proc_ids,
        new_service_proc_id,
        ranked_service_proc_id_from_env,
        serialize_service_proc_ids,
        service_proc_addr,
        service_proc_addrs,
    )
    from monarch.job.job_state import JobState
    from monarch.job.job_trait import JobTrait, job_load, job_loads
    from monarch.job.kubernetes import KubernetesJob as KubernetesJob
    from monarch.job.local import LocalJob
    from monarch.job.names import DEFAULT_JOB_PATH
    from monarch.job.process import ProcessJob
    from monarch.job.project_file import hosts_from_config
    from monarch.job.ray.job import RayJob as RayJob
    from monarch.job.scheduled import Ended, Ready, ScheduledJob, SchedulerError, Waiting
    from monarch.job.skypilot import SkyPilotJob as SkyPilotJob
    from monarch.job.slurm.job import SlurmJob
    from monarch.job.ssh.job import LoginJob, SSHJob
    from monarch.job.worker_launch import WorkerLaunch

# Each name and the module that has it, loaded when it is first used: most programs need one kind of job.
_HOMES = {
    "BatchJob": "batch",
    "DEFAULT_JOB_PATH": "names",
    "Ended": "scheduled",
    "JobState": "job_state",
    "JobTrait": "job_trait",
    "KubernetesJob": "kubernetes",
    "LocalJob": "local",
    "LoginJob": "ssh",
    "MeshAdminConfig": "components",
    "PortForwarder": "commands.port_forwarder",
    "ProcessJob": "process",
    "RayJob": "ray",
    "Ready": "scheduled",
    "SERVICE_PROC_IDS_ENV": "identities",
    "SERVICE_PROC_RANK_ENV": "identities",
    "SSHJob": "ssh",
    "ScheduledJob": "scheduled",
    "SchedulerError": "scheduled",
    "SkyPilotJob": "skypilot",
    "SlurmJob": "slurm",
    "TelemetryConfig": "components",
    "Waiting": "scheduled",
    "WorkerLaunch": "worker_launch",
    "deserialize_service_proc_ids": "identities",
    "exec_command": "commands.run_command",
    "hosts_from_config": "project_file",
    "job_load": "job_trait",
    "job_loads": "job_trait",
    "load_current_job": "contexts",
    "new_service_proc_id": "identities",
    "ranked_service_proc_id_from_env": "identities",
    "serialize_service_proc_ids": "identities",
    "service_proc_addr": "identities",
    "service_proc_addrs": "identities",
    "set_current_job": "contexts",
    "shell": "commands.interactive_shell",
}

# Without the kinds of jobs that need a package which few have: `import *` must not ask for it.
__all__ = [
    "DEFAULT_JOB_PATH",
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "BatchJob",
    "Ended",
    "JobState",
    "JobTrait",
    "LocalJob",
    "LoginJob",
    "MeshAdminConfig",
    "PortForwarder",
    "ProcessJob",
    "Ready",
    "SSHJob",
    "ScheduledJob",
    "SchedulerError",
    "SlurmJob",
    "TelemetryConfig",
    "Waiting",
    "WorkerLaunch",
    "deserialize_service_proc_ids",
    "exec_command",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "load_current_job",
    "new_service_proc_id",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
    "set_current_job",
    "shell",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'monarch.job' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"monarch.job.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
