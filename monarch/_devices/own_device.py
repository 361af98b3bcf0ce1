"""Which of its host's devices a worker uses."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from monarch import _devices


def visible(environ: Mapping[str, str], local_rank: int, present: int, variables: tuple[str, ...]) -> str | None:
    """The one entry that a worker with this local rank should see of the `present` devices that its process sees now.

    Ranks beyond the devices share them, in turn. None where there is nothing to choose: no device, or one already chosen.
    """
    if present < 2 or not variables:
        return None
    listed = [entry for entry in environ.get(variables[0], "").split(",") if entry.strip()]
    entries = listed[:present] if len(listed) >= present else [str(index) for index in range(present)]
    return entries[local_rank % len(entries)].strip()


def take(local_rank: int) -> None:
    """Makes this worker's device the only one its process sees, so that `cuda` means it: by the visible-devices variables of
    the vendor. Where torch has begun to use devices already, it becomes the current one instead. Nothing on a CPU rank.
    """
    present = _devices.count()
    if not present:
        return
    if torch.accelerator.current_accelerator() is not None and _begun():
        torch.accelerator.set_device_index(local_rank % present)
        return
    variables = _devices.visible_variables()
    entry = visible(os.environ, local_rank, present, variables)
    if entry is not None:
        os.environ.update(_devices.visible_environment([entry]))
        _forget_count()


def _begun() -> bool:
    return bool(torch.cuda.is_initialized())


def _forget_count() -> None:
    """Torch counts devices once, before any is used; what it counted holds no more."""
    if hasattr(torch.cuda, "_cached_device_count"):
        torch.cuda._cached_device_count = None
