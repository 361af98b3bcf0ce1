"""The placement of commands: a mesh, a stream on it, and the engine that takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.tensor.controller.stream import Stream

if TYPE_CHECKING:
    from monarch.tensor.controller.engine import TensorEngine
    from monarch.tensor.controller.mesh import DeviceMesh


class StreamPlacement:
    """A mesh and a stream on it: where commands go. One object for each pair, so that two tensors are at one place when
    theirs is the same object. `dead` collects references that no tensor has any more, until the next command takes them
    along."""

    __slots__ = ("dead", "engine", "mesh", "mesh_number", "stream", "stream_number")

    def __init__(self, engine: TensorEngine, mesh: DeviceMesh, stream: Stream, dead: list[int]) -> None:
        self.engine = engine
        self.mesh = mesh
        self.stream = stream
        self.mesh_number = mesh.number
        self.stream_number = engine.stream_number(stream)
        self.dead = dead
