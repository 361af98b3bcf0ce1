"""The random numbers of the processes of a mesh: their states as distributed tensors, and determinism.

Everything here is issued to the active mesh and stream, in order with the operations there. A state holds that of the
CPU and that of the process's accelerator; in a process without one the latter is zeros, and setting it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.tensor import metadata
from monarch.tensor.controller import dispatch, misuse
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.mesh import get_active_mesh
from monarch.tensor.controller.records import recorder, recorders
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.propagation import Leaf, Outcome

_DEVICE_BYTES = 16  # of the state of a CUDA or ROCm generator: a seed and an offset


class State(NamedTuple):
    """The states of each process's generators: uint8 tensors, `cpu` and `cuda` (whatever accelerator there is)."""

    cpu: Any
    cuda: Any


def get_state() -> State:
    """The states as they are at this point. ValueError when no mesh is active."""
    return State(*_issue("get_state", [], 2))


def set_state(state: State) -> None:
    """Puts `state` back: the random numbers that follow are those that followed when it was taken."""
    _issue("set_state", list(state), 0)


def new_state(seed: Any) -> State:
    """The states of generators with that seed; none is set by it. `seed`: an integer, the same everywhere, or a
    distributed integer scalar, with a value for each process."""
    if not isinstance(seed, Tensor):
        seed = torch.tensor(int(seed))
    return State(*_issue("new_state", [seed], 2))


def make_deterministic() -> None:
    """From here on operations in the processes give the same results each time for the same inputs; those that cannot
    fail (as by `torch.use_deterministic_algorithms(True)`). It seeds nothing."""
    _issue("make_deterministic", [], 0)


def _issue(what: str, inputs: list[Any], results: int) -> list[Any]:
    place = get_active_mesh().place(get_active_stream())
    problems = [problem for tensor in inputs if (problem := trouble(tensor, place, False)) is not None]
    if problems:
        raise misuse.incorrect(f"monarch.random.{what}", inputs, {}, problems, place.mesh, place.stream)
    with _disable_current_modes():
        sizes = [torch.get_rng_state().numel(), _DEVICE_BYTES][:results]
        metas = [metadata.contiguous((size,), torch.uint8, "cpu") for size in sizes]
    outcome = Outcome([Leaf(meta) for meta in metas], list, (), ())
    if recorders and (here := recorder()) is not None:
        here.read(inputs)
    ident = place.engine.do(place, RandomCall(what, outcome.keeps), [tensor._record.ref for tensor in inputs], results)
    taint = inputs[0]._record.storage.taint if inputs else None
    return dispatch.fresh_leaves(outcome, inputs, place, ident, taint)


class RandomCall:
    """One of the functions above, as workers do it."""

    def __init__(self, what: str, keeps: tuple[int, ...] | None) -> None:
        self.what = what
        self.keeps = keeps
        self.mutates: tuple[int, ...] = ()

    def name(self) -> str:
        return f"monarch.random.{self.what}"

    def prepare(self, executor: Any) -> Callable[..., Any]:
        act = _ACTS[self.what]
        return lambda tensors, numbers: act(*tensors)


def _get() -> Sequence[torch.Tensor]:
    return [torch.get_rng_state(), _device_state(None)]


def _new(seed: torch.Tensor) -> Sequence[torch.Tensor]:
    number = int(seed)
    return [torch.Generator().manual_seed(number).get_state(), _device_state(number)]


def _set(cpu: torch.Tensor, device: torch.Tensor) -> Sequence[torch.Tensor]:
    torch.set_rng_state(cpu.cpu())
    if torch.accelerator.is_available():
        _module().set_rng_state(device.cpu())
    return []


def _device_state(seed: int | None) -> torch.Tensor:
    """Of this process's accelerator; of one with that seed."""
    if not torch.accelerator.is_available():
        return torch.zeros(_DEVICE_BYTES, dtype=torch.uint8)
    if seed is None:
        state: torch.Tensor = _module().get_rng_state()
        return state
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    device = torch.device(accelerator.type, torch.accelerator.current_device_index())
    return torch.Generator(device).manual_seed(seed).get_state()


def _module() -> Any:
    return torch.get_device_module(torch.accelerator.current_accelerator())


def _deterministic() -> Sequence[torch.Tensor]:
    import os

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch demands of matrix products on CUDA
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return []


_ACTS: dict[str, Callable[..., Sequence[torch.Tensor]]] = {
    "get_state": _get,
    "set_state": _set,
    "new_state": _new,
    "make_deterministic": _deterministic,
}
