"""A mesh whose workers have a device that the program's process does not: cuda. There it is their CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from monarch.tensor.controller import absent_devices
from monarch.tensor.controller.mesh import DeviceMesh
from tests.tensor import loopback


class _OnTheHost(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            kwargs = kwargs | {"device": torch.device("cpu")}
        return func(*args, **kwargs)


@contextlib.contextmanager
def elsewhere(patch: pytest.MonkeyPatch) -> Iterator[DeviceMesh]:
    """Active."""
    as_a_worker = loopback._as_a_worker

    @contextlib.contextmanager
    def with_a_device(one: Any) -> Iterator[None]:
        with as_a_worker(one), _OnTheHost():
            yield

    patch.setattr(loopback, "_as_a_worker", with_a_device)
    try:
        with loopback.loopback(gpus=1) as mesh:
            yield mesh
    finally:  # other tests of this process have never heard of such a device
        absent_devices._homes.clear()
        absent_devices._strangers.clear()
