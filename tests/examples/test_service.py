"""The service of generators loses no request when a replica is killed and weights are replaced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full


@full
@pytest.mark.procs
def test_the_service_loses_nothing(tmp_path: Path) -> None:
    done = run_program(EXAMPLES / "service.py", "--replicas", "2", "--requests", "100", cwd=tmp_path)
    assert [line for line in done.stderr.splitlines() if "failed: Killed(sig=9)" not in line] == []
    stream, answers, head, columns, *rows = done.stdout.splitlines()
    assert stream == "a stream: [1, 2, 3]"
    assert re.fullmatch(r"100 answers of 100 requests, of versions \[.*\]", answers)
    assert head.startswith("service 'generator', version 2: 0 outstanding of at most 34")
    assert columns.split()[:3] == ["replica", "state", "host"] and len(rows) == 2
