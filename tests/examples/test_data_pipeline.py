"""Every record is seen once, over two runs with other numbers of trainers, while readers and tokenizers are killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full

pytest.importorskip("torch", reason="the example needs torch")

LIMITS = re.compile(r"^batches .*: (\d+) at most, limit (\d+)$", re.MULTILINE)
TOTAL = re.compile(r"^seen in all runs: (\d+) of (\d+) records; twice: (\d+); left out: (\d+)$", re.MULTILINE)


@full
@pytest.mark.procs
def test_two_runs_together_see_each_record_once(tmp_path: Path) -> None:
    small = ["--files", "6", "--record", "512", "--batch", "4", "--save-every", "5", "--kill"]
    first = run_program(EXAMPLES / "data_pipeline.py", *small, "--stop-after", "10", cwd=tmp_path).stdout
    second = run_program(EXAMPLES / "data_pipeline.py", *small, "--trainers", "1", cwd=tmp_path).stdout
    for said in (first, second):
        assert re.findall(r"^  killed a (\w+) \(pid \d+\)$", said, re.MULTILINE) == ["reader", "tokenizer"]
        limits = LIMITS.findall(said)
        assert len(limits) == 2 and all(int(most) <= int(limit) for most, limit in limits), said
    seen, plan, twice, left = (int(n) for n in TOTAL.findall(first)[0])
    assert (seen, twice, left) == (80, 0, 0), "10 steps of 2 trainers with 4 records each"
    assert f"{plan} records of 6 files, from record 80 on\n" in second
    assert TOTAL.findall(second) == [(str(plan), str(plan), "0", "0")]
