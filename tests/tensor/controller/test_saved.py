"""Tensors that autograd keeps for its derivatives: they share the record of the program's, which notices nothing of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import monarch

SAVING: dict[str, Callable[[Any], Any]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "softmax": lambda x: x.softmax(1),
    "norm": lambda x: F.layer_norm(x, (3,)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])[0],
}


def given() -> Any:
    """A tensor that requires grad and was computed, where torch works now."""
    return torch.arange(6.0).view(2, 3).requires_grad_() * 0.5


def alike(loop: Any, program: Callable[[], Any]) -> None:
    """`program` gives the same here, on plain tensors, and on the mesh; or the same error."""

    def told() -> Any:
        try:
            return program()
        except RuntimeError as error:
            return str(error).split(":")[0].replace("monarch.Tensor", "").split("[")[0]

    with monarch.no_mesh.activate():
        wanted = told()
    found = told()
    if isinstance(wanted, str) or isinstance(found, str):
        assert wanted == found
        return
    found = monarch.inspect(found)
    with monarch.no_mesh.activate():
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["tanh", "relu", "softmax"])
def test_what_autograd_keeps_of_a_result_is_no_command(loop: Any, name: str) -> None:
    x = given()
    _ = SAVING[name](x)
    results = [SAVING[name](x) for _ in range(3)]
    first, second, third = (result.ref for result in results)
    assert third - second == second - first == 1


@pytest.mark.parametrize("name", SAVING)
def test_derivatives_twice_and_without_the_result(loop: Any, name: str) -> None:
    def program() -> list[Any]:
        x = given()
        x.retain_grad()
        out = SAVING[name](x)
        total = (out * out).sum()
        del out
        gc.collect()
        (once,) = torch.autograd.grad(total, x, create_graph=name != "attention", retain_graph=True)
        if name != "attention":
            once.square().sum().backward()
            return [once.detach(), x.grad]
        return [once]

    alike(loop, program)


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.transpose_(0, 1),
        lambda y: y.unsqueeze_(0),
        lambda y: y.mul_(2),
        lambda y: y.detach().transpose_(0, 1).mul_(2),
        lambda y: y.data.transpose_(0, 1),
        lambda y: y.data.mul_(0.5),
        lambda y: setattr(y, "data", torch.ones(3, 2)),
    ],
    ids=["transpose_", "unsqueeze_", "mul_", "detach", "data.transpose_", "data.mul_", "data ="],
)
def test_a_result_that_is_changed_afterwards(loop: Any, change: Callable[[Any], Any]) -> None:
    def program() -> list[Any]:
        x = given()
        x.retain_grad()
        y = torch.tanh(x)
        with torch.no_grad():
            change(y)
        y.sum().backward()
        return [y.detach(), x.grad]

    alike(loop, program)


def test_shape_and_strides_are_those_of_the_tensor_that_was_changed(loop: Any) -> None:
    y = torch.tanh(given())
    kept = y.grad_fn._saved_result
    assert kept.ref == y.ref
    with torch.no_grad():
        y.transpose_(0, 1)
    assert tuple(y.shape) == (3, 2)
    assert tuple(kept.shape) == tuple(kept._record.meta.shape) == (2, 3)
    assert kept.ref != y.ref


def test_what_the_program_detaches_is_a_tensor_of_its_own(loop: Any) -> None:
    y = torch.tanh(given())
    found = [y.detach(), torch.detach(y), y.data]
    with torch.no_grad():
        found.append(y.detach())
    assert len({tensor.ref for tensor in (y, *found)}) == 5
    kept = y.grad_fn._saved_result
    assert kept.ref == y.ref


def test_the_memory_goes_with_the_last_of_them(loop: Any) -> None:
    y = torch.tanh(given())
    record = weakref.ref(y._record)
    node = y.grad_fn
    del y
    assert record() is not None
    del node
    gc.collect()
    assert record() is None


def test_a_dropped_result_cannot_be_derived(loop: Any) -> None:
    y = torch.tanh(given())
    total = y.sum()
    y.drop()
    with pytest.raises(TypeError, match="dropped"):
        total.backward()


def test_a_recorded_function_that_derives(loop: Any) -> None:
    def program() -> list[Any]:
        x = torch.arange(6.0).view(2, 3).requires_grad_()

        def step(factor: Any) -> Any:
            x.grad = None
            out = torch.tanh(x * factor)
            out.softmax(1).square().sum().backward()
            return out.detach() + x.grad

        run = step if not isinstance(x, monarch.Tensor) else monarch.function(step)
        return [run(torch.full((2, 3), 0.1 * number)) for number in range(5)]

    alike(loop, program)


# --- inference mode ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x.detach(),
        lambda x: x[0],
        lambda x: x.view(-1),
        lambda x: x.split(1)[1],
        lambda x: x.unbind(1)[0],
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_views_of_ordinary_tensors_in_inference_mode_are_ordinary(
    loop: Any, view: Callable[[Any], Any], requires_grad: bool
) -> None:
    def program() -> list[Any]:
        x = torch.arange(6.0).view(2, 3).clone().requires_grad_(requires_grad)
        with torch.inference_mode():
            seen, copy = view(x), view(x.clone())
            assert not seen.is_inference()
            assert copy.is_inference()
        if not requires_grad:
            seen.mul_(2)
        return [x.detach(), seen.detach() * 1, copy * 1]

    alike(loop, program)
