"""Weights from FSDP2 ranks to tensor-parallel ranks, as a user would run it."""

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
def test_generators_have_the_weights_of_the_trainers(tmp_path: Path) -> None:
    done = run_program(EXAMPLES / "weight_sync.py", "--trainers", "2", "--generators", "2", cwd=tmp_path)
    head, *steps, last = done.stdout.splitlines()
    assert head == "4 tensors, 3604 bytes, of 2 trainers"
    told = [re.fullmatch(r"loss (\S+), generators have version \[(\d+)\]", line) for line in steps]
    assert [int(match[2]) for match in told if match] == list(range(1, 9))
    losses = [float(match[1]) for match in told if match]
    assert losses[-1] < losses[0]
    assert last == "the same answers: True"
