"""monarch logs: what the hosts of a job have written."""

from __future__ import annotations

import argparse
import os
import sys

from monarch.job.log_file import end_of
from monarch.tools.verbs.status_verb import running_job

NAME = "logs"
LINE = "what the job's hosts have written into their logs"
TEXT = """\
Prints the end of the logs of a job's hosts, of all of them or of those named: worker programs, and what a scheduler
collects. Logs that lie on other machines are not reached from here; `monarch exec` reads them there.

examples:
  monarch logs
  monarch logs -n 200 trainers_0
"""
_LINES = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="logs whose name has this in it (default: all)")
    parser.add_argument("-n", "--lines", type=int, default=_LINES, metavar="N", help=f"the last N lines ({_LINES})")
    parser.add_argument("--paths", action="store_true", help="only say where they are")


def run(options: argparse.Namespace) -> int:
    job, name = running_job()
    files = job._log_files()
    if options.names:
        files = {key: path for key, path in files.items() if any(wanted in key for wanted in options.names)}
    if not files:
        raise ValueError(f"{name} has no logs here{' of this name' if options.names else ''}")
    for key, path in files.items():
        print(f"==> {key}: {path} <==", flush=True)
        if not options.paths:
            try:
                sys.stdout.write(last_lines(path, options.lines))
            except OSError as error:
                print(f"({error.strerror})", flush=True)
    return 0


def last_lines(path: str | os.PathLike[str], count: int) -> str:
    """At most the last 4 MiB are looked at."""
    lines = end_of(path, 4 << 20).splitlines(keepends=True)
    text = "".join(lines[-count:]) if count > 0 else ""
    return text if not text or text.endswith("\n") else f"{text}\n"
