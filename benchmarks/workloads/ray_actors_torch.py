"""A Ray actor that uses torch. Ray sends the class by value: the actor imports torch in its own process."""

from __future__ import annotations

import os
from typing import Any

import _torch  # noqa: F401 - the client has torch imported too
import ray


@ray.remote(num_cpus=0)
class TorchEcho:
    """Has touched torch by the time it answers."""

    def __init__(self) -> None:
        from _torch import torch

        self.torch: Any = torch

    def echo(self, value: int) -> int:
        return int(self.torch.ones(1).sum().item()) * value

    def pid(self) -> int:
        return os.getpid()
