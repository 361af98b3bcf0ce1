"""How long until a job's hosts answer, and how long does a command on many ranks take?

Per scheduler and number of hosts: `state()` of a new job until the first call to a process on each host has been answered
(cold), the same when the job is kept from an earlier run (warm), and `kill()`. Then `exec_command` of `true` over 32 ranks of
4 hosts, beside 32 times `true` by the shell. On ProcessJob; with --slurm also on a lab of 16 Slurm nodes on this machine
(root, after `make lab`). Not part of run_all.py: a table and a line of JSON go to stdout.

    python benchmarks/jobs.py [--quick] [--slurm]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from monarch.actor import Actor, endpoint
from monarch.job import JobTrait, ProcessJob, SlurmJob, exec_command

RANKS, EXEC_HOSTS = 32, 4


class Here(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def first_call(job: JobTrait) -> Any:
    """The job's hosts, when a process on each has answered."""
    hosts = job.state().hosts
    procs = hosts.spawn_procs()
    assert len(procs.spawn("here", Here).pid.call().get(120).values()) == len(hosts)
    procs.stop().get(60)
    return hosts


def seconds(fn: Callable[[], Any]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def life(make: Callable[[], JobTrait], rounds: int) -> dict[str, float]:
    """Medians; the program that finds the job is this one, with a new object."""
    found: dict[str, list[float]] = {"cold": [], "warm": [], "kill": []}
    for _ in range(rounds):
        found["cold"].append(seconds(partial(first_call, make())))
        kept = make()
        found["warm"].append(seconds(partial(first_call, kept)))
        found["kill"].append(seconds(kept.kill))
    return {name: statistics.median(values) for name, values in found.items()}


def commands(make: Callable[[], JobTrait], rounds: int) -> dict[str, float]:
    job = make()
    hosts = job.state().hosts

    def ours() -> None:
        assert exec_command(hosts, ["true"], per_host={"ranks": RANKS // EXEC_HOSTS}).get(120) == 0

    def shell() -> None:
        subprocess.run(["sh", "-c", f"for i in $(seq {RANKS}); do sh -c true & done; wait"], check=True)

    ours()
    figures = {
        "exec": statistics.median(seconds(ours) for _ in range(rounds)),
        "sh": statistics.median(seconds(shell) for _ in range(rounds)),
    }
    job.kill()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, 1 and 4 hosts")
    parser.add_argument("--slurm", action="store_true", help="on a lab of Slurm nodes, too")
    options = parser.parse_args()
    logging.getLogger("monarch.job").addHandler(logging.NullHandler())
    sizes, rounds = ((1, 4), 1) if options.quick else ((1, 4, 16), 5)
    kinds: dict[str, Callable[[int], JobTrait]] = {"ProcessJob": lambda hosts: ProcessJob({"hosts": hosts})}
    with contextlib.ExitStack() as stack:
        os.chdir(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-jobs")))
        if options.slurm:
            from tests.lab.slurm import SlurmLab

            lab = stack.enter_context(SlurmLab(max(sizes)))
            os.environ.update(lab.env)
            kinds["SlurmJob"] = lambda hosts: SlurmJob({"hosts": hosts}, python_exe=sys.executable)
        table: list[dict[str, Any]] = []
        for kind, make in kinds.items():
            for hosts in sizes:
                figures = life(partial(make, hosts), rounds)
                table.append({"job": kind, "hosts": hosts} | figures)
                print(f"{kind:>11} {hosts:>3} hosts", *(f"{name} {value:7.2f} s" for name, value in figures.items()))
        figures = commands(lambda: ProcessJob({"hosts": EXEC_HOSTS}), rounds)
        table.append({"ranks": RANKS, "hosts": EXEC_HOSTS} | figures)
        print(f"{RANKS} ranks on {EXEC_HOSTS} hosts:", *(f"{name} {value:.2f} s" for name, value in figures.items()))
    print(json.dumps({"question": "jobs", "rows": table}))


if __name__ == "__main__":
    main()
