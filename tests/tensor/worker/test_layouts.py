"""Workers see that what an operation gives is what the program believes: shape, dtype, and where its elements lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import monarch
from monarch.tensor import RemoteException, function, inspect
from monarch.tensor.controller.activation import no_modes
from monarch.tensor.signature import CONTIGUOUS, Layout, OpCall, TensorHole, same_strides, with_strides


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    """Operations whose fake implementations say something else than what they do."""
    with torch.library._scoped_library("monarch_layouts", "DEF") as library:
        for name, kernel, fake in (
            ("transposed", lambda x: x.t().contiguous().t(), torch.empty_like),
            ("shorter", lambda x: x[:1].clone(), torch.empty_like),
            ("doubled", lambda x: x.double(), torch.empty_like),
            ("right", lambda x: x.t().contiguous().t(), lambda x: torch.empty_like(x.t().contiguous()).t()),
        ):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, kernel, "CPU")
            torch.library.register_fake(f"monarch_layouts::{name}", fake, lib=library)
        yield torch.ops.monarch_layouts


@pytest.mark.parametrize(
    ("name", "found", "said"),
    [
        ("transposed", r"float32\[2, 3\] with strides \(1, 2\)", r"float32\[2, 3\] with strides \(3, 1\)"),
        ("shorter", r"float32\[1, 3\] with strides \(3, 1\)", r"float32\[2, 3\]"),
        ("doubled", r"float64\[2, 3\]", r"float32\[2, 3\]"),
    ],
)
def test_an_operation_that_does_other_than_its_fake_says(
    loop: Any, library: Any, name: str, found: str, said: str
) -> None:
    made = getattr(library, name)(torch.arange(6.0).reshape(2, 3))
    text = rf"monarch_layouts.{name}.default gave {found}.*, and its fake implementation says {said}.*opcheck"
    told = rf"(?s)on rank 0.*test_layouts.py.*{text}"
    with pytest.raises(RemoteException, match=told):
        inspect(made.as_strided((2, 2), (2, 1)))


def test_in_a_recording_too(loop: Any, library: Any) -> None:
    call = function(lambda x: library.transposed(x) + 1)
    for _ in range(4):
        with pytest.raises(RemoteException, match=r"transposed.default gave float32\[2, 3\] with strides \(1, 2\)"):
            inspect(call(torch.ones(2, 3)))


def test_an_operation_that_does_what_its_fake_says(loop: Any, library: Any) -> None:
    call = function(lambda x: library.right(x).as_strided((3, 2), (2, 1)))
    for _ in range(4):
        assert inspect(call(torch.arange(6.0).reshape(2, 3))).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_kernel_of_torch_that_lays_out_otherwise(loop: Any, monkeypatch: pytest.MonkeyPatch, recorded: bool) -> None:
    """Keeps it as those of a GPU may: the program's view is kept."""
    from monarch.tensor import signature
    from monarch.tensor.worker import recorded as replay

    plain = signature.resolve_op

    def resolve(name: str) -> Any:
        op = plain(name)
        return (lambda *args: op(*args).t().contiguous().t()) if name == "aten.exp.default" else op

    monkeypatch.setattr(signature, "resolve_op", resolve)
    monkeypatch.setattr(replay, "resolve_op", resolve)

    def call(x: Any) -> Any:
        made = torch.exp(x)
        return made.as_strided((6,), (1,)), made.view(-1)

    run = function(call) if recorded else call
    with no_modes():
        expected = torch.arange(6.0).exp()
    for _ in range(4):
        for found in inspect(run(torch.arange(6.0).reshape(2, 3))):
            with no_modes():
                assert torch.equal(found, expected)


def test_operations_of_other_shapes_share_a_definition(loop: Any) -> None:
    for size in range(1, 6):
        made = torch.ones(size).exp()
    inspect(made)
    defined = [one.call for one in loop.client.executors[0].signatures.values() if type(one.call) is OpCall]
    assert [call.strides for call in defined if call.target == "aten.exp.default"] == [(CONTIGUOUS,)]


# --- remote functions ------------------------------------------------------------------------------------------


def test_a_remote_function_that_gives_other_than_it_says(loop: Any) -> None:
    shorter = monarch.remote(lambda x: x[:1], propagate=torch.empty_like)
    with pytest.raises(RemoteException, match=r"gave float32\[1, 3\].*where its `propagate` says float32\[2, 3\]"):
        inspect(shorter(torch.ones(2, 3)))
    doubled = monarch.remote(lambda x: x.double(), propagate=torch.empty_like)
    with pytest.raises(RemoteException, match=r"gave float64\[2, 3\].*where its `propagate` says float32\[2, 3\]"):
        inspect(doubled(torch.ones(2, 3)))


def test_a_remote_function_that_lays_out_otherwise(loop: Any) -> None:
    turned = monarch.remote(lambda x: x.t().contiguous().t(), propagate=torch.empty_like)
    assert inspect(turned(torch.arange(6.0).reshape(2, 3)).view(-1)).tolist() == [0, 1, 2, 3, 4, 5]


# --- pure ------------------------------------------------------------------------------------------------------


def test_strides_that_mean_the_same() -> None:
    assert same_strides(torch.empty(1, 3), (99, 1))
    assert same_strides(torch.empty(0, 3), (7, 9))
    assert not same_strides(torch.empty(2, 3), (1, 2))
    assert Layout((2, 3), (3, 1), torch.float32).fits(torch.empty(2, 3))
    assert not Layout((2, 3), (3, 1), torch.float32).fits(torch.empty(2, 3, dtype=torch.float64))
    x = torch.arange(6.0).reshape(2, 3)
    assert with_strides(x, (3, 1)) is x
    assert with_strides(x, (1, 2)).stride() == (1, 2)
    assert torch.equal(with_strides(x, (1, 2)), x)
    assert with_strides(x.t(), CONTIGUOUS).is_contiguous()


def test_a_result_that_is_contiguous_is_not_copied() -> None:
    run = OpCall("aten.relu_.default", [TensorHole(0)], {}, None, (), None, (CONTIGUOUS,)).prepare(None)
    x = torch.ones(2)
    assert run([x], ()) is x
