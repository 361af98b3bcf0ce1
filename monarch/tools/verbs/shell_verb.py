"""monarch shell: an interactive shell on one of the job's hosts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from monarch.tools.verbs.current_job import (
    add_environment,
    add_kill,
    current_job,
    environment,
    killing,
    mesh_of,
    point,
)

NAME = "shell"
LINE = "an interactive shell on one of the job's hosts"
TEXT = """\
An interactive shell ($SHELL there, else bash) on one host, the first by default, and ends with its exit status. Keys such as
Ctrl-C are the shell's. The job is started when it does not run.

examples:
  monarch shell
  monarch shell --mesh trainers --point hosts=3 --workdir /data
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mesh", metavar="NAME", help="of this mesh (default: the first)")
    parser.add_argument("--point", metavar="DIM=N,...", help="which of its hosts (default: the first)")
    add_environment(parser)
    add_kill(parser)


def run(options: argparse.Namespace) -> int:
    if options.json:
        options.parser.error(
            "a shell talks to people: `monarch exec --json -- COMMAND` runs a command and tells its status"
        )
    act = sys.modules["monarch.tools.cli"].shell_on_job  # by that name, under which programs replace it
    status: int = act(
        mesh_name=options.mesh, point_str=options.point, env=options.env, workdir=options.workdir, kill=options.kill
    )
    return status


def shell_on_job(
    *,
    mesh_name: str | None = None,
    point_str: str | None = None,
    env: Sequence[str] = (),
    workdir: str | None = None,
    kill: bool = False,
) -> int:
    """Runs an interactive shell on one host of the current job, and returns its exit status; `monarch shell` does it.

    `point_str` is `DIM=N,...`, `env` has `KEY=VALUE`; `kill` ends the job afterwards. ValueError for what cannot be read,
    FileNotFoundError when there is no job.
    """
    from monarch.job import shell
    from monarch.job.commands.run_command import chosen_hosts

    variables = environment(env)
    place = point(point_str) if point_str else None
    current = current_job()

    def act() -> int:
        hosts, _ = chosen_hosts(mesh_of(current.state(), mesh_name), None if place else 0, place)
        return shell(hosts, env=variables, workdir=workdir)

    return killing(current, kill, act)
