"""Training that goes on when a node of a Slurm job is lost: a spare node of the job takes its place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from monarch.job import job_load
from tests.lab.slurm import SlurmLab

pytestmark = pytest.mark.lab

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "elastic_ddp.py"
TIMEOUT = 300  # torch is imported in seven processes

PROJECT = f"""
[jobs.lab]
class = "SlurmJob"
meshes = {{ trainers = 4 }}
spares = {{ trainers = 1 }}
python_exe = "{sys.executable}"
"""


def test_a_spare_node_takes_the_place_of_a_lost_one(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    (tmp_path / "monarch.toml").write_text(PROJECT)
    command = [sys.executable, str(EXAMPLE), "--mesh", "trainers", "--steps", "40"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=TIMEOUT, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "3 hosts of a job, 1 trainer(s) on each host, 40 steps" in ran.stdout
        assert "replaced: host 2" in ran.stdout
        assert re.search(r"recovered in \S+ s, on with step 20$", ran.stdout, re.MULTILINE)
        # What it learned before the loss is still there: each loss is that of a training without one.
        trained = re.search(r"^trained: 40 steps, loss (\S+) -> (\S+)$", ran.stdout, re.MULTILINE)
        apart = re.search(r"^largest difference of a loss from one process .*: (\S+)$", ran.stdout, re.MULTILINE)
        assert trained and apart, ran.stdout
        assert float(trained[2]) < float(trained[1]) and float(apart[1]) <= 1e-5
        print(ran.stdout)
    finally:
        job_load(tmp_path / ".monarch/job_lab/state.pkl").kill()
    assert slurm_lab.queue() == []
