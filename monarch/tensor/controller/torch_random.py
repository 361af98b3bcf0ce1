"""torch's functions of random numbers under a mesh: what they seed, save and restore is that of the mesh's processes.

`torch.manual_seed`, `torch.get_rng_state` and the others work on objects, not by operations, so no dispatch mode sees
them. `install` puts stand-ins where torch looks for these objects: each does what torch's own does unless a mesh is
active in the calling thread. Functions that programs have imported by name keep their identity, because they look up
`torch.random.default_generator` when called.

`torch.utils.checkpoint` saves the state of a device only where this process has initialised it. Under a mesh it has to
save that of the processes', so it is told that the device is there.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.cuda.random
import torch.random
import torch.utils.checkpoint

from monarch.tensor.controller import rng
from monarch.tensor.controller.activation import mesh_of_operations
from monarch.tensor.controller.constants import constant
from monarch.tensor.controller.generator import Generator
from monarch.tensor.controller.handles import is_distributed
from monarch.tensor.controller.place import Mesh, Place
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.generators import DEVICE_BYTES

_CPU, _DEVICE = (
    ("get_cpu_state", "set_cpu_state", rng.CPU_BYTES),
    ("get_device_state", "set_device_state", DEVICE_BYTES),
)
_Which = tuple[str, str, int]
_seeds = {_CPU: rng.cpu_seeds, _DEVICE: rng.device_seeds}


def install() -> None:
    """Once a process, before the first mesh is active."""
    random: Any = torch.random
    if isinstance(random.default_generator, _DefaultGenerator):
        return
    random.default_generator = _DefaultGenerator(random.default_generator)
    random.fork_rng = _fork_rng_instead_of(random.fork_rng)
    for name, stand_in in _CUDA.items():
        for module in (torch.cuda, torch.cuda.random):
            setattr(module, name, _instead_of(getattr(torch.cuda.random, name), stand_in))
    checkpoint: Any = torch.utils.checkpoint
    checkpoint._get_device_module = _device_module_instead_of(checkpoint._get_device_module)
    torch.Generator = Generator


def _instead_of(plain: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """`plain`, but `stand_in(place, plain, ...)` while a mesh is active, or for a state of a mesh."""

    @functools.wraps(plain)
    def function(*args: Any, **kwargs: Any) -> Any:
        place = _place(args[0] if args else None)
        return plain(*args, **kwargs) if place is None else stand_in(place, plain, *args, **kwargs)

    return function


def _place(state: Any = None) -> Place | None:
    """Where a function issues its command, if it does: for a mesh's `state` when none is active, its own mesh."""
    mesh = mesh_of_operations()
    if mesh is None:
        return state._record.place if is_distributed(state) else None
    if is_distributed(state) and torch._C._current_graph_task_id() != -1:
        return mesh.place(state._record.place.stream)  # derivatives run where their operations ran
    return mesh.place(get_active_stream())


# --- states and seeds of a place ------------------------------------------------------------------------------


def _get(place: Place, which: _Which) -> Any:
    state = rng.issue(place, which[0], sizes=(which[2],))[0]
    state._seed = _seeds[which].get(place.mesh)
    return state


def _set(place: Place, which: _Which, state: torch.Tensor) -> None:
    if not is_distributed(state):
        if not isinstance(state, torch.Tensor) or state.dtype is not torch.uint8 or tuple(state.shape) != which[2:]:
            raise TypeError(
                f"the state of a generator in the processes of a mesh is a uint8 tensor of {which[2]} elements, from "
                f"get_rng_state(), and this is {state!r:.100}"
            )
        state = constant(place, state)
    _keep_for_end(place, which)
    _put_back(place, which, state)


def _put_back(place: Place, which: _Which, state: Any) -> None:
    rng.issue(place, which[1], (state,))
    rng.note_seed(_seeds[which], place.mesh, getattr(state, "_seed", None))


def _seed(place: Place, what: str, which: _Which, seed: Any) -> None:
    number = rng.checked_seed(seed)
    rng.issue(place, what, numbers=(number,))
    rng.note_seed(_seeds[which], place.mesh, number)


def _initial_seed(place: Place, which: _Which) -> int:
    found = _seeds[which].get(place.mesh)
    if found is None:
        raise RuntimeError(
            f"the processes of {place.mesh} were not seeded from here, so each has a seed of its own: call "
            f"torch.manual_seed(...) under this mesh first, or torch.initial_seed() in a monarch.remote function"
        )
    return found


class _DefaultGenerator:
    """In the place of `torch.random.default_generator`, through which torch.random's functions work."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def manual_seed(self, seed: int) -> Any:
        """Of this process too: what it draws itself, such as the order of a DataLoader's items, is the same in every run."""
        if (place := _place()) is not None:
            _seed(place, "manual_seed", _CPU, seed)
        return self._plain.manual_seed(seed)

    def seed(self) -> int:
        number: int = self._plain.seed()
        if (place := _place()) is not None:
            _seed(place, "manual_seed", _CPU, number)
        return number

    def initial_seed(self) -> int:
        place = _place()
        return self._plain.initial_seed() if place is None else _initial_seed(place, _CPU)

    def get_state(self) -> Any:
        place = _place()
        return self._plain.get_state() if place is None else _get(place, _CPU)

    def set_state(self, state: Any) -> Any:
        place = _place(state)
        if place is None:
            return self._plain.set_state(state)
        _set(place, _CPU, state)
        return self._plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


