"""torch's functions of random numbers under a mesh: what they seed, save and restore is that of the mesh's processes.

`torch.manual_seed`, `torch.get_rng_state` and the others work on objects, not by operations, so no dispatch mode sees
them. `install` puts stand-ins where torch looks for these objects: each does what torch's own does unless a mesh is
active in the calling thread. Functions that programs have imported by name keep their identity, because they look up
`torch.random.default_generator` when called.

`torch.utils.checkpoint` saves the state of the CPU here, and those of the devices of its tensor arguments. The generators of
a mesh count as such a device: of that which is active, and of those of the arguments, because operations run on the mesh
of their tensors whichever is active.
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
from torch.utils import _pytree as pytree

from monarch.tensor.controller import rng
from monarch.tensor.controller.activation import everywhere, mesh_of_operations
from monarch.tensor.controller.constants import constant
from monarch.tensor.controller.generator import Generator
from monarch.tensor.controller.handles import is_distributed
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.stream_placement import StreamPlacement
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
    for name, make in _CHECKPOINT.items():
        setattr(checkpoint, name, functools.wraps(plain := getattr(checkpoint, name))(make(plain)))
    everywhere.told = _generators_are_of_meshes


def _generators_are_of_meshes(while_active: bool) -> None:
    """Only then, because torch.compile knows torch's own class and what it makes, and no other."""
    torch.Generator = Generator if while_active else torch._C.Generator


def _instead_of(plain: Callable[..., object], stand_in: Callable[..., object]) -> Callable[..., object]:
    """`plain`, but `stand_in(place, plain, ...)` while a mesh is active, or for a state of a mesh."""

    @functools.wraps(plain)
    def function(*args: object, **kwargs: object) -> Any:
        place = _place(args[0] if args else None)
        return plain(*args, **kwargs) if place is None else stand_in(place, plain, *args, **kwargs)

    return function


def _place(state: object = None) -> StreamPlacement | None:
    """Returns where a function issues its command: with a mesh's `state` on that mesh, else on the active one; None
    without."""
    if not is_distributed(state):
        mesh = mesh_of_operations()
        return mesh.place(get_active_stream()) if mesh is not None else None
    place: StreamPlacement = state._record.place
    # Derivatives run where their operations ran.
    return place if torch._C._current_graph_task_id() != -1 else place.mesh.place(get_active_stream())


# --- states and seeds of a place ------------------------------------------------------------------------------


def _get(place: StreamPlacement, which: _Which) -> Any:
    state = rng.issue(place, which[0], sizes=(which[2],))[0]
    state._seed = _seeds[which].get(place.mesh)
    return state


def _set(place: StreamPlacement, which: _Which, state: torch.Tensor) -> None:
    if not is_distributed(state):
        if not isinstance(state, torch.Tensor) or state.dtype is not torch.uint8 or tuple(state.shape) != which[2:]:
            raise TypeError(
                f"the state of a generator in the processes of a mesh is a uint8 tensor of {which[2]} elements, from "
                f"get_rng_state(), and this is {state!r:.100}"
            )
        state = constant(place, state)
    rng.issue(place, which[1], (state,))
    rng.note_seed(_seeds[which], place.mesh, getattr(state, "_seed", None))


def _seed(place: StreamPlacement, what: str, which: _Which, seed: object) -> None:
    number = rng.checked_seed(seed)
    rng.issue(place, what, numbers=(number,))
    rng.note_seed(_seeds[which], place.mesh, number)


def _initial_seed(place: StreamPlacement, which: _Which) -> int:
    found = _seeds[which].get(place.mesh)
    if found is None:
        raise RuntimeError(
            f"the processes of {place.mesh} were not seeded from here, so each has a seed of its own: call "
            f"torch.manual_seed(...) under this mesh first, or torch.initial_seed() in a monarch.remote function"
        )
    return found


