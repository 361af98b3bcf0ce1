"""A fixed range of seeds, of which `make test` runs the first, `make test-all` the first two hundred;
`make test-slow` runs the others, `make soak SEEDS=10000` more.

How to replay one: see the package.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from monarch.testing import check_leaks
from tests.soak.soak import check, check_faults
from tests.support.patience import TIMEOUT
from tests.support.tiers import first_of, full

SEEDS = 2000
_QUICK = 100
_QUICK_FAULTY = 50  # they take four times as long
_FULL = 200
_CHUNK = 50


def chunks(quick: int) -> list[int]:
    return first_of(range(0, SEEDS, _CHUNK), quick // _CHUNK, full=_FULL // _CHUNK)


@pytest.mark.parametrize("first", chunks(_QUICK))
def test_programs_keep_every_promise(first: int) -> None:
    with check_leaks():
        for seed in range(first, first + _CHUNK):
            wrong = check(seed)
            if wrong:
                pytest.fail(wrong, pytrace=False)


@pytest.mark.parametrize("first", chunks(_QUICK_FAULTY))
def test_programs_keep_every_promise_while_system_calls_fail(first: int) -> None:
    with check_leaks():
        for seed in range(first, first + _CHUNK):
            wrong = check_faults(seed)
            if wrong:
                pytest.fail(wrong, pytrace=False)


@full
@pytest.mark.procs
def test_a_program_in_real_processes_keeps_every_promise(pytestconfig: pytest.Config) -> None:
    """With a client of its own: what other tests keep in this one's would count as left over."""
    command = [sys.executable, "-m", "tests.soak", "--processes", "2"]
    ran = subprocess.run(
        command, cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if ran.returncode:
        pytest.fail(ran.stdout + ran.stderr, pytrace=False)
