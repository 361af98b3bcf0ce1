"""Tests that what programs do wrong with distributed tensors is explained where they do it, in methods and in operators."""

from __future__ import annotations

import copy
import io
import math
import operator
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import monarch
import monarch.tensor as mt
from tests.tensor.loopback import Loopback, loopback


@pytest.fixture
def local() -> torch.Tensor:
    """Made before a mesh is active: ask for it first."""
    return torch.ones(2, 3)


@pytest.fixture
def x(local: torch.Tensor, loop: Any) -> Any:
    return torch.ones(2, 3)


BINARY = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.matmul,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
)
BITWISE = (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift)
IN_PLACE = (
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
)


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
def test_local_operands_of_operators(x: Any, local: torch.Tensor, op: Any) -> None:
    for pair in ((x, local), (local, x)):
        with pytest.raises(
            TypeError, match=r"(?s)Incorrect arguments.*ERROR_0.*LOCAL_TENSOR: a tensor of this process alone"
        ):
            op(*pair)


@pytest.mark.parametrize("op", BITWISE, ids=lambda op: op.__name__)
def test_local_operands_of_bitwise_operators(loop: Any, op: Any) -> None:
    ours = torch.ones(2, dtype=torch.int64)
    with mt.no_mesh.activate():
        local = torch.ones(2, dtype=torch.int64)
    for pair in ((ours, local), (local, ours)):
        with pytest.raises(TypeError, match="LOCAL_TENSOR"):
            op(*pair)


@pytest.mark.parametrize("op", IN_PLACE, ids=lambda op: op.__name__)
def test_local_operands_of_operators_in_place(x: Any, local: torch.Tensor, op: Any) -> None:
    for pair in ((x, local), (local, x)):
        with pytest.raises(TypeError, match="LOCAL_TENSOR"):
            op(*pair)


def test_local_arguments(x: Any, local: torch.Tensor) -> None:
    calls = (
        lambda: x.add(local),
        lambda: local.add(x),
        lambda: torch.cat([x, local]),
        lambda: torch.where(x > 0, x, local),
        lambda: local.copy_(x),
        lambda: x.__setitem__(0, local[0]),
        local.sum,
        lambda: torch.add(x, x, out=local),
    )
    for call in calls:
        with pytest.raises(TypeError, match=r"(?s)ERROR_0.*active_mesh = <DeviceMesh.*stream 'main'.*LOCAL_TENSOR"):
            call()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_is_to_be_compiled_runs_as_it_is(x: Any) -> None:
    def computed(y: Any) -> Any:
        return (y.cosh() + torch.ones(3).tanh()).sinh() if y.shape[0] == 2 else y

    wanted = monarch.inspect(computed(x))
    for backend in ("eager", "aot_eager"):
        for _ in range(2):
            assert torch.equal(monarch.inspect(torch.compile(computed, backend=backend)(x)), wanted)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    net.compile(backend="eager")
    torch.manual_seed(0)
    net(x).sum().backward()
    found = monarch.inspect(net[0].weight.grad)
    net.zero_grad()
    torch.manual_seed(0)
    net[1](net[0](x)).sum().backward()
    assert torch.equal(monarch.inspect(net[0].weight.grad), found)
    with pytest.raises(RuntimeError, match="fullgraph=True found no compiled frames"):
        torch.compile(computed, backend="eager", fullgraph=True)(x)


def test_what_was_fetched_is_worked_on_here(x: Any) -> None:
    one, other = monarch.inspect(x), monarch.inspect(x * 2)
    assert torch.isfinite(one).all() and not torch.equal(one, other) and torch.stack([one, other]).sum().item() == 18.0
    one.add_(other[0] > 1)
    assert one.tolist() == [[2.0] * 3] * 2 and one[one > 1].view(3, 2).t().shape == (2, 3)
    for mixed in (lambda: one + x, lambda: one + torch.ones(3)):
        with pytest.raises(TypeError, match="LOCAL_TENSOR"):
            mixed()


def test_local_operands_alone_are_never_silently_unequal(local: torch.Tensor, loop: Any) -> None:
    for op in (lambda: local == local, lambda: local != 1, lambda: local + local, lambda: local * 2, lambda: local < 2):
        with pytest.raises(RuntimeError, match="LOCAL_TENSOR"):
            op()
    with pytest.raises(TypeError, match="LOCAL_TENSOR"):
        torch.eq(local, local)


