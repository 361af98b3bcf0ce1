"""monarch tui: a program that runs, as a tree on the terminal."""

from __future__ import annotations

import argparse

NAME = "tui"
LINE = "a program that runs as a tree on the terminal: hosts, processes, actors, where they are stuck"
TEXT = """\
Shows a program that runs: its hosts, processes and actors as a tree, what each of them does at this moment and for how long,
what it waits for, why it failed. Without --addr it looks at a program of this user on this machine, which needs no
preparation; with --addr at an admin server (monarch.admin.start(), job.enable_admin()). ? shows the keys.

examples:
  monarch tui
  monarch tui --pid 4711 --theme doom-nord-light
  monarch tui --addr http://localhost:1729
  monarch tui --once
  monarch tui --diagnose
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    from monarch.admin.screen import program

    program.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from monarch.admin.screen import program

    return program.run(options)
