"""Values of this process in distributed tensors and back: replicate, shard, gather, load_state_dict, torch.save and load."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import monarch
import monarch.tensor as mt
from tests.tensor.loopback import Loopback, loopback


def made(kind: Any, *args: Any, **options: Any) -> Any:
    """Something of this process, whichever mesh is active."""
    with mt.no_mesh.activate():
        return kind(*args, **options)


def equal(one: Any, other: Any) -> bool:
    with mt.no_mesh.activate():
        return torch.equal(one, other)


def everywhere(tensor: Any, local: torch.Tensor) -> None:
    """Each rank has the bits of `local`."""
    for rank in range(len(tensor.mesh)):
        found = mt.inspect(tensor, gpus=rank)
        assert found.dtype is local.dtype and equal(found, local.detach())


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def same_everywhere() -> Any:
    """A distributed network with the same weights on each rank."""
    return monarch.replicate(made(network))


# --- in and out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_replicate_keeps_values_type_strides_and_grad(loop: Any, dtype: torch.dtype) -> None:
    with mt.no_mesh.activate():
        local = torch.arange(6).reshape(2, 3).to(dtype).t()
        local.requires_grad_(dtype.is_floating_point)
    there = monarch.replicate(local)
    assert type(there) is mt.Tensor and there.mesh is loop
    assert there.stride() == local.stride() and there.requires_grad == local.requires_grad and there.is_leaf
    everywhere(there, local)


def test_what_is_done_to_the_local_tensor_later_stays_here(loop: Any) -> None:
    local = made(torch.ones, 2)
    there = monarch.replicate(local)
    made(local.zero_)
    assert mt.inspect(there).tolist() == [1, 1]


def test_a_tree_keeps_its_form_and_what_is_no_local_tensor(loop: Any) -> None:
    local = made(torch.ones, 2)
    ours = torch.zeros(2)
    there = monarch.replicate({"a": [local, local], "b": 3, "c": ours})
    assert there["a"][0] is there["a"][1] and there["b"] == 3 and there["c"] is ours


def test_replicate_without_an_active_mesh(loop: Any) -> None:
    with mt.no_mesh.activate():
        there = monarch.replicate(torch.ones(2), mesh=loop.slice(gpus=1))
        assert there.mesh is loop.slice(gpus=1)
        assert mt.inspect(there).tolist() == [1, 1]
        with pytest.raises(ValueError, match="no device mesh is active"):
            monarch.replicate(torch.ones(2))
        with pytest.raises(TypeError, match="a DeviceMesh or a ProcMesh, and not 3"):
            monarch.replicate(torch.ones(2), mesh=3)


def test_a_tensor_without_values_is_refused(loop: Any) -> None:
    with pytest.raises(TypeError, match="this one is on the meta device"):
        monarch.replicate(made(torch.ones, 2, device="meta"))
    with pytest.raises(NotImplementedError, match="distributed tensors are dense"):
        monarch.replicate(made(torch.eye(2).to_sparse))


def test_a_module_becomes_a_distributed_copy(loop: Any) -> None:
    local = made(network)
    there = monarch.replicate(local)
    assert [name for name, _ in there.named_parameters()] == [name for name, _ in local.named_parameters()]
    assert all(type(one) is mt.Tensor for one in (*there.parameters(), *there.buffers()))
    assert all(isinstance(one, torch.nn.Parameter) for one in there.parameters())
    x = made(torch.randn, 5, 3)
    with mt.no_mesh.activate():
        wanted = local(x)
        wanted.sum().backward()
    result = there(monarch.replicate(x))
    result.sum().backward()
    everywhere(result, wanted)
    everywhere(there[0].weight.grad, local[0].weight.grad)


def test_each_process_has_its_part() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    lower, corner, line = whole[2:], whole[2:, :3], whole.t()
    with loopback(dp=2, tp=2) as mesh:
        rows = monarch.shard(whole, "dp")
        assert rows.shape == (2, 6)
        assert equal(mt.inspect(rows, dp=1, tp=0), lower) and equal(mt.inspect(rows, dp=1, tp=1), lower)
        both = monarch.shard({"w": whole}, {"dp": 0, "tp": 1})["w"]
        assert equal(mt.inspect(both, dp=1, tp=0), corner)
        assert equal(monarch.gather(both, {"dp": 0, "tp": 1}).get(), whole)
        assert equal(monarch.gather({"x": rows, "n": 1}, "dp").get()["x"], whole)
        assert monarch.gather({"n": 1}, "dp").get() == {"n": 1}
        assert equal(monarch.gather(monarch.shard(line, "tp", 1, mesh=mesh), "tp", dim=1).get(), line)
        with pytest.raises(ValueError, match=r"shape \(4, 6\), and dimension 1 cannot be divided into 4 equal parts"):
            monarch.shard(whole, {"dp": 1, "tp": 1})
        with pytest.raises(KeyError, match="no dimension 'pp'"):
            monarch.shard(whole, "pp")


def test_large_ones_leave_before_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch.tensor.controller import distribute

    monkeypatch.setattr(distribute, "AT_ONCE", 100)
    with loopback(gpus=1) as mesh:
        engine = mesh.client
        assert isinstance(engine, Loopback)
        engine.flush()
        before = len(engine.batches)
        monarch.replicate([made(torch.ones, 10) for _ in range(9)])
        assert len(engine.batches) == before + 3


# --- state dicts ----------------------------------------------------------------------------------------------


def test_load_state_dict_of_local_tensors(loop: Any) -> None:
    local, there = made(network), network()
    result = there.load_state_dict(local.state_dict())
    assert not result.missing_keys
    for name, value in local.state_dict().items():
        everywhere(there.state_dict()[name], value)


def test_errors_of_load_state_dict_are_those_of_torch(loop: Any) -> None:
    state = made(network).state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0.weight"'):
        network().load_state_dict({name: value for name, value in state.items() if name != "0.weight"})
    state["0.weight"] = made(torch.ones, 4, 4)
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight: copying a param with shape"):
        network().load_state_dict(state)


def test_copy_and_data(loop: Any) -> None:
    x, local = torch.zeros(2, 2, dtype=torch.float64), made(torch.ones, 2)
    assert x.copy_(local) is x
    everywhere(x, made(torch.ones, 2, 2, dtype=torch.float64))
    y = torch.zeros(2, requires_grad=True)
    y.data = local
    everywhere(y, local)
    with mt.no_mesh.activate(), torch.no_grad():
        y.copy_(torch.full((2,), 7.0))
    assert mt.inspect(y).tolist() == [7, 7]
    with pytest.raises(RuntimeError, match=r"must match the size|expanded size"):
        x.copy_(made(torch.ones, 3))
    with pytest.raises(TypeError, match=r"(?s)LOCAL_TENSOR.*monarch.replicate"):
        x.add_(local)
    with pytest.raises(TypeError, match="LOCAL_TENSOR"):
        local.copy_(x)


def trained(net: Any, optimizer: Any, x: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}], ids=str)
def test_an_optimizer_goes_on_from_local_state(loop: Any, options: Any) -> None:
    local, x = made(network), made(torch.randn, 5, 3)
    with mt.no_mesh.activate():
        optimizer = torch.optim.Adam(local.parameters(), lr=0.1, **options)
        trained(local, optimizer, x, 2)
        module, state = copy.deepcopy(local.state_dict()), copy.deepcopy(optimizer.state_dict())
        trained(local, optimizer, x, 2)
    there = network()
    there.load_state_dict(module)
    again = torch.optim.Adam(there.parameters(), lr=0.5, **options)
    again.load_state_dict(state)
    assert all(type(one) is mt.Tensor for values in again.state.values() for one in values.values())
    trained(there, again, monarch.replicate(x), 2)
    for mine, wanted in zip(there.parameters(), local.parameters(), strict=True):
        everywhere(mine, wanted)
    moments = mt.inspect(again.state_dict())["state"][0]["exp_avg"]
    assert equal(moments, optimizer.state_dict()["state"][0]["exp_avg"])


def test_optimizers_of_local_parameters_load_as_ever() -> None:
    net = network()
    optimizer = torch.optim.Adam(net.parameters())
    trained(net, optimizer, torch.ones(2, 3), 1)
    again = torch.optim.Adam(network().parameters())
    again.load_state_dict(optimizer.state_dict())
    assert type(next(iter(again.state.values()))["exp_avg"]) is torch.Tensor


def test_deepcopy_of_a_module_and_its_optimizer(loop: Any) -> None:
    net = same_everywhere()
    optimizer = torch.optim.Adam(net.parameters())
    trained(net, optimizer, torch.ones(2, 3), 1)
    other, other_optimizer = copy.deepcopy((net, optimizer))
    assert (
        isinstance(other[0].weight, torch.nn.Parameter)
        and other_optimizer.param_groups[0]["params"][0] is other[0].weight
    )
    trained(net, optimizer, torch.ones(2, 3), 1)
    trained(other, other_optimizer, torch.ones(2, 3), 1)
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert one is not two
        everywhere(one, mt.inspect(two))


# --- files ----------------------------------------------------------------------------------------------------


def test_a_saved_state_dict_is_plain(loop: Any) -> None:
    net = same_everywhere()
    optimizer = torch.optim.Adam(net.parameters())
    trained(net, optimizer, torch.ones(2, 3), 1)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, file)
    with mt.no_mesh.activate():
        file.seek(0)
        outside = torch.load(file)
        plain = network()
        plain.load_state_dict(outside["net"])
        torch.optim.Adam(plain.parameters()).load_state_dict(outside["optimizer"])
    file.seek(0)
    under = torch.load(file)  # with the mesh active: local all the same
    for found in (outside, under):
        assert type(found["net"]["0.weight"]) is torch.Tensor and found["step"] == 3
        everywhere(net.state_dict()["0.weight"], found["net"]["0.weight"])
    there = network()
    there.load_state_dict(under["net"])
    everywhere(there[2].bias, mt.inspect(net[2].bias))


def test_a_module_is_saved_and_loaded_whole(loop: Any) -> None:
    net = same_everywhere()
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    assert type(found[0].weight) is torch.nn.Parameter and found[0].weight.requires_grad
    everywhere(net[0].weight, found[0].weight)


def test_the_first_rank_is_the_one_that_is_saved(loop: Any) -> None:
    file = io.BytesIO()
    torch.save(loop.rank("gpus") + 10, file)
    file.seek(0)
    assert torch.load(file).tolist() == 10


def test_a_failed_tensor_is_not_saved(loop: Any) -> None:
    bad = monarch.remote(lambda x: x[5], propagate=lambda x: x.new_empty(()))(torch.ones(2))
    with pytest.raises(mt.RemoteException, match="index 5 is out of bounds"):
        torch.save(bad, io.BytesIO())
    gone = torch.ones(2)
    gone.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        torch.save(gone, io.BytesIO())


def test_pickling_for_anybody_else_is_an_error(loop: Any) -> None:
    with pytest.raises(TypeError, match="cannot be pickled here"):
        pickle.dumps(torch.ones(2))
    with pytest.raises(TypeError, match="cannot be pickled here"):
        pickle.dump(network().state_dict(), io.BytesIO())


# --- where torch cannot be followed ------------------------------------------------------------------------------


def test_local_tensors_where_values_are_wanted(loop: Any) -> None:
    local = made(torch.ones, 2)
    with (
        pytest.raises(TypeError, match=r"monarch.replicate\(tensor\)"),
        pytest.warns(UserWarning, match="copy construct"),
    ):
        torch.tensor(local)
    assert torch.as_tensor(local) is local
    array = np.arange(3.0)
    for there in (torch.from_numpy(array), torch.as_tensor(array), torch.tensor(array)):
        everywhere(there, made(torch.arange, 3.0, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"monarch.replicate\(tensor\)"):
        monarch.remote(lambda x: x + 1)(local)
    with pytest.raises(RuntimeError, match=r"monarch\.inspect"):
        np.asarray(torch.ones(2))
    assert type(local.detach()) is torch.Tensor


def test_a_loader_of_this_process(loop: Any) -> None:
    with mt.no_mesh.activate():
        torch.manual_seed(3)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.arange(8.0)), batch_size=4, shuffle=True
        )
        wanted = [batch[0].tolist() for batch in loader]
        torch.manual_seed(3)
    with pytest.raises(mt.controller.misuse.DataDependentError, match=r"monarch.no_mesh.iterate\(loader\)"):
        list(loader)
    found = []
    for (batch,) in monarch.no_mesh.iterate(loader):
        assert type(batch) is torch.Tensor
        part = monarch.shard(batch, "gpus")
        assert part.mesh is loop and type(torch.ones(1)) is mt.Tensor
        found.append([*mt.inspect(part, gpus=0).tolist(), *mt.inspect(part, gpus=1).tolist()])
    assert found == wanted
