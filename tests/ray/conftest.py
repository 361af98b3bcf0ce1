"""A Ray cluster for the tests of a module, and what their programs have in the environment to find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.patience import TIMEOUT
from tests.support.scripts import ROOT


@contextmanager
def running(environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """A cluster's address and the folder of its files, which is in a temporary folder as Ray's own is: others may look."""
    folder = tempfile.mkdtemp(prefix="mny")
    os.chmod(folder, 0o755)
    os.mkdir(f"{folder}/ray")  # where Ray says which cluster is the latest, and takes the folder to be there
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.ray.cluster", folder],
        cwd=ROOT,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, "PYTHONPATH": _path()} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    try:
        lines = iter(program.stdout.readline, "")
        yield next(line.strip() for line in lines if line.strip().rpartition(":")[2].isdigit()), folder
    finally:
        program.stdin.close()
        program.wait(TIMEOUT)
        program.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def _path() -> str:
    return os.pathsep.join(each for each in (str(ROOT), os.environ.get("PYTHONPATH", "")) if each)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[tuple[str, str]]:
    with running({}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray_address(ray_cluster: tuple[str, str]) -> str:
    return ray_cluster[0]


@pytest.fixture
def environment(ray_address: str) -> dict[str, str]:
    return {"RAY_ADDRESS": ray_address, "RAY_USAGE_STATS_ENABLED": "0"}
