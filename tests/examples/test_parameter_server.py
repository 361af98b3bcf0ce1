"""The parameter server learns, and its tensors take the kernel's way."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.procs
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the example needs torch")
def test_parameter_server_learns(tmp_path: Path) -> None:
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "parameter_server.py"), "--workers", "2", "--rounds", "15"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    head, *rounds = done.stdout.splitlines()
    assert head == "2 workers, 4000 bytes of weights, path: process_vm"
    told = [re.fullmatch(r"round (\d+): mean error (\S+), distance (\S+)", line) for line in rounds]
    first, last = (match for match in told if match)
    assert (first[1], last[1]) == ("1", "15")
    assert float(last[2]) < 0.5 * float(first[2])
    assert float(last[3]) < float(first[3])
