"""Autograd on tensors of a device that the program's process does not have, or has not used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import monarch
from monarch.tensor import inspect
from monarch.tensor.controller import absent_devices
from monarch.tensor.controller.activation import in_this_thread
from monarch.tensor.recording.recorder import CommandRecorder, CommandWatcher
from tests.support.patience import TIMEOUT
from tests.support.scripts import Scripts
from tests.support.tiers import full
from tests.tensor.elsewhere import elsewhere

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this process has what it should not have")


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with elsewhere(monkeypatch) as mesh:
        yield mesh


def losses(device: str, net: Callable[[], Any], make: Callable[[str], Any], wrap: Any = lambda step: step) -> list[Any]:
    model = net().to(device)
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            values = torch.linspace(-1, 1 + number, weight.numel(), dtype=weight.dtype, device=device)
            weight.copy_(values.reshape(weight.shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    x = make(device)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = wrap(step)
    return [run(x) for _ in range(4)]


def mlp() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).double()


def rows(device: str) -> Any:
    return torch.linspace(-1, 1, 64, dtype=torch.float64, device=device).reshape(8, 8)


@pytest.mark.parametrize("recorded", [False, True])
def test_training_is_that_of_one_process(away: Any, recorded: bool) -> None:
    found = inspect(losses("cuda", mlp, rows, monarch.function if recorded else lambda step: step))
    with monarch.no_mesh.activate():
        alone = losses("cpu", mlp, rows)
    assert [loss.item() for loss in found] == [loss.item() for loss in alone]


class Wide(torch.nn.Module):
    """Modules that torch puts together of several operations, some of them by the device."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 8, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        x = self.norm(self.conv(x)).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)[:, 0]
        hot = F.one_hot(torch.arange(x.shape[1], device=x.device) % 8, 8).to(x)
        return self.last(x * hot + x.new_zeros(8) + torch.zeros_like(x[0]))


def test_composite_operations_stay_on_the_device(away: Any) -> None:
    def make(device: str) -> Any:
        return torch.linspace(-1, 1, 2 * 4 * 8, device=device).reshape(2, 4, 8)

    found = inspect(losses("cuda", Wide, make))
    with monarch.no_mesh.activate():
        alone = losses("cpu", Wide, make)
    assert [loss.item() for loss in found] == pytest.approx([loss.item() for loss in alone], rel=1e-4)


def test_a_tensor_says_where_it_is(away: Any) -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    assert (x.device, x.is_cuda, x.is_meta, x.get_device()) == (torch.device("cuda", 0), True, False, 0)
    y = x * 2
    y.sum().backward()
    assert x.grad is not None and x.grad.device == x.device
    here = x.detach().cpu()
    assert (here.device.type, here.is_cuda, here.get_device()) == ("cpu", False, -1)
    assert inspect(x.detach().to("cuda", torch.float64)).dtype is torch.float64
    assert here.type_as(x.detach()).device.type == "cuda"
    layer = torch.nn.Linear(2, 2)
    before = layer.weight.device.type
    assert (before, layer.to("cuda").weight.device.type, layer.cpu().weight.device.type) == ("cpu", "cuda", "cpu")


def test_a_device_is_used_before_a_tensor_claims_to_be_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    zeros = torch.zeros

    def make(*shape: Any, device: Any = None) -> Any:
        used.append(device)
        if device.index:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return zeros(*shape)

    monkeypatch.setattr(torch, "zeros", make)
    monkeypatch.setattr(absent_devices, "_homes", {})
    monkeypatch.setattr(absent_devices, "_strangers", [])
    here, other = torch.device("cuda", 0), torch.device("cuda", 3)
    for _ in range(2):
        assert absent_devices.home(here) is here
        assert absent_devices.home(other).type == "meta"
        assert absent_devices.home(torch.device("cpu")).type == "cpu"
    assert used == [here, other]
    assert (
        absent_devices.meant(torch.device("meta")) == other
        and absent_devices.meant(here) is here
        and absent_devices.meant(None) is None
    )


def test_derivatives_run_in_the_thread_that_asks_for_them(away: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    seen = []
    (x * 2).register_hook(lambda grad: seen.append(torch._C._is_multithreading_enabled()))
    y = x * 2
    y.register_hook(lambda grad: seen.append(torch._C._is_multithreading_enabled()))
    total = y.sum()
    total.backward(retain_graph=True)
    with monarch.no_mesh.activate():
        total.backward(retain_graph=True)
    torch.autograd.grad(total, [x])
    assert seen == [False, False, False]


def test_what_was_set_before_comes_back() -> None:
    assert torch._C._is_multithreading_enabled()
    with in_this_thread(), CommandWatcher():
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled()


def test_two_threads_that_record_at_once_each_have_their_recorder() -> None:
    from monarch.tensor.controller.records import recorder

    both = threading.Barrier(2)
    found: dict[str, bool] = {}

    def record(name: str) -> None:
        x = torch.ones(2, requires_grad=True)
        with CommandRecorder() as mine:
            both.wait(TIMEOUT)
            y = x * 2
            y.register_hook(lambda grad: found.__setitem__(name, recorder() is mine))
            y.sum().backward()
            both.wait(TIMEOUT)

    threads = [threading.Thread(target=record, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert found == {"a": True, "b": True}


PRIVATE = """
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("card")  # a device type; autograd's engine has no threads for it

import threading

import monarch.tensor
from monarch.tensor.controller.activation import in_this_thread


class Wrapper(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        threads.append(threading.current_thread() is threading.main_thread())
        return make()


def make(**options):
    return torch.Tensor._make_wrapper_subclass(Wrapper, (2,), device=torch.device("card"), **options)


threads = []
x = make(requires_grad=True)
with in_this_thread():
    (x * x).backward(make())
assert threads and all(threads), threads
try:
    (x * x).backward(make())
except RuntimeError as exc:
    assert "device_ready_queues_" in str(exc), exc
else:
    raise AssertionError("torch has become kinder")
"""


@full
def test_the_engine_needs_no_thread_of_a_device(tmp_path: Any) -> None:
    """With a device of torch's own test kind: what the engine does for cuda tensors, without any cuda."""
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no device types in Python")
    scripts = Scripts(tmp_path, tmp_path)
    try:
        scripts.run(PRIVATE)
    finally:
        scripts.close()
