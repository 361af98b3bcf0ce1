"""Remote functions that fail."""

from __future__ import annotations

from typing import Any

import torch

from monarch.tensor.remote.remote_function import remote
from monarch.tensor.worker import current


@remote(propagate=lambda tensor, rank: torch.empty_like(tensor))
def fail_on(tensor: Any, rank: int) -> Any:
    if current.worker().executor.rank == rank:
        raise ValueError("not on this rank")
    return tensor + 1
