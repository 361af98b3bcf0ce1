"""Modules that a fork server should import before it forks, so that new processes have them already."""

from __future__ import annotations

import sys

from monarch._wire import os_text
from monarch._wire.message import LaunchSpec
from monarch.config import settings

_PRELOADABLE = ("numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo")

# What training needs: torch imports its compiler when the first model is wrapped or the first optimizer made, which takes
# seconds. First processes do so while others do, but who waits for a replacement waits for that.
_TRAINING = ("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo")


def preloads() -> list[str]:
    """The modules that a fork server should import: those of a known few that this program has imported."""
    wanted = settings.preload()
    if wanted == "none":
        return []
    if wanted != "auto":
        return [name.strip() for name in wanted.split(",") if name.strip()]
    return [name for name in _PRELOADABLE if name in sys.modules]


def refreshed(launch: bytes, training: bool = False) -> bytes:
    """An encoded LaunchSpec, with what this program has imported by now; all else as it was. `training`: its processes train
    models with torch, and so will those that take their place.

    The compiler is left out unless the first processes had it: distributed tensors import it here and never there, and a fork
    server takes two seconds to load it.
    """
    spec = os_text.decode(launch, LaunchSpec)
    spec.preload = [name for name in preloads() if name != "torch._dynamo" or name in spec.preload]
    if training and settings.preload() == "auto":
        spec.warm = [name for name in _TRAINING if name not in spec.preload]
    return os_text.encode(spec)
