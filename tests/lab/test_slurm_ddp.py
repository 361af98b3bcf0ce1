"""The example for Slurm runs on one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from monarch.telemetry.runs import read_run
from tests.lab.slurm import SlurmLab

pytestmark = pytest.mark.lab

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "slurm_ddp.py"
TIMEOUT = 300  # torch is imported in eight processes


def test_ddp_trains_on_the_nodes(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--nodes", "4", "--procs", "1", "--steps", "100", "--curves", "runs"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=TIMEOUT, check=False)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stderr
    assert [line for line in lines if "ranks" in line and line.startswith("n")] == [
        f"n{n}: 1 ranks" for n in (1, 2, 3, 4)
    ]
    losses = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("step")]
    assert len(losses) == 2 and losses[1] < losses[0]
    assert lines[-1] == "parameters equal on all ranks"
    (kept,) = (tmp_path / "runs").glob("*.json")
    (curve,) = read_run(str(kept)).curves
    assert (curve.name, curve.steps[-1], curve.count[-1]) == ("loss", 100, 4), "a value of each rank"
