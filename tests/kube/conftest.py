from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube.lab import Lab, lab


@pytest.fixture
def cluster() -> Iterator[Lab]:
    """A cluster that does not know the operator's kind."""
    with lab() as running:
        yield running


@pytest.fixture
def operated() -> Iterator[Lab]:
    """A cluster with the operator."""
    with lab(operator=True) as running:
        yield running