def test_arrays_are_no_operands(x: Any) -> None:
    with pytest.raises(TypeError, match=r"a distributed tensor and a ndarray.*torch.as_tensor"):
        np.ones(3) * x
    with pytest.raises((RuntimeError, TypeError), match="distributed tensor"):
        x * np.ones(3)


def test_without_a_mesh(x: Any, local: torch.Tensor) -> None:
    with mt.no_mesh.activate():
        for call in (lambda: x + local, lambda: local.add(x)):
            with pytest.raises(TypeError, match=r"(?s)active_mesh = no active device mesh.*LOCAL_TENSOR"):
                call()
        with pytest.raises(ValueError, match="no device mesh is active: activate one"):
            mt.get_active_mesh()
        with pytest.raises(AssertionError, match="needs a distributed tensor or an active mesh"):
            mt.inspect(5)


def test_another_mesh(loop: Any) -> None:
    x = torch.ones(2)
    part = loop.slice(gpus=1)
    with part.activate():
        y = torch.ones(2)
        for call in (
            lambda: y + x,
            lambda: x.add(y),
            lambda: x == y,
            lambda: mt.inspect((x, y)),
            lambda: torch.stack([x, y]),
        ):
            with pytest.raises(TypeError, match=r"(?s)WRONG_MESH: lives on <DeviceMesh.*to_mesh"):
                call()
        assert (x + 1).mesh is loop and (y + 1).mesh is part


def test_another_engine(loop: Any) -> None:
    x = torch.ones(2)
    with loopback(gpus=1):
        y = torch.ones(2)
        with pytest.raises(TypeError, match="WRONG_MESH"):
            x + y


def test_dropped(x: Any) -> None:
    view = x[0]
    x.drop()
    calls = (
        lambda: x + 1,
        lambda: 1 - view,
        lambda: view.add_(1),
        lambda: mt.inspect(x),
        x.sum,
        lambda: torch.cat([x, x]),
        lambda: mt.fetch_shard(view),
        lambda: x == 1,
        lambda: copy.deepcopy(x),
    )
    for call in calls:
        with pytest.raises(
            TypeError, match=r"(?s)DROPPED: was dropped. It is dropped at:\n.*in test_dropped\n    x.drop\(\)"
        ):
            call()
    assert "dropped" in repr(x)


DEPENDENT = (
    lambda x: x.sum().item(),
    lambda x: bool(x.sum()),
    lambda x: int(x.sum()),
    lambda x: float(x[0, 0]),
    lambda x: complex(x[0, 0]),
    lambda x: [1][x[0, 0].long()],
    lambda x: x.tolist(),
    lambda x: x.numpy(),
    lambda x: x.apply_(abs),
    lambda x: x.map_(x, max),
    np.asarray,
    np.sin,
    lambda x: torch.equal(x, x),
    lambda x: torch.allclose(x, x),
    lambda x: math.sqrt(x.sum()),
    lambda x: f"{x.sum():.2f}",
    lambda x: 1 if x.sum() else 2,
    lambda x: x.sum() in [1.0],
    lambda x: range(x.long().sum()),
)


@pytest.mark.parametrize("call", DEPENDENT)
def test_values_are_elsewhere(x: Any, call: Any) -> None:
    with pytest.raises(
        Exception, match=r"needs the values of a distributed tensor.*monarch.inspect\(tensor\).*monarch.remote"
    ):
        call(x)


SHAPES = (
    torch.nonzero,
    lambda x: x.masked_select(x > 0),
    lambda x: x[x > 0],
    torch.unique,
    lambda x: x.long()[0].bincount(),
)


@pytest.mark.parametrize("call", SHAPES)
def test_shapes_that_depend_on_values(x: Any, call: Any) -> None:
    with pytest.raises(Exception, match=r"depends on values.*monarch.remote function.*monarch.inspect.*torch.where"):
        call(x)


MEMORY = (
    lambda x: x.data_ptr(),
    lambda x: x.storage(),
    lambda x: x.untyped_storage(),
    lambda x: x.share_memory_(),
    lambda x: x.__dlpack__(),
)


@pytest.mark.parametrize("call", MEMORY)
def test_memory_is_elsewhere(x: Any, call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"needs the memory of a tensor.*monarch.inspect"):
        call(x)


def test_a_truth_of_many(x: Any) -> None:
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(x)
    with pytest.raises(RuntimeError, match="6 elements cannot be converted to Scalar"):
        x.item()


