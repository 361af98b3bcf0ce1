"""monarch stacks: where every rank of a program is."""

from __future__ import annotations

import argparse
import time

from monarch._linux import terminal
from monarch.tools import json_output
from monarch.tools.durations import wait

NAME = "stacks"
LINE = "where every rank of a running program is: Python stacks, the same ones shown once"
TEXT = """\
Shows the Python stacks of the processes of a program of yours that runs on this machine, its processes on other hosts
included, also while it is stuck. Nothing has to be prepared, and nothing is stopped for it. Ranks that are at the same place
are shown together. Threads in which only the runtime is are left out. Where an endpoint has run for 5 s, what
`monarch doctor` finds wrong comes first: that takes a second more.

A process whose native code holds the interpreter lock is made to write its stacks by a signal (setting stack_signal). A
process that is stopped is named.

examples:
  monarch stacks                        every rank of the only program that runs
  monarch stacks 17 0-3                 these ranks
  monarch stacks --mesh trainers        one mesh, of actors or of processes
  monarch stacks 17 --locals            with the variables of each frame (calls repr in that process)
  monarch stacks 17 --native            with native frames, by py-spy
  monarch stacks --watch                again and again, until Ctrl-C
  monarch stacks --pid 4711             one of several programs
"""
_AGAIN = 2.0  # seconds between two looks of --watch
_MOST = 1_000_000  # the largest rank that may be named


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ranks", nargs="*", type=_ranks, metavar="RANK", help="17, or 0-3 (default: all)")
    parser.add_argument("--mesh", metavar="NAME", help="only this mesh, of actors or of processes")
    parser.add_argument("--pid", type=int, metavar="PROGRAM", help="the program with this pid, where several run")
    parser.add_argument("--all-threads", action="store_true", help="the runtime's threads and frames as well")
    parser.add_argument("--locals", action="store_true", help="the variables of each frame as well")
    parser.add_argument("--native", action="store_true", help="frames of native code as well, by py-spy")
    parser.add_argument("--watch", action="store_true", help="show it again every two seconds")
    parser.add_argument(
        "--timeout", type=wait, default=2.0, metavar="TIME", help="for processes that do not answer (2)"
    )


def run(options: argparse.Namespace) -> int:
    from monarch.admin.programs import choose
    from monarch.admin.stacks import StacksQuery, as_plain, page, selected, stacks_of, summaries, what_is_wrong
    from monarch.config import settings

    program = choose(options.pid)
    pyspy = settings.pyspy_bin()
    wanted = StacksQuery(None, options.timeout, options.all_threads, options.locals, options.native, pyspy=pyspy)
    ranks = {rank for some in options.ranks for rank in some}
    while True:
        everything = stacks_of(program, wanted)
        wrong = what_is_wrong(program, everything, options.timeout)
        found = selected(everything, ranks, options.mesh)
        if options.json:
            import msgspec

            from monarch.tools.documents import StacksFound

            told = {**as_plain(found), "summary": summaries(found), "findings": wrong}
            json_output.show(msgspec.convert(told, StacksFound))
        else:
            if options.watch:
                terminal.erase_all()
            terminal.show(page(program, wrong, found))
        if not options.watch:
            return 0
        time.sleep(_AGAIN)


def _ranks(text: str) -> range:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise argparse.ArgumentTypeError(f"a rank is a number, or several are 0-3; got {text!r}")
    found = range(int(first), int(last or first) + 1)
    if not found or found[-1] > _MOST:
        raise argparse.ArgumentTypeError(f"there are no such ranks: {text}")
    return found
