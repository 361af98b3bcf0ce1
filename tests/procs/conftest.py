"""Real processes for the tests of this folder. Procs are dear, so the session shares them; actors are cheap.

Tests that need a client of their own (exits, output, `__main__`) run a program through the `scripts` fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh, ProcMesh, this_host
from tests.support.patience import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]


# --- Meshes that tests share. Nobody stops or breaks these.


@pytest.fixture(scope="session")
def host() -> HostMesh:
    return this_host()


@pytest.fixture(scope="session")
def proc(host: HostMesh) -> Iterator[ProcMesh]:
    """One process, no dimension."""
    mesh = host.spawn_procs(name="single")
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture(scope="session")
def procs2(host: HostMesh) -> Iterator[ProcMesh]:
    mesh = host.spawn_procs(per_host={"gpus": 2}, name="pair")
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture(scope="session")
def procs4(host: HostMesh) -> Iterator[ProcMesh]:
    mesh = host.spawn_procs(per_host={"a": 2, "b": 2}, name="square")
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def spawn_procs(host: HostMesh) -> Iterator[Any]:
    """`this_host().spawn_procs` whose meshes are stopped when the test ends."""
    meshes: list[ProcMesh] = []

    def spawn(*args: Any, on: HostMesh | None = None, **kwargs: Any) -> ProcMesh:
        mesh = (on or host).spawn_procs(*args, **kwargs)
        meshes.append(mesh)
        return mesh

    yield spawn
    for mesh in meshes:
        mesh.stop().get(timeout=TIMEOUT)


@pytest.fixture
def own(spawn_procs: Any) -> Any:
    """Two processes that a test may kill."""
    return spawn_procs({"gpus": 2})


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Makes a file where actors write down what happens to them."""
    return tmp_path / "journal"
