"""Distributed tensors on real devices: factories, fetches, collectives, training, streams, recordings."""

from __future__ import annotations

from typing import Any

import pytest

import monarch
from monarch.actor import ProcMesh
from tests.support.devices import one_process_a_device

pytestmark = [pytest.mark.device, pytest.mark.procs]


procs = pytest.fixture(one_process_a_device, scope="module", name="procs")


def test_each_process_uses_its_own_device(procs: ProcMesh) -> None:
    def seen() -> tuple[int, str]:
        import torch

        return torch.ones(1, device="cuda").device.index, str(torch.cuda.get_device_properties("cuda").uuid)

    with procs.activate():
        found = list(monarch.remote(seen, propagate="inspect").call().get().values())
    assert [index for index, _ in found] == list(range(len(procs)))
    assert len({uuid for _, uuid in found}) == len(procs)


def test_operations_stay_on_the_device_and_fetches_come_to_the_host(procs: ProcMesh) -> None:
    import torch

    with procs.activate():
        x = torch.ones(4, 4, device="cuda")
        y = (x @ x).relu_() + 1
        assert y.device.type == "cuda"
        here = monarch.inspect(y)
        assert here.device.type == "cpu"
        assert here.tolist() == [[5.0] * 4] * 4
        assert monarch.inspect(y.cpu()).tolist() == here.tolist()
        assert monarch.inspect(torch.arange(3, dtype=torch.bfloat16, device="cuda")).tolist() == [0, 1, 2]


def test_collectives(procs: ProcMesh) -> None:
    import torch

    count = len(procs)
    with procs.activate() as mesh:
        x = torch.ones(2, 3, device="cuda") * (1 + mesh.rank("gpus")).to("cuda")
        total = sum(range(1, count + 1))
        assert monarch.inspect(x.reduce("gpus")).tolist() == [[total] * 3] * 2
        assert monarch.inspect(x.reduce("gpus", "stack")).shape == (count, 2, 3)
        monarch.reduce_([x], "gpus", "avg")
        assert monarch.inspect(x).tolist() == [[total / count] * 3] * 2


def test_a_failure_on_the_device_is_told_where_it_was_issued(procs: ProcMesh) -> None:
    import torch

    with procs.activate():
        wrong = torch.zeros(2, device="cuda").view(2, 1) @ torch.zeros(1, 2, device="cuda")
        assert monarch.inspect(wrong).tolist() == [[0, 0], [0, 0]]
        failing = monarch.remote(lambda t: t.cpu()[5], propagate=lambda t: t.new_empty((), device="cpu"))
        with pytest.raises(monarch.tensor.RemoteException, match="index 5 is out of bounds"):
            monarch.inspect(failing(torch.zeros(2, device="cuda")))


@pytest.mark.parametrize("recorded", [False, True], ids=["op by op", "recorded"])
def test_steps_of_a_transformer_are_those_of_one_process(procs: ProcMesh, recorded: bool) -> None:
    import torch

    def losses(reduce: Any, wrap: Any) -> list[Any]:
        layers = [torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)]
        net = torch.nn.Sequential(*layers, torch.nn.Linear(64, 16)).to("cuda")
        with torch.no_grad():
            for number, weight in enumerate(net.parameters()):
                values = torch.linspace(-0.2, 0.2, weight.numel(), device="cuda").roll(number)
                weight.copy_(values.reshape(weight.shape))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
        x = torch.linspace(-1, 1, 4 * 32 * 64, device="cuda").sin().reshape(4, 32, 64)
        y = torch.arange(4 * 32, device="cuda") % 16

        def step() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x).flatten(0, 1), y)
            loss.backward()
            reduce([weight.grad for weight in net.parameters()])
            optimizer.step()
            return loss.detach()

        run = wrap(step)
        return [run() for _ in range(5)]

    with procs.activate():
        wrap = monarch.function if recorded else lambda step: step
        found = monarch.inspect(losses(lambda grads: monarch.reduce_(grads, "gpus", "avg"), wrap))
    alone = losses(lambda grads: None, lambda step: step)
    assert [loss.item() for loss in found] == pytest.approx([loss.item() for loss in alone], rel=1e-3)
