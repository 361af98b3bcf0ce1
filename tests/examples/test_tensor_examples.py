"""The examples of distributed tensors run as a user would run them, and their losses are those of one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, read_notebook, run_notebook, run_program
from tests.support.tiers import first_of, full

pytest.importorskip("torch")

pytestmark = pytest.mark.procs


def run(name: str, *arguments: str, cwd: Path) -> str:
    done = run_program(EXAMPLES / name, *arguments, cwd=cwd)
    assert not done.stderr.strip(), done.stderr
    return done.stdout


@full
@pytest.mark.parametrize(
    ("name", "arguments"),
    first_of([("data_parallel.py", ["--procs", "4"]), ("tensor_parallel.py", []), ("pipeline_parallel.py", [])]),
)
def test_training_in_parallel_learns_what_one_process_learns(name: str, arguments: list[str], tmp_path: Path) -> None:
    printed = run(name, *arguments, cwd=tmp_path)
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+)", printed)]
    assert len(losses) >= 4
    assert losses[-1] < 0.7 * losses[0]
    found = re.search(r"largest difference of \d+ losses: (\S+)", printed)
    assert found is not None
    assert float(found[1]) <= 1e-5


@full
def test_training_goes_on_with_other_processes(tmp_path: Path) -> None:
    first, second = run("tensor_checkpoint.py", cwd=tmp_path).splitlines()
    assert float(re.findall(r"differ by (\S+) from one process", first)[0]) < 1e-9
    assert second == "plain torch reads step 6, and the same weights: True"


@full
def test_the_tour_prints_a_line_for_every_stop(tmp_path: Path) -> None:
    lines = run("tensor_tour.py", cwd=tmp_path).splitlines()
    assert [line[:2] for line in lines if line[0] != " "] == [f"{number}." for number in range(1, 8)]
    assert "one of them has [5.0, 5.0, 5.0]" in lines[0]
    assert lines[1].endswith("has 10")
    assert lines[2].endswith("[1, 21]")
    assert lines[3].endswith("[10, 11]")
    assert "wrong = torch.zeros(2)[torch.tensor([5])]" in "\n".join(lines)


@full
def test_the_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = read_notebook("tensors.ipynb")
    assert not any(cell.outputs for cell in sheet.cells if cell.cell_type == "code")  # kept without
    streams = run_notebook("tensors.ipynb", tmp_path, monkeypatch)
    shown = {cell: "".join(o.text for o in outputs) for cell, outputs in streams.items()}
    assert shown["activate"] == "('dp',) 2\n"
    assert "size=(32, 8)" in shown["model"]
    told = re.fullmatch(r"loss (\S+) -> (\S+)\n", shown["train"])
    assert told is not None
    assert float(told[2]) < 0.1 * float(told[1])
    lines = shown["wrong"].splitlines()
    assert lines == ["failed at: wrong = torch.zeros(2)[torch.tensor([5])]", "still here: [2.0, 2.0]"]
    assert shown["stop"] == "stopped\n"
