"""The generators that a process has of its own, as commands get at them: that of the CPU and that of its accelerator.

States are uint8 tensors in the CPU's memory. In a process without an accelerator its state is zeros, and to seed or set it
does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor import generators

if TYPE_CHECKING:
    from monarch.tensor.signature import Runner
    from monarch.tensor.worker.executor import Executor


class RandomCall:
    """The signature of `what`, one of ACTS, that gives states of `sizes` bytes. `mutates`: states among its inputs that
    it changes."""

    repeatable = True  # its numbers are seeds: values, and no names of its own

    def __init__(self, what: str, sizes: Sequence[int], mutates: tuple[int, ...] = ()) -> None:
        self.what = what
        self.sizes = tuple(sizes)
        self.keeps: tuple[int, ...] | None = tuple(range(len(sizes)))
        self.mutates = mutates

    def name(self) -> str:
        return f"monarch.random.{self.what}"

    def prepare(self, executor: Executor) -> Runner:
        act, rank = ACTS[self.what], executor.rank
        return lambda tensors, numbers: act(rank, *tensors, *numbers)


# --- each is called with the process's rank in the engine's mesh, tensors and numbers; what gives states returns them -----


def _get_states(rank: int) -> Sequence[torch.Tensor]:
    return [torch.get_rng_state(), _device_state()]


def _set_states(rank: int, cpu: torch.Tensor, device: torch.Tensor) -> Sequence[torch.Tensor]:
    _set_cpu_state(rank, cpu)
    return _set_device_state(rank, device)


def _new_states(rank: int, seed: torch.Tensor) -> Sequence[torch.Tensor]:
    number = int(seed)
    there = torch.accelerator.is_available()
    return [generators.seeded_state(number, False), generators.seeded_state(number, True) if there else _nothing()]


def _get_cpu_state(rank: int) -> Sequence[torch.Tensor]:
    return [torch.get_rng_state()]


def _set_cpu_state(rank: int, state: torch.Tensor) -> Sequence[torch.Tensor]:
    torch.set_rng_state(state.cpu())
    return []


def _get_device_state(rank: int) -> Sequence[torch.Tensor]:
    return [_device_state()]


def _set_device_state(rank: int, state: torch.Tensor) -> Sequence[torch.Tensor]:
    if torch.accelerator.is_available():
        _module().set_rng_state(state.cpu())
    return []


def _seed(rank: int, seed: int) -> Sequence[torch.Tensor]:
    torch.manual_seed(seed)
    return []


def _seed_per_rank(rank: int, seed: int) -> Sequence[torch.Tensor]:
    return _seed(rank, (seed + rank) & ((1 << 64) - 1))  # torch takes what fits into 64 bits; -1 is the largest there


def _seed_device(rank: int, seed: int) -> Sequence[torch.Tensor]:
    if torch.accelerator.is_available():
        _module().manual_seed(seed)
    return []


def _seed_devices(rank: int, seed: int) -> Sequence[torch.Tensor]:
    if torch.accelerator.is_available():
        _module().manual_seed_all(seed)
    return []


def _seed_generator(rank: int, state: torch.Tensor, seed: int) -> Sequence[torch.Tensor]:
    state.copy_(generators.seeded_state(seed, state.numel() == generators.DEVICE_BYTES))
    return []


def _new_device_state(rank: int, seed: int) -> Sequence[torch.Tensor]:
    return [generators.seeded_state(seed, True)]


def _make_deterministic(rank: int) -> Sequence[torch.Tensor]:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch demands of matrix products on CUDA
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return []


ACTS: dict[str, Callable[..., Sequence[torch.Tensor]]] = {
    "get_state": _get_states,
    "set_state": _set_states,
    "new_state": _new_states,
    "get_cpu_state": _get_cpu_state,
    "set_cpu_state": _set_cpu_state,
    "get_device_state": _get_device_state,
    "set_device_state": _set_device_state,
    "manual_seed": _seed,
    "manual_seed_per_rank": _seed_per_rank,
    "manual_seed_device": _seed_device,
    "manual_seed_devices": _seed_devices,
    "seed_generator": _seed_generator,
    "new_device_generator": _new_device_state,
    "make_deterministic": _make_deterministic,
}


def _device_state() -> torch.Tensor:
    if not torch.accelerator.is_available():
        return _nothing()
    state: torch.Tensor = _module().get_rng_state()
    return state


def _nothing() -> torch.Tensor:
    return torch.zeros(generators.DEVICE_BYTES, dtype=torch.uint8)


def _module() -> Any:
    return torch.get_device_module(torch.accelerator.current_accelerator())
