"""The streaming programs of examples/grpo learn, and account for every prompt though generators are killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full, slow

pytestmark = pytest.mark.procs
GRPO = EXAMPLES / "grpo"


def found(pattern: str, printed: str) -> list[float]:
    """The numbers of the one line that matches."""
    matches = re.findall(pattern, printed)
    assert len(matches) == 1, printed
    return [float(number) for number in matches[0]]


@pytest.mark.parametrize("total", [pytest.param(300, marks=full), pytest.param(1000, marks=slow)])
def test_streaming_uses_every_prompt_once_though_generators_are_killed_and_learns(tmp_path: Path, total: int) -> None:
    pytest.importorskip("torch")
    record = tmp_path / "record.json"
    sizes = ["--small", "--total", str(total), "--kill", "2", "--record", str(record)]
    printed = run_program(GRPO / "streaming.py", *sizes, cwd=tmp_path).stdout
    assert len(re.findall(r"killed generator \d \(pid \d+\)", printed)) == 2
    trained, too_old, lost, twice = found(
        rf"{total} prompts: (\d+) trained on, (\d+) too old, (\d+) lost, (\d+) twice", printed
    )
    assert (lost, twice) == (0, 0)
    assert trained + too_old == total
    first, last = found(r"mean reward (\S+) -> (\S+)", printed)
    assert record.exists()
    if total == 1000:  # so many make it learn with any seed
        assert first < 0.35
        assert last > first + 0.2


@pytest.mark.parametrize("steps", [pytest.param(12, marks=full), pytest.param(60, marks=slow)])
def test_the_learner_on_distributed_tensors_learns(tmp_path: Path, steps: int) -> None:
    pytest.importorskip("torch")
    printed = run_program(GRPO / "tensors.py", "--small", "--steps", str(steps), cwd=tmp_path).stdout
    first, last = found(r"mean reward (\S+) -> (\S+)", printed)
    assert first < 0.35
    assert steps < 60 or last > first + 0.2
    assert "<monarch.function Learner.step, 1 traces>" in printed, "a step is one message"


def test_the_router_keeps_its_promises_in_memory(tmp_path: Path) -> None:
    lines = run_program(GRPO / "simulate.py", cwd=tmp_path).stdout.splitlines()
    assert [re.sub(r": \d+ ms$", "", line) for line in lines] == [
        "prompts go to the least busy",
        "what a killed generator had is asked again",
        "all generators may die",
        "groups of old weights are dropped",
        "a prompt waits until there is room",
        "at the end the learner gets what is left and then nothing",
        "a generator that raises ends the run",
    ]
