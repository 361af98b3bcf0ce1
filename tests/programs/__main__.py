"""Runs the programs of this folder, each as a program of its own, and prints what each has taken:
`python -m tests.programs [NAME ...]`.

Programs run on this checkout, and beside it with the interpreter that MONARCH_TEST_TORCHMONARCH names, in whose environment
torchmonarch is. Scripts run under `monarch run`, and beside it under torchrun; both must print the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PROGRAMS = sorted(
    path.name for path in (*FOLDER.glob("*.py"), *FOLDER.glob("*.ipynb")) if not path.name.startswith(("_", "test_"))
)
SCRIPTS = sorted(f"scripts/{path.name}" for path in (FOLDER / "scripts").glob("*.py"))
NEEDS = {"scripts/accelerate_loop.py": "accelerate", "scripts/fabric_loop.py": "lightning_fabric"}
PEER = "MONARCH_TEST_TORCHMONARCH"
TIMEOUT = 300.0
_NOTEBOOK = """\
import sys
import nbformat
from nbclient import NotebookClient
sheet = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(sheet, timeout=120, kernel_name="python3").execute()
print(sheet.cells[-1].outputs[-1].text, end="")
"""


class Ran(NamedTuple):
    """A program that has ended. `problem`: the last line that it wrote of it, "" when all its checks held."""

    seconds: float
    stdout: str
    problem: str

    def __str__(self) -> str:
        return f"failed: {self.problem}" if self.problem else f"{self.seconds:.1f} s"


def run(words: Sequence[str], ours: bool) -> Ran:
    """Runs a command in a folder of its own. Other implementations do not see this checkout."""
    path = os.pathsep.join(word for word in (str(ROOT), os.environ.get("PYTHONPATH", "")) if word)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    if ours:
        env["PYTHONPATH"] = path
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        try:
            done = subprocess.run(
                words, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            return Ran(TIMEOUT, "", f"not ended within {TIMEOUT:g} s")
        seconds = time.monotonic() - begun
    if done.returncode == 0:
        return Ran(seconds, done.stdout, "")
    return Ran(seconds, done.stdout, problem_in(done.stderr, done.returncode))


def problem_in(stderr: str, status: int) -> str:
    """Returns the last line that names an exception, or else the last one, or else the status."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception", "Exit"))]
    return (named or lines or [f"status {status}"])[-1]


def command(python: str, name: str) -> list[str]:
    """Returns what runs a program or a notebook."""
    file = str(FOLDER / name)
    return [python, "-c", _NOTEBOOK, file] if name.endswith(".ipynb") else [python, file]


def launched(launcher: Sequence[str], name: str) -> Ran:
    """Runs a script on two ranks of a launcher."""
    return run([sys.executable, "-m", *launcher, "--nproc-per-node", "2", str(FOLDER / name)], ours=True)


def checked(ran: Ran) -> Ran:
    """A program says `ok` at the end, when all its checks have run."""
    if ran.problem or ran.stdout.splitlines()[-1:] == ["ok"]:
        return ran
    return ran._replace(problem="it did not come to its end")


def pair(name: str) -> tuple[Ran, Ran | None]:
    """Runs one on this checkout and, where there is something beside it, on that."""
    if name in SCRIPTS:
        ours = launched(["monarch", "run"], name)
        theirs = launched(["torch.distributed.run", "--standalone"], name)
        if not (ours.problem or theirs.problem) and ours.stdout != theirs.stdout:
            ours = ours._replace(problem="it prints something else than under torchrun")
        return ours, theirs
    ours = checked(run(command(sys.executable, name), ours=True))
    peer = os.environ.get(PEER, "")
    return ours, checked(run(command(peer, name), ours=False)) if peer else None


def pairs(name: str, rounds: int) -> tuple[Ran, Ran | None]:
    """Runs the pair so many times, in turn. Returns the middle one of each side by its time, or its first that failed."""
    both = [pair(name) for _ in range(rounds)]
    return _middle([ours for ours, _ in both]), _middle([theirs for _, theirs in both if theirs is not None])


def _middle(ran: Sequence[Ran]) -> Any:
    failed = [one for one in ran if one.problem]
    return next(iter(failed or sorted(ran)[len(ran) // 2 :]), None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs", description="Runs programs as libraries are written."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the name of a file, or a part of it (default: all)")
    parser.add_argument(
        "--rounds", type=int, default=1, metavar="N", help="run each so often, in turn; medians (default: 1)"
    )
    asked = parser.parse_args(arguments)
    words = asked.names
    names = [name for name in (*PROGRAMS, *SCRIPTS) if not words or any(word in name for word in words)]
    if not names:
        parser.error(f"no program has one of these in its name: {', '.join(words)}")
    failed = []
    print(f"{'program':28} {'here':>8}   beside it", flush=True)
    for name in names:
        needed = NEEDS.get(name, "")
        if needed and importlib.util.find_spec(needed) is None:
            print(f"{name:28} not run: it needs {needed}", flush=True)
            continue
        ours, theirs = pairs(name, max(1, asked.rounds))
        beside = "-" if theirs is None else str(theirs)
        if theirs is not None and not (ours.problem or theirs.problem):
            beside += f"   {theirs.seconds / ours.seconds:.1f} x"
        print(f"{name:28} {ours!s:>8}   {beside}", flush=True)
        failed += [name] if ours.problem else []
    if not os.environ.get(PEER):
        print(f"beside programs: nothing, {PEER} names no interpreter with torchmonarch")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
