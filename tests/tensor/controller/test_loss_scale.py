"""torch.amp.GradScaler under a mesh gives what it gives without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import monarch
import monarch.tensor as mt
from tests.support.devices import every_device
from tests.tensor.loopback import loopback

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=0.1, fused=True),
}


def training(kind: str, inputs: list[Any], steps: int = 5) -> tuple[dict[str, Any], list[float], Any]:
    """Returns what training gives whose third step has an infinity: weights, scales, and the scaler's state."""
    net = torch.nn.Linear(4, 3)
    with torch.no_grad():
        for number, weight in enumerate(net.parameters()):
            weight.copy_(torch.linspace(-1, 1 + number, weight.numel()).reshape(weight.shape))
    optimizer = OPTIMIZERS[kind](net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    scales = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = net(inputs[step]).square().mean()
        scaler.scale(loss).backward()
        if step == 1:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return dict(net.state_dict()), scales, scaler.state_dict()


def inputs() -> list[Any]:
    batches = [torch.linspace(-1, 1 + step, 8).reshape(2, 4) for step in range(5)]
    batches[2] = batches[2] * 1e20
    return batches


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_bits_are_those_of_one_process(kind: str) -> None:
    wanted = training(kind, inputs())
    assert wanted[1][1] > wanted[1][0] > 0 and wanted[1][2] < wanted[1][1]  # it grew, and backed off
    with loopback(gpus=2):
        found = training(kind, inputs())
        assert found[1:] == wanted[1:]
        for rank in range(2):
            with mt.no_mesh.activate():
                for name, value in mt.inspect(found[0], gpus=rank).items():
                    assert torch.equal(value, wanted[0][name])


@every_device
def test_half_precision(device: str) -> None:
    """With autocast, as fp16 is trained."""

    def cast() -> Any:
        net = torch.nn.Linear(4, 3)
        with torch.no_grad():
            for number, weight in enumerate(net.parameters()):
                weight.copy_(torch.linspace(-1, 1 + number, weight.numel()).reshape(weight.shape))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        for batch in inputs():
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                result = net(batch)
            assert result.dtype is torch.float16
            scaler.scale(result.float().square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        return dict(net.state_dict()), scaler.get_scale()

    wanted, scale = cast()
    with loopback(gpus=2):
        found, its = cast()
        assert its == scale < 1024.0
        with mt.no_mesh.activate():
            for name, value in mt.inspect(found, gpus=1).items():
                assert torch.equal(value, wanted[name].cpu())


def test_an_infinity_in_one_process_keeps_all_from_their_step() -> None:
    with loopback(gpus=2) as mesh:
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        x = torch.where(mesh.rank("gpus") == 1, float("inf"), 1.0)
        scaler.scale((weight * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 4.0
        for rank in range(2):
            assert mt.inspect(weight, gpus=rank).tolist() == [1.0]
            assert mt.inspect(scaler._scale, gpus=rank).tolist() == 4.0


def test_a_loaded_scaler_goes_on() -> None:
    with loopback(gpus=2):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        state = {**scaler.state_dict(), "scale": 32.0}
        scaler.load_state_dict(state)
        assert mt.inspect(scaler.scale(torch.ones(1))).tolist() == [32.0]
        assert scaler.state_dict()["scale"] == 32.0


def test_the_scaler_raises_what_failed() -> None:
    with loopback(gpus=2):
        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler("cpu")
        bad = monarch.remote(lambda x: x[5], propagate=lambda x: x.new_empty(()))(torch.ones(2))
        scaler.scale((weight * bad).sum()).backward()
        with pytest.raises(mt.RemoteException, match="index 5 is out of bounds"):
            scaler.step(optimizer)


def test_item_of_anything_else_stays_an_error() -> None:
    with loopback(gpus=2), pytest.raises(RuntimeError, match="needs the values of a distributed tensor"):
        torch.rand(()).item()
