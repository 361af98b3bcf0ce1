"""Fixtures for pytest. In a conftest.py: `pytest_plugins = ["monarch.testing.fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch.testing.clock import VirtualClock
from monarch.testing.cluster import InProcessCluster
from monarch.testing.leaks import check_leaks


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """The test fails when it leaves descriptors, threads, processes, shared memory or sockets behind
    (`check_leaks`).

    Ask for it before other fixtures, so that it looks after they have cleaned up.
    """
    with check_leaks():
        yield


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that stands at 0."""
    return VirtualClock()


@pytest.fixture
def cluster() -> Iterator[InProcessCluster]:
    """A simulated host for the test, on real time; `this_host()` is it."""
    with InProcessCluster() as cluster:
        yield cluster
