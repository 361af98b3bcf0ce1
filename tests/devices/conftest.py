"""Tests that only a real device can carry: every test here is skipped, with the reason, where torch sees none."""

from __future__ import annotations

import pytest

from tests.support.devices import skip_without_gpu
from tests.support.faults import Faults


@pytest.fixture(scope="module", autouse=True)
def _with_torch(torch_preloaded: None) -> None:
    pass


@pytest.fixture(scope="session", autouse=True)
def _devices() -> None:
    skip_without_gpu()


@pytest.fixture(autouse=True)
def _deaths_are_expected(faults: Faults) -> None:
    """Tests here kill processes, and look elsewhere for what comes of that."""
