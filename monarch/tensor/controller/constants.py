"""Local tensors whose values go to the processes of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.tensor import metadata
from monarch.tensor.controller.handles import make
from monarch.tensor.controller.known_values import NBYTES, hold, kept, run_recorded
from monarch.tensor.controller.records import TensorRecord, TensorStorage
from monarch.tensor.controller.stream_placement import StreamPlacement

if TYPE_CHECKING:
    from monarch.tensor.controller.mesh import DeviceMesh
    from monarch.tensor.controller.tensor import Tensor


def constant(place: StreamPlacement, local: torch.Tensor, listed: bool = False) -> Tensor:
    """Returns a distributed tensor with the contents of `local` on every rank. Small ones stay known here: those that
    count or mask, and all that are `listed`, made of Python's numbers."""
    with _disable_current_modes():
        local = local.detach().resolve_conj().resolve_neg().clone()  # later changes here are none of the workers'
        host = local.cpu()
    if host is not local:  # a device of this process: each worker copies to its own, on the right stream
        return on_device_of(local, constant(place, host))
    with _disable_current_modes():
        meta = metadata.of(local)
        storage = TensorStorage()
        if local.device.type == "cpu" and (listed or kept(meta)) and meta.nbytes <= NBYTES:
            hold(storage, meta, local.clone(), run_recorded() if listed else None)
    ident = place.engine.constant(place, local)
    return make(TensorRecord(ident, meta, place, storage))


def replica(place: StreamPlacement, local: torch.Tensor) -> Tensor:
    """Returns the same on purpose, whatever device `local` is on: the processes get it on the CPU. TypeError for
    tensors that have no values to send, or more to them than values."""
    check_values(local)
    with _disable_current_modes():
        host = local.detach().cpu()
    return constant(place, host)


def check_values(local: torch.Tensor) -> None:
    plain = type(local) is torch.Tensor or type(local).__module__ == "torch.nn.parameter"
    if local.device.type == "meta" or not plain:
        what = "on the meta device" if local.device.type == "meta" else f"a {type(local).__name__}"
        raise TypeError(
            f"only plain tensors with values can be sent to the processes of a mesh, and this one is {what}"
        )


def on_device_of(local: torch.Tensor, made: Tensor) -> Tensor:
    """Returns `made` on a device of the kind that `local` is on."""
    if local.device.type == "cpu":
        return made
    with torch.no_grad():
        moved: Tensor = made.to(local.device.type)
        return moved


def goes_along(local: torch.Tensor, mesh: DeviceMesh | None) -> bool:
    """True if a local tensor may be the operand of an operation beside distributed ones without the program having
    asked: constants of a derivative that was made outside any mesh, and there torch's own scalars too."""
    if type(local) is not torch.Tensor or local.device.type != "cpu":
        return False
    in_a_derivative = torch._C._current_graph_task_id() != -1
    return in_a_derivative or (mesh is None and not local.shape and not local.requires_grad)
