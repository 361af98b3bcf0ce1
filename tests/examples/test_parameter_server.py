"""The parameter server learns, and its tensors take the kernel's way."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full


@full
@pytest.mark.procs
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the example needs torch")
def test_parameter_server_learns(tmp_path: Path) -> None:
    done = run_program(EXAMPLES / "parameter_server.py", "--workers", "2", "--rounds", "15", cwd=tmp_path)
    assert done.stderr == ""
    head, *rounds = done.stdout.splitlines()
    assert head == "2 workers, 4000 bytes of weights, path: process_vm"
    told = [re.fullmatch(r"round (\d+): mean error (\S+), distance (\S+)", line) for line in rounds]
    first, last = (match for match in told if match)
    assert (first[1], last[1]) == ("1", "15")
    assert float(last[2]) < 0.5 * float(first[2])
    assert float(last[3]) < float(first[3])
