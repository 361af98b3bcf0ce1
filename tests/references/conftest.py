"""References in a cluster in memory; those of real processes are in `test_real_processes.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch.testing import InProcessCluster


@pytest.fixture
def cluster() -> Iterator[InProcessCluster]:
    with InProcessCluster() as cluster:
        yield cluster
