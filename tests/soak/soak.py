"""Many seeds, and the report of one that failed."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.util import Finalize

from monarch.actor import this_host
from tests.soak import faulty, processes
from tests.soak.generate import generate
from tests.soak.message_log import FOLDER
from tests.soak.program import Program
from tests.soak.run import run
from tests.soak.shrink import shrink

BUDGET = 60.0  # seconds for cutting a program down
_ATTEMPTS = 3  # runs of a smaller program before it counts as one that works: the races differ
_PATIENCE = 5.0  # seconds that one of these runs may take
_BUSY_SWITCH = 1e-5  # seconds after which Python takes the interpreter from a thread, at the latest, under load
_LOOPS = 2  # processes that do nothing but take the processor


def check(seed: int, budget: float = BUDGET, load: bool = False) -> str:
    """Runs the program of a seed; "" or the report of what was wrong. Under `load` threads are switched more often."""
    program = _shaken(generate(seed), load)
    wrong = run(program)
    return report(program, wrong, budget) if wrong else ""


def check_faults(seed: int, load: bool = False) -> str:
    """The same over real sockets whose system calls fail. Also counts descriptors."""
    program, faults, before = _shaken(faulty.program_of(seed), load), faulty.faults_of(seed), descriptors()
    wrong = run(program, faults=faults)
    if not wrong and (left := descriptors() - before) > 0:  # fewer: the program before was still closing its own
        wrong = [f"{left} descriptors are left"]
    return f"{report(program, wrong, 0.0)}\n{faults}" if wrong else ""


def check_processes(seed: int, load: bool = False) -> str:
    """The same in real processes, of which some are stopped for moments."""
    if FOLDER not in os.environ:  # before the first process begins
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="mnm")
        Finalize(None, shutil.rmtree, (os.environ[FOLDER],), exitpriority=0)
    program, messages = _shaken(processes.program_of(seed), load), os.environ[FOLDER]
    this_host()  # what the client of this process has begun is not the program's
    wrong = run(program, real=processes.ProcessCluster(seed, messages))
    for name in os.listdir(messages):
        os.unlink(os.path.join(messages, name))
    return report(program, wrong, 0.0) if wrong else ""


def _shaken(program: Program, load: bool) -> Program:
    interval = min(program.switch_interval, _BUSY_SWITCH) if load else program.switch_interval
    return dataclasses.replace(program, switch_interval=interval)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Has processes that take the processor beside the soak."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(_LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


CHECKS: dict[str, Callable[..., str]] = {"": check, "faults": check_faults, "processes": check_processes}
PROGRAMS = {"": generate, "faults": faulty.program_of, "processes": processes.program_of}


def many(
    seeds: Iterable[int], jobs: int | None = None, kind: str = "", load: bool = False
) -> Iterator[tuple[int, str]]:
    """(seed, report) of each, as they come, several at a time in processes of their own."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(partial(_checked, kind, load), seeds, chunksize=10)
        pool.close()
        pool.join()


def _checked(kind: str, load: bool, seed: int) -> tuple[int, str]:
    return seed, CHECKS[kind](seed, load=load)


def report(program: Program, wrong: list[str], budget: float) -> str:
    """For people. Cuts the program down for `budget` seconds; 0 leaves it as it is."""
    text = f"seed {program.seed}:\n{program}\n\nwhat was wrong:\n" + "\n".join(wrong)
    if not budget:
        return text
    until = time.monotonic() + budget
    small = shrink(program, lambda smaller: time.monotonic() < until and _fails_again(smaller, until))
    if len(small.operations) == len(program.operations):
        return f"{text}\n\n(no smaller program failed; races are rare: python -m tests.soak {program.seed} --times 99)"
    return f"{text}\n\nthe same with fewer operations:\n{small}"


def _fails_again(program: Program, until: float) -> bool:
    for _ in range(_ATTEMPTS):
        if time.monotonic() > until:
            return False
        if run(program, _PATIENCE):
            return True
    return False
