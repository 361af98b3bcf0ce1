"""Tests that run on the CPU, or on an imitated card, and once more on a real one where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monarch import _devices
from monarch.actor import ProcMesh, this_host

TIMEOUT = 120  # the first use of a device takes seconds


def call(endpoint: Any, *args: Any) -> Any:
    return endpoint.call_one(*args).get(TIMEOUT)


def skip_without_gpu() -> None:
    """Skips the test, and says why, where torch sees no GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(
            "torch.cuda.is_available() is False: there is no GPU here, or torch was built without CUDA and ROCm"
        )


def skip_with_fewer_gpus(count: int) -> None:
    """Skips the test, and says why: nccl refuses two processes on one device."""
    skip_without_gpu()
    if _devices.count() < count:
        pytest.skip(f"{count} processes need a GPU each, and {_devices.count()} are here")


on_gpu = pytest.param("cuda", marks=pytest.mark.device)
every_device = pytest.mark.parametrize("device", ["cpu", on_gpu], indirect=True)


def default_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fixture of tests, which are marked `every_device`: where their new tensors are."""
    if request.param == "cpu":
        yield "cpu"
        return
    skip_without_gpu()
    import torch

    with torch.device("cuda"):
        yield "cuda"


def one_process_a_device() -> Iterator[ProcMesh]:
    """Two at most: nccl refuses two ranks on one device. A fixture of tests."""
    mesh = this_host().spawn_procs({"gpus": min(2, _devices.count())})
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)
