"""A sweep survives what its trials do, goes on from its file, and shows how far it is."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from monarch.telemetry.runs import read_run
from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full

pytest.importorskip("torch", reason="the example needs torch")


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    """examples/sweep.py as a module."""
    spec = importlib.util.spec_from_file_location("sweep_example", EXAMPLES / "sweep.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def results(file: Path) -> dict[int, str]:
    """Status by trial, each of which is there once."""
    lines = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    found = {line["trial"]["number"]: line["status"] for line in lines}
    assert len(found) == len(lines)
    return found


@full
@pytest.mark.procs
def test_a_sweep_survives_failing_trials_and_goes_on_from_its_file(tmp_path: Path) -> None:
    small = ["--ranks", "2", "--steps", "36"]
    said = run_program(
        EXAMPLES / "sweep.py", *small, "--trials", "10", "--kill", "1", "--curves", "runs", cwd=tmp_path
    ).stdout
    (kept,) = (tmp_path / "runs").glob("*.json")
    assert {f"loss/trial {trial}" for trial in (0, 1, 2)} <= {curve.name for curve in read_run(str(kept)).curves}
    file = tmp_path / "sweep.jsonl"
    first = results(file)
    assert set(first) == set(range(10))
    assert {first[7], first[9]} == {"failed"}, "4 heads and width 50; a learning rate of 1.6"
    assert "finished" in first.values()
    assert "AssertionError: embed_dim must be divisible by num_heads" in said
    assert re.search(r"^trial +\d+: its process was killed, it is run again$", said, re.MULTILINE)
    told = re.search(r"^best: trial (\d+), loss (\S+): lr ", said, re.MULTILINE)
    assert told and first[int(told[1])] == "finished", said

    with file.open("a") as lines:
        lines.write('{"trial": {"number": 10, "learn')  # as when the program is killed while it writes
    said = run_program(EXAMPLES / "sweep.py", *small, "--trials", "11", cwd=tmp_path).stdout
    assert said.startswith("10 trials are in sweep.jsonl already\n")
    again = results(file)
    assert set(again) == set(range(11))
    assert {number: again[number] for number in first} == first
    assert len(re.findall(r"^trial ", said, re.MULTILINE)) == 1, said


def test_results_of_another_sweep_are_not_taken_for_ones_own(sweep: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "sweep.jsonl"
    assert sweep.opened(file, {"seed": 0}) == []
    with pytest.raises(SystemExit, match=r'not of {"seed": 1}: give another --file'):
        sweep.opened(file, {"seed": 1})


def test_a_trial_goes_on_while_it_is_among_the_best_third(sweep: ModuleType) -> None:
    halving = sweep.Halving(180)
    assert halving.goes_on(0, 10, 9.0), "no rung"
    assert [halving.goes_on(trial, 20, loss) for trial, loss in enumerate([3.0, 4.0, 2.0, 2.5, 1.9])] == [
        True,
        False,
        True,
        True,
        True,
    ]
    assert halving.goes_on(2, 60, 2.0), "the first one there"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_drawn_again_in_a_terminal_only(sweep: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: io.StringIO = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    screen = sweep.Screen()
    screen.draw(["a", "b"])
    screen.say("stays")
    screen.draw(["c"])
    assert shown.getvalue() == "a\nb\n\033[2F\033[Jstays\nc\n"
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    screen = sweep.Screen()
    screen.draw(["a", "b"])
    screen.say("stays")
    assert shown.getvalue() == "stays\n"
