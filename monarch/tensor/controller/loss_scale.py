"""torch.amp.GradScaler under a mesh: what it asks of its tensors is fetched.

The scaler decides in Python whether the optimizer makes a step: `found_inf.item()`. Each process has a value of its own, and
there is one decision, so the answer is the largest of them, and where they differ each process gets that: an infinity in the
gradients of one process keeps all from their step, and the scale stays the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from monarch.tensor.controller import misuse
from monarch.tensor.failures import Failed

_SCALER = torch.amp.grad_scaler.__file__


def asked_by_scaler() -> bool:
    """Whether it is a GradScaler that wants the value of a tensor: its `step`, `get_scale`, `state_dict`."""
    return misuse.asked_by(_SCALER)


def agreed(tensor: Any) -> Any:
    """The number of a distributed scalar: the largest of all processes, and from here on that of each. Waits until they have
    it. RemoteException when it failed in any."""
    record = tensor._record
    place = record.place
    engine = place.engine
    asked = engine.ask(place.mesh, place.mesh, Number(), [record.ref], [record.storage.taint], "call", place.stream)
    answers = [answer for answer in asked.get().values() if answer is not None]
    failed = [answer for answer in answers if isinstance(answer[0], Failed)]
    if failed:
        engine.value_of(min(failed, key=lambda answer: answer[0].order))
    values = [answer[0] for answer in answers]
    largest = max(values)
    if largest != min(values):
        with torch.no_grad():
            tensor.fill_(largest)
    return largest


class Number:
    """A `signature.Call` that answers with the number of its input."""

    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def name(self) -> str:
        return "a value that torch.amp.GradScaler decides by"

    def prepare(self, executor: Any) -> Callable[..., Any]:
        return lambda tensors, numbers: tensors[0].item()
