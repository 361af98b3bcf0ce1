"""monarch tui: the ranks of a program that runs, on the terminal."""

from __future__ import annotations

import argparse
import time

from monarch.tools import exit_codes, json_output

NAME = "tui"
LINE = "the ranks of a program that runs on the terminal: what is wrong, who does what; and all of it as a tree"
TEXT = """\
Shows a program that runs: what the doctor finds wrong with it, its ranks, what each of them does at this moment, for how long
and at which line, why it failed; with `t`, or --tree, its hosts, processes and actors as a tree. Without --addr it looks at a
program of this user on this machine, which needs no preparation; with --addr at an admin server (monarch.admin.start(),
job.enable_admin()). ? shows the keys.

examples:
  monarch tui
  monarch tui --pid 4711 --theme doom-nord-light
  monarch tui --addr http://localhost:1729
  monarch tui --once
  monarch tui --once --tree --system
  monarch tui --diagnose
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    from monarch.admin.screen import program

    program.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    import msgspec

    from monarch.admin.screen import program

    if not options.json:
        return program.run(options)
    if options.once == options.diagnose:
        options.parser.error(
            "the screen talks to people: --json goes with --once or --diagnose, or `monarch status --json`"
        )
    source = program.source_of(options)
    if options.diagnose:
        from monarch.admin.screen import diagnostics
        from monarch.tools.documents import ChecksDone

        report = diagnostics.run(source, time.monotonic)
        found = {**report.json(), "exit_status": exit_codes.DONE if report.healthy else exit_codes.FAILED}
        return json_output.end(msgspec.convert(found, ChecksDone))
    from monarch.admin.screen.sources import NoAnswer
    from monarch.tools.documents import TreeFound

    try:
        nodes = source.nodes()
    except NoAnswer as error:
        raise ConnectionError(str(error)) from None
    return json_output.end(TreeFound(nodes=[msgspec.to_builtins(node) for node in nodes]))
