"""Where commands go: a mesh, a stream on it, and the engine that takes them; and what may be asked of these by the code that
meshes and engines themselves stand on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from monarch.actor import Future, NDSlice, Shape
from monarch.tensor.controller.stream import Stream
from monarch.tensor.controller.taint import Taint, Taints
from monarch.tensor.failures import Failed, RemoteException


class Mesh(Protocol):
    """A DeviceMesh."""

    number: int

    @property
    def client(self) -> Engine: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def sizes(self) -> dict[str, int]: ...
    @property
    def processes(self) -> NDSlice: ...

    def place(self, stream: Stream) -> Place: ...
    def size(self, dim: Any = None) -> int: ...
    def slice(self, **selection: Any) -> Mesh: ...
    def __len__(self) -> int: ...


class Engine(Protocol):
    """An engine: see `engine.Engine`, which says what each of these does."""

    name: str
    entries: dict[Any, Any]
    taints: Taints

    @property
    def root(self) -> Mesh: ...
    @property
    def ended(self) -> bool: ...
    @property
    def streams(self) -> list[Stream]: ...
    @property
    def worker_key(self) -> str: ...
    @property
    def addresses(self) -> Sequence[str]: ...
    @property
    def workers(self) -> Any: ...

    def check_alive(self) -> None: ...
    def mesh(self, shape: Shape) -> Any: ...
    def stream_number(self, stream: Stream) -> int: ...
    def dead_of(self, stream: Stream) -> list[int]: ...
    def run(
        self, place: Place, signature: int, inputs: Sequence[int], numbers: Sequence[Any], results: int,
        stack: Any = ...,
    ) -> int: ...  # fmt: skip
    def do(self, place: Place, call: Any, inputs: Sequence[int], results: int) -> int: ...
    def constant(self, place: Place, local: Any) -> int: ...
    def define(self, key: Hashable, call: Any) -> int: ...
    def remember(self, key: Any, entry: Any) -> None: ...
    def flush(self) -> None: ...
    def fetch(
        self, mesh: Any, rank: int, refs: Sequence[int], taints: Sequence[Taint | None],
        convert: Callable[[list[Any]], Any], stream: Stream = ...,
    ) -> Future[Any]: ...  # fmt: skip
    def ask(
        self, mesh: Any, wide: Any, call: Any, refs: Sequence[int], taints: Sequence[Taint | None], adverb: str,
        stream: Stream,
    ) -> Any: ...  # fmt: skip
    def value_of(self, answer: Any) -> Any: ...
    def exception_of(self, failed: Failed) -> RemoteException: ...
    def exit(self) -> None: ...


class Place:
    """A mesh and a stream on it: where commands go. One object for each pair, so that two tensors are at one place when
    theirs is the same object. `dead` collects references that no tensor has any more, until the next command takes them
    along."""

    __slots__ = ("dead", "engine", "mesh", "mesh_number", "stream", "stream_number")

    def __init__(self, engine: Engine, mesh: Mesh, stream: Stream, dead: list[int]) -> None:
        self.engine = engine
        self.mesh = mesh
        self.stream = stream
        self.mesh_number = mesh.number
        self.stream_number = engine.stream_number(stream)
        self.dead = dead
