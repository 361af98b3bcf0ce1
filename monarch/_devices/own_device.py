"""Which of its host's devices a process uses."""

from __future__ import annotations

import os
from collections.abc import Mapping

from monarch._devices import vendors


def visible(environ: Mapping[str, str], local_rank: int, present: int, variables: tuple[str, ...]) -> str | None:
    """The one entry that a process with this local rank should see of the `present` devices that its process sees now.

    Ranks beyond the devices share them, in turn. None where there is nothing to choose: no device, or one already chosen.
    """
    if present < 2 or not variables:
        return None
    listed = [entry for entry in environ.get(variables[0], "").split(",") if entry.strip()]
    entries = listed[:present] if len(listed) >= present else [str(index) for index in range(present)]
    return entries[local_rank % len(entries)].strip()


def take(local_rank: int) -> None:
    """Makes this process's device the only one its process sees, so that `cuda` means it: by the visible-devices variables of
    the vendor. Where torch has begun to use devices already, it becomes the current one instead. Nothing on a CPU rank.
    """
    present = vendors.count()
    if not present:
        return
    import torch

    if torch.accelerator.current_accelerator() is not None and _begun():
        torch.accelerator.set_device_index(local_rank % present)
        return
    variables = vendors.visible_variables()
    entry = visible(os.environ, local_rank, present, variables)
    if entry is not None:
        os.environ.update(vendors.visible_environment([entry]))
        _forget_count()


def _begun() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())


def _forget_count() -> None:
    """Torch counts devices once, before any is used; what it counted holds no more."""
    import torch

    if hasattr(torch.cuda, "_cached_device_count"):
        torch.cuda._cached_device_count = None
