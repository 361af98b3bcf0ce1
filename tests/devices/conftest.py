"""Real devices: every test here is skipped, with the reason, where torch sees none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import ProcMesh, this_host
from tests.devices.side import TIMEOUT, Side
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
