"""Gradients one at a time, and functions with a derivative of their own: on plain tensors and on distributed ones."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import get_gradient_edge

import monarch
from monarch.gradient import GradientGenerator, gradient_execution_order
from monarch.gradient_generator import GradGenerator, grad_function, grad_generator


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def chain() -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    x = torch.ones(2, 3)
    weights = [leaf(3, 3, seed=seed) for seed in range(3)]
    for weight in weights:
        x = (x @ weight).relu()
    return x.sum(), weights, x


# --- plain tensors


def test_the_order_of_execution_is_from_the_roots() -> None:
    loss, (w1, w2, w3), a = chain()
    assert gradient_execution_order([loss], [w2, w3, w1, a]) == [3, 1, 0, 2]
    unused = leaf(2)
    assert gradient_execution_order([loss], [unused, w1]) == [1, 0]
    assert gradient_execution_order([loss], [torch.ones(1), loss]) == [1, 0]


def test_gradients_are_those_of_autograd() -> None:
    loss, (w1, w2, w3), a = chain()
    unused = leaf(2)
    wanted = [w2, unused, w3, w1, a, w2]
    expected = torch.autograd.grad([loss], wanted, allow_unused=True, retain_graph=True)
    got = list(GradientGenerator([loss], wanted))
    assert len(got) == len(wanted) and got[1] is None and expected[1] is None
    assert all(torch.equal(g, e) for g, e in zip(got, expected, strict=True) if e is not None)


def test_several_roots_a_diamond_and_broadcasting() -> None:
    x, b, scale = leaf(4, 3), leaf(3, seed=1), leaf(1, seed=2)
    y = x * b
    left, right = (y + scale).tanh(), y.exp() + b
    roots = [(left * right).sum(), right.mean(), left]
    grads = [None, torch.tensor(3.0), torch.ones(4, 3) / 2]
    expected = torch.autograd.grad(roots, [x, b, scale, y], [torch.ones(()), grads[1], grads[2]], retain_graph=True)
    for got, want in zip(GradientGenerator(roots, [x, b, scale, y], grads), expected, strict=True):
        torch.testing.assert_close(got, want)


def test_one_root_is_a_root_and_edges_will_do() -> None:
    loss, weights, _ = chain()
    (only,) = grad_generator(loss, [weights[0]])
    (through,) = grad_generator([get_gradient_edge(loss)], [get_gradient_edge(weights[0])], [torch.ones(())])
    assert torch.equal(only, through)
    with pytest.raises(RuntimeError, match="has to be given in grad_roots"):
        grad_generator([get_gradient_edge(loss)], weights)
    with pytest.raises(RuntimeError, match="root 1 does not require grad"):
        grad_generator([loss, torch.ones(1)], weights)
    with pytest.raises(ValueError, match="2 gradients were given for 1 roots"):
        grad_generator([loss], weights, [None, None])


def test_only_as_much_runs_as_the_next_gradient_needs() -> None:
    ran: list[str] = []

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
            ctx.name = name
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            ran.append(ctx.name)
            return grad * 2, None

    x, y = leaf(2), leaf(2, seed=1)
    first = Note.apply(x, "first")
    second = Note.apply(first + y, "second")
    generator = grad_generator([Note.apply(second, "third").sum()], [second, y, x])
    assert ran == []
    next(generator)
    assert ran == ["third"]
    next(generator)
    assert ran == ["third", "second"]
    assert next(generator).tolist() == [8.0, 8.0]
    assert ran == ["third", "second", "first"]
    assert next(generator, "end") == "end"


def test_a_function_of_python_with_a_missing_gradient() -> None:
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            return first * 2 + second * 3

    x = leaf(3)
    a, _ = Two.apply(x)
    (got,) = grad_generator(a.sum(), [x])
    assert got.tolist() == [2.0] * 3


def test_mixed_precision_comes_back_in_the_dtype_of_the_tensor() -> None:
    x, scale = leaf(3), torch.full((3,), 2.0, dtype=torch.float64)
    (got,) = grad_generator((x * scale).sum(), [x])
    assert got.dtype == torch.float32 and got.tolist() == [2.0] * 3


def test_nothing_is_recorded_and_the_graph_stays() -> None:
    loss, weights, _ = chain()
    first = list(grad_generator(loss, weights))
    assert not any(grad.requires_grad for grad in first)
    assert all(torch.equal(a, b) for a, b in zip(first, grad_generator(loss, weights), strict=True))
    assert all(weight.grad is None for weight in weights)


@given(st.lists(st.tuples(st.sampled_from("+*-msx"), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=10))
def test_any_graph(program: list[tuple[str, int, int]]) -> None:
    leaves = [leaf(2, 2, seed=seed).double().detach().requires_grad_() for seed in range(2)]
    leaves.append(leaf(2, seed=5).double().detach().requires_grad_())
    values = list(leaves)
    for kind, i, j in program:
        a, b = values[i % len(values)], values[j % len(values)]
        made = {"+": lambda a, b: a + b, "*": lambda a, b: a * b, "-": lambda a, b: a - b}.get(kind)
        if made is not None:
            values.append(made(a, b))
        elif kind == "m":
            values.append(a.reshape(-1)[:2].sum() * b)
        elif kind == "s":
            values.append(torch.sin(a))
        else:
            values.append(torch.stack([a.sum(), b.sum()]).max() + b)
    root = values[-1].sum()
    wanted = [*leaves, *values[3:-1]]
    expected = torch.autograd.grad(root, wanted, allow_unused=True, retain_graph=True)
    for got, want in zip(grad_generator(root, wanted), expected, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want)


def test_trees() -> None:
    loss, (w1, w2, w3), a = chain()
    generator = GradGenerator()
    generator.root(loss)
    generator.root(a, torch.ones_like(a))
    generator.grad({"first": w1, "rest": [w2, 3, torch.ones(1)]})
    generator.grad(w3)
    trees = list(generator)
    expected = torch.autograd.grad([loss, a], [w1, w2, w3], [torch.ones(()), torch.ones_like(a)])
    assert trees[0]["rest"][1] is None and trees[0]["rest"][2] is None
    for got, want in zip([trees[0]["first"], trees[0]["rest"][0], trees[1]], expected, strict=True):
        torch.testing.assert_close(got, want)


def test_a_function_with_its_own_derivative() -> None:
    @grad_function
    def scaled(x: torch.Tensor, by: float, y: torch.Tensor) -> Any:
        def backward(grad: torch.Tensor) -> Any:
            return grad * by * y, None, None

        return x * by * y, backward

    x, y = leaf(3), leaf(3, seed=1)
    scaled(x, 2.0, y).sum().backward()
    torch.testing.assert_close(x.grad, 2 * y.detach())
    assert y.grad is None


def test_trees_in_and_out_of_a_function() -> None:
    @grad_function
    def both(pair: tuple[torch.Tensor, torch.Tensor], note: str) -> Any:
        a, b = pair
        return {"sum": a + b, "note": note, "same": a}, lambda total, same: ((total + same, total * 2), None)

    a, b = leaf(2), leaf(2, seed=1)
    got = both((a, b), "n")
    assert got["note"] == "n" and got["same"] is not a
    (got["sum"].sum() + 3 * got["same"].sum()).backward()
    assert a.grad.tolist() == [4.0, 4.0] and b.grad.tolist() == [2.0, 2.0]


def test_what_a_derivative_captures_is_saved_with_the_graph() -> None:
    @grad_function
    def squared(x: torch.Tensor) -> Any:
        result = x * x
        return result, lambda grad: grad * 2 * x + 0 * result

    x = leaf(3)
    result = squared(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    y = leaf(3)
    alive = weakref.ref(result)
    gc.collect()
    gc.disable()
    try:
        del result
        assert alive() is None  # no cycle through the result that it captures
    finally:
        gc.enable()
    squared(y).sum().backward()
    torch.testing.assert_close(y.grad, 2 * y.detach())


def test_what_is_wrong_with_a_function_is_said() -> None:
    with pytest.raises(TypeError, match="returns \\(result, backward\\)"):
        grad_function(lambda x: x)(leaf(1))
    wrong = grad_function(lambda x, y: (x * y, lambda grad: grad))
    with pytest.raises(RuntimeError, match="returned 1 gradients for 2 arguments"):
        wrong(leaf(1), leaf(1)).backward()


# --- distributed tensors


def test_gradients_come_back_on_the_mesh_of_their_forward(procs: Any) -> None:
    with procs.activate():
        x, y, z = torch.ones(2, 3), torch.full((3, 4), 2.0), torch.zeros(4)
        for tensor in (x, y, z):
            tensor.requires_grad_()
        loss = (x @ y + z).sum()
    with monarch.no_mesh.activate():
        grads = list(grad_generator(loss, [x, y, z]))
    assert all(isinstance(grad, monarch.Tensor) and grad.mesh is x.mesh for grad in grads)
    assert [monarch.inspect(grad, gpus=1).tolist() for grad in grads] == [[[8.0] * 3] * 2, [[2.0] * 4] * 3, [2.0] * 4]


def test_the_stream_of_the_forward_is_restored(procs: Any) -> None:
    other = monarch.Stream("other")
    with procs.activate(), other.activate():
        x = torch.ones(3, requires_grad=True)
        loss = (x * x).sum()
    (grad,) = grad_generator(loss, [x])
    assert grad.stream is other
    with other.activate():
        assert monarch.inspect(grad).tolist() == [2.0] * 3


def test_parts_of_a_mesh(procs: Any) -> None:
    one, two = procs.slice(gpus=0), procs.slice(gpus=1)
    with one.activate():
        x = torch.full((2,), 3.0, requires_grad=True)
        first = (x * x).sum()
    with two.activate():
        y = torch.full((2,), 4.0, requires_grad=True)
        second = (y * y * y).sum()
    got = list(grad_generator([first, second], [y, x]))
    assert [monarch.inspect(grad).tolist() for grad in got] == [[48.0] * 2, [6.0] * 2]
    assert got[0].mesh is y.mesh and got[1].mesh is x.mesh


def test_a_function_with_its_own_derivative_on_a_mesh(procs: Any) -> None:
    @grad_function
    def clipped(x: torch.Tensor) -> Any:
        inside = x.abs() < 1

        def backward(grad: torch.Tensor) -> torch.Tensor:
            return torch.where(inside, grad, torch.zeros(grad.shape))  # a factory: on the mesh of the forward

        return x.clamp(-1, 1), backward

    with procs.activate():
        x = torch.tensor([-2.0, 0.5, 3.0]).requires_grad_()
        loss = (clipped(x) * 2).sum()
    loss.backward(retain_graph=True)
    assert monarch.inspect(x.grad).tolist() == [0.0, 2.0, 0.0]
    (grad,) = grad_generator(loss, [x])
    assert monarch.inspect(grad, gpus=1).tolist() == [0.0, 2.0, 0.0]


def test_a_pipeline_over_two_meshes(procs: Any) -> None:
    first, second = procs.slice(gpus=0), procs.slice(gpus=1)

    def move(x: torch.Tensor, to: Any) -> Any:
        home = x.mesh  # type: ignore[attr-defined]
        return x.to_mesh(to), lambda grad: (grad.to_mesh(home), None)  # type: ignore[attr-defined]

    carried = grad_function(move)
    with first.activate():
        x = torch.full((2, 3), 2.0).requires_grad_()
        y = x * x
    y = carried(y, second)
    with second.activate():
        w = torch.full((3,), 5.0).requires_grad_()
        loss = (y * w).sum()
    got = list(grad_generator(loss, [w, x]))
    assert got[0].mesh is w.mesh and got[1].mesh is x.mesh
    assert monarch.inspect(got[0]).tolist() == [8.0] * 3
    assert monarch.inspect(got[1]).tolist() == [[20.0] * 3] * 2
    loss.backward()
    assert monarch.inspect(x.grad).tolist() == [[20.0] * 3] * 2
