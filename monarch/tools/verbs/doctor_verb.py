"""monarch doctor: what keeps a program from going on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch.tools.verbs.stacks_verb import seconds

if TYPE_CHECKING:
    from monarch._mesh.inspection.survey import Answers

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

exit codes: 0 nothing is wrong, 1 something is, or an error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=int, metavar="PROGRAM", help="the program with this pid, where several run")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument(
        "--timeout", type=seconds, default=2.0, metavar="SECONDS", help="for processes that do not answer (2)"
    )
    parser.add_argument("--apart", type=seconds, default=1.0, metavar="SECONDS", help="time between the two looks (1)")


def run(options: argparse.Namespace) -> int:
    from monarch._mesh.inspection.diagnosis import Diagnosis, Finding
    from monarch._mesh.inspection.doctor import examine
    from monarch._mesh.inspection.folding import fold, summary
    from monarch._mesh.inspection.stacks_of_program import Wanted
    from monarch.admin.programs import choose
    from monarch.admin.stacks import as_plain, stacks_of

    program = choose(options.pid)

    def ask(question: str, argument: bytes, *, timeout: float, only: Sequence[str] | None, agents: bool) -> Answers:
        return program.ask(question, argument, timeout=timeout, only=only, agents=agents)

    try:
        found = examine(ask, options.timeout, options.apart)
    except TimeoutError as exc:
        stacks = stacks_of(program, Wanted(None, options.timeout))
        places = [summary(section) for section in fold(stacks.processes)] + list(stacks.silent.values())
        advice = "`monarch stacks --native` shows the native frames; until the client goes on, only stacks can be had"
        found = Diagnosis([Finding("client", str(exc), places, advice)], [], len(stacks.processes))
    if options.json:
        print(json.dumps(as_plain(found)), flush=True)
    else:
        print(f"{program.pid}: {program.command}\n\n{found}", flush=True)
    return 1 if found.findings else 0
