"""Tests of which hosts can work together, by what they run."""

from __future__ import annotations

import sys

import pytest

from monarch._wire.software import Software, mismatch, ours

HERE, THERE = "unix:/run/x", "tcp://far:1"


def software(python: str) -> Software:
    return Software(python, "/opt/bin/python", {"pymonarch": "1.2", "cloudpickle": "3.0"})


@pytest.mark.parametrize("python", ["cpython 3.11.7", "cpython 3.11.0", "cpython 3.11.7rc1"])
def test_the_same_minor_version_fits(python: str) -> None:
    assert mismatch(HERE, software("cpython 3.11.7"), THERE, software(python)) == ""


@pytest.mark.parametrize("python", ["cpython 3.12.7", "cpython 3.1.7", "cpython 3.13.0", "pypy 3.11.7", ""])
def test_another_does_not_and_both_are_named(python: str) -> None:
    why = mismatch(HERE, software("cpython 3.11.7"), THERE, software(python))
    assert f"{HERE} runs cpython 3.11.7 (/opt/bin/python; pymonarch 1.2, cloudpickle 3.0)" in why
    assert f"{THERE} runs {python} (/opt/bin/python; pymonarch 1.2, cloudpickle 3.0)" in why
    assert "Give all hosts and the client the same" in why


def test_what_this_process_runs() -> None:
    assert ours() is ours()
    assert ours().python == f"cpython {sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
    assert ours().interpreter == sys.executable
    assert {"pymonarch", "cloudpickle", "msgspec"} <= ours().packages.keys()
    assert mismatch(HERE, ours(), THERE, ours()) == ""
