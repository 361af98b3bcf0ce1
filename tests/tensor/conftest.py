"""Two real processes for distributed tensors, and meshes without any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import ProcMesh, this_host
from tests.support.patience import TIMEOUT


@pytest.fixture(scope="module", autouse=True)
def _with_torch(torch_preloaded: None) -> None:
    pass


@pytest.fixture(autouse=True)
def _no_device_was_met() -> Iterator[None]:
    """A device that one test names and this process does not have is what "meta" means from then on, but not to the next."""
    yield
    from monarch.tensor.controller import absent_devices

    absent_devices._strangers.clear()
    absent_devices._homes.clear()


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    """Two processes, dimension `gpus`."""
    mesh = this_host().spawn_procs({"gpus": 2}, name="tensors")
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def square() -> Iterator[ProcMesh]:
    """Four processes, dimensions `host` and `gpu`."""
    mesh = this_host().spawn_procs({"host": 2, "gpu": 2}, name="square")
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def mesh(procs: ProcMesh) -> Iterator[Any]:
    """The two processes, active."""
    with procs.activate() as active:
        yield active


@pytest.fixture
def loop() -> Iterator[Any]:
    """A mesh of two ranks in this thread, active (see loopback.py)."""
    from tests.tensor.loopback import loopback

    with loopback(gpus=2) as active:
        yield active
