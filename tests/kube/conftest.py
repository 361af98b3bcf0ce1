from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job.kubernetes import job
from tests.kube.api_server import OPERATOR, ApiServer, Store
from tests.kube.lab import NAMESPACE, Lab, lab
from tests.kube.values import Clock


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


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server alone: nothing acts on its objects, and no processes run."""
    store = Store((NAMESPACE,))
    store.served.discard((OPERATOR, "monarchmeshes"))
    running = ApiServer(store, tmp_path)
    yield running
    running.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(job, "time", made)
    monkeypatch.setattr(job, "_wait", made.wait)
    return made
