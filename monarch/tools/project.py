"""The files that `monarch init` writes: a script, the jobs that it may run on, what version control leaves out."""

from __future__ import annotations

import os
from pathlib import Path

from monarch._linux import private_files

SCRIPT = '''\
"""Trains on all hosts of this project's job: python train.py. Which job that is stands in monarch.toml."""

from monarch.actor import Actor, current_rank, endpoint
from monarch.job import hosts_from_config


class Trainer(Actor):
    """One rank, with data of its own. A model of torch's is made here as well, and wrapped in DDP."""

    def __init__(self) -> None:
        rank = current_rank().rank
        self.points = [(x / 10, 3 * x / 10) for x in range(1 + rank, 11 + rank)]

    @endpoint
    def gradient(self, slope: float) -> float:
        return sum((slope * x - y) * x for x, y in self.points) / len(self.points)


def main() -> None:
    hosts = hosts_from_config("trainers")  # starts the job, or finds it running
    procs = hosts.spawn_procs({"gpus": 2})  # two processes on each host
    trainers = procs.spawn("trainers", Trainer)
    slope = 0.0
    for step in range(1, 21):
        gradients = trainers.gradient.call(slope).get().values()
        slope -= sum(gradients) / len(gradients)
        if step % 5 == 0:
            print(f"step {step}: slope {slope:.3f}, from {len(gradients)} ranks on {len(hosts)} hosts")
    procs.stop().get()


if __name__ == "__main__":
    main()
'''

JOBS = """\
# The jobs of this project. `python train.py` runs on the default job, MONARCH_JOB=cluster picks another.
default-job = "laptop"

[jobs.laptop]
class = "ProcessJob"        # hosts that are processes of this machine
meshes = { trainers = 2 }

[jobs.cluster]
class = "SlurmJob"          # or SSHJob, KubernetesJob, RayJob, SkyPilotJob
meshes = { trainers = 4 }
partition = "gpu"
gpus_per_node = 8
"""

IGNORED = ".monarch/\n__pycache__/\n"

FILES = {"train.py": SCRIPT, "monarch.toml": JOBS, ".gitignore": IGNORED}


def make(folder: str | os.PathLike[str]) -> list[Path]:
    """Writes the files into `folder`, which is made if it is not there, and returns them.

    FileExistsError, before anything is written, when one of them is there.
    """
    at = Path(folder).absolute()
    there = [name for name in FILES if os.path.lexists(at / name)]
    if there:
        raise FileExistsError(
            f"{at} has {', '.join(there)} already: name a folder that is new, `monarch init my_project`"
        )
    private_files.make_folder(at, mine=False, closed=False)
    for name, text in FILES.items():
        private_files.write(at / name, text.encode(), replace=False)
    return [at / name for name in FILES]
