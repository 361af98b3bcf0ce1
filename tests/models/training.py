"""A few steps of a model, in this process and on a mesh of two ranks, bit by bit the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from monarch.tensor import function
from monarch.tensor.controller.activation import no_modes
from tests.models import torchvision_operators
from tests.tensor.loopback import loopback

STEPS = 8

torchvision_operators.define()


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def trained(
    model: Any,
    loss_of: Callable[..., Any],
    batches: Sequence[Any],
    wrap: Callable[[Any], Any],
    value: Callable[[Any], float],
    make_optimizer: Callable[[Any], Any] = fused,
) -> list[float]:
    """The losses of a step on each batch."""
    optimizer = make_optimizer(model.parameters())

    def step(given: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, given)
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = wrap(step)
    return [value(call(given)) for given in batches]


def as_it_is(step: Any) -> Any:
    return step


def of_rank_0(mesh: Any) -> Callable[[Any], float]:
    def value(loss: Any) -> float:
        with no_modes():
            return float(mesh.client.local(loss))

    return value


def trains_as_here(
    make: Callable[[], Any],
    loss_of: Callable[..., Any],
    batches: Callable[[], Sequence[Any]],
    recordings: int = 1,
    make_optimizer: Callable[[Any], Any] = fused,
) -> None:
    """Checks a model operation by operation, and as one function of that many recordings."""
    wanted = trained(make(), loss_of, batches(), as_it_is, float, make_optimizer)
    assert len(set(wanted)) == len(wanted)  # it learns, and draws other numbers each time
    with loopback(gpus=2) as mesh:
        here = of_rank_0(mesh)
        assert trained(make(), loss_of, batches(), as_it_is, here, make_optimizer) == wanted
        steps: list[Any] = []

        def recorded(step: Any) -> Any:
            steps.append(function(step))
            return steps[0]

        assert trained(make(), loss_of, batches(), recorded, here, make_optimizer) == wanted
        assert steps[0].traces == recordings


def is_in_the_table(
    library: Any, models: Iterable[str], op_by_op: str = "equal", recorded: str = "equal, one recording"
) -> bool:
    """True if the table of docs/tensors.md says this of these models of a library, and of no others."""
    release = library.__version__.partition("+")[0]
    row = f"| {library.__name__} {release} | {', '.join(sorted(set(models)))} | {op_by_op} | {recorded} |"
    return row in (Path(__file__).resolve().parents[2] / "docs/tensors.md").read_text().splitlines()
