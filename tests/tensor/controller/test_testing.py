"""`monarch._testing`: meshes for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import monarch
from monarch._testing import TestingContext, mock_mesh
from monarch.tensor import RemoteException


@pytest.fixture(scope="module")
def local() -> Iterator[TestingContext]:
    with TestingContext() as local:
        yield local


def test_a_mesh_of_processes_that_is_active(local: TestingContext) -> None:
    with local.local_device_mesh(1, 2) as mesh:
        assert mesh.names == ("host", "gpu") and monarch.get_active_mesh() is mesh
        assert monarch.inspect(torch.ones(2), host=0, gpu=1).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="no device mesh is active"):
        monarch.get_active_mesh()


def test_processes_serve_again_on_a_fresh_engine(local: TestingContext) -> None:
    with local.local_engine_on_proc_mesh(1, 2) as first:
        pass
    with local.local_device_mesh(1, 2, activate=False, backend="rs") as second:
        assert first.client is not second.client
        with second.activate():
            t = torch.ones(())
        assert monarch.inspect(t).item() == 1.0
    with pytest.raises(RuntimeError, match="exit"):
        first.activate()


def test_the_end_raises_what_nobody_was_told_of(local: TestingContext) -> None:
    with pytest.raises(RemoteException, match="out of bounds"), local.local_device_mesh(1, 1):
        torch.ones(2)[torch.tensor([7])]


def test_an_exception_of_the_block_is_raised_as_it_is(local: TestingContext) -> None:
    with pytest.raises(KeyError, match="mine"), local.local_device_mesh(1, 1):
        torch.ones(2)[torch.tensor([7])]
        raise KeyError("mine")


def test_a_mesh_without_processes() -> None:
    mesh = mock_mesh(60, 24)
    parts = mesh.split(host=("dp", "pp"), gpu=("tp",), pp=4)
    assert parts.names == ("dp", "pp", "tp") and tuple(parts.processes.strides) == (96, 24, 1)
    with mesh.activate():
        t = torch.ones(2, 3) @ torch.ones(3, 4)
        for _ in range(500):
            t = t + 1
        assert t.shape == (2, 4)
        with pytest.raises(RuntimeError, match="must have same reduction dim"):
            t @ t
        with pytest.raises(RuntimeError, match="nothing can be fetched"):
            monarch.inspect(t)
    mesh.exit()
