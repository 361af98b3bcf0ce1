"""The script that a SlurmJob hands to sbatch: directives, the user's own lines, and the workers' start.

No secret is in it: that is in the environment with which sbatch is called, and which Slurm passes on to the job's user alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import msgspec

_NOT_PLAIN = re.compile(r"[^\w.+=-]")  # in the name of a log
_MEANS_MORE = re.compile(r"""[\s"'\\#]""")  # to sbatch, in a directive

WORKER_MODULE = "monarch.job.slurm.worker"
BATCH_MODULE = "monarch.job.slurm.batch"
# srun takes all memory of the job, and refuses to be told of it twice.
UNSET = "unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE"

HOSTS = "MONARCH_JOB_HOSTS"  # the names of all nodes of the job, for its workers


class HetJobComponent(msgspec.Struct, frozen=True):
    """Nodes that are asked for together, all in one partition."""

    nodes: int
    partition: str | None


class SlurmRequest(msgspec.Struct, frozen=True):
    """A request to Slurm. A job of several components is a heterogeneous one: all of them start together, or none does,
    so that two jobs never hold half of their nodes each and wait for the other's."""

    components: tuple[HetJobComponent, ...]
    job_name: str
    python_exe: str
    port: int
    scheme: str
    log_dir: str
    ntasks_per_node: int
    time_limit: str | None
    gpus_per_node: int | str | None
    cpus_per_task: int | None
    mem: str | None
    exclusive: bool
    account: str | None
    qos: str | None
    slurm_args: tuple[str, ...]
    bind_to: str | None
    prologue: tuple[str, ...]
    container_image: str | None
    container_mounts: tuple[str, ...]
    srun_args: tuple[str, ...]

    def log(self, job: str, stream: str) -> str:
        """The file of the `out` or `err` of the job with this id."""
        return f"{self.log_dir}/slurm_{job}_{_NOT_PLAIN.sub('_', self.job_name)}.{stream}"

    def log_pattern(self, stream: str) -> str:
        """Returns what sbatch is given for it, who makes the id of %j and a single one of %%. ValueError for a folder that
        cannot be said so: with a backslash in it nothing of it means anything else than itself."""
        if "\\" in self.log_dir:
            raise ValueError(
                f"Slurm writes no logs in {self.log_dir!r}, which has a backslash in it: give another log_dir"
            )
        return msgspec.structs.replace(self, log_dir=self.log_dir.replace("%", "%%")).log("%j", stream)


def script(request: SlurmRequest, client: Sequence[str] | None = None) -> str:
    """The whole of it. With `client`, batch mode: that command runs on the first node, and the job ends with it."""
    lines = ["#!/bin/sh"]
    for number, component in enumerate(request.components):
        if number:
            lines.append("#SBATCH hetjob")
        lines += [f"#SBATCH {directive}" for directive in _directives(request, component)]
    lines += ["", *request.prologue, UNSET]
    groups = len(request.components) > 1
    lists = [f'"$SLURM_JOB_NODELIST_HET_GROUP_{n}"' if groups else '"$SLURM_JOB_NODELIST"'
             for n in range(len(request.components))]  # fmt: skip
    lines.append(f'{HOSTS}=$(for list in {" ".join(lists)}; do scontrol show hostnames "$list"; done)')
    lines.append(f"export {HOSTS}")
    starts = [srun(request, number if groups else None, component.nodes)
              for number, component in enumerate(request.components)]  # fmt: skip
    if client is not None:
        words = [request.python_exe, "-u", "-P", "-m", BATCH_MODULE]
        for start in starts:
            words += ["--workers", shlex.join(start)]
        lines.append("exec " + shlex.join([*words, "--", *client]))
    elif len(starts) == 1:
        lines.append("exec " + shlex.join(starts[0]))
    else:
        lines += [f"{shlex.join(start)} &" for start in starts]
        lines.append("wait")
    return "\n".join(lines) + "\n"


def _directives(request: SlurmRequest, component: HetJobComponent) -> list[str]:
    options = [
        f"--job-name={request.job_name}",
        f"--ntasks-per-node={request.ntasks_per_node}",
        f"--nodes={component.nodes}",
        f"--output={request.log_pattern('out')}",
        f"--error={request.log_pattern('err')}",
    ]
    if request.time_limit is not None:
        options.append(f"--time={request.time_limit}")
    if request.gpus_per_node is not None:
        options.append(f"--gpus-per-node={request.gpus_per_node}")
    if request.cpus_per_task is not None:
        options.append(f"--cpus-per-task={request.cpus_per_task}")
    if request.mem is not None:
        options.append(f"--mem={request.mem}")
    if request.exclusive:
        options.append("--exclusive")
    for name, value in (("partition", component.partition), ("account", request.account), ("qos", request.qos)):
        if value is not None:
            options.append(f"--{name}={value}")
    # A job that lost a node is neither begun anew, behind its client's back, nor ended: the other hosts go on.
    options = [_word(option) for option in options]
    return [*options, "--no-requeue", "--no-kill", *request.slurm_args]


def _word(option: str) -> str:
    """Returns the option as one word of a directive."""
    if "\n" in option or "\r" in option:
        name, _, value = option.partition("=")
        raise ValueError(f"sbatch takes no line break in {name}, got {value!r}")
    return '"' + re.sub(r'(["\\])', r"\\\1", option) + '"' if _MEANS_MORE.search(option) else option


def srun(request: SlurmRequest, group: int | None, nodes: int, options: Sequence[str] = ()) -> list[str]:
    """The command that starts a worker on each node: one task there, with all that the job has of it."""
    words = ["srun", *options]
    if group is not None:
        words.append(f"--het-group={group}")
    words += [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none", "--mem=0", "--overlap"]
    words += ["--no-kill", "--kill-on-bad-exit=0"]
    if request.container_image is not None:
        words.append(f"--container-image={request.container_image}")
    if request.container_mounts:
        words.append(f"--container-mounts={','.join(request.container_mounts)}")
    return [*words, *request.srun_args, "sh", "-c", _worker(request)]


def _worker(request: SlurmRequest) -> str:
    """The line that each node runs. The shell stays, to say on which node a worker has failed."""
    words = [
        request.python_exe,
        "-u",
        "-P",
        "-m",
        WORKER_MODULE,
        "--port",
        str(request.port),
        "--scheme",
        request.scheme,
    ]
    if request.bind_to is not None:
        words += ["--bind-to", request.bind_to]
    return (
        f'{shlex.join(words)} || {{ status=$?; echo "{FAILED} $SLURMD_NODENAME: status $status" >&2; exit $status; }}'
    )


FAILED = "monarch: the worker could not go on, on node"


def failure(log: str) -> str | None:
    """Returns what the workers' log says when one of them has failed: the node and the lines before; None when none has."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.startswith(FAILED):
            node = line.removeprefix(FAILED).partition(":")[0].strip()
            said = [before for before in lines[max(0, number - 6) : number] if not before.startswith((FAILED, "srun:"))]
            return f"the worker on node {node} has failed: {' / '.join(said[-3:]) or line}"
    return None
