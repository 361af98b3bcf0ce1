"""An actor whose module imports torch, as a training script's would."""

from __future__ import annotations

import os

from _torch import torch

from monarch.actor import Actor, endpoint


class TorchEcho(Actor):
    """Has touched torch by the time it answers."""

    @endpoint
    def echo(self, value: int) -> int:
        return int(torch.ones(1).sum().item()) * value

    @endpoint
    def pid(self) -> int:
        return os.getpid()
