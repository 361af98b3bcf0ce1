"""monarch context: several jobs of one project."""

from __future__ import annotations

import argparse

from monarch._linux.terminal import show
from monarch._text import one_line
from monarch.tools import json_output

NAME = "context"
LINE = "keep several jobs in one folder, and say which one is meant"
TEXT = """\
A context is a name for a job of this folder; one of them is active, and what the other commands are about. It lies in
.monarch/NAME.

  create NAME   a new one, which becomes the active one
  use NAME      makes it the active one, and makes it when it is not there
  rm NAME       kills its job and removes it
  ls            all of them, the active one with a *

examples:
  monarch context create debug && monarch apply cluster.small_job
  monarch context use default
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    for action, line in (
        ("create", "make a new context, and use it"),
        ("use", "make a context the active one"),
        ("rm", "kill the context's job and remove it"),
    ):
        parser_of_action = actions.add_parser(action, help=line)
        parser_of_action.add_argument("name", metavar="NAME")
        json_output.add_argument(parser_of_action, default=argparse.SUPPRESS)  # that before the action stays
    json_output.add_argument(actions.add_parser("ls", help="list contexts"), default=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    from monarch.job import contexts

    done = ""
    if options.action != "ls":
        act, done = {
            "create": (contexts.create, "Created"),
            "use": (contexts.use, "Switched to"),
            "rm": (contexts.remove, "Removed"),
        }[options.action]
        act(options.name)
    active, names = contexts.active(), contexts.names()
    if options.json:
        from monarch.tools.documents import ContextList

        return json_output.end(ContextList(active=active, contexts=names))
    if done:
        show(f"{done} context {options.name!r}")
    else:
        lines = [f"{'* ' if name == active else '  '}{name}" for name in names]
        show("\n".join(map(one_line, lines)) or "No contexts.")
    return 0
