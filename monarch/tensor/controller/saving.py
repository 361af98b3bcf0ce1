"""`torch.save` of distributed tensors: the file has plain ones, with the values of the first process of their mesh.

Pickling one for anybody else stays an error: only the program can know whether the values of one process will do. Who saves a
state dict has said so, as training has made the parameters the same in each process; parts of one tensor that differ from
process to process are saved with `monarch.checkpoint`, or whole with `monarch.gather`.
"""

from __future__ import annotations

from typing import Any

import torch

from monarch.tensor.controller import misuse
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.stream import get_active_stream

_SAVING = torch.serialization.__file__


def asked_by_save() -> bool:
    """Whether it is torch.save that pickles: its pickler runs in C, so the caller is a function of that file."""
    return misuse.asked_by(_SAVING)


def plain(tensor: Any) -> Any:
    """A plain tensor on the CPU with what the first process of the tensor's mesh has; a Parameter for a Parameter. Waits."""
    record = tensor._record
    place = record.place
    problem = trouble(tensor, place, False)
    if problem is not None:
        raise misuse.incorrect("torch.save", (tensor,), {}, [problem], place.mesh, get_active_stream())
    first = next(iter(place.mesh.processes))
    (value,) = place.engine.fetch(place.mesh, first, [record.ref], [record.storage.taint], list, place.stream).get()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(value, tensor.requires_grad)
    value.requires_grad_(tensor.requires_grad)
    return value
