"""monarch kill: gives the hosts of a job back."""

from __future__ import annotations

import argparse
from pathlib import Path

from monarch._errors import NotFoundError
from monarch._linux import terminal
from monarch.tools import json_output

NAME = "kill"
LINE = "end a job and give its hosts back"
TEXT = """\
Ends the job of a context, of the active one by default, else the one that monarch.toml or pyproject.toml describes: what
runs on its hosts ends, mounts are taken away, the scheduler gets its hosts back, and the job is forgotten. When something
cannot be ended that is told, and the command can be given again.

examples:
  monarch kill
  monarch kill experiment-2
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("context", nargs="?", metavar="CONTEXT", help="whose job (default: the active context)")


def _state(context: str | None) -> str:
    """The file of the job. Without a context it is the job that the other verbs mean."""
    from monarch.job import DEFAULT_JOB_PATH, contexts
    from monarch.tools.verbs.current_job import current_place

    if context is not None:
        return str(contexts.state_path(context))
    if not Path(DEFAULT_JOB_PATH).exists():
        try:
            return current_place()[0]
        except FileNotFoundError:
            pass  # the file that is not there is told by the caller
    return DEFAULT_JOB_PATH


def run(options: argparse.Namespace) -> int:
    from monarch.job import cache, contexts, job_load

    path = _state(options.context)
    try:
        job = job_load(path)
    except FileNotFoundError:
        where = contexts.active() if options.context is None else options.context
        others = [name for name in contexts.names() if contexts.state_path(name).exists()]
        ways = ", ".join(f"`monarch kill {name}`" for name in others)
        raise NotFoundError(
            f"no job runs in context {where!r} of this folder" + (f"; in others: {ways}" if ways else "")
        ) from None
    job.kill()
    cache.remove(path)
    if options.json:
        from monarch.tools.documents import JobEnded

        return json_output.end(JobEnded(context=contexts.active() if options.context is None else options.context))
    terminal.show("Killed job" if options.context is None else f"Killed context {options.context!r}")
    return 0
