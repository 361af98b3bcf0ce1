"""Real devices: every test here is skipped, with the reason, where torch sees none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import ProcMesh, this_host
from tests.devices.side import TIMEOUT, Side
from tests.support.faults import Faults
from tests.support.processes import kill


@pytest.fixture(scope="module", autouse=True)
def _with_torch(torch_preloaded: None) -> None:
    pass


@pytest.fixture(scope="session", autouse=True)
def _devices() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(
            "torch.cuda.is_available() is False: there is no GPU here, or torch was built without CUDA and ROCm"
        )


@pytest.fixture(autouse=True)
def _deaths_are_expected(faults: Faults) -> None:
    """Tests here kill processes, and look elsewhere for what comes of that."""


@pytest.fixture(scope="session")
def procs() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs(per_host={"who": 2}, name="devices")
    yield procs
    procs.stop().get(timeout=TIMEOUT)


@pytest.fixture
def owner(procs: ProcMesh) -> Iterator[Any]:
    mesh = procs.slice(who=0).spawn("owner", Side)
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def reader(procs: ProcMesh) -> Iterator[Any]:
    mesh = procs.slice(who=1).spawn("reader", Side)
    yield mesh
    mesh.use.call_one("").get(timeout=TIMEOUT)
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def doomed() -> Iterator[Any]:
    """One in a process of its own, and what kills it and waits until it is gone."""
    procs = this_host().spawn_procs(name="doomed")
    mesh = procs.spawn("doomed", Side)

    yield mesh, lambda: kill(mesh.pid.call_one().get(TIMEOUT))
    procs.stop().get(timeout=TIMEOUT)
