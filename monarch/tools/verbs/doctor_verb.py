"""monarch doctor: what keeps a program from going on."""

from __future__ import annotations

import argparse

from monarch._linux import terminal
from monarch._text import one_line
from monarch.tools import exit_codes, json_output
from monarch.tools.durations import wait

NAME = "doctor"
LINE = "what keeps a running program from going on: which rank, at which line"
TEXT = """\
Looks twice, a second apart, at every process of a program of yours that runs on this machine, and says what is wrong:
ranks that are not where the others of their mesh are, collectives of torch.distributed that not all ranks have entered,
processes that are stopped, silent or have failed, actors that wait for each other, hosts with little memory left. Each with
what was seen, and what to do. Nothing has to be prepared.

examples:
  monarch doctor
  monarch doctor --pid 4711             one of several programs
  monarch doctor --json                 for programs

exit codes: 0 nothing is wrong, 1 something is; others for errors
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=int, metavar="PROGRAM", help="the program with this pid, where several run")
    parser.add_argument(
        "--timeout", type=wait, default=2.0, metavar="TIME", help="for processes that do not answer (2)"
    )
    parser.add_argument("--apart", type=wait, default=1.0, metavar="TIME", help="time between the two looks (1)")


def run(options: argparse.Namespace) -> int:
    from monarch.admin.programs import choose
    from monarch.admin.stacks import examine

    program = choose(options.pid)
    found = examine(program, options.timeout, options.apart)
    status = exit_codes.FAILED if found.findings else exit_codes.DONE
    if options.json:
        from monarch.tools.documents import Examined

        return json_output.end(
            Examined(exit_status=status, findings=found.findings, notes=found.notes, looked_at=found.looked_at)
        )
    terminal.show(f"{program.pid}: {one_line(program.command)}\n\n{found}")
    return status
