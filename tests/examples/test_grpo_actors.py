"""Asynchronous GRPO, run as a user would run it: the policy learns, also when generators are killed on the way."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full

pytestmark = [
    full,
    pytest.mark.procs,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the example needs torch"),
]


def run(*arguments: str, cwd: Path) -> list[str]:
    return run_program(EXAMPLES / "grpo" / "actors.py", "--small", *arguments, cwd=cwd).stdout.splitlines()


def check_learned(lines: list[str], steps: int, learners: int) -> None:
    rewards = [
        match for line in lines if (match := re.fullmatch(r"mean reward (\S+) -> (\S+); .+ (\S+) -> (\S+)", line))
    ]
    assert len(rewards) == 1, lines
    start, end, held_before, held_after = map(float, rewards[0].groups())
    assert start < 0.45 and end > 0.6 and held_before < 0.4 and held_after > 0.6, rewards[0][0]
    ages = next(match for line in lines if (match := re.match(r"samples were (\S+) versions old, (\d+) at most", line)))
    assert 0 <= float(ages[1]) <= int(ages[2]) <= 4, "nobody learns from what is too old"
    assert re.fullmatch(r"\S+ steps/s, \S+ samples/s; the learner waited for samples \d+% of the time", lines[-1])


def test_it_learns(tmp_path: Path) -> None:
    lines = run("--steps", "110", "--record", "curve.json", cwd=tmp_path)
    assert lines.pop() == "record: curve.json"
    check_learned(lines, 110, 1)
    (reward, age) = json.loads((tmp_path / "curve.json").read_text())["panels"]
    assert len(reward["series"][0]["y"]) == len(age["series"][0]["y"]) == 110


def test_it_learns_with_two_learners_while_generators_are_killed(tmp_path: Path) -> None:
    lines = run("--steps", "70", "--learners", "2", "--kill", "2", cwd=tmp_path)
    killed = [line for line in lines if re.fullmatch(r"  kill -9 of generator [01] \(pid \d+\)", line)]
    back = [line for line in lines if re.fullmatch(r"  generator [01] is back after \S+ s", line)]
    assert len(killed) == len(back) == 2, lines
    check_learned(lines, 70, 2)
