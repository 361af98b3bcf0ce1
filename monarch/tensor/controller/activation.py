"""The active mesh: a dispatch mode that sends torch operations to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from monarch._linux.locks import Lock
from monarch.tensor.controller import dispatch
from monarch.tensor.controller.absent_devices import allow_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

    from monarch.tensor.controller.mesh import DeviceMesh
    from monarch.tensor.signature import Args, Kwargs

M = TypeVar("M", bound="DeviceMesh")
T = TypeVar("T")
no_modes = _disable_current_modes
_modes = torch._C._len_torch_dispatch_stack


class _ActiveMeshes(threading.local):
    def __init__(self) -> None:
        self.stack: list[Activation[Any]] = []  # activations, the innermost last; each a mesh's or `no_mesh`'s
        self.modes = 0  # dispatch modes of this thread when the innermost began: as many as now if none came after it


_active = _ActiveMeshes()


class _Everywhere:
    """A count of the activations of meshes in all threads. `told` is called with True when the first begins, and
    with False when the last has ended."""

    def __init__(self) -> None:
        self.told: Callable[[bool], None] = lambda any_is: None
        self._lock = Lock()
        self._count = 0

    def add(self, number: int) -> None:
        with self._lock:
            before, self._count = self._count, self._count + number
            if bool(before) != bool(self._count):
                self.told(bool(self._count))


everywhere = _Everywhere()


class _MeshMode(TorchDispatchMode):
    """Every operation of this thread on tensors of one mesh, factories included."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: `operate` need not be hidden from torch.compile, and hiding it costs two microseconds an operation."""
        return False

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        return dispatch.operate(func, args, kwargs or {}, self.mesh)


class in_this_thread:
    """Autograd runs derivatives in the thread that calls backward(), and not in threads of the device. These are
    operations of the program like others: they belong to its recordings, its streams, and the line that issued them."""

    def __init__(self) -> None:
        self._before = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None:
        torch._C._set_multithreading_enabled(self._before)


class Activation(Generic[M]):
    """One activation of a mesh: begins when made, ends with its `with` block. They nest; the innermost counts."""

    def __init__(self, mesh: M) -> None:
        mesh.client.check_alive()
        allow_names()
        self.mesh = mesh
        self._begin(_MeshMode(mesh))

    def _begin(self, mode: contextlib.AbstractContextManager[object]) -> None:
        self._mode = mode
        self._before = _active.modes
        if type(mode) is _MeshMode:
            everywhere.add(1)
        self._derivatives = in_this_thread()
        mode.__enter__()
        _active.stack.append(self)
        _active.modes = _modes()

    def __enter__(self) -> M:
        return self.mesh

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> None:
        """RuntimeError when one that began later has not ended."""
        if not _active.stack or _active.stack[-1] is not self:
            raise RuntimeError(
                "this activation is not the innermost one of this thread: activations end in the opposite order"
            )
        _active.stack.pop()
        _active.modes = self._before
        self._mode.__exit__(None, None, None)
        if type(self._mode) is _MeshMode:
            everywhere.add(-1)
        self._derivatives.__exit__()


class _NoMeshActivation(Activation[Any]):
    def __init__(self) -> None:
        self._begin(_disable_current_modes())

    def __enter__(self) -> Any:
        return None


class _NoMesh:
    """`with monarch.no_mesh.activate():` torch is local in there; distributed tensors still work, on their own mesh."""

    def activate(self) -> Activation[Any]:
        return _NoMeshActivation()

    def iterate(self, iterable: Iterable[T]) -> Iterator[T]:
        """The items of `iterable`, each of them made outside of any mesh: what a torch DataLoader of this process needs when
        a mesh is active where its batches are used."""
        with self.activate():
            items = iter(iterable)
        while True:
            with self.activate():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def __repr__(self) -> str:
        return "monarch.no_mesh"


no_mesh = _NoMesh()


def active_mesh() -> DeviceMesh | None:
    """Returns the mesh that is active in this thread, if any."""
    if not _active.stack or isinstance(_active.stack[-1], _NoMeshActivation):
        return None
    mesh: DeviceMesh = _active.stack[-1].mesh
    return mesh


def mesh_of_operations() -> DeviceMesh | None:
    """Returns the mesh that torch's operations of this thread go to. In threads in which autograd computes
    derivatives it is that of the thread which asked for them, by which none was activated there."""
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if type(mode) is _MeshMode:
            return mode.mesh
    return None


def deactivate(mesh: DeviceMesh) -> None:
    if active_mesh() is not mesh:
        raise RuntimeError(f"{mesh} is not the active mesh of this thread, so it cannot be deactivated")
    _active.stack[-1].end()
