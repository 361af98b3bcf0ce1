"""Tests of what programs do with tensors all day, under a mesh: the same as without."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import monarch.tensor as mt


@pytest.fixture
def x(loop: Any) -> Any:
    return torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor([[1, 2], [3, 4]]),
        lambda: torch.tensor(np.arange(6.0).reshape(2, 3).T),
        lambda: torch.as_tensor([1.5, 2]),
        lambda: torch.as_tensor(np.arange(6.0)[::2].copy()),
        lambda: torch.from_numpy(np.arange(6, dtype=np.int32).reshape(3, 2).T),
        lambda: torch.asarray([True, False]),
        lambda: torch.Tensor([1, 2]),
        lambda: torch.ones(2).new_tensor([1, 2]),
        lambda: torch.tensor(2, dtype=torch.bfloat16),
        lambda: torch.tensor([]),
        lambda: torch.tensor([1 + 2j]),
        lambda: torch.tensor(np.float32(0.5)),
        lambda: torch.scalar_tensor(3),
        lambda: torch.full((2,), True),
        lambda: torch.ones(2, device="cpu"),
    ],
)
def test_making_tensors(loop: Any, make: Any) -> None:
    made = make()
    found = mt.inspect(made, gpus=1)
    with mt.no_mesh.activate():
        local = make()
        assert type(made) is mt.Tensor and type(found) is torch.Tensor
        assert (made.shape, made.stride(), made.dtype) == (local.shape, local.stride(), local.dtype)
        assert torch.equal(found, local)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.T,
        lambda x: x[..., None],
        lambda x: x[torch.tensor([1, 0])],
        lambda x: x[:, [0, 2]],
        lambda x: x[torch.tensor(1)],
        lambda x: torch.stack([row * 2 for row in x]),
        lambda x: x.cpu() + x.to("cpu") + x.double() - x.half(),
        sum,
        lambda x: torch.cat(list(x.split([1, 2], 1))[::-1], 1),
        lambda x: pytree.tree_map(lambda leaf: leaf + 1, {"a": [x, 3]})["a"][0],
        lambda x: copy.deepcopy([x, x])[1].add_(1),
        lambda x: copy.copy(x).add(1),
        lambda x: x * np.float64(2) + np.float32(1),
        lambda x: x if x.shape[0] == len(x) == 2 and x.numel() == 6 and x.dim() == 2 else None,
        lambda x: torch.zeros(torch.tensor(3)) + x,
        torch.func.grad(lambda leaf: (leaf * leaf).sum()),
        torch.vmap(torch.sum),
        torch.linalg.norm,
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.nn.functional.pad(x, (1, 1), value=7.0),
    ],
)
def test_using_tensors(x: Any, use: Any) -> None:
    found = mt.inspect(use(x), gpus=1)
    with mt.no_mesh.activate():
        local = use(torch.arange(6.0).reshape(2, 3))
        assert found.dtype == local.dtype and torch.equal(found, local)


def change(x: Any) -> Any:
    x[1:3] = 5
    x[x > 4] = 0
    x[0, 1] = 7
    x[:, 2] = x[:, 0]
    x[torch.tensor([0])] += 1
    x[0] = torch.tensor([1.0, 2.0, 3.0])
    x[..., 0] *= 2
    x += 1
    x -= x.mean()
    return x


def test_assigning_to_parts(x: Any) -> None:
    found = mt.inspect(change(x))
    with mt.no_mesh.activate():
        assert torch.equal(found, change(torch.arange(6.0).reshape(2, 3)))


def test_numbers_can_be_assigned_outside_of_a_mesh(x: Any) -> None:
    with mt.no_mesh.activate():
        y = x.clone()
        y[1:] = 5
        y[0, 0] = 7
        y[y == 1] = 0
        y = torch.where(y > 6, y, 0.5)
        assert mt.inspect(y).tolist() == [[7.0, 0.5, 0.5], [0.5, 0.5, 0.5]]
        assert type(y) is mt.Tensor
        z = x.clone().requires_grad_()
        (z * z).sum().backward()
        assert mt.inspect(z.grad).tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]


def test_torch_is_local_without_the_mesh_and_comes_back(loop: Any) -> None:
    with mt.no_mesh.activate():
        assert type(torch.ones(2)) is torch.Tensor
        with loop.activate():
            assert type(torch.ones(2)) is mt.Tensor
        assert type(torch.ones(2) + 1) is torch.Tensor
    assert type(torch.ones(2)) is mt.Tensor


def test_being_a_tensor(x: Any) -> None:
    assert isinstance(x, torch.Tensor) and torch.is_tensor(x) and x.is_floating_point()
    assert x in [x] and hash(x) == hash(x) and {x: 1}[x] == 1
    assert x.type() == "torch.FloatTensor" and x.element_size() == 4 and x.device.type == "cpu"
    assert x.mesh.size("gpus") == 2 and x.stream is mt.get_active_stream() and isinstance(x.ref, int)
    assert mt.get_active_mesh() is x.mesh


def test_modes_of_the_thread(x: Any) -> None:
    with torch.no_grad():
        assert not (x.clone().requires_grad_() * 2).requires_grad
    with torch.inference_mode():
        doubled = x * 2
        doubled.add_(1)
    assert doubled.is_inference()
    assert mt.inspect(doubled).tolist() == [[1.0, 3.0, 5.0], [7.0, 9.0, 11.0]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = nn.functional.linear(x, x).relu()
    assert low.dtype is torch.bfloat16 is mt.inspect(low).dtype
    with torch.device("cpu"):
        assert type(torch.ones(2)) is mt.Tensor
    with torch.device("meta"):
        assert torch.ones(2).device.type == "meta"


def test_seeding_does_not_disturb(x: Any) -> None:
    torch.manual_seed(0)
    assert mt.inspect(torch.rand(3)).shape == (3,)
    with torch.random.fork_rng():
        assert sorted(mt.inspect(torch.randperm(4)).tolist()) == [0, 1, 2, 3]


def test_parameters_and_modules(loop: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2))
    assert all(type(parameter) is mt.Tensor for parameter in net.parameters())
    assert all(isinstance(parameter, nn.Parameter) for parameter in net.parameters())
    state = mt.inspect(net.state_dict(), gpus=0)
    inputs = torch.arange(6.0).reshape(2, 3)
    found = mt.inspect(net(inputs), gpus=0)
    twin = copy.deepcopy(net)
    assert mt.inspect(twin(inputs), gpus=0).tolist() == found.tolist()
    assert net.double()[0].weight.dtype is torch.float64 and twin[0].weight.dtype is torch.float32
    assert net.half()[0].weight.dtype is torch.float16 and net.float()(inputs).dtype is torch.float32
    with mt.no_mesh.activate():
        local = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2))
        local.load_state_dict(state)
        assert torch.equal(local(torch.arange(6.0).reshape(2, 3)), found)


def test_lazy_conjugates(loop: Any) -> None:
    z = torch.tensor([1 + 2j, -3j])
    turned = z.conj()
    assert turned.is_conj() and turned.imag.is_neg() and not turned.resolve_conj().is_conj()
    turned.mul_(1j)
    assert mt.inspect(z).tolist() == [-1j * (1 + 2j), -1j * -3j]
    assert mt.inspect(torch.view_as_real(turned.resolve_conj())).shape == (2, 2)


def test_fetching_trees(x: Any) -> None:
    found = mt.fetch_shard({"a": [x, 3], "b": (x + 1, None)}, {"gpus": 1}).get()
    assert found["a"][1] == 3 and found["b"][1] is None
    assert found["b"][0].tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert mt.inspect(5) == 5


def test_each_rank_has_its_own(loop: Any) -> None:
    x = torch.rand(8)
    first, second = (mt.inspect(x, gpus=rank).tolist() for rank in range(2))
    assert first != second
    part = loop.slice(gpus=1)
    with part.activate():
        y = torch.ones(2)
    assert mt.inspect(y).tolist() == [1.0, 1.0]
    assert [y.ref in ids for ids in loop.client.living()] == [False, True]
