"""A Ray cluster for the tests of a module, and what their programs have in the environment to find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.support.scripts import ROOT

TIMEOUT = 60


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="mny")
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.ray.cluster", folder],
        cwd=ROOT,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    try:
        lines = iter(program.stdout.readline, "")
        yield next(line.strip() for line in lines if line.strip().rpartition(":")[2].isdigit())
    finally:
        program.stdin.close()
        program.wait(TIMEOUT)
        program.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def environment(ray_address: str) -> dict[str, str]:
    return {"RAY_ADDRESS": ray_address, "RAY_USAGE_STATS_ENABLED": "0"}
