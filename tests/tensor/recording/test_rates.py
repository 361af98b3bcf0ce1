"""Learning rates change between the calls of a recorded training step, and it follows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from monarch.tensor import function
from monarch.tensor.controller.activation import no_modes
from tests.support.tiers import first_of
from tests.tensor.recording.looked_at import local, number

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "foreach": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, foreach=True),
    "fused": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.01, fused=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
}


def trained(
    mesh: Any, optimizer: Callable[[Any], Any], schedule: Callable[[Any, int], None], wrap: Any, steps: int
) -> tuple[list[Any], Any]:
    """The weights after each step, and the step."""
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 4)), torch.nn.Parameter(torch.linspace(0, 1, 3))]
    made = optimizer([{"params": [weight]} for weight in weights])

    @wrap
    def step(x: Any) -> Any:
        made.zero_grad()
        loss = sum((weight * x).pow(2).sum() for weight in weights)
        loss.backward()
        made.step()
        return loss

    found = []
    for count in range(steps):
        schedule(made, count)
        step(torch.tensor(1.0 + count / 8))
        found += [
            weight.detach().clone() if mesh is None else local(mesh, weight) for weight in weights
        ]  # fmt: skip
    return found, step


def each_step(made: Any, count: int) -> None:
    for group in made.param_groups:
        group["lr"] = 0.1 / (count + 1)


def apart(made: Any, count: int) -> None:
    """The groups have the same rate at first, and go different ways."""
    for at, group in enumerate(made.param_groups):
        group["lr"] = 0.1 / (1 + count * (1 + at if count > 3 else 1))


def one_of_two(made: Any, count: int) -> None:
    made.param_groups[1]["lr"] = 0.1 / (count + 1)


def from_zero(made: Any, count: int) -> None:
    for group in made.param_groups:
        group["lr"] = 0.02 * count


def decay_too(made: Any, count: int) -> None:
    for group in made.param_groups:
        group["lr"] = 0.1 / (count // 3 + 1)
        if "weight_decay" in group:
            group["weight_decay"] = 0.1 if count < 5 else 0.0


SCHEDULES = {"each": each_step, "apart": apart, "one": one_of_two, "zero": from_zero, "decay": decay_too}


@pytest.mark.parametrize("schedule", first_of(SCHEDULES))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_learning_rates_are_followed(loop: Any, optimizer: str, schedule: str) -> None:
    with no_modes():
        expected, _ = trained(None, OPTIMIZERS[optimizer], SCHEDULES[schedule], lambda step: step, 12)
    found, step = trained(loop, OPTIMIZERS[optimizer], SCHEDULES[schedule], function, 12)
    with no_modes():
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert step.traces >= 1


def test_a_scheduler_costs_one_recording_more(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    @function
    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    commands = []
    for _ in range(12):
        before = len(loop.client.runs())
        step()
        commands.append(len(loop.client.runs()) - before)
        scheduler.step()
    assert number(loop, weight) == pytest.approx(-1.0, abs=1e-3)
    assert commands[3:] == [1] * 9  # as ever, recorded, recorded with another rate
    assert step.traces == 1


def test_step_lr_is_that_of_torch(loop: Any) -> None:
    def weights(mesh: Any, wrap: Any) -> list[float]:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)

        @wrap
        def step() -> None:
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()

        found = []
        for _ in range(8):
            step()
            scheduler.step()
            found.append(weight.item() if mesh is None else number(mesh, weight))
        return found

    with no_modes():
        expected = weights(None, lambda step: step)
    assert weights(loop, function) == expected


def test_a_scheduler_inside(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    @function
    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
        scheduler.step()

    with pytest.warns(RuntimeWarning, match=r"it changes .*(lr|last_epoch).* itself"):
        for _ in range(10):
            step()
    assert number(loop, weight) == pytest.approx(-1.0, abs=2e-3)


def test_an_optimizer_that_computes_with_its_rate_is_told_how_to_go_on(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(1))

    class Own(torch.optim.Optimizer):
        def __init__(self, weights: Any) -> None:
            super().__init__(weights, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.mul_(1 - group["lr"])

    optimizer = Own([weight])

    @function
    def step() -> None:
        weight.grad = None
        weight.sum().backward()
        optimizer.step()

    expected = 1.0
    with pytest.warns(
        RuntimeWarning, match=r"optimizer\.param_groups\[0\]\['lr'\] \(from .* use fused=True, or make it a tensor"
    ):
        for count in range(12):
            optimizer.param_groups[0]["lr"] = 0.1 / (count + 1)
            expected *= 1 - 0.1 / (count + 1)
            step()
            assert number(loop, weight) == pytest.approx(expected)


def test_a_rate_in_a_tensor(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam([weight], lr=rate, fused=True)

    @function
    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    found = []
    for count in range(6):
        rate.fill_(0.5 if count < 4 else 0.0)
        step()
        found.append(number(loop, weight))
    assert found[3] == found[4] == found[5] == pytest.approx(-2.0)
    assert step.traces == 1
