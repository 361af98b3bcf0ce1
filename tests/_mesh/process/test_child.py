"""Tests of what a new process does before it is one of ours."""

from __future__ import annotations

import random
import sys
from types import ModuleType, SimpleNamespace

import pytest

from monarch._mesh.process import child


def test_processes_forked_side_by_side_share_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[str] = []
    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))
    monkeypatch.setitem(sys.modules, "numpy.random", SimpleNamespace(seed=lambda: seeded.append("numpy")))
    generator = SimpleNamespace(seed=lambda: seeded.append("torch"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(default_generator=generator))
    before = random.getstate()
    child._reseed()
    assert random.getstate() != before and seeded == ["numpy", "torch"]


def test_numpy_is_not_made_to_load_its_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))  # which would load them when asked for `random`
    monkeypatch.delitem(sys.modules, "numpy.random", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    child._reseed()