def test_printing_shows_what_is_known(x: Any) -> None:
    for text in (repr(x), str(x), f"{x}"):
        assert text.startswith("monarch.Tensor(mesh=<DeviceMesh(names(('gpus',)), processes([0, 1]))")
        assert "stream 'main', size=(2, 3), dtype=torch.float32, device=cpu)" in text
    assert "requires_grad=True" in repr(x.clone().requires_grad_())


def test_pickling(x: Any) -> None:
    for call in (lambda: pickle.dumps(x), lambda: pickle.dump({"x": x}, io.BytesIO())):
        with pytest.raises(TypeError, match=r"cannot be pickled here.*monarch.inspect\(tensor\) gives a local tensor"):
            call()


def test_coordinates(loop: Any, x: Any) -> None:
    with pytest.raises(ValueError, match="gpus=5 is outside the mesh, which has size 2"):
        mt.inspect(x, {"gpus": 5})
    with pytest.raises(ValueError, match="gpus=-1 is outside"):
        mt.fetch_shard(x, gpus=-1)
    with pytest.raises(KeyError, match="no dimension 'gpu': its dimensions are"):
        mt.inspect(x, {"gpu": 0})
    with pytest.raises(TypeError, match="gpus='a' is not a number"):
        mt.inspect(x, gpus="a")  # type: ignore[arg-type]
    with loopback(hosts=2, gpus=2) as mesh:
        with pytest.raises(ValueError, match=r"Missing key 'gpus' in shard map. Need all of \('hosts', 'gpus'\)"):
            mt.inspect(torch.ones(1), hosts=1)
        with pytest.raises(ValueError, match="Missing key"), mesh.slice(gpus=slice(0, 1)).activate():
            mt.inspect(torch.ones(1), hosts=0)


def test_tensors_that_are_not_dense(x: Any) -> None:
    quantize = torch.ops.aten.quantize_per_tensor
    for kind, call in (
        ("sparse_coo", x.to_sparse), ("sparse_csr", x.to_sparse_csr), ("quantized", lambda: quantize(x, 0.1, 0, torch.qint8)),
    ):  # fmt: skip
        with pytest.raises(
            NotImplementedError, match=f"are dense, and this operation makes a {kind} one.*monarch.remote"
        ):
            call()


def test_generators(loop: Any) -> None:
    for call in (
        lambda g: torch.rand(2, generator=g),
        lambda g: torch.ones(2).normal_(generator=g),
        lambda g: torch.randperm(3, generator=g),
    ):
        with mt.no_mesh.activate():
            early = torch.Generator()
        with pytest.raises(TypeError, match=r"was made without an active mesh.*make it inside `with mesh.activate"):
            call(early)


@pytest.fixture
def operations() -> Iterator[Any]:
    """Operations of a program's own: one that torch can predict, and one that it cannot."""
    library = torch.library.Library("monarch_tests", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("opaque(Tensor x) -> Tensor")
    for name in ("twice", "opaque"):
        library.impl(name, lambda x: x * 2, "CPU")
    torch.library.register_fake("monarch_tests::twice", torch.empty_like, lib=library)
    yield torch.ops.monarch_tests
    library._destroy()


def test_operations_of_ones_own(x: Any, operations: Any) -> None:
    assert mt.inspect(operations.twice(x)).tolist() == [[2.0] * 3] * 2
    with pytest.raises(NotImplementedError, match=r"monarch_tests.opaque.default.*monarch.remote.*register_fake"):
        operations.opaque(x)


def test_arguments_that_cannot_be_hashed(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a call is worked out each time, and its definitions are forgotten with the others."""
    engine = loop.client
    monkeypatch.setattr("monarch.tensor.controller.engine.SIGNATURES", 4)

    for _ in range(20):
        engine.define({"no": "hash"}, (1, 2))
    engine.flush()
    assert all(len(one.signatures) <= 9 for one in engine.executors)


def test_activations_end_in_order(loop: Any) -> None:
    outer = loop.activate()
    inner = loop.activate()
    with pytest.raises(RuntimeError, match="opposite order"):
        outer.end()
    inner.end()
    outer.end()
    other = Loopback(gpus=1).root
    with pytest.raises(RuntimeError, match="not the active mesh"):
        other.deactivate()


def test_packed_sequences_are_refused_where_they_are_made(loop: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"pack_padded_sequence\(\): .* Give the network the padded batch"):
        torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 4), torch.tensor([3, 1]))
