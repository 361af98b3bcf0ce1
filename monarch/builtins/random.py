"""Random numbers in the processes of a mesh.

`..._cuda_remote` are for the accelerator that a process has, of whichever vendor; without one they do nothing, or
return none.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from monarch.tensor.remote.remote_function import remote


def _device() -> Any:
    """torch's module of the accelerator of this process; None without one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.get_device_module(found) if found is not None else None


def _state_like() -> torch.Tensor:
    return torch.empty(torch.get_rng_state().shape, dtype=torch.uint8)


@remote(propagate="inspect")
def set_manual_seed_remote(seed: int, process_idx: int | torch.Tensor = 0) -> None:
    """Seeds torch everywhere with `seed ^ process_idx`.

    `process_idx`: a number, or a distributed scalar (`mesh.process_idx()`) so that each process draws numbers of its own.
    """
    torch.manual_seed(seed ^ int(process_idx))


@remote(propagate=_state_like)
def get_rng_state_remote() -> torch.Tensor:
    """The state of the CPU's generator, a uint8 tensor."""
    return torch.get_rng_state()


@remote(propagate="inspect")
def set_rng_state_remote(state: torch.Tensor) -> None:
    """Sets what `get_rng_state_remote` gave."""
    torch.set_rng_state(state)


@remote(propagate=lambda: torch.empty((), dtype=torch.int64))
def seed_remote() -> torch.Tensor:
    """Seeds torch in each process with a number of its own; an int64 scalar that holds it (its bits: such seeds have 64)."""
    return _bits(torch.seed())


@remote(propagate="inspect")
def random_seed_remote() -> None:
    """Seeds Python's `random` in each process from the operating system."""
    random.seed()


@remote(propagate="inspect")
def manual_seed_cuda_remote(seed: int) -> None:
    """Seeds the current accelerator."""
    device = _device()
    if device is not None:
        device.manual_seed(seed)


@remote(propagate="inspect")
def manual_seed_all_cuda_remote(seed: int) -> None:
    """Seeds all accelerators of each process."""
    device = _device()
    if device is not None:
        device.manual_seed_all(seed)


@remote
def get_rng_state_all_cuda_remote() -> list[torch.Tensor]:
    """The states of all accelerators of each process; an empty list without any."""
    device = _device()
    return list(device.get_rng_state_all()) if device is not None else []


@remote(propagate="inspect")
def set_rng_state_all_cuda_remote(states: list[torch.Tensor]) -> None:
    """Sets what `get_rng_state_all_cuda_remote` gave."""
    device = _device()
    if device is not None:
        device.set_rng_state_all(states)


def _bits(seed: int) -> torch.Tensor:
    return torch.tensor(seed - (1 << 64) if seed >= 1 << 63 else seed, dtype=torch.int64)
