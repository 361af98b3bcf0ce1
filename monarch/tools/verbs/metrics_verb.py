"""monarch metrics: the curves of what a program logs of itself, while it runs or of runs that were kept."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from monarch._errors import NotFoundError
from monarch._linux import terminal
from monarch._text import one_line
from monarch.tools import json_output
from monarch.tools.durations import wait
from monarch.tools.verbs.query_verb import client_of

if TYPE_CHECKING:
    from monarch.telemetry import QueryEngineClient
    from monarch.telemetry.curves import Curve
    from monarch.telemetry.runs import KeptRun

NAME = "metrics"
LINE = "curves of what a program logs of itself (its loss), live or of earlier runs"
TEXT = """\
Draws what a program logs by monarch.metrics.log: of this folder's job, or of a program of yours that runs on this machine
and has called monarch.metrics.keep() or monarch.telemetry.start(). A curve is the mean over the ranks of a mesh; which rank
has the least and the largest value is said beside it, and which differs from all others.

With names of runs, those that monarch.metrics.keep() has kept are drawn, side by side: names in the folder runs, or files.

examples:
  monarch metrics                       again and again, until Ctrl-C
  monarch metrics --match loss --once   one look, at these
  monarch metrics lr-0.1 lr-0.3         two runs that were kept
  monarch metrics --json                for programs
"""
_ROWS = 8  # of a plot, where nothing says how many
_LEAST_ROWS = 3
_WIDTH = 100  # columns, where no terminal is
_SHOWN = 24  # curves of a look


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="runs that were kept: names in ./runs, or files")
    parser.add_argument("--match", default="", metavar="TEXT", help="only curves whose name has this in it")
    parser.add_argument("--mesh", metavar="NAME", help="only of this mesh")
    parser.add_argument("--once", action="store_true", help="one look; so it is where stdout is no terminal")
    parser.add_argument("--every", type=wait, default=1.0, metavar="TIME", help="time between two looks (1)")
    parser.add_argument("--pid", type=int, metavar="PROGRAM", help="the program with this pid, not the folder's job")


def run(options: argparse.Namespace) -> int:
    if options.runs:
        return _kept(options)
    client = client_of(options.pid)
    once = options.once or options.json or not sys.stdout.isatty()
    while True:
        curves, left_out = _asked(client, options)
        if options.json:
            from monarch.tools.documents import MetricCurvesFound, RunCurves

            return json_output.end(MetricCurvesFound(runs=[RunCurves("", curves)], left_out=left_out))
        if not once:
            terminal.erase_all()
        terminal.show(live_page(curves, shutil.get_terminal_size((_WIDTH, 0)), left_out, options.match))
        if once:
            return 0
        time.sleep(max(0.1, options.every))


def _asked(client: QueryEngineClient, options: argparse.Namespace) -> tuple[list[Curve], int]:
    from urllib.error import HTTPError, URLError

    import msgspec

    from monarch.telemetry.curves import Curve

    try:
        reply = client.metrics(options.match, options.mesh)
    except HTTPError as exc:
        raise ValueError(str(exc.reason)) from None
    except (URLError, TimeoutError) as exc:
        reason = getattr(exc, "reason", exc)
        raise ValueError(f"telemetry at {client.url} does not answer: {reason}. Has the program ended?") from None
    return msgspec.convert(reply["curves"], list[Curve]), int(reply["left_out"])


def live_page(curves: list[Curve], size: os.terminal_size, left_out: int, match: str) -> str:
    """Returns what has room in a window of that size; of no lines: all of it."""
    from monarch.metrics.metric_plot import nothing_logged, page

    if not curves:
        return nothing_logged(match)
    around = 4  # lines of a curve besides its rows
    fit = max(1, (size.lines - 1) // (_LEAST_ROWS + around)) if size.lines else _SHOWN
    shown = curves[: min(fit, _SHOWN)]
    rows = min(_ROWS + 4, max(_LEAST_ROWS, (size.lines - 2) // len(shown) - around)) if size.lines else _ROWS
    text = page(shown, max(40, size.columns), rows)
    if len(curves) > len(shown):
        text += f"\n\n{len(curves) - len(shown)} more have no room: --match TEXT chooses"
    if left_out:
        text += f"\n\n{left_out:,} values are of further curves, which are too many"
    return text


def _kept(options: argparse.Namespace) -> int:
    from monarch.metrics.metric_plot import comparison
    from monarch.telemetry.runs import FOLDER, chosen_runs, found_runs

    try:
        runs = chosen_runs(options.runs)
    except FileNotFoundError as exc:
        names = ", ".join(name for name, _ in found_runs(FOLDER)[:10]) or "none"
        raise NotFoundError(f"there is no run {exc.filename}; runs in ./{FOLDER}, the newest first: {names}") from None
    curves = [_of_run(kept, options) for kept in runs]
    if options.json:
        from monarch.tools.documents import MetricCurvesFound, RunCurves

        found = [RunCurves(kept.name, own) for kept, own in zip(runs, curves, strict=True)]
        return json_output.end(MetricCurvesFound(runs=found, left_out=sum(kept.left_out for kept in runs)))
    if not any(curves):
        names = ", ".join(one_line(kept.name) for kept in runs)
        raise NotFoundError(f"the runs have no curve of that name or mesh: {names}")
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = max(40, shutil.get_terminal_size((_WIDTH, 0)).columns)
    terminal.show_coloured(comparison(runs, curves, width, _ROWS, coloured))
    return 0


def _of_run(kept: KeptRun, options: argparse.Namespace) -> list[Curve]:
    return [
        curve
        for curve in kept.curves
        if options.match in curve.name and (options.mesh is None or options.mesh == curve.mesh)
    ]
