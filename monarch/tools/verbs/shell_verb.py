"""monarch shell: an interactive shell on one of the job's hosts."""

from __future__ import annotations

import argparse

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
    from monarch.job import shell
    from monarch.job.commands.run_command import chosen_hosts

    env = environment(options.env)
    place = point(options.point) if options.point else None
    current = current_job()

    def act() -> int:
        hosts, _ = chosen_hosts(mesh_of(current.state(), options.mesh), None if place else 0, place)
        return shell(hosts, env=env, workdir=options.workdir)

    return killing(current, options.kill, act)
