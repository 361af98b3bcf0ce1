"""A GPT in stages, which micro-batches go through and gradients come back through, and steps of training it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from _torch import torch
from _workload import Params, Samples
from gpt import GPT, optimizer
from torch.nn import functional as F

SPACE = 1 << 12  # bytes beside the numbers of a value


class StageOfGPT:
    """A part of the blocks; the first has the embeddings, the last the head and the loss. Arrays in, arrays out."""

    def __init__(self, rank: int, params: Params) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        stages, layers = params["stages"], params["layers"]
        assert layers % stages == 0
        self._net = GPT(params["vocabulary"], params["length"], layers // stages, params["width"], params["heads"])
        self._first, self._last = rank == 0, rank == stages - 1
        self._parts = params["parts"]
        self._optimizer = optimizer(self._net)
        self._under_way: deque[tuple[Any, Any]] = deque()
        self._loss, self._back = 0.0, 0
        self.losses: list[float] = []

    def forward(self, given: Any) -> Any:
        given, made = self._forward(given)
        self._under_way.append((given, made))
        return made.detach().numpy()

    def backward(self, grad: Any) -> Any:
        """Of the micro-batch that came first; returns the gradient of its input, None at the first stage."""
        given, made = self._under_way.popleft()
        made.backward(torch.from_numpy(grad))
        return self._went_back(given)

    def both(self, given: Any, wanted: Any) -> Any:
        """Does both at the last stage."""
        given, made = self._forward(given)
        logits = F.linear(self._net.norm(made), self._net.tokens.weight)
        loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(wanted).flatten()) / self._parts
        loss.backward()
        self._loss += loss.item()
        return self._went_back(given)

    def _forward(self, given: Any) -> tuple[Any, Any]:
        x = given = torch.from_numpy(given)
        if self._first:
            x = self._net.tokens(x) + self._net.places.weight[: x.shape[1]]
        else:
            given.requires_grad_(True)
        for block in self._net.blocks:
            x = block(x)
        return given, x

    def _went_back(self, given: Any) -> Any:
        self._back += 1
        if self._back % self._parts == 0:
            self._optimizer.step()
            self._optimizer.zero_grad()
            self.losses.append(self._loss)
            self._loss = 0.0
        return None if self._first else given.grad.numpy()


def micro_batches(params: Params) -> list[tuple[Any, Any]]:
    """Returns the words of each, and those that come next."""
    generator = torch.Generator().manual_seed(1)
    shape = params["parts"], params["batch"], params["length"] + 1
    words = torch.randint(params["vocabulary"], shape, generator=generator).numpy()
    return [(part[:, :-1].copy(), part[:, 1:].copy()) for part in words]


def buffer(params: Params) -> int:
    """Returns how many bytes go between two stages."""
    return int(params["batch"] * params["length"] * params["width"] * 4)


def measured(step: Callable[[], object], used: Callable[[], float], params: Params) -> Samples:
    """`used` gives the processor time of everything so far."""
    for _ in range(params["warmup"]):
        step()
    steps, processor = [], []
    for _ in range(params["count"]):
        before, start = used(), time.perf_counter()
        step()
        steps.append(time.perf_counter() - start)
        processor.append(used() - before)
    return {"step": steps, "processor": processor}
