"""The page that `monarch` alone shows: what of yours runs here, and the commands that are of use next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.admin.programs import Program

FOR_A_PROGRAM = (
    ("monarch status", "what it is doing, and who waits for whom"),
    ("monarch doctor", "what keeps it from going on"),
    ("monarch tui", "all of it as a tree on the terminal"),
)
FOR_A_JOB = (
    ("monarch status", "what its hosts are doing"),
    ("monarch exec --all COMMAND", "a command on each of them"),
    ("monarch kill", "gives them back"),
)
FOR_A_PROJECT = (
    ("monarch apply", "starts the job and waits for its hosts; a script with hosts_from_config() does so too"),
    ("monarch run train.py", "runs a script written for torchrun on this machine"),
    ("monarch exec --all COMMAND", "a command on each host of the job"),
)
FOR_A_BEGINNING = (
    ("monarch demo", "what this can do, in a few seconds"),
    ("monarch init my_project", "makes a project that runs"),
    ("monarch run train.py", "runs a script written for torchrun"),
)


def here(version: str) -> str:
    """Returns the page for this user, machine and folder. Asks nobody, starts nothing."""
    from monarch.admin.programs import running_programs
    from monarch.job import project_file
    from monarch.tools.verbs.current_job import current_place

    described, kept = "", False
    try:
        kept = Path(current_place()[0]).exists()
        project = project_file.find(Path.cwd())
        described = "" if project is None else str(project.path)
    except (OSError, ValueError):  # no job, or one that the verb which wants it says more about
        pass
    return page(version, running_programs(), kept, described)


def page(version: str, programs: Sequence[Program], kept: bool, project: str) -> str:
    """Returns the page. `kept`: a job that runs is kept in this folder; `project`: the file that describes the folder's jobs,
    or ""."""
    from monarch.admin.programs import listed

    lines = [f"pymonarch {version}: one Python script drives a cluster of processes", ""]
    if programs:
        noun = "A program of yours runs" if len(programs) == 1 else f"{len(programs)} programs of yours run"
        lines += [f"{noun} on this machine:", listed(programs), ""]
    if kept:
        lines += ["The job of this folder has hosts.", ""]
    elif project:
        lines += [f"{project} describes the jobs of this project.", ""]
    if not programs and not kept and not project:
        lines += ["Nothing of yours runs on this machine, and this folder describes no job.", ""]
    if programs:
        commands = FOR_A_PROGRAM
    elif kept:
        commands = FOR_A_JOB
    else:
        commands = FOR_A_PROJECT if project else FOR_A_BEGINNING
    width = max(len(command) for command, _ in commands)
    lines += [f"  {command:{width}}   {what}" for command, what in commands]
    return "\n".join([*lines, "", "monarch --help lists all commands."])
