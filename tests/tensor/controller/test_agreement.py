"""Under `agreed_values` a program reads values: those that are the same in every process, and no others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import monarch
from monarch.actor import SupervisionError, this_host
from monarch.tensor import DisagreementError, RemoteException, coalescing, compile, function
from monarch.tensor.controller import agreement
from monarch.tensor.controller.activation import no_modes
from monarch.tensor.controller.misuse import DataDependentError, DynamicShapeError
from tests.support.tiers import full
from tests.tensor.loopback import loopback


@pytest.fixture
def four() -> Iterator[Any]:
    with loopback(hosts=2, gpus=2) as mesh:
        yield mesh


def numbers() -> torch.Tensor:
    """The same in each process, and known to none but these."""
    torch.manual_seed(3)
    return torch.randn(4, 3)


def test_every_way_to_read(four: Any) -> None:
    def readings() -> list[Any]:
        x = numbers()
        return [
            x[0, 0].item(),
            float(x[0, 1]),
            int(x.abs().sum()),
            complex(x[1, 1]),
            x.tolist(),
            x.t().tolist(),
            bool((x > 0).any()),
            not (x > 100).any(),
            1.0 in x.sign(),
            f"{x.mean():.4f} {x.mean()}",
            torch.equal(x, x.clone()),
            torch.equal(x, x + 1),
            torch.allclose(x, x + 1e-9),
            range(99)[(x > 0).sum()],
            x.numpy().tolist(),
            np.asarray(x, dtype=np.float64).tolist(),
            x.to(torch.bfloat16).tolist(),
            torch.complex(x, -x).conj().tolist(),
        ]

    with no_modes():
        wanted = readings()
    with monarch.agreed_values():
        assert readings() == wanted
        assert not numbers().numpy().flags.writeable
        with pytest.raises(RuntimeError, match="requires grad"):
            numbers().requires_grad_().numpy()
    with pytest.raises(DataDependentError, match=r"In `with monarch\.agreed_values\(\):` the program waits here"):
        numbers().mean().item()
    with pytest.raises(RuntimeError, match=r"In `with monarch\.agreed_values\(\):` the program waits here"):
        numbers().numpy()


def test_shapes_that_depend_on_values(four: Any) -> None:
    def computed() -> list[Any]:
        x = numbers().requires_grad_()
        chosen = x[x > 0]
        (chosen.square().sum() + x[x[:, 0] > 0].sum() + x.masked_select(x < 0).exp().sum()).backward()
        return [
            x.grad.tolist(),
            chosen.tolist(),
            (x > 0).nonzero().tolist(),
            [part.tolist() for part in torch.where(x > 0)],
            torch.unique(x > 0, return_counts=True)[1].tolist(),
            x.detach()[:, [True, False, True]].tolist(),
            torch.arange(3).repeat_interleave((x[0] > 0).long() + 1).tolist(),
        ]

    with no_modes():
        wanted = computed()
    with monarch.agreed_values():
        assert computed() == wanted
    with pytest.raises(DynamicShapeError, match=r"In `with monarch\.agreed_values\(\):` the program waits for"):
        numbers()[numbers() > 0]


def test_a_known_mask_is_not_waited_for(four: Any) -> None:
    x = numbers()
    mask = torch.arange(4) < 3
    assert x[mask].shape == (3, 3) and mask.nonzero().tolist() == [[0], [1], [2]]
    with monarch.agreed_values() as reads:
        assert mask.sum().item() == 3
        assert x[mask].shape == (3, 3)
    assert reads.count == 0


def test_masks_that_change_between_calls_of_a_function(four: Any) -> None:
    @function
    def chosen(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x[mask].sum(0)

    x = numbers()
    for shown in ([1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 1]):
        found = monarch.inspect(chosen(x, torch.tensor(shown, dtype=torch.bool)))
        with no_modes():
            assert torch.equal(found, numbers()[torch.tensor(shown, dtype=torch.bool)].sum(0))


def test_processes_that_differ(four: Any) -> None:
    rank = four.rank("hosts") * 2 + four.rank("gpus")
    odd = torch.where(rank == 3, 2.0, 1.0)
    with monarch.agreed_values() as reads:
        with pytest.raises(DisagreementError) as caught:
            float(odd)
        assert str(caught.value) == (
            "item() reads a value that the program goes by, and the processes have different ones:\n"
            "  1.0 in hosts=0, gpus=0; hosts=0, gpus=1; hosts=1, gpus=0\n"
            "  2.0 in hosts=1, gpus=1\n"
            'Make it one first: t.reduce(dim, "avg") (or "max", "sum"), torch.manual_seed before what is random, '
            "mesh.slice(...) for a part of the processes; or read that of one process with monarch.inspect(t, dim=0)"
        )
        with pytest.raises(DisagreementError, match=r"\n  another value in hosts=1, gpus=1\n"):
            (torch.zeros(100) + odd).tolist()
        for read in (lambda t: t[t > 1], lambda t: f"{t:.1f}", lambda t: t.numpy(), lambda t: torch.equal(t, t)):
            with pytest.raises(DisagreementError):
                read(odd)
    assert reads.count == 6


def test_bits_are_compared(four: Any) -> None:
    rank = four.rank("gpus")
    with monarch.agreed_values():
        with pytest.raises(DisagreementError, match=r"0\.0 in .*\n  -0\.0 in "):
            torch.where(rank == 0, 0.0, -0.0).item()
        nan = torch.where(rank == 0, torch.tensor(float("nan")), -torch.tensor(float("nan")))
        assert nan.item() != nan.item()


def test_what_was_waited_for_is_counted(four: Any) -> None:
    x = numbers()

    @monarch.agreed_values()
    def read() -> float:
        return float(x.sum())

    outer = monarch.agreed_values()
    with outer as reads:
        for _ in range(3):
            float(x.sum())
        assert read() == read()
        x.tolist()
    assert reads.count == 4 and reads.seconds > 0.0
    first, second = reads.lines
    assert first.startswith(f"item() at {__file__}:") and second.startswith(f"tolist() at {__file__}:")
    assert [cost.count for cost in reads.lines.values()] == [3, 1]
    assert str(reads).startswith("4 values were waited for, ") and "     3 times" in str(reads)
    with pytest.raises(DataDependentError):
        float(x.sum())


def test_the_profile_shows_it(four: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = []
    plain = agreement.span
    monkeypatch.setattr(agreement, "span", lambda name: (spans.append(name), plain(name))[1])
    with monarch.agreed_values():
        numbers().tolist()
    assert spans == ["agreed_values: tolist()"]


def test_in_what_is_recorded(four: Any) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x

    x = numbers()
    recorded = function(step)
    with monarch.agreed_values():
        recorded(x)
        with pytest.warns(
            RuntimeWarning, match=r"it needs values while it runs \(item\(\) under monarch\.agreed_values"
        ):
            recorded(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first, second = recorded(numbers()), recorded(-numbers())
        assert first.tolist() == step(numbers()).tolist() and second.tolist() == step(-numbers()).tolist()
        with torch.no_grad(), pytest.raises(NotImplementedError, match=r"item\(\) under monarch\.agreed_values"):
            compile(step)(x)
        with coalescing(), pytest.raises(NotImplementedError, match="leave the block first"):
            step(x)


def test_what_failed(four: Any) -> None:
    @monarch.remote(propagate=lambda x: x.new_empty(()))
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no number")

    with monarch.agreed_values():
        with pytest.raises(RemoteException, match="no number"):
            fails(numbers()).item()
        gone = numbers()
        gone.drop()
        with pytest.raises(TypeError, match="was dropped"):
            gone.tolist()


def lbfgs(parameters: Any) -> Any:
    return torch.optim.LBFGS(parameters, max_iter=3, line_search_fn="strong_wolfe")


def losses(optimizer_of: Any) -> list[float]:
    """The losses of a training that reads values in the ways that torch does."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    optimizer = optimizer_of(net.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        return loss

    found = []
    with torch.autograd.detect_anomaly(check_nan=True):
        for _ in range(4):
            loss = optimizer.step(closure)
            scheduler.step(loss.detach())
            found.append(loss.item())
    return [*found, optimizer.param_groups[0]["lr"]]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("kind", [lbfgs, torch.optim.Adam, torch.optim.SGD])
def test_trainings_that_read_values(four: Any, kind: Any) -> None:
    with no_modes():
        wanted = losses(kind)
    with monarch.agreed_values():
        assert losses(kind) == wanted
    with pytest.raises(DataDependentError):
        losses(kind)


@full
def test_a_process_that_has_died() -> None:
    """The program is told as it reads, and does not wait for ever."""
    procs = this_host().spawn_procs({"gpus": 4}, name="agreed")
    try:
        with pytest.raises(SupervisionError, match=r"has ended"), procs.activate() as mesh, monarch.agreed_values():
            assert mesh.rank("gpus").reduce("gpus").item() == 6
            part = mesh.slice(gpus=slice(1, 3))
            with pytest.raises(DisagreementError, match=r"\n  1 in gpus=0\n  2 in gpus=1\n"):
                mesh.rank("gpus").slice_mesh(gpus=slice(1, 3)).to_mesh(part).item()

            @monarch.remote(propagate="inspect")
            def ends(rank: Any) -> None:
                import os

                if int(rank) == 2:
                    os._exit(1)

            ends(mesh.rank("gpus"))
            torch.ones(()).mul_(mesh.rank("gpus") * 0).item()
    finally:
        procs.stop().get(timeout=300)
