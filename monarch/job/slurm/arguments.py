"""Arguments of a SlurmJob, checked."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

# Variables that lead to Slurm. Its others are left out of what it is asked: inside a job they describe that job.
_WAY = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT")
# And those that would keep the secret from the workers, or begin them a second time.
_STRAY = ("SBATCH_EXPORT", "SBATCH_REQUEUE", "SBATCH_NO_REQUEUE")


def outside_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment as it would be outside of any job."""
    return {
        name: value
        for name, value in environment.items()
        if name in _WAY or not (name.startswith(("SLURM_", "SLURMD_", "SRUN_")) or name in _STRAY)
    }


def options(name: str, words: Sequence[str]) -> tuple[str, ...]:
    if isinstance(words, str):
        raise TypeError(f"{name} is a sequence of options, got the text {words!r}")
    for word in words:
        if not isinstance(word, str) or not word.startswith("-") or "\n" in word:
            raise ValueError(
                f"{name} are options such as '--constraint=a100', each one word that begins with '-'; got {word!r}"
            )
        if word.startswith("--export") and name == "slurm_args" and "ALL" not in word and "MONARCH_SECRET" not in word:
            raise ValueError(f"{word} would keep the job's secret from its workers: add MONARCH_SECRET, or ALL, to it")
    return tuple(words)


def lines(prologue: Sequence[str]) -> tuple[str, ...]:
    if isinstance(prologue, str):
        return (prologue,)
    return tuple(prologue)


def ip_address(bind_to: str | None) -> str | None:
    if bind_to is None:
        return None
    try:
        return str(ipaddress.ip_address(bind_to.strip("[]")))
    except ValueError:
        raise ValueError(f"bind_to is an IP address such as '0.0.0.0' or '10.0.0.7', got {bind_to!r}") from None


def share(tasks_per_node: int, gpus_per_task: int, partition: str) -> tuple[int, int | None, str | None]:
    """(tasks a node, processors a task, memory a node) as clusterscope finds them."""
    try:
        import clusterscope
    except ImportError:
        raise RuntimeError(
            "sharing nodes needs the package clusterscope, which knows what a device's share of a node is: "
            "pip install clusterscope, or give cpus_per_task and mem, or exclusive=True"
        ) from None
    found = clusterscope.job_gen_task_slurm(
        partition=partition, gpus_per_task=gpus_per_task, tasks_per_node=tasks_per_node
    )
    return tasks_per_node, found.get("cpus_per_task"), found.get("memory")
