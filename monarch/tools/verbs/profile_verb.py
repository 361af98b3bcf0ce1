"""monarch profile: where the time of a running program goes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


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
    from monarch.admin.programs import choose

    program = choose(options.pid)
    if options.flame:
        if options.torch:
            raise ValueError("--flame and --torch are two kinds of profile: ask for one")
        print(_flame(program, options), flush=True)
        return 0
    print(_trace(program, options), flush=True)
    return 0


def _flame(program: Program, options: argparse.Namespace) -> Path:
    from monarch.trace import sample
    from monarch.trace.sampling import check

    check(options.duration, options.rate)
    _say(f"Looking at {program.pid} for {options.duration:g}s...")
    flame = sample(
        options.duration,
        rate=options.rate,
        threads=options.threads,
        which="all" if options.all else "actors",
        idle=options.idle,
        program=program,
    )
    path = flame.write(options.output or _name(".svg"))
    _say(f"{flame.total} stacks of {len(flame.processes)} processes; most often:")
    for name, share, processes in flame.hottest(5):
        _say(f"  {share:6.1%}  {name}  in {processes} of {len(flame.processes)}")
    for address, why in flame.silent.items():
        _say(f"  no answer from {address}: {why}")
    return path


def _trace(program: Program, options: argparse.Namespace) -> Path:
    from monarch.trace.profiling import profile_of

    with profile_of(program, lambda: _telemetry(program), torch=options.torch, say=_say) as profile:
        _say(f"Collecting traces for {options.duration:g}s...")
        time.sleep(options.duration)
    if options.output and options.output.endswith(".json"):
        return profile.export_chrome_trace(options.output)
    return profile.export_perfetto_trace(options.output or _name(".pftrace"))


def _telemetry(program: Program) -> Any:
    """What answers queries about the program."""
    from monarch.observer.config import ObserverConfig
    from monarch.observer.launcher import Observer
    from monarch.telemetry import QueryEngineClient
    from monarch.telemetry.starting import FOLDER

    observer = Observer(os.path.join(program.folder, FOLDER))
    url = observer.serve(ObserverConfig()).telemetry_url if os.path.exists(observer.socket) else None
    if url is None:
        raise RuntimeError(
            f"program {program.pid} records nothing: call monarch.telemetry.start() in it, or job.enable_telemetry() before "
            f"job.state(). `monarch profile --flame` needs neither"
        )
    return QueryEngineClient(url)


def _name(suffix: str) -> Path:
    return Path(f"monarch-{time.strftime('%Y%m%d-%H%M%S')}{suffix}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def duration(text: str) -> float:
    """Seconds of `500ms`, `10s`, `2m`, `1h`."""
    number = text.rstrip("mshMSH").strip()
    unit = text[len(number) :].strip()
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError("duration must be a positive number followed by ms, s, m, or h") from None
    if not seconds > 0 or seconds == float("inf"):
        raise argparse.ArgumentTypeError("duration must be greater than zero")
    return seconds
