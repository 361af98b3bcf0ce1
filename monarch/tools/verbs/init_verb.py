"""monarch init: a project that runs, to begin from."""

from __future__ import annotations

import argparse
import shlex

from monarch._linux import terminal
from monarch.tools import json_output

NAME = "init"
LINE = "make a project that runs: a script, and the jobs that it may run on"
TEXT = """\
Writes into a folder, by default this one:

  train.py       a script with an actor on every rank
  monarch.toml   the jobs that it may run on: processes of this machine, nodes of a Slurm cluster
  .gitignore     what runs leave here

Nothing that is there is changed: with a file of such a name in the folder the command ends.

examples:
  monarch init my_project
  cd my_project && python train.py
  MONARCH_JOB=cluster python train.py
  monarch kill                              gives the hosts back
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="FOLDER", help="folder to write to (default: this one)"
    )


def run(options: argparse.Namespace) -> int:
    from monarch.tools import project

    files = project.make(options.folder)
    if options.json:
        from monarch.tools.documents import ProjectMade

        return json_output.end(ProjectMade(folder=str(files[0].parent), files=[file.name for file in files]))
    steps = [] if options.folder == "." else [f"  cd {shlex.quote(options.folder)}\n"]
    terminal.show(
        f"Made {', '.join(file.name for file in files)} in {files[0].parent}. Next:\n\n"
        + "".join(steps)
        + "  python train.py                        on two hosts that are processes of this machine; they stay\n"
        "  monarch status                         what runs on them\n"
        "  monarch kill                           gives them back\n"
        "  MONARCH_JOB=cluster python train.py    the same on a cluster, which monarch.toml describes"
    )
    return 0
