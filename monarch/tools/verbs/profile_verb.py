"""monarch profile: where the time of a running program goes."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from monarch._linux import terminal
from monarch._linux.terminal import note
from monarch.tools import json_output
from monarch.tools.durations import duration

if TYPE_CHECKING:
    from monarch.admin.programs import Program

NAME = "profile"
LINE = "where the time goes: a trace of calls and endpoints, or a flame graph of Python code"
TEXT = """\
Looks at a program of yours that runs on this machine, its processes on other hosts included, for a while, and writes a file
whose name it prints.

Without --flame the file is a trace for https://ui.perfetto.dev: what actors called and ran. That needs telemetry in the
program (monarch.telemetry.start(), or job.enable_telemetry()). With --torch, torch.profiler runs in every process meanwhile,
and its operators and kernels lie on the same time line.

With --flame it is a flame graph of Python stacks, folded over all processes: nothing has to be prepared for it. The name of
the file says which kind: .svg, .json for speedscope.app, .txt for folded lines.

examples:
  monarch profile 5s                          a trace of five seconds
  monarch profile 2s --torch -o step.pftrace
  monarch profile --flame 10s -o train.svg
  monarch profile --flame --threads --all     every thread by itself
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "duration", nargs="?", type=duration, default=10.0, metavar="DURATION", help="as 500ms, 10s (10s)"
    )
    parser.add_argument("--flame", action="store_true", help="a flame graph of Python stacks")
    parser.add_argument("--torch", action="store_true", help="torch.profiler in every process meanwhile")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to (default: a new file)")
    parser.add_argument("--pid", type=int, metavar="PROGRAM", help="the program with this pid, where several run")
    parser.add_argument("--rate", type=float, default=100.0, metavar="HERTZ", help="of --flame: looks a second (100)")
    parser.add_argument("--threads", action="store_true", help="of --flame: each thread by itself")
    parser.add_argument("--all", action="store_true", help="of --flame: also threads that are of no actor")
    parser.add_argument("--idle", action="store_true", help="of --flame: also actors that wait for a message")


def run(options: argparse.Namespace) -> int:
    if options.flame and options.torch:
        raise ValueError("--flame and --torch are two kinds of profile: ask for one")
    path = _flame(options) if options.flame else _trace(options)
    if options.json:
        from monarch.tools.documents import ProfileWritten

        kind: Literal["trace", "flame"] = "flame" if options.flame else "trace"
        return json_output.end(ProfileWritten(file=str(path), kind=kind, seconds=options.duration))
    terminal.show(str(path))
    return 0


def _flame(options: argparse.Namespace) -> Path:
    from monarch.admin.programs import choose
    from monarch.trace import sample
    from monarch.trace.sampling import check

    check(options.duration, options.rate)
    program = choose(options.pid)
    note(f"Looking at {program.pid} for {options.duration:g}s...")
    flame = sample(
        options.duration,
        rate=options.rate,
        threads=options.threads,
        which="all" if options.all else "actors",
        idle=options.idle,
        program=program,
    )
    path = flame.write(options.output or _name(".svg"))
    note(f"{flame.total} stacks of {len(flame.processes)} processes; most often:")
    for name, share, processes in flame.hottest(5):
        which = f": {processes[0]}" if len(processes) == 1 < len(flame.processes) else ""
        note(f"  {share:6.1%}  {name}  in {len(processes)} of {len(flame.processes)}{which}")
    for address, why in flame.silent.items():
        note(f"  no answer from {address}: {why}")
    return path


def _trace(options: argparse.Namespace) -> Path:
    from monarch.tools.verbs.query_verb import client_of
    from monarch.trace.profiling import profile_of

    client = client_of(options.pid)
    program = _recorded_at(client.url, options.pid)
    if program is None and options.torch:
        raise ValueError("which program is to run torch.profiler? Say so with --pid")
    with profile_of(program, lambda: client, torch=options.torch, say=note) as profile:
        note(f"Collecting traces for {options.duration:g}s...")
        time.sleep(options.duration)
    if options.output and options.output.endswith(".json"):
        return profile.export_chrome_trace(options.output)
    return profile.export_perfetto_trace(options.output or _name(".pftrace"))


def _recorded_at(url: str, pid: int | None) -> Program | None:
    """The program whose telemetry that is; of a job it may not run here any more."""
    from monarch.admin.programs import choose, running_programs
    from monarch.telemetry.starting import recorded_by

    if pid is not None:
        return choose(pid)
    programs = running_programs()
    for program in programs:
        client = recorded_by(program.folder)
        if client is not None and client.url == url:
            return program
    return programs[0] if len(programs) == 1 else None


def _name(suffix: str) -> Path:
    return Path(f"monarch-{time.strftime('%Y%m%d-%H%M%S')}{suffix}")
