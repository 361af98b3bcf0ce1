"""monarch run: torchrun's arguments, on the hosts of any job."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from monarch._linux import terminal
from monarch.job.torchrun import arguments as torchrun
from monarch.tools import json_output
from monarch.tools.verbs.current_job import CurrentJob, add_kill, environment, mesh_of, named_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import HostMesh
    from monarch.job.commands.printer import CommandPrinter
    from monarch.job.torchrun.arguments import TorchrunOptions

NAME = "run"
LINE = "run a program on every rank, as torchrun does, on this machine or a job"
TEXT = """\
Runs a program on every rank, with torchrun's arguments and environment variables, from one place: without --job on
this machine, with it on the job's hosts. A job is started when it does not run, and goes on afterwards unless --kill
says otherwise. Started once on every node, as torchrun is, with --nnodes and --rdzv-endpoint HOST:PORT, the commands form
one world; they need a secret in common (MONARCH_SECRET or MONARCH_SECRET_FILE).

Ends with 0 when all ranks did. When a rank fails the others are ended, the first one to fail is told with its traceback, and
its exit status is that of the command; with --max-restarts all ranks begin anew before that.

examples:
  monarch run --nproc-per-node 8 train.py --epochs 3
  monarch run --job cluster.job --nnodes 4 --nproc-per-node gpu -m package.train
  srun monarch run --nnodes 4 --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" --rdzv-id "$SLURM_JOB_ID" train.py
  monarch run --nproc-per-node 2 --max-restarts 3 --log-dir logs --tee 3 train.py
  monarch run --nproc-per-node 4 --keep-metrics runs train.py
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = True  # as torchrun's are
    parser.add_argument("--job", metavar="JOB", help="MODULE.ATTRIBUTE, or a job of monarch.toml or pyproject.toml")
    parser.add_argument("--mesh", metavar="NAME", help="of the job (default: the first)")
    parser.add_argument("-e", "--env", action="append", default=[], metavar="KEY=VALUE", help="a variable of the ranks")
    parser.add_argument(
        "--keep-metrics",
        metavar="FOLDER",
        help="keep what the ranks log by monarch.metrics.log as a run in this folder, for monarch metrics",
    )
    add_kill(parser)
    torchrun.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    wanted = torchrun.options(options, os.environ)
    if not options.json:
        return run_on(options, wanted, None)
    from monarch.tools.documents import RanksEnded

    return json_output.end(RanksEnded(exit_status=run_on(options, wanted, lines_of)))


def run_on(
    options: argparse.Namespace, wanted: TorchrunOptions, printer: Callable[[int], CommandPrinter] | None
) -> int:
    from monarch.job.torchrun import run as runner

    env = environment(options.env)
    current = the_job(options.job)
    torchrun.check_starts(wanted, os.environ, current is not None)
    if options.keep_metrics is not None:
        if wanted.meeting is not None:
            options.parser.error(
                "--keep-metrics is for one command that starts all ranks: use it without --rdzv-endpoint"
            )
        from monarch.metrics import keep

        terminal.note(f"monarch run: metrics are kept in {keep(options.keep_metrics)}")
    if current is not None:
        wanted = msgspec.structs.replace(wanted, unused=[*wanted.unused_with_job, *wanted.unused])
        try:
            hosts = mesh_of(current.state(), options.mesh)
            return runner.run(hosts, wanted, current.name, env, printer=printer, own_streams=True)
        finally:
            if options.kill:
                current.kill()
            elif current.job.active:
                context = Path(current.path).parent.name
                terminal.note(f"monarch run: the hosts of {current.name} stay; monarch kill {context} ends them")
    if options.mesh is not None or options.kill:
        options.parser.error("--mesh and --kill are for jobs: name one with --job")
    if wanted.meeting is not None:
        from monarch.job.torchrun import once_a_node

        return once_a_node.run(wanted, wanted.meeting, env, printer)
    least = 1 if wanted.nodes is None else wanted.nodes[0]
    if least == 1:
        from monarch.actor import this_host

        return runner.run(this_host(), wanted, "this machine", env, printer=printer, own_streams=True)

    def on_hosts(hosts: HostMesh) -> int:
        return runner.run(hosts, wanted, "this machine", env, printer=printer, own_streams=True)

    return on_this_machine(least, on_hosts)


def lines_of(ranks: int) -> CommandPrinter:
    """Prints what the ranks write as JSON."""
    from monarch.job.commands.printer import LinePrinter
    from monarch.tools.documents import RunOutput, RunRank

    def line(rank: int, stream: int, text: str) -> None:
        json_output.show(RunOutput(rank=rank, stream=json_output.stream_name(stream), text=text))

    return LinePrinter(ranks, line, lambda rank, status: json_output.show(RunRank(rank=rank, status=status)))


def the_job(spec: str | None) -> CurrentJob | None:
    """The job that --job names, or MONARCH_JOB; None for this machine."""
    from monarch.job import project_file
    from monarch.tools.verbs.current_job import of_project

    if spec is not None:
        return named_job(spec)
    project = project_file.find(Path.cwd()) if os.environ.get(project_file.PICK) else None
    return None if project is None else of_project(project, os.environ)


def on_this_machine(count: int, act: object) -> int:
    """Several hosts, simulated by processes of this machine, which end with the run."""
    from monarch.job import ProcessJob

    job = ProcessJob({"hosts": count})
    try:
        hosts: HostMesh = job.state(cached_path=None).hosts
        return act(hosts)  # type: ignore[operator, no-any-return]
    finally:
        job.kill()
