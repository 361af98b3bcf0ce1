"""monarch stacks: where every rank of a program is."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch._mesh.inspection.stack_records import ProcessStacks, ThreadStack
    from monarch._mesh.inspection.stacks_of_program import Stacks

NAME = "stacks"
LINE = "where every rank of a running program is: Python stacks, the same ones shown once"
TEXT = """\
Shows the Python stacks of the processes of a program of yours that runs on this machine, its processes on other hosts
included, also while it is stuck. Nothing has to be prepared, and nothing is stopped for it. Ranks that are at the same place
are shown together. Threads in which only the runtime is are left out.

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
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument("--watch", action="store_true", help="show it again every two seconds")
    parser.add_argument(
        "--timeout", type=seconds, default=2.0, metavar="SECONDS", help="for processes that do not answer (2)"
    )


def run(options: argparse.Namespace) -> int:
    from monarch._mesh.inspection.stacks_of_program import Wanted
    from monarch.admin.programs import choose
    from monarch.admin.stacks import stacks_of
    from monarch.config import settings

    program = choose(options.pid)
    pyspy = str(settings.get("pyspy_bin"))
    wanted = Wanted(None, options.timeout, options.all_threads, options.locals, options.native, pyspy=pyspy)
    while True:
        found = selected(stacks_of(program, wanted), options)
        if options.watch and sys.stdout.isatty() and not options.json:
            print("\033[H\033[2J", end="")
        print(_as_json(found) if options.json else f"{program.pid}: {program.command}\n\n{found}", flush=True)
        if not options.watch:
            return 0
        time.sleep(_AGAIN)


def selected(found: Stacks, options: argparse.Namespace) -> Stacks:
    """What was asked for. ValueError names the meshes when there is none of that name, the ranks when none is there."""
    from monarch._mesh.inspection.stacks_of_program import Stacks
    from monarch._wire.address import name_of, split_proc_name

    ranks = {rank for some in options.ranks for rank in some}
    if not ranks and options.mesh is None:
        return found
    meshes = {process.mesh for process in found.processes} | {
        stack.actor for process in found.processes for stack in process.threads
    }
    if options.mesh is not None and options.mesh not in meshes:
        raise ValueError(f"there is no mesh {options.mesh!r} here; there are: {', '.join(sorted(meshes - {''}))}")

    def keep(process: ProcessStacks, stack: ThreadStack) -> bool:
        if options.mesh is not None and options.mesh not in (process.mesh, stack.actor):
            return False
        if not ranks:
            return True
        return bool(process.mesh) and (stack.rank if stack.key else process.rank) in ranks

    def of_ranks(address: str) -> bool:
        place = split_proc_name(name_of(address))
        return place is not None and (not ranks or place[1] in ranks)

    chosen = found.only(keep)
    silent = {address: why for address, why in found.silent.items() if of_ranks(address)}
    if not chosen.processes and not silent:
        raise ValueError(f"no such rank is in a line of the program: {sorted(ranks) if ranks else options.mesh}")
    return Stacks(chosen.processes, silent)


def _as_json(found: Stacks) -> str:
    from monarch._mesh.inspection import folding
    from monarch.admin.stacks import as_plain

    plain = as_plain(found)
    plain["summary"] = [folding.summary(section) for section in folding.fold(found.processes)]
    return json.dumps(plain, indent=None if not os.isatty(1) else 2)


def _ranks(text: str) -> range:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise argparse.ArgumentTypeError(f"a rank is a number, or several are 0-3; got {text!r}")
    found = range(int(first), int(last or first) + 1)
    if not found or found[-1] > _MOST:
        raise argparse.ArgumentTypeError(f"there are no such ranks: {text}")
    return found


def seconds(text: str) -> float:
    """For options."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 3600:
        raise argparse.ArgumentTypeError(f"a time is a number of seconds from 0 to 3600; got {text!r}")
    return found
