"""Ring 3: processes under load are killed and stopped all the time; the books must agree. See `chaos`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import first_of, full

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.procs


def chaos(*arguments: str, timeout: float) -> dict[str, Any]:
    """Returns what the run says of itself; fails with what went wrong."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "procs" / "chaos.py"), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode in (0, 1) and done.stdout, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == [], f"{arguments}: " + "\n".join(result["wrong"]) + done.stderr
    return result


@full
@pytest.mark.parametrize("seed", first_of([1, 2]))
def test_a_few_seconds_of_chaos(seed: int) -> None:
    result = chaos("--procs", "6", "--seconds", "5", "--callers", "2", "--seed", str(seed), timeout=120)
    assert result["calls"]["value"] > 0 and sum(result["chaos"].values()) > 5


@pytest.mark.slow
def test_a_minute_of_chaos() -> None:
    result = chaos("--procs", "16", "--seconds", "60", "--seed", "3", timeout=300)
    assert result["calls"]["value"] > 100 and sum(result["chaos"].values()) > 100
