"""Output of Slurm's commands, as values. Its text is the same in all versions; its JSON is not, and some have none."""

from __future__ import annotations

import re
from typing import Any

import msgspec

# With |: a reason may have spaces and commas in it ("ReqNodeNotAvail, UnavailableNodes:n[1-2]").
SQUEUE_FORMAT = "%i|%T|%r|%S|%N"

_SUBMITTED = re.compile(r"Submitted batch job (\d+)")

_RUNNING = "RUNNING"
_OVER = {
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "it was cancelled",
    "COMPLETED": "all its workers have ended",
    "COMPLETING": "it is ending",
    "DEADLINE": "it did not end before its deadline",
    "FAILED": "a command in it failed",
    "NODE_FAIL": "a node of it failed",
    "OUT_OF_MEMORY": "it ran out of memory",
    "PREEMPTED": "another job took its place",
    "REVOKED": "another cluster runs it",
    "TIMEOUT": "its time limit was reached",
}
_GONE = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
         "TIMEOUT")  # fmt: skip

# What people can do about a reason for waiting, where the reason alone does not say it.
_ADVICE = {
    "PartitionNodeLimit": "the partition has fewer nodes, or lets a job have fewer: it will not start as it is",
    "PartitionConfig": "the partition cannot run a job of this shape: it will not start as it is",
    "PartitionTimeLimit": "the partition's time limit is shorter than time_limit",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "Resources": "the nodes are in use",
    "Priority": "jobs of higher priority are before it",
    "BadConstraints": "no node satisfies the constraints",
    "JobHeldUser": "it is held; scontrol release starts it",
    "JobHeldAdmin": "an administrator holds it",
}
ORDERLY = ("Priority", "Resources")  # the reasons for which a place in the queue says something


class JobRow(msgspec.Struct, frozen=True):
    """A job, or one component of a heterogeneous one. `nodes` as Slurm writes them: "n[1-4]"."""

    part: int
    state: str
    reason: str
    start: str
    nodes: str

    @property
    def running(self) -> bool:
        return self.state == _RUNNING

    @property
    def over(self) -> bool:
        """True if it has ended, or is about to."""
        return self.state in _OVER

    @property
    def gone(self) -> bool:
        """True if nothing of it runs any more."""
        return self.state in _GONE

    def why(self) -> str:
        """Its state and reason, in Slurm's words and in others."""
        said = self.state if self.reason in ("", "None") else f"{self.state}, reason {self.reason}"
        more = _OVER.get(self.state) or _ADVICE.get(self.reason.split(",")[0])
        told = f"{said}: {more}" if more else said
        return f"{told} (start expected at {self.start})" if not self.over and _is_known(self.start) else told


def _is_known(start: str) -> bool:
    return start not in ("", "N/A", "Unknown", "0")


def job_id(sbatch_output: str) -> str | None:
    """The id in what sbatch printed; None when there is none."""
    found = _SUBMITTED.search(sbatch_output)
    return found.group(1) if found else None


def rows(squeue_output: str) -> list[JobRow]:
    """Reads what `squeue -o SQUEUE_FORMAT` printed of one job, components in order. ValueError for what is not that."""
    found = []
    for line in squeue_output.splitlines():
        if not line.strip():
            continue
        fields = line.strip().split("|")
        if len(fields) != 5:
            raise ValueError(f"squeue printed {line!r}, which has not the five fields {SQUEUE_FORMAT}")
        name, state, reason, start, nodes = (field.strip() for field in fields)
        found.append(JobRow(_part(name), state.upper(), reason, start, _no_nodes(nodes)))
    return sorted(found, key=lambda row: row.part)


def rows_from_json(content: Any, job: str) -> list[JobRow]:
    """The same from `squeue --json`, of any version: 22.05 lists all jobs and gives the state as a text, later ones give a
    list of states. Hosts are in `allocated_host_names`."""
    found = []
    jobs = content.get("jobs", []) if isinstance(content, dict) else []
    for entry in jobs:
        het = _number(entry.get("het_job_id"))
        if str(job) not in (str(_number(entry.get("job_id"))), str(het)):
            continue
        state = entry.get("job_state", "")
        name = str((state[0] if state else "") if isinstance(state, list) else state)
        found.append(
            JobRow(
                _number(entry.get("het_job_offset")) if het else 0,
                name.upper(),
                str(entry.get("state_reason", "")),
                "",
                ",".join(allocated_host_names(entry)),
            )
        )
    return sorted(found, key=lambda row: row.part)


def allocated_host_names(job: dict[str, Any]) -> list[str]:
    """The hosts of one job of `squeue --json`, in each of the shapes that versions of Slurm have given them."""
    resources = job.get("job_resources") or {}
    nodes = resources.get("nodes")
    if isinstance(nodes, dict):  # 23.11 and later
        names = [node.get("name") for node in nodes.get("allocation") or []]
        if any(names):
            return [name for name in names if name]
        nodes = nodes.get("list")
    allocated = resources.get("allocated_nodes")
    if isinstance(allocated, dict):
        allocated = list(allocated.values())
    if isinstance(allocated, list) and allocated:  # 20.11 to 23.02
        return [name for node in allocated if (name := node.get("nodename") or node.get("name"))]
    text = nodes if isinstance(nodes, str) else job.get("nodes")
    if isinstance(text, list):
        return [str(name) for name in text]
    return split_host_list(text) if isinstance(text, str) else []


def split_host_list(text: str) -> list[str]:
    """ "n[1-3,7],login" as names: what `scontrol show hostnames` does, for where that cannot be asked."""
    names: list[str] = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        expanded = [""]
        for literal, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", item):
            ends = [literal] if literal else [number for part in ranges.split(",") for number in _range(part)]
            expanded = [begin + end for begin in expanded for end in ends]
        names += [name.strip() for name in expanded]
    return names


def _range(part: str) -> list[str]:
    first, dash, last = part.partition("-")
    if not dash:
        return [first]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _part(name: str) -> int:
    """The number of a component: 1 in "5+1"; 0 for an ordinary job."""
    return int(name.partition("+")[2] or 0)


def _no_nodes(nodes: str) -> str:
    return "" if nodes in ("(null)", "None assigned", "None") else nodes


def _number(value: Any) -> int:
    """Slurm's JSON writes numbers as themselves, or as {"set": true, "infinite": false, "number": 5}."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else 0
    try:
        return int(value or 0)
    except (TypeError, ValueError):
        return 0
