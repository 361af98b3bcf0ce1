"""Graphs run in a cluster in memory, but for those of real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch.testing import InProcessCluster


@pytest.fixture
def cluster() -> Iterator[InProcessCluster]:
    with InProcessCluster() as cluster:
        yield cluster
