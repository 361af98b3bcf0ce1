"""monarch status: what a job or a program that runs is doing."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch._errors import NotFoundError
from monarch._linux import terminal
from monarch.tools import exit_codes, json_output
from monarch.tools.durations import wait
from monarch.tools.verbs.current_job import current_place

if TYPE_CHECKING:
    from monarch.admin.status import StatusReport
    from monarch.job import JobTrait

NAME = "status"
LINE = "what a running program or job is doing: hosts, processes, endpoints, who waits for whom"
TEXT = """\
Shows a program of yours that runs on this machine: its hosts, their processes with state and memory, which endpoints run
there and for how long, who waits for whom, what has failed; first of all what `monarch doctor` finds wrong, where something
has taken 5 s. Of several programs it lists all; --pid chooses one.

Where a job of this folder runs, it shows that: its hosts, and what all programs have started there. It asks the agents
of the hosts, and starts nothing. Without a program or job that runs it says how to get one, and ends with 1.

examples:
  monarch status
  monarch status --pid 4711
  monarch status --json | jq .endpoints
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=int, metavar="PROGRAM", help="the program with this pid")
    parser.add_argument("--timeout", type=wait, default=5.0, metavar="TIME", help="for hosts that do not answer (5)")


def run(options: argparse.Namespace) -> int:
    if options.pid is None:
        try:
            job, name = running_job()
        except NotFoundError as exc:
            return of_programs(options, str(exc))
        from monarch.admin.status import status_of_hosts

        title = f"{name}: {type(job).__name__}"
        return _shown(status_of_hosts(title, job.state()._hosts, options.timeout), options.json)
    return of_programs(options, "")


def of_programs(options: argparse.Namespace, no_job: str) -> int:
    """`no_job`: why there is no job to show."""
    from monarch.admin.programs import choose, listed, running_programs
    from monarch.admin.status import status_of

    if options.pid is None and "MONARCH_PROGRAM" not in os.environ:
        programs = running_programs()
        if len(programs) > 1:
            if options.json:
                from monarch.tools.documents import ProgramFound, ProgramList

                told = [ProgramFound(one.pid, one.command, one.started) for one in programs]
                return json_output.end(ProgramList(programs=told))
            terminal.show(f"{len(programs)} programs run; --pid shows one of them:\n{listed(programs)}")
            return 0
        if no_job and not programs:
            raise NotFoundError(
                f"{no_job}; and no program of yours that uses monarch runs on this machine: start one (python my_script.py)"
            )
    return _shown(status_of(choose(options.pid), options.timeout), options.json)


def _shown(status: StatusReport, as_json: bool) -> int:
    code = exit_codes.FAILED if status.unreachable or status.waits.silent else exit_codes.DONE
    if not as_json:
        from monarch.admin.status import page

        terminal.show(page(status))
        return code
    from monarch.tools.documents import ProgramFound, StatusFound

    program = status.program
    return json_output.end(
        StatusFound(
            exit_status=code,
            program=None if program is None else ProgramFound(program.pid, program.command, program.started),
            job=None if program else status.title,
            places=dict(status.places),
            hosts=list(status.hosts),
            unreachable=status.unreachable,
            endpoints=status.waits.handlers,
            waits=status.waits.edges,
            silent=status.waits.silent,
            failures=list(status.failures),
            findings=status.waits.findings,
            tables=list(status.tables),
        )
    )


def running_job() -> tuple[JobTrait, str]:
    """The job that the file of the active context keeps, else that of the project's. NotFoundError when none runs."""
    from monarch.job import DEFAULT_JOB_PATH, contexts, job_load

    path: Any = DEFAULT_JOB_PATH
    name = f"context {contexts.active()!r}"
    if not Path(path).exists():
        try:
            path, name = current_place()
        except FileNotFoundError:
            raise NotFoundError(f"no job runs in {name} of {os.getcwd()}") from None
    try:
        job = job_load(path)
    except FileNotFoundError:
        raise NotFoundError(f"{name} does not run: `monarch apply` starts it") from None
    if not job.active:
        raise NotFoundError(f"{name} does not run: `monarch apply` starts it")
    return job, name