# --- torch.cuda's, for whichever accelerator the processes have --------------------------------------------------
# A process works on one device, its own: that is meant, whichever device of this process is named.


def _seed_device(place: Place, plain: Callable[..., Any], seed: int) -> None:
    _seed(place, "manual_seed_device", _DEVICE, seed)
    plain(seed)


def _seed_devices(place: Place, plain: Callable[..., Any], seed: int) -> None:
    _seed(place, "manual_seed_devices", _DEVICE, seed)
    plain(seed)


def _new_seed(what: str) -> Callable[..., None]:
    def new_seed(place: Place, plain: Callable[..., Any]) -> None:
        _seed(place, what, _DEVICE, torch._C.Generator().seed())
        plain()

    return new_seed


def _set_all(place: Place, plain: Callable[..., Any], new_states: Sequence[Any]) -> None:
    states = list(new_states)
    if len(states) != 1:
        raise ValueError(
            f"under a mesh there is one state, that of each process's own device, and {len(states)} were given"
        )
    _set(_place(states[0]) or place, _DEVICE, states[0])


_CUDA: dict[str, Callable[..., Any]] = {
    "get_rng_state": lambda place, plain, device="cuda": _get(place, _DEVICE),
    "get_rng_state_all": lambda place, plain: [_get(place, _DEVICE)],
    "set_rng_state": lambda place, plain, new_state, device="cuda": _set(place, _DEVICE, new_state),
    "set_rng_state_all": _set_all,
    "manual_seed": _seed_device,
    "manual_seed_all": _seed_devices,
    "seed": _new_seed("manual_seed_device"),
    "seed_all": _new_seed("manual_seed_devices"),
    "initial_seed": lambda place, plain: _initial_seed(place, _DEVICE),
}


# --- fork_rng ----------------------------------------------------------------------------------------------------


class _Forks(threading.local):
    """The `fork_rng` blocks of this thread that began without a mesh, while derivatives are computed: what to restore at
    their end."""

    def __init__(self) -> None:
        self.stack: list[dict[tuple[Mesh, _Which], tuple[Place, Any]]] = []


_forks = _Forks()


def _keep_for_end(place: Place, which: _Which) -> None:
    """A state is about to be set. `backward()` outside of any mesh finds out only now which mesh it is that computes
    again what a checkpoint left out, and has to leave its generators as they were."""
    if _forks.stack and mesh_of_operations() is None:
        kept = _forks.stack[-1]
        if (place.mesh, which) not in kept:
            kept[place.mesh, which] = (place, _get(place, which))


def _fork_rng_instead_of(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    @contextlib.contextmanager
    def fork_rng(devices: Any = None, enabled: bool = True, *args: Any, **kwargs: Any) -> Iterator[None]:
        """torch's; under a mesh of the generators of its processes, and of this process's own of the CPU. `devices`: an
        empty list leaves accelerators out."""
        devices = devices if devices is None else list(devices)
        place = _place() if enabled else None
        if place is not None:
            saved = [(which, _get(place, which)) for which in ((_CPU,) if devices == [] else (_CPU, _DEVICE))]
            own = torch.default_generator.get_state()
            try:
                yield
            finally:
                torch.default_generator.set_state(own)
                for which, state in saved:
                    _put_back(place, which, state)
            return
        derives = enabled and torch._C._current_graph_task_id() != -1
        if derives and not torch.cuda.is_initialized():
            devices = []  # they are devices of processes
        with plain(devices, enabled, *args, **kwargs):
            if not derives:
                yield
                return
            _forks.stack.append({})
            try:
                yield
            finally:
                for (_, which), (place, state) in _forks.stack.pop().items():
                    _put_back(place, which, state)

    return fork_rng


# --- torch.utils.checkpoint ----------------------------------------------------------------------------------------


class _DeviceModule:
    """A module such as torch.cuda, as torch.utils.checkpoint looks at it under a mesh."""

    _initialized = True

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def device(self, index: Any) -> Any:
        """The device of each process is its own, and there may be none in this one."""
        return contextlib.nullcontext()

    def get_rng_state(self) -> Any:
        place = _place()
        assert place is not None
        return _get(place, _DEVICE)

    def set_rng_state(self, state: Any) -> None:
        place = _place(state)
        assert place is not None
        _set(place, _DEVICE, state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def _device_module_instead_of(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def _get_device_module(device: str = "cuda") -> Any:
        module = plain(device)
        recomputes = mesh_of_operations() is None and bool(_forks.stack and _forks.stack[-1])
        return _DeviceModule(module) if mesh_of_operations() is not None or recomputes else module

    return _get_device_module
