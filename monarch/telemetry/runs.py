"""Runs that are kept: the curves of a program in a file of JSON, FOLDER/NAME.json, so that later runs can be compared.

The observer writes it, as a whole, when something has changed, each PERIOD seconds and at its end: a program that is killed
loses what was logged since. Bounds: those of the curves, and MOST bytes a file; of a folder the newest RUNS are listed.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from monarch._linux import private_files
from monarch.telemetry.curves import CURVES, POINTS, Curve, MetricCurves

logger = logging.getLogger("monarch.observer")

FOLDER = "runs"
PERIOD = 5.0  # seconds between two writes
MOST = 64 << 20  # bytes of a file that is read; as many curves as there may be have some 40 MB
_COMMAS = CURVES * (12 * POINTS + 500)  # of such a file, in names too
_STEPS = 2**62  # steps, ranks and counts are below
RUNS = 200  # files of a folder that are listed, the newest
_NAME = re.compile(r"[\w][\w.+=,@-]{0,99}", re.ASCII)


class KeptRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="monarch.run/1"):
    """A run that was kept. Times are seconds since the epoch. `left_out`: values of curves that were too many."""

    name: str
    started: float
    updated: float
    curves: list[Curve]
    left_out: int = 0


_decode = msgspec.json.Decoder(KeptRun).decode


def check_name(name: str) -> str:
    """Returns it. ValueError for what is no name of a file."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a run is named by up to 100 letters, digits and any of _.+=,@-, the first a letter or a digit: got {name!r}"
        )
    return name


def new_name(folder: str, now: datetime.datetime) -> str:
    """Returns a name by the time, which no run of the folder has."""
    name = now.strftime("%Y-%m-%d-%H%M%S")
    taken = {other for other, _ in found_runs(folder)}
    return next(each for each in (name, *(f"{name}-{number}" for number in range(2, RUNS + 3))) if each not in taken)


def path_of(folder: str, name: str) -> str:
    return os.path.join(folder, f"{check_name(name)}.json")


def found_runs(folder: str) -> list[tuple[str, float]]:
    """Returns names of the runs in a folder and when their files were written, the newest first: at most RUNS."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return []
    found = []
    for entry in entries:
        name, extension = os.path.splitext(entry.name)
        if extension == ".json" and _NAME.fullmatch(name):
            try:
                found.append((name, entry.stat(follow_symlinks=False).st_mtime))
            except FileNotFoundError:
                pass
    return sorted(found, key=lambda each: (-each[1], each[0]))[:RUNS]


def read_run(path: str) -> KeptRun:
    """Reads a run. FileNotFoundError; ValueError for a file that is none; UntrustedFileError for one of somebody else."""
    content = private_files.read(path, MOST, own_group=True)
    try:
        if content.count(b",") > _COMMAS:  # before lists of them take memory
            raise ValueError("it has more values than curves have")
        run = _decode(content)
        if len(run.curves) > CURVES:
            raise ValueError(f"it has more than {CURVES} curves")
        for curve in run.curves:
            _check(curve)
    except (msgspec.MsgspecError, ValueError, OverflowError) as exc:
        raise ValueError(f"{path} is no run that monarch.metrics.keep has written: {exc}") from None
    return run


def _check(curve: Curve) -> None:
    """ValueError for what no program has written: somebody else may have made the file."""
    if len({len(column) for column in msgspec.structs.astuple(curve)[3:]}) != 1:
        raise ValueError("its columns differ in length")
    if len(curve.steps) > POINTS:
        raise ValueError(f"a curve has more than {POINTS} points")
    numbers = [curve.width, *curve.steps, *curve.count, *curve.odd]
    ranks = [*curve.least_rank, *curve.most_rank, *curve.odd_rank, *curve.differs]
    if curve.width < 1 or min(numbers) < 0 or min(ranks, default=0) < -1 or max(numbers + ranks) >= _STEPS:
        raise ValueError("a step, a rank or a count is no number from 0 to 2**62")
    values = (*curve.mean, *curve.least, *curve.most, *curve.spread, *curve.at)
    if not all(value is None or math.isfinite(value) for value in values):
        raise ValueError("a value is not finite")


class RunWriter:
    """Keeps the curves of a program in a file. Gone on with where there is one of that name: then what it has is added to
    the curves. ValueError, OSError when that cannot be read, or the folder not be written."""

    def __init__(self, folder: str, name: str, curves: MetricCurves, now: Callable[[], float] = time.time) -> None:
        self._curves = curves
        self._now = now
        self._name = name
        self.path = path_of(private_files.make_folder(os.path.abspath(folder)), name)
        self._started = now()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._written = -1
        if os.path.lexists(self.path):
            run = read_run(self.path)
            self._started = run.started
            fresh = not curves.changes
            curves.restore(run.curves)
            self._written = curves.changes if fresh else -1

    def start(self) -> RunWriter:
        self._thread = threading.Thread(target=self._run, name="runs", daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._ended.wait(PERIOD):
            self.write()

    def write(self) -> None:
        """Writes it, if something has changed. What cannot be written is tried again with the next."""
        changes = self._curves.changes
        if changes == self._written:
            return
        try:
            run = KeptRun(
                name=self._name,
                started=self._started,
                updated=self._now(),
                curves=self._curves.told(),
                left_out=self._curves.left_out,
            )
            private_files.write(self.path, msgspec.json.encode(run), replace=True)
            self._written = changes
        except Exception as exc:  # the thread goes on: a value that cannot be told may have left the curves by then
            logger.warning("the run %s could not be kept: %s", self.path, exc)

    def close(self) -> None:
        """Writes what is new, and ends."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(PERIOD)
        self.write()


def chosen_runs(words: Sequence[str]) -> list[KeptRun]:
    """Reads the runs that somebody has named: files, or names in FOLDER."""
    return [read_run(word if word.endswith(".json") or os.sep in word else path_of(FOLDER, word)) for word in words]
