"""The fixtures that users of monarch.testing get, for the tests of this folder, and a gate for their actors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch.testing import InProcessCluster
from monarch.testing.fixtures import cluster, no_leaks, virtual_clock
from tests.support.actors import Gate

__all__ = ["cluster", "no_leaks", "virtual_clock"]


@pytest.fixture
def gate(cluster: InProcessCluster) -> Iterator[Gate]:
    """Opened before the cluster is left, so that a failing test does not wait for the actors it held."""
    gate = Gate()
    yield gate
    gate.open()
