"""Rollouts lose no episode when a generator is killed and weights are exchanged all the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full


@full
@pytest.mark.procs
def test_rollouts_go_on(tmp_path: Path) -> None:
    done = run_program(EXAMPLES / "rollouts.py", "--replicas", "2", cwd=tmp_path)
    assert [line for line in done.stderr.splitlines() if "failed: Killed(sig=9)" not in line] == []
    learned, lost, _old = done.stdout.splitlines()
    assert learned == "12 steps, the policy is at 42, version 12"
    assert lost == "rollouts that ended: 0, requests that died: 0, generators: 2"
