"""Random training programs whose numbers, flags and rates change between steps have, recorded, the bits of plain torch."""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from monarch.tensor import function
from monarch.tensor.controller.activation import no_modes
from tests.support.examples import examples
from tests.support.tiers import full
from tests.tensor.loopback import loopback

STEPS = 10
EXAMPLES = examples(8)

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "SGD with momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD, foreach": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.5, foreach=True),
    "SGD, fused": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.5, fused=True),
    "Adam, fused": lambda groups: torch.optim.Adam(groups, lr=0.1, weight_decay=0.1, fused=True),
    "AdamW, fused": lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True),
}

# What happens between two steps: to the state `s`, with a small number `n` from 0 to 4.
EVENTS = {
    "nothing": lambda s, n: None,
    "rate": lambda s, n: [group.update(lr=0.1 * n) for group in s.optimizer.param_groups],
    "rate of one group": lambda s, n: s.optimizer.param_groups[n % 2].update(lr=0.05 * n),
    "schedule": lambda s, n: s.scheduler.step(),
    "decay": lambda s, n: s.optimizer.param_groups[n % 2].update(weight_decay=0.1 * (n % 3)),
    "mode": lambda s, n: s.model.train(n % 2 == 0),
    "mode of one": lambda s, n: s.model[1].train(n % 2 == 0),
    "scale": lambda s, n: setattr(s.config, "scale", 0.5 * n),
    "table": lambda s, n: s.config.table.update({"power": 1 + n % 3}),
    "list": lambda s, n: s.config.extra.append(0.25 * n),
    "momentum of the norm": lambda s, n: setattr(s.model[1], "momentum", 0.1 * (1 + n)),
    "freeze": lambda s, n: s.model[0].weight.requires_grad_(n % 2 == 0),
    "hook": lambda s, n: s.hook(),
    "swap": lambda s, n: s.swap(),
    "gradients": lambda s, n: s.optimizer.zero_grad(set_to_none=n % 2 == 0),
    "clip": lambda s, n: setattr(s, "clip", None if n == 0 else 0.5 * n),
}


class Training:
    """A small network, and its step."""

    def __init__(self, optimizer: str, zero: bool, wrap: Callable[[Any], Any]) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.GELU(), torch.nn.Linear(4, 2)
        )
        with torch.no_grad():
            for number, weight in enumerate(self.model.parameters()):
                weight.copy_(torch.linspace(-1 - number, 1, weight.numel()).reshape(weight.shape))
        groups = [{"params": list(self.model[0].parameters())}, {"params": list(self.model[3].parameters())}]
        self.optimizer = OPTIMIZERS[optimizer](groups)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.config = types.SimpleNamespace(scale=1.0, table={"power": 2}, extra=[0.5])
        self.zero = zero
        self.clip: float | None = None
        self.hooks: list[Any] = []
        self.step = wrap(self.body)

    def body(self, x: Any) -> Any:
        if self.zero:
            self.optimizer.zero_grad()
        made = self.model(x) * self.config.scale + sum(self.config.extra)
        loss = (made ** self.config.table["power"]).mean()
        loss.backward()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.detach()

    def hook(self) -> None:
        """There is one, and then there is none."""
        if self.hooks:
            self.hooks.pop().remove()
        else:
            self.hooks.append(self.model[2].register_forward_hook(lambda module, args, result: result * 2))

    def swap(self) -> None:
        """Another activation."""
        self.model[2] = torch.nn.Tanh() if isinstance(self.model[2], torch.nn.GELU) else torch.nn.GELU()

    def tensors(self) -> list[Any]:
        found = [*self.model.parameters(), *self.model.buffers()]
        found += [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        return found


def same(one: Any, other: Any) -> bool:
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


@st.composite
def plans(draw: Any) -> list[tuple[str, int]]:
    """Few events, and the same ones again and again: so that there are replays between them."""
    kinds = draw(st.lists(st.sampled_from(sorted(EVENTS)), min_size=1, max_size=3))
    numbers = st.integers(0, 4)
    often = st.integers(0, 2)
    return [(draw(st.sampled_from(kinds)), draw(numbers)) if draw(often) == 0 else ("nothing", 0) for _ in range(STEPS)]


@full
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=(HealthCheck.too_slow,))
@given(st.sampled_from(sorted(OPTIMIZERS)), st.booleans(), plans())
def test_a_recorded_training_follows_what_changes(optimizer: str, zero: bool, plan: list[tuple[str, int]]) -> None:
    note(f"{optimizer}, zero_grad {zero}: {plan}")
    with loopback(gpus=1) as mesh, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", UserWarning)  # of torch: the scheduler is stepped before the optimizer
        with no_modes():
            plain = Training(optimizer, zero, lambda step: step)
        recorded = Training(optimizer, zero, function)
        for number, (event, by) in enumerate(plan):
            for training, mode in ((plain, no_modes()), (recorded, contextlib.nullcontext())):
                with mode:
                    EVENTS[event](training, by)
                    loss = training.step(torch.linspace(-1, 1 + number, 15).reshape(5, 3))
                    training.last = loss
            with no_modes():
                expected = [plain.last, *plain.tensors()]
                found = [mesh.client.local(tensor) for tensor in (recorded.last, *recorded.tensors())]
                assert len(found) == len(expected), f"step {number + 1}"
                for one, other in zip(expected, found, strict=True):
                    assert same(one, other), f"step {number + 1}: {other} for {one}"
