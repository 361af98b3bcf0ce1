"""monarch apply: starts a job, and waits until its hosts answer."""

from __future__ import annotations

import argparse
import time

from monarch._linux import terminal
from monarch.tools import json_output
from monarch.tools.verbs.current_job import current_job, mesh_of

NAME = "apply"
LINE = "start a job, or find it running, and wait for its hosts"
TEXT = """\
Starts the job of the active context and waits until its hosts answer. A job that runs already is found again: what is
done twice is done once. MODULE.ATTRIBUTE names the job, an object in a Python file that can be imported from here; it is
remembered in the context, so later commands need not name it. Without one, the context's job, or the one that monarch.toml or
pyproject.toml describes.

examples:
  monarch apply cluster.job        # cluster.py has: job = SlurmJob({"trainers": 4}, partition="gpu")
  monarch apply                    # the same again: finds the hosts
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("module_path", nargs="?", metavar="MODULE.ATTRIBUTE", help="the job, which is remembered")


def run(options: argparse.Namespace) -> int:
    from monarch.job import exec_command, set_current_job

    if options.module_path is not None:
        set_current_job(options.module_path)
    begun = time.monotonic()
    current = current_job()
    state = current.state()
    status = exec_command(mesh_of(state, None), ["true"]).get()
    if options.json:
        from monarch.tools.documents import JobReady

        return json_output.end(
            JobReady(
                exit_status=status,
                job=current.name,
                meshes={name: len(mesh) for name, mesh in state._hosts.items()},
                seconds=time.monotonic() - begun,
            )
        )
    if status == 0:
        terminal.show(f"Job is ready ({time.monotonic() - begun:.0f}s)")
    return status
