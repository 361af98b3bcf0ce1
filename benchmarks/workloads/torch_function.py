"""The floor of recorded functions: the same operations on local tensors, in this process."""

from __future__ import annotations

import torch
from _workload import Params, Samples, main, times


def chain(params: Params) -> Samples:
    """Seconds a call of `length` small operations."""
    x, y = torch.ones(3, 4), torch.ones(3, 4)

    def body() -> torch.Tensor:
        value = x
        for _ in range(params["length"] // 2):
            value = (value + y) * 0.5
        return value

    seconds = times(body, params)
    return dict.fromkeys(("issue one by one", "complete one by one", "issue", "complete"), seconds)


if __name__ == "__main__":
    main({"chain": chain})
