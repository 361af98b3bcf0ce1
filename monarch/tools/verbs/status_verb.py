"""monarch status: what a job that runs is doing."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch.tools.verbs.current_job import current_job

if TYPE_CHECKING:
    from monarch.job import JobTrait

NAME = "status"
LINE = "what the job's hosts and processes are doing, and who waits for whom"
TEXT = """\
Shows the hosts of a job that runs, the processes on them with their memory, which endpoints run there and for how
long, and who waits for whom. It asks the hosts themselves, also about processes that other programs have started
there, and starts nothing: without a job that runs it says so and ends with 1.

examples:
  monarch status
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="SECONDS", help="for hosts that do not answer (5)"
    )


def run(options: argparse.Namespace) -> int:
    from monarch.actor import wait_graph
    from monarch.tools.verbs import status_page
    from monarch.tools.verbs.host_status import look

    job, name = running_job()
    found = []
    for mesh, hosts in job.state().__dict__["_hosts"].items():
        found += [(f"{mesh}[{rank}]", facts) for rank, facts in enumerate(look(hosts, options.timeout))]
    graph = wait_graph(options.timeout).get()
    print(status_page.page(f"{name}: {type(job).__name__}", found, graph), flush=True)
    return 0 if not any(isinstance(facts, str) for _, facts in found) else 1


def running_job() -> tuple[JobTrait, str]:
    """The job that the file of the active context keeps, else that of the project's. ValueError when none runs."""
    from monarch.job import DEFAULT_JOB_PATH, contexts, job_load

    path: Any = DEFAULT_JOB_PATH
    name = f"context {contexts.active()!r}"
    if not Path(path).exists():
        try:
            current = current_job()
        except FileNotFoundError:
            raise ValueError(f"no job runs in {name} of {os.getcwd()}") from None
        path, name = current.path, current.name
    try:
        job = job_load(path)
    except FileNotFoundError:
        raise ValueError(f"{name} does not run: `monarch apply` starts it") from None
    if not job.active:
        raise ValueError(f"{name} does not run: `monarch apply` starts it")
    return job, name
