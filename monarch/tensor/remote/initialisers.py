"""Stand-ins for those of torch's initialisers that look at values: what they draw is drawn in the processes of the mesh."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.init

from monarch.tensor.controller.handles import is_distributed
from monarch.tensor.remote.remote_function import Remote

_TRUNC_NORMAL = "_no_grad_trunc_normal_"


def install() -> None:
    """Puts them where torch looks for its own; once a process, before the first mesh is active."""
    init: Any = torch.nn.init
    plain = getattr(init, _TRUNC_NORMAL)

    @functools.wraps(plain)
    def trunc_normal(
        tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        if not is_distributed(tensor):
            return plain(tensor, mean, std, a, b, generator=generator)
        if generator is not None:
            raise NotImplementedError(
                "trunc_normal_ of a distributed tensor draws with the random state of its mesh, and takes no generator: call "
                "torch.manual_seed(...) under the mesh before it"
            )
        with torch.no_grad():
            _truncated_normal(tensor, mean, std, a, b)
        return tensor

    setattr(init, _TRUNC_NORMAL, trunc_normal)


def _overwritten(tensor: torch.Tensor, *numbers: float) -> torch.Tensor:
    return tensor.zero_()


def _in_place(tensor: torch.Tensor, mean: float, std: float, a: float, b: float) -> torch.Tensor:
    """Runs in the processes of a mesh, on a local tensor."""
    init: Any = torch.nn.init
    with torch.no_grad():
        init.trunc_normal_(tensor, mean, std, a, b)
    return tensor


_truncated_normal: Remote[Any, Any] = Remote(_in_place, _overwritten)
