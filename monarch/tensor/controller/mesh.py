"""DeviceMesh: the processes on which distributed tensors live, as the controller sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from monarch.actor import MeshTrait, NDSlice, Shape
from monarch.tensor import metadata
from monarch.tensor.controller.activation import Activation, active_mesh, deactivate, no_modes
from monarch.tensor.controller.groups import RemoteProcessGroup, dims_of
from monarch.tensor.controller.handles import make
from monarch.tensor.controller.records import TensorRecord, TensorStorage
from monarch.tensor.controller.stream import Stream, get_active_stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.worker.ranks import Coordinate
from monarch.tensor.worker.worker_mesh import WorkerMesh

if TYPE_CHECKING:
    from monarch.tensor.controller.engine import TensorEngine


class DeviceMesh(MeshTrait):
    """The processes of a mesh, or of a slice of one, as a place for tensors.

        with procs.activate() as mesh:          # the DeviceMesh of a ProcMesh, with its engine
            with mesh.slice(gpus=0).activate():  # a part of it
                ...

    Slices with the same ranks and names are the same mesh to a tensor: they compare equal, and operations between their
    tensors are allowed.
    """

    def __init__(self, engine: TensorEngine, shape: Shape, number: int) -> None:
        self._engine = engine
        self._shape = shape
        self.number = number
        self._places: dict[Stream, StreamPlacement] = {}

    # --- shape

    @property
    def _ndslice(self) -> NDSlice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self._shape.labels)

    def _new_with_shape(self, shape: Shape) -> DeviceMesh:
        made: DeviceMesh = self._engine.mesh(shape)
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions' names, outermost first."""
        return self._labels

    @property
    def processes(self) -> NDSlice:
        """The ranks of the engine's mesh that this one has."""
        return self._shape.ndslice

    @property
    def client(self) -> TensorEngine:
        """The engine that runs on the mesh."""
        return self._engine

    @property
    def mesh_name(self) -> str:
        """Engine and sizes, as messages name the mesh."""
        return f"{self._engine.name}[{','.join(f'{n}={s}' for n, s in self.sizes.items())}]"

    def __repr__(self) -> str:
        return f"<DeviceMesh(names({self.names}), processes({list(self.processes)})) at {id(self):#x}>"

    def __call__(self, **selection: Any) -> DeviceMesh:
        """Deprecated: `slice`."""
        import warnings

        warnings.warn("calling a DeviceMesh is deprecated: use mesh.slice(...)", DeprecationWarning, stacklevel=2)
        return self.slice(**selection)

    def place(self, stream: Stream) -> StreamPlacement:
        """Returns where tensors of this mesh on `stream` live."""
        known = self._places.get(stream)
        if known is None:
            dead = self._engine.dead_of(stream)
            known = self._places.setdefault(stream, StreamPlacement(self._engine, self, stream, dead))
        return known

    # --- activation

    def activate(self) -> Activation[DeviceMesh]:
        """Lets torch operations run on this mesh from here on; leaving the `with` block, or `deactivate()`, ends that."""
        return Activation(self)

    def deactivate(self) -> None:
        """Ends the latest activation of this mesh. RuntimeError when the active mesh is another one."""
        deactivate(self)

    # --- who is who

    def rank(self, dim: str | Sequence[str]) -> torch.Tensor:
        """A distributed int64 scalar: each process's own coordinate along `dim`; of several dims combined, the first
        outermost.

        KeyError for a dim the mesh does not have, ValueError for a repeated one.
        """
        return self._coordinate(dims_of(self, dim))

    @property
    def ranks(self) -> dict[str, torch.Tensor]:
        """The result of `rank(name)` for each dimension."""
        return {name: self.rank(name) for name in self.names}

    def process_idx(self) -> torch.Tensor:
        """A distributed int64 scalar: each process's rank in the engine's mesh."""
        return self._coordinate(None)

    def _coordinate(self, dims: tuple[str, ...] | None) -> torch.Tensor:
        place = self.place(get_active_stream())
        engine = place.engine
        signature = engine.define(("rank", place.mesh_number, dims), Coordinate(place.mesh_number, dims))
        meta = metadata.contiguous((), torch.int64, "cpu")
        made: torch.Tensor = make(TensorRecord(engine.run(place, signature, (), (), 1), meta, place, TensorStorage()))
        return made

    def process_group(self, dims: str | Sequence[str]) -> RemoteProcessGroup:
        """A group of the processes along `dims`, to pass to remote functions: there it is a torch ProcessGroup."""
        return RemoteProcessGroup(self, dims)

    def to_tensor(self) -> torch.Tensor:
        """The ranks of this mesh as a local int tensor in the mesh's shape."""
        with no_modes():
            return torch.tensor(list(self.processes), dtype=torch.int64).reshape(tuple(self.sizes.values()))

    def rotate(self, **_dims: int) -> DeviceMesh:
        """NotImplementedError: programs do not use it."""
        raise NotImplementedError("DeviceMesh.rotate is not part of the API that programs use")

    def stack(self, **_dims: object) -> DeviceMesh:
        """NotImplementedError: programs do not use it."""
        raise NotImplementedError("DeviceMesh.stack is not part of the API that programs use")

    # --- life

    def exit(self) -> None:
        """Waits for everything issued, then ends the engine: its workers stop and its tensors are gone.

        Raises RemoteException for a failure that no fetch has told of yet. Idempotent.
        """
        self._engine.exit()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[object, ...]:
        return WorkerMesh, (self.names, tuple(self.sizes.values()), tuple(self.processes))


def get_active_mesh() -> DeviceMesh:
    """The mesh that is active in this thread. ValueError when none is."""
    mesh = active_mesh()
    if mesh is None:
        raise ValueError("no device mesh is active: activate one with `with proc_mesh.activate():`")
    assert isinstance(mesh, DeviceMesh)
    return mesh