class _DefaultGenerator:
    """A stand-in for `torch.random.default_generator`, through which torch.random's functions work."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def manual_seed(self, seed: int) -> Any:
        """Seeds this process too: what it draws itself, such as the order of a DataLoader's items, is the same in
        every run."""
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


def _seed_device(place: StreamPlacement, plain: Callable[..., object], seed: int) -> None:
    _seed(place, "manual_seed_device", _DEVICE, seed)
    plain(seed)


def _seed_devices(place: StreamPlacement, plain: Callable[..., object], seed: int) -> None:
    _seed(place, "manual_seed_devices", _DEVICE, seed)
    plain(seed)


def _new_seed(what: str) -> Callable[..., None]:
    def new_seed(place: StreamPlacement, plain: Callable[..., object]) -> None:
        _seed(place, what, _DEVICE, torch._C.Generator().seed())
        plain()

    return new_seed


def _set_all(place: StreamPlacement, plain: Callable[..., object], new_states: Sequence[object]) -> None:
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


# --- fork_rng and torch.utils.checkpoint --------------------------------------------------------------------------


class _MeshGenerator:
    """An entry in a list of devices: generators of the processes at `place`, of the CPU's or of their device."""

    def __init__(self, place: StreamPlacement, which: _Which) -> None:
        self.place = place
        self.which = which


def _fork_rng_instead_of(plain: Callable[..., Any]) -> Callable[..., object]:
    @functools.wraps(plain)
    @contextlib.contextmanager
    def fork_rng(devices: Any = None, enabled: bool = True, *args: Any, **kwargs: Any) -> Iterator[None]:
        """torch's; under a mesh of the generators of its processes, and of this process's own of the CPU. `devices`: an
        empty list leaves accelerators out."""
        devices = devices if devices is None else list(devices)
        kept = [device for device in devices or () if type(device) is _MeshGenerator]
        own = devices if devices is None else [device for device in devices if type(device) is not _MeshGenerator]
        place = _place()
        if place is not None:
            kept += (
                [_MeshGenerator(place, _CPU)]
                if own == []
                else [_MeshGenerator(place, _CPU), _MeshGenerator(place, _DEVICE)]
            )
        each = {(one.place, one.which): one for one in kept} if enabled else {}
        saved = [(one, _get(one.place, one.which)) for one in each.values()]
        with plain(own, enabled, *args, **kwargs) if place is None else _own_generator():
            try:
                yield
            finally:
                for one, state in saved:
                    _set(one.place, one.which, state)

    return fork_rng


@contextlib.contextmanager
def _own_generator() -> Iterator[None]:
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


class _Arguments(threading.local):
    """The arguments of the checkpoint that this thread is about to make."""

    distributed = False


_arguments = _Arguments()


def _infer_device_type(plain: Callable[..., object]) -> Callable[..., object]:
    """The first that a checkpoint does with its arguments."""

    def infer_device_type(*args: object) -> Any:
        _arguments.distributed = any(map(is_distributed, pytree.tree_leaves(args)))
        return plain(*args)

    return infer_device_type


def _get_device_module(plain: Callable[..., object]) -> Callable[..., object]:
    def get_device_module(device: str = "cuda") -> Any:
        of_meshes = _arguments.distributed or mesh_of_operations() is not None
        return _Initialized(plain(device)) if of_meshes else plain(device)

    return get_device_module


class _Initialized:
    """A module such as torch.cuda, whether this process has used the device or not: a checkpoint is to save states."""

    _initialized = True

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _get_device_states(plain: Callable[..., Any]) -> Callable[..., object]:
    def get_device_states(*args: object) -> tuple[list[object], list[object]]:
        kept: dict[tuple[StreamPlacement, _Which], _MeshGenerator] = {}
        if (active := _place()) is not None:
            kept[active, _CPU] = _MeshGenerator(active, _CPU)
        for tensor in filter(is_distributed, pytree.tree_leaves(args)):
            place = tensor._record.place
            for which in (_CPU,) if tensor.device.type == "cpu" else (_CPU, _DEVICE):
                kept[place, which] = _MeshGenerator(place, which)
        local = pytree.tree_map_only(torch.Tensor, lambda leaf: None if is_distributed(leaf) else leaf, args)
        ids, states = plain(*local)
        return [*ids, *kept.values()], [*states, *(_get(*key) for key in kept)]

    return get_device_states


def _set_device_states(plain: Callable[..., Any]) -> Callable[..., object]:
    def set_device_states(devices: Any, states: Any, *args: Any, **kwargs: Any) -> None:
        own: list[tuple[object, object]] = []
        for device, state in zip(devices, states, strict=False):
            if type(device) is _MeshGenerator:
                _set(device.place, device.which, state)
            else:
                own.append((device, state))
        if own:
            plain([device for device, _ in own], [state for _, state in own], *args, **kwargs)

    return set_device_states


_CHECKPOINT = {
    "_infer_device_type": _infer_device_type,
    "_get_device_module": _get_device_module,
    "get_device_states": _get_device_states,
    "set_device_states": _set_device_states,
}
