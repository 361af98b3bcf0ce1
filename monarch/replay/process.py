"""The process that a replayed actor believes to be in: nothing leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch._mesh.process.mesh_layer import MeshLayer
from monarch._runtime.loop import Loop
from monarch._runtime.proc import Proc
from monarch._wire import codec
from monarch._wire.message import VALUE, ProcStarted, SpawnProcs, StopProcs

_NONE = codec.encode_value(None)[0]


class ReplayProc(Proc):
    """What its actor spawns seems to start, and what it asks the runtime seems to be done; nothing is sent."""

    def __init__(self, address: str, loop: Loop, mesh: str) -> None:
        super().__init__(address, loop)
        layer = MeshLayer(self)
        layer.name = mesh

    def post(
        self,
        address: str,
        msg: Any,
        body: bytes = b"",
        buffers: Sequence[memoryview] = (),
        coalesce_within: float = 0.0,
        placement: Any = None,
    ) -> None:
        if isinstance(msg, SpawnProcs):
            for rank in range(msg.first, msg.first + msg.count):
                self._soon(ProcStarted(msg.mesh, rank, self.pid))
        port = getattr(msg, "port", 0)
        if port and not hasattr(msg, "kind"):
            rank = getattr(msg, "index", 0) or getattr(msg, "rank", 0)
            answer = address.encode() if isinstance(msg, StopProcs) else _NONE
            self.loop.call_soon(lambda: self.ports.receive(port, (rank, VALUE, answer, ())))

    def _soon(self, started: ProcStarted) -> None:
        self.loop.call_soon(lambda: self.receivers[ProcStarted](None, started, None))  # type: ignore[arg-type]

    def place(self, addresses: Sequence[str], body: bytes, buffers: Sequence[memoryview], size: int) -> None:
        return None
