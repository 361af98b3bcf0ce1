"""Weights, data and checkpoints of distributed tensors on real devices."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import monarch
from monarch.actor import ProcMesh
from tests.support.devices import TIMEOUT, one_process_a_device

pytestmark = [pytest.mark.device, pytest.mark.procs]


procs = pytest.fixture(one_process_a_device, scope="module", name="procs")


def network() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))


def test_weights_go_to_the_device_and_come_back(procs: ProcMesh, tmp_path: Path) -> None:
    import torch

    local = network()
    with procs.activate():
        net = torch.nn.Sequential(
            torch.nn.Linear(16, 32, device="cuda"), torch.nn.GELU(), torch.nn.Linear(32, 4, device="cuda")
        )
        net.load_state_dict(local.state_dict())  # from the CPU of the client
        other = copy.deepcopy(net)
        assert all(weight.device.type == "cuda" for weight in other.parameters())
        torch.save(other.state_dict(), tmp_path / "weights.pt")
    saved = torch.load(tmp_path / "weights.pt")
    for name, value in local.state_dict().items():
        assert saved[name].device.type == "cpu" and torch.equal(saved[name], value)


def test_tensors_of_the_client_s_own_device(procs: ProcMesh) -> None:
    import torch

    local = torch.arange(8.0, device="cuda")
    with procs.activate() as mesh:
        there = monarch.replicate(local)
        assert there.device.type == "cuda"
        assert monarch.inspect((there * 2).sum()).item() == 56
        part = monarch.shard(local, "gpus")
        assert part.device.type == "cuda" and part.shape == (8 // len(mesh),)
        assert monarch.gather(part, "gpus").get(timeout=TIMEOUT).tolist() == list(range(8))
        zeros = torch.zeros(8, device="cuda")
        zeros.copy_(local)
        assert monarch.inspect(zeros).tolist() == list(range(8))


def test_a_checkpoint_of_device_memory(procs: ProcMesh, tmp_path: Path) -> None:
    import torch

    whole = torch.arange(64.0).reshape(8, 8)
    with procs.activate():
        x = monarch.shard(whole, "gpus").to("cuda")
        for _ in range(20):  # the copy to the host waits for what the device is still computing
            x = x * 2
        monarch.checkpoint.save_async({"x": x, "step": 1}, tmp_path / "one", {"x": {"gpus": 0}}).get(timeout=TIMEOUT)
        state = monarch.checkpoint.read(tmp_path / "one", {"x": {"gpus": 0}}, device="cuda")
        assert state["step"] == 1 and state["x"].device.type == "cuda"
        back = monarch.gather(state["x"], "gpus").get(timeout=TIMEOUT)
        x.zero_()
        monarch.checkpoint.load({"x": x}, tmp_path / "one", {"x": {"gpus": 0}})
        again = monarch.gather(x, "gpus").get(timeout=TIMEOUT)
    assert torch.equal(back, whole * 2**20) and torch.equal(again, back)


def loaders(rank: int, size: int) -> Any:
    """With worker processes of their own, in a process that has used its device."""
    import torch

    torch.zeros(1, device="cuda")
    data = torch.utils.data.TensorDataset(torch.arange(16.0))
    sampler: Any = torch.utils.data.DistributedSampler(data, size, rank, shuffle=False)
    return torch.utils.data.DataLoader(
        data, batch_size=4, sampler=sampler, num_workers=1, multiprocessing_context="forkserver", pin_memory=True
    )


def test_batches_of_each_process(procs: ProcMesh) -> None:
    with procs.activate() as mesh:
        count = len(mesh)
        found: list[float] = []
        for (batch,) in monarch.DataLoaders(loaders):
            there = batch.to("cuda", non_blocking=True)
            for rank in range(count):
                found += monarch.inspect(there, gpus=rank).tolist()
    assert sorted(found) == list(range(16))
