"""Hosts of a Slurm cluster: see docs/slurm.md.

General layout, from the inside out:

    text                    what Slurm's commands print, read
    arguments, script       what sbatch is given
    slurm_commands, watch   the commands, run; the guard of an allocation whose client is killed while it waits
    batch, worker           what runs on the nodes
    job                     SlurmJob
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.job.slurm.job import SlurmJob

__all__ = ["SlurmJob"]


def __getattr__(name: str) -> Any:
    """SlurmJob, loaded when it is used: what runs on the nodes does without it."""
    if name != "SlurmJob":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from monarch.job.slurm.job import SlurmJob

    return SlurmJob
