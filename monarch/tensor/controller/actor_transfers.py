"""Local tensors on their way between the worker of a process and the actors beside it.

A distributed tensor among the arguments of an endpoint or constructor travels as a claim: the engine's key and a
number. Before the message leaves, the controller has issued a call on the tensor's stream that puts each rank's local
tensor into a table of the process (`waiting`); the actor's thread takes it from there when it unpickles the message,
and waits if the stream is not that far. So the actor gets what the tensor is at that point of its stream: the memory
itself, not a copy. What the program does to it later shows in the actor, and what the actor does shows in the tensor.

The results of `endpoint.rref` go the other way (`keep`): the actor puts, the stream takes.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch.actor.lowlevel import Receivers, reduce_for
from monarch.tensor.controller import misuse
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.records import recorder, recorders
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.worker.actor_transfers import PublishTensors, claim
from monarch.tensor.worker.actor_transfers import engines as known_engines

if TYPE_CHECKING:
    from monarch.tensor.controller.engine import TensorEngine

_numbers = itertools.count(1)


class _OutgoingTensors:
    """The distributed tensors of one message, while it is pickled."""

    def __init__(self, receivers: Receivers) -> None:
        self.receivers = receivers
        self._numbers: dict[int, int] = {}  # by id of the tensor: a message may be pickled twice
        self._tensors: list[tuple[int, Tensor]] = []

    def number(self, tensor: Tensor) -> int:
        known = self._numbers.get(id(tensor))
        if known is None:
            self._check(tensor)
            known = self._numbers[id(tensor)] = next(_numbers)
            self._tensors.append((known, tensor))
        return known

    def _check(self, tensor: Tensor) -> None:
        place = tensor._record.place
        problem = trouble(tensor, place, False)
        if problem is not None:
            raise misuse.incorrect(self.receivers.name, (tensor,), {}, [problem], place.mesh, place.stream)
        if recorders and (here := recorder()) is not None:
            here.fetching("passing tensors to actors")
        there = {place.engine.addresses[rank] for rank in place.mesh.processes}
        strangers = [address for address in self.receivers.addresses if address not in there]
        if strangers:
            raise ValueError(
                f"tensors and actors must share the same processes: {self.receivers.name} has actors in processes in "
                f"which {tensor!r} has no local tensor ({len(strangers)} of {len(self.receivers.addresses)}, the "
                f"first is {strangers[0]}). Spawn the actors on the mesh of the tensor, slice them, or move the "
                f"tensor with to_mesh()"
            )

    def publish(self) -> None:
        """Issues what hands the tensors over, on their streams."""
        places: dict[StreamPlacement, list[tuple[int, Tensor]]] = {}
        for number, tensor in self._tensors:
            places.setdefault(tensor._record.place, []).append((number, tensor))
        engines: set[TensorEngine] = set()
        for place, some in places.items():
            engine = place.engine
            addresses = engine.addresses
            wanted = set(self.receivers.addresses)
            ranks = [rank for rank in place.mesh.processes if addresses[rank] in wanted]
            call = PublishTensors(
                engine.worker_key,
                [number for number, _ in some],
                None if len(ranks) == len(place.mesh) else ranks,
                self.receivers.key,
                self.receivers.name,
            )
            known_engines[call.worker] = engine
            engine.do(place, call, [tensor._record.ref for _, tensor in some], 0)
            engines.add(engine)
        for engine in engines:
            engine.flush()


def _reduce(tensor: Tensor, receivers: Receivers) -> tuple[Any, ...]:
    act = receivers.before.get("tensors")
    if act is None:
        act = receivers.before["tensors"] = partial(_OutgoingTensors.publish, _OutgoingTensors(receivers))
    message: _OutgoingTensors = act.args[0]  # type: ignore[attr-defined]
    number = message.number(tensor)
    return claim, (tensor._record.place.engine.worker_key, number)


reduce_for(
    Tensor,
    _reduce,
    "it can be an argument of remote functions, and of endpoints and constructors of actors in the same processes; "
    "monarch.inspect(tensor) gives a local tensor that can be sent anywhere",
)
