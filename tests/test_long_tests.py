"""Tests that last are told of, with where their threads are, and those that hang fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import long_tests, threads
from tests.support.long_tests import LongTests


def test_a_long_test_is_told_of_once_with_its_stacks(tmp_path: Path) -> None:
    now = 100.0
    rest = threading.Event()

    def waits() -> None:
        rest.wait()

    others = [threads.start(waits) for _ in range(3)]
    with (tmp_path / "told").open("w+") as file:
        watch = LongTests(file.fileno(), lambda: now)
        watch.look()
        watch.began("test_quick", may_last=True)
        now += long_tests.TOLD - 1
        watch.look()
        watch.ended()
        watch.began("test_long", may_last=True)
        now += long_tests.TOLD - 1
        watch.look()
        assert os.fstat(file.fileno()).st_size == 0
        now += 2
        watch.look()
        watch.look()
        rest.set()
        threads.join(*others)
        file.seek(0)
        told = file.read()
    assert told.count("test_long has lasted 61 s") == 1 and "test_quick" not in told
    assert told.count("in waits\n") == 1  # one stack for three threads
    assert 0 < told.index("test_a_long_test_is_told_of_once") < told.index("in waits\n")  # the main thread first


@pytest.mark.full
def test_a_worker_in_which_no_thread_runs_any_more_ends() -> None:
    program = """
import sys, time
from tests.support import long_tests
long_tests.HANGS, long_tests._LOOKS = 0.2, 0.1
long_tests.LongTests(2).began("test_hangs", may_last=False)
sys.setswitchinterval(1e6)
while True:
    pass
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "Timeout" in ended.stderr and '"<string>"' in ended.stderr
