"""Optimizers that compute with their step counts in Python: a recorded step follows them, bit by bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from monarch.tensor import function, no_mesh
from monarch.tensor.recording.evolving import OPTIMIZERS as WHERE
from tests.support.tiers import first_of
from tests.tensor.recording.looked_at import local, number

STEPS = 10
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], int]] = {  # with the number of recordings
    "Adam": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}, 1),
    "AdamW": (torch.optim.AdamW, {}, 1),
    "AdamW, foreach": (torch.optim.AdamW, {"foreach": True}, 1),
    "NAdam": (torch.optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}, 1),
    "RAdam": (torch.optim.RAdam, {}, 2),  # it goes another way from the sixth step on
    "RAdam, foreach": (torch.optim.RAdam, {"foreach": True}, 2),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}, 1),
    "Adamax": (torch.optim.Adamax, {}, 1),
    "ASGD": (torch.optim.ASGD, {"t0": 4.0}, 4),  # by what it compares: mu with 1, the step count with t0
    "Rprop": (torch.optim.Rprop, {}, 1),
}
if hasattr(torch.optim, "Muon"):  # from torch 2.9 on
    OPTIMIZERS["Muon"] = (torch.optim.Muon, {}, 1)


def trained(
    mesh: Any, make: Callable[[Any], Any], wrap: Any, decay: float, steps: int = STEPS
) -> tuple[list[Any], Any]:
    """The weights after each step, and the step."""
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, size).reshape(-1, 2)) for size in (4, 6)]
    optimizer = make(weights)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)

    @wrap
    def step(x: Any) -> None:
        optimizer.zero_grad()
        sum((weight * x).pow(2).sum() for weight in weights).backward()
        optimizer.step()

    found = []
    for count in range(steps):
        step(torch.tensor(1.0 + count / 8))
        if decay != 1:
            scheduler.step()
        found += [weight.detach().clone() if mesh is None else local(mesh, weight) for weight in weights]
    states = [entry for weight in weights for entry in optimizer.state[weight].values()]
    return found + [
        state.clone() if mesh is None else local(mesh, state) for state in states if state is not None
    ], step


@pytest.mark.parametrize("decay", [1.0, 0.9], ids=["one rate", "a scheduler"])
@pytest.mark.parametrize("name", first_of(OPTIMIZERS))
def test_a_recorded_step_is_plain_torch(loop: Any, name: str, decay: float) -> None:
    kind, options, recordings = OPTIMIZERS[name]

    def make(weights: Any) -> Any:
        return kind(weights, lr=0.01, **options)

    with no_mesh.activate():
        wanted, _ = trained(None, make, lambda step: step, decay)
    found, step = trained(loop, make, function, decay)
    with no_mesh.activate():
        assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))
    assert step.traces == recordings


def steps_of(optimizer: Any, weights: Any) -> Any:
    @function
    def step() -> None:
        optimizer.zero_grad()
        sum(weight.sum() for weight in weights).backward()
        optimizer.step()

    return step


def test_the_program_goes_on_with_the_counts(loop: Any) -> None:
    """Counts stay known; one that the program changes makes a recording of its own where others are not like it."""
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.Adam(weights)
    counts = [lambda at=at: optimizer.state[weights[at]]["step"] for at in range(2)]
    step = steps_of(optimizer, weights)
    for _ in range(5):
        step()
    assert [count().item() for count in counts] == [5.0, 5.0] == [number(loop, count()) for count in counts]
    counts[0]().fill_(100.0)
    assert [count().item() for count in counts] == [100.0, 5.0]  # the other has a value of its own
    for _ in range(3):
        step()
    assert [count().item() for count in counts] == [103.0, 8.0] == [number(loop, count()) for count in counts]
    assert step.traces == 2
    counts[1]().fill_(103.0)
    step()
    assert [count().item() for count in counts] == [104.0, 104.0]
    assert step.traces == 2


@pytest.mark.parametrize(
    "taken", [math.sqrt, int, round, str, "{:.1f}".format, math.floor, hash], ids=lambda taken: taken.__name__
)
def test_a_number_that_gets_away_ends_recording(loop: Any, taken: Any) -> None:
    """A function in C makes something of a count, which is not followed: no replay has the count of before."""

    class Own(torch.optim.SGD):
        pass

    source = """
def step(self):
    for group in self.param_groups:
        for weight in group["params"]:
            state = self.state[weight]
            if not state:
                state["step"] = torch.tensor(0.0)
            state["step"] += 1
            number = state["step"].item() / 1
            taken(number)
            weight.data.add_(weight.grad, alpha=float(number))
"""
    there = {"torch": torch, "taken": taken}
    exec(compile(source, WHERE + "own.py", "exec"), there)  # as one of torch's own
    Own.step = there["step"]  # type: ignore[assignment, method-assign]
    weight = torch.nn.Parameter(torch.zeros(1))
    step = steps_of(Own([weight]), [weight])
    with pytest.warns(
        RuntimeWarning, match="its optimizer computes with a step count in a way that cannot be followed"
    ):
        for _ in range(5):
            step()
    assert number(loop, weight) == 1 + 2 + 3 + 4 + 5


def test_a_rate_that_the_function_looks_at_is_compared(loop: Any) -> None:
    """A branch by the rate, in the program's own code, is taken anew when the rate has changed."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    @function
    def step() -> None:
        weight.grad = None
        (weight * (1.0 if optimizer.param_groups[0]["lr"] > 0.25 else 100.0)).sum().backward()
        optimizer.step()

    expected = 0.0
    for rate in (0.5, 0.5, 0.5, 0.4, 0.3, 0.2):
        optimizer.param_groups[0]["lr"] = rate
        step()
        expected -= rate * (1.0 if rate > 0.25 else 100.0)
        assert number(loop, weight) == pytest.approx(expected)


def test_rates_are_numbers_again_after_a_step_that_fails(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    seen = []

    @function
    def step() -> None:
        weight.grad = None
        weight.sum().backward()
        optimizer.step()
        seen.append(type(optimizer.param_groups[0]["lr"]))
        if len(seen) == 2:
            weight.grad = torch.ones(1)
            optimizer.register_step_post_hook(lambda *_: 1 / 0)
            optimizer.step()

    step()
    with pytest.raises(ZeroDivisionError):
        step()
    assert seen == [float, float] and optimizer.param_groups[0]["lr"] == 0.5
    assert type(optimizer.param_groups[0]["lr"]) is float
