"""The server of completions answers in the shape that clients expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full


@full
@pytest.mark.procs
def test_completions_are_served(tmp_path: Path) -> None:
    done = run_program(EXAMPLES / "completions.py", "--replicas", "1", cwd=tmp_path)
    assert done.stderr == ""
    where, same, refused = done.stdout.splitlines()
    assert where.startswith("completions at http://localhost:")
    assert same == "whole: 20 letters, streamed: 20 events and [DONE], the same: True"
    assert refused == "400 max_tokens is between 1 and 4096, not 100000"
