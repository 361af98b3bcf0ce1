"""The policy learns from generators that pull its weights while it trains."""

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
def test_async_rl_learns(tmp_path: Path) -> None:
    done = run_program(EXAMPLES / "async_rl.py", "--generators", "2", "--steps", "200", cwd=tmp_path)
    assert done.stderr == ""
    head, *parts, last = done.stdout.splitlines()
    assert head == "4 tensors, 3344 bytes, path: process_vm"
    told = [re.fullmatch(r"steps \d+ to \d+: mean reward (\S+), weights (\S+) versions old", line) for line in parts]
    rewards = [float(match[1]) for match in told if match]
    assert len(rewards) == len(parts) == 10
    assert rewards[-1] > 0.8
    assert rewards[0] < rewards[-1] - 0.1
    assert all(float(match[2]) >= 0 for match in told if match), "nobody plays with weights of the future"
    assert re.fullmatch(r"200 steps with batches of generators \[0, 1\], \d+ a second", last)
