"""A mesh without processes: operations on it are checked and give tensors of the right metadata, and nothing runs."""

from __future__ import annotations

from typing import Any

from monarch.actor import NDSlice, Promise, Shape
from monarch.tensor import commands
from monarch.tensor.controller.engine import Engine
from monarch.tensor.controller.mesh import DeviceMesh


def mock_mesh(hosts: int, gpus: int) -> DeviceMesh:
    """A DeviceMesh with the dimensions `host` and `gpu` of those sizes whose workers do nothing.

    For tests of shapes, slices, misuse and what code would issue. Fetching raises RuntimeError.
    """
    shape = Shape(["host", "gpu"], NDSlice.new_row_major([hosts, gpus]))
    return Engine("mock", shape, _Nobody(hosts * gpus), lambda: None).root


class _Spec:
    key = "mock"

    def __init__(self, count: int) -> None:
        self.addresses = [f"mock:{rank}" for rank in range(count)]


class _Nobody:
    """In the place of an engine's workers: takes everything."""

    def __init__(self, count: int) -> None:
        self._spec = _Spec(count)

    @property
    def execute(self) -> _Nobody:
        return self

    def _new_with_shape(self, _shape: Any) -> _Nobody:
        return self

    def _send(self, args: tuple[Any, ...], kwargs: dict[str, Any], port: Any = None, selection: str = "all") -> None:
        """Dropped."""

    def call(self, number: int, data: bytes, payloads: tuple[Any, ...]) -> Any:
        """What asks for values fails; everything else is done."""
        promise: Promise[dict[int, Any]] = Promise()
        last = commands.decode(data)[-1]
        if isinstance(last, commands.Sync):
            promise.set({})
        else:
            promise.fail(RuntimeError("a mock mesh has no processes, so nothing can be fetched from it"))
        return promise.future
