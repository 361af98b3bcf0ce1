"""Kinds of operations on tensors, and the time to issue one of each: the same for plain torch and a mesh."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from _torch import torch
from _workload import Params, Samples

KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "x.add_(y)": lambda x, y: x.add_(y),
    "x.lerp_(y, 0.5)": lambda x, y: x.lerp_(y, 0.5),
    "x @ y": lambda x, y: x @ y,
    "x.sum()": lambda x, y: x.sum(),
    "x.softmax(1)": lambda x, y: x.softmax(1),
    "x.t()": lambda x, y: x.t(),
    "x[1:]": lambda x, y: x[1:],
    "x.view(-1)": lambda x, y: x.view(-1),
    "cat((x, y))": lambda x, y: torch.cat((x, y)),
}


def issued(params: Params, fetch: Callable[[Any], Any]) -> Samples:
    """Seconds to issue one operation of each kind, on matrices of 8 by 8. `fetch` waits for a result, untimed."""
    samples: Samples = {kind: [] for kind in KINDS}
    x, y = torch.zeros(8, 8), torch.zeros(8, 8)
    for round_ in range(params["warmup"] + params["count"]):
        for kind, operation in KINDS.items():
            start = time.perf_counter()
            for _ in range(params["length"]):
                result = operation(x, y)
            taken = time.perf_counter() - start
            fetch(result)
            if round_ >= params["warmup"]:
                samples[kind].append(taken / params["length"])
    return samples
