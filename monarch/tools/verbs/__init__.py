"""The verbs of the command `monarch`, one a file: jobs and their hosts (apply, run, exec, shell, kill, context), looking into
a program that runs (status, stacks, doctor, debug, query, metrics, profile, tui, dashboard, logs), a recorded actor (replay),
the shell (completion), and a beginning (demo, init). Each file has

    NAME, LINE, TEXT       the verb, one line about it, its help: what is before `examples:` and from there on
    arguments(parser)      what it takes
    run(options)           does it; returns the exit status

and imports what it needs when it runs: --help and tab completion load no runtime. What is raised is told in one line
on stderr.
"""

from __future__ import annotations

import importlib
from types import ModuleType

NAMES = (
    "demo",
    "init",
    "apply",
    "run",
    "exec",
    "shell",
    "status",
    "stacks",
    "doctor",
    "debug",
    "query",
    "metrics",
    "profile",
    "replay",
    "tui",
    "dashboard",
    "logs",
    "kill",
    "context",
    "completion",
)


def all_verbs() -> list[ModuleType]:
    """Returns the verbs in the order in which help shows them."""
    return [importlib.import_module(f"monarch.tools.verbs.{name}_verb") for name in NAMES]
