"""`monarch profile` on a program that runs: the picture and the trace that people get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import full

pytest.importorskip("duckdb")

PROGRAM = """
import sys, threading
from monarch import telemetry
from monarch.actor import Actor, current_rank, endpoint, this_host

class Trainer(Actor):
    @endpoint
    def step(self, count: int) -> int:
        return self.slowly(count) if current_rank().rank == 1 else count

    def slowly(self, count: int) -> int:
        return sum(number % 7 for number in range(count))

if __name__ == "__main__":
    if "telemetry" in sys.argv:
        telemetry.start()
    trainers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("trainers", Trainer)
    trainers.step.call(1).get()
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print("ready", flush=True)
    while not over.is_set():
        trainers.step.call(100_000).get()
"""


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    arguments = [sys.executable, str(path), *getattr(request, "param", ())]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running
        finally:
            running.communicate(timeout=60)


def _profile(program: subprocess.Popen[str], folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "monarch", "profile", *options, "--pid", str(program.pid)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_flame_graph_of_a_program_that_runs(program: subprocess.Popen[str], tmp_path: Path) -> None:
    stacks = ""
    for _ in range(20):  # a machine with much else to do may have given the ranks no time in the first half second
        done = _profile(program, tmp_path, "--flame", "500ms", "-o", "train.txt")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "train.txt\n"
        stacks = (tmp_path / "train.txt").read_text()
        if "slowly" in stacks:
            break
    assert "trainers;Trainer.step (train.py:9);Trainer.slowly (train.py:12)" in stacks
    done = _profile(program, tmp_path, "--flame", "10ms", "--rate", "5000")
    assert (done.returncode, done.stderr) == (
        1, "monarch profile: a profile takes 1 to 1000 samples a second, got 5000.0\n",
    )  # fmt: skip
    done = _profile(program, tmp_path, "10ms")
    assert (done.returncode, done.stdout) == (1, "")
    assert "records nothing: it calls monarch.telemetry.start() to" in done.stderr


@full
@pytest.mark.parametrize("program", [("telemetry",)], indirect=True)
def test_a_trace_of_a_program_that_runs(program: subprocess.Popen[str], tmp_path: Path) -> None:
    done = _profile(program, tmp_path, "1s", "-o", "train.json")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "Collecting traces for 1s..."
    assert lines[1].endswith(" spans from 3 actors on 3 procs.")
    events: list[dict[str, Any]] = json.loads((tmp_path / "train.json").read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert names == {"trainers.step.call()", "step"}
    begins = {event["id"] for event in events if event["ph"] == "s"}
    ends = {event["id"] for event in events if event["ph"] == "f"}
    assert begins & ends
    for _ in range(20):  # a machine with much else to do may have given the program no time in that tenth of a second
        done = _profile(program, tmp_path, "100ms", "-o", "train.pftrace")
        assert done.returncode == 0, done.stderr
        if os.path.getsize(tmp_path / "train.pftrace") > 100:
            break
    assert os.path.getsize(tmp_path / "train.pftrace") > 100


def test_durations_are_checked(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "monarch", "profile", "ten"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "duration must be a positive number followed by ms, s, m, or h" in done.stderr
