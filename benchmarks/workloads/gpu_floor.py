"""torch's copy_ within one process, with nothing around it: between two tensors of a card, or a card and pinned memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from _workload import Params, Samples, main, rates, times


def copies(size: int, place: str) -> dict[str, Callable[[], object]]:
    theirs = torch.ones(size, dtype=torch.uint8, device="cuda")
    ours = torch.zeros_like(theirs) if place == "card" else torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return {"read": lambda: copy(ours, theirs), "write": lambda: copy(theirs, ours)}


def transfer(params: Params) -> Samples:
    """Durations of single copies."""
    return {name: times(copy, params) for name, copy in copies(params["size"], params["place"]).items()}


def throughput(params: Params) -> Samples:
    """Bytes a second of single copies."""
    size = params["size"]
    return {name: rates(copy, size, params) for name, copy in copies(size, params["place"]).items()}


if __name__ == "__main__":
    main({f.__name__: f for f in (transfer, throughput)})
