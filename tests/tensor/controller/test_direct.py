"""Operators that go around torch's dispatcher: only where it would do nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import monarch
from monarch.tensor.controller import dispatch
from monarch.tensor.controller.direct import OPERATIONS, SEVERAL, WITH_NUMBER


class Seen(TorchDispatchMode):
    """The operations that come to it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def operands(name: str) -> list[tuple[Any, ...]]:
    """Arguments for the method besides its tensor."""
    if len([argument for argument in OPERATIONS[name]._schema.arguments if not argument.kwarg_only]) == 1:
        return [()]
    other = (torch.full((3, 3), 1.5),)
    return [other] if OPERATIONS[name] is torch.ops.aten.mm.default else [other, (2.5,), (3,)]


def same(one: Any, other: Any) -> bool:
    return one is other if isinstance(one, torch.Tensor) else (type(one), one) == (type(other), other)


@pytest.mark.parametrize("name", OPERATIONS)
def test_torch_does_the_same_operation_with_the_same_arguments(name: str) -> None:
    for others in operands(name):
        tensor = torch.full((3, 3), 4.0)
        with Seen() as seen:
            getattr(tensor, name)(*others)
        ((op, args, kwargs),) = seen.calls
        number = others and not isinstance(others[0], torch.Tensor)
        assert op is (WITH_NUMBER.get(OPERATIONS[name], OPERATIONS[name]) if number else OPERATIONS[name])
        assert not kwargs
        assert len(args) == 1 + len(others)
        assert all(map(same, args, (tensor, *others)))


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name.startswith(("add", "sub"))])
def test_a_factor_is_a_number_of_that_name(name: str) -> None:
    for (other,) in operands(name):
        tensor = torch.full((3, 3), 4.0)
        with Seen() as seen:
            getattr(tensor, name)(other, alpha=-0.5)
        ((op, args, kwargs),) = seen.calls
        assert op is OPERATIONS[name] and len(args) == 2 and kwargs == {"alpha": -0.5}


@pytest.fixture
def issued(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Gives what came through torch's dispatcher."""
    came: list[Any] = []
    operate = dispatch.operate

    def noted(func: Any, *rest: Any) -> Any:
        came.append(func)
        return operate(func, *rest)

    monkeypatch.setattr(dispatch, "operate", noted)
    yield came


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_known_call_goes_straight_to_the_mesh(loop: Any, issued: list[Any], name: str) -> None:
    with monarch.no_mesh.activate():
        given = operands(name)
    for others in given:
        here = getattr(torch.Tensor, name)
        with monarch.no_mesh.activate():
            local = torch.full((3, 3), 4.0)
            want = [here(local, *others).clone() for _ in range(2)]
        tensor = torch.full((3, 3), 4.0)
        there = [torch.full((3, 3), 1.5) if isinstance(other, torch.Tensor) else other for other in others]
        got = [getattr(tensor, name)(*there).clone()]
        issued.clear()
        result = getattr(tensor, name)(*there)
        assert issued == []
        got.append(result.clone())
        assert (result is tensor) == OPERATIONS[name]._schema.is_mutable
        values = monarch.inspect(got)
        with monarch.no_mesh.activate():
            torch.testing.assert_close(values, want, rtol=0, atol=0)


@pytest.mark.parametrize("named", [{}, {"value": -0.5}, {"value": 2}], ids=str)
@pytest.mark.parametrize("name", SEVERAL)
def test_what_optimizers_are_made_of_goes_straight_to_the_mesh(
    loop: Any, issued: list[Any], name: str, named: dict[str, Any]
) -> None:
    def done(straight: bool) -> list[Any]:
        tensor, other = torch.full((3, 3), 4.0), torch.full((3, 3), 1.5)
        rest, kwargs = ((0.25,), {}) if name == "lerp_" else ((other + 1,), named)
        found = []
        for count in range(3):
            issued.clear()
            with torch.no_grad():
                assert getattr(tensor, name)(other, *rest, **kwargs) is tensor
            assert not straight or not count or issued == []
            found.append(tensor.clone())
        with pytest.raises(TypeError, match="argument"), torch.no_grad():
            getattr(tensor, name)(other, *rest, **kwargs, another=1)
        issued.clear()
        weight = torch.ones(3, 3, requires_grad=True)
        getattr(tensor, name)(weight, *rest, **kwargs).sum().backward()  # torch records the derivative
        assert SEVERAL[name] in issued or not straight
        return [*found, weight.grad]

    with monarch.no_mesh.activate():
        wanted = done(False)
    values = monarch.inspect(done(True))
    with monarch.no_mesh.activate():
        torch.testing.assert_close(values, wanted, rtol=0, atol=0)


def test_a_count_that_is_known_goes_straight_to_the_mesh_and_stays_known(loop: Any, issued: list[Any]) -> None:
    count, whole = torch.tensor(0.0), torch.arange(4)
    for _ in range(3):
        issued.clear()
        count += 1
        count.mul_(2)
        whole[1:].add_(1)
    assert count.item() == 14.0 == monarch.inspect(count).item()
    assert whole.tolist() == [0, 4, 5, 6] == monarch.inspect(whole).tolist()
    assert not {torch.ops.aten.add_.Tensor, torch.ops.aten.mul_.Tensor} & set(issued)


def test_autocast_has_its_say(loop: Any, issued: list[Any]) -> None:
    x = torch.ones(3, 3)
    assert (x @ x).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
        assert (x @ x + 1).dtype is torch.bfloat16
        assert (x + x).dtype is torch.float32
        issued.clear()
        assert (x + x).dtype is torch.float32
        assert issued == []
    assert (x @ x).dtype is torch.float32


@pytest.fixture
def x(loop: Any) -> Any:
    """A tensor with which the calls of these tests are known."""
    made = torch.full((2, 3), 4.0)
    for _ in range(2):
        made + made
        made * 2.0
        made.add_(made)
        made.add_(made, alpha=0.5)
    return made


def test_a_factor_goes_along(loop: Any, issued: list[Any], x: Any) -> None:
    y = torch.ones(2, 3)
    issued.clear()
    y.add_(y, alpha=-3.0).add_(y, alpha=2.0)
    assert issued == []
    assert monarch.inspect(y).tolist() == [[-6.0] * 3] * 2


def test_what_is_wrong_is_said_as_by_torch(loop: Any, x: Any) -> None:
    for wrong in (x.add_, lambda: x.neg(x), lambda: x.mul_(x, alpha=2), lambda: x.add(x, beta=1)):
        with pytest.raises(TypeError, match=r"(add_|neg|mul_|add)\(\)"):
            wrong()
    with pytest.raises(RuntimeError, match="broadcast"):
        x + torch.ones(4, 5)
    with pytest.warns(UserWarning, match="deprecated"):
        assert monarch.inspect(x.add(2, torch.ones(2, 3)) - x).tolist() == [[2.0] * 3] * 2


def test_derivatives_are_recorded(loop: Any, x: Any) -> None:
    w = torch.ones(2, 3, requires_grad=True)
    for _ in range(2):
        w.grad = None
        ((w + x) * 2.0 + (x + w)).sum().backward()
        assert monarch.inspect(w.grad).tolist() == [[3.0] * 3] * 2
    y = torch.ones(2, 3)
    y.add_(w)
    assert y.requires_grad and (y + x).requires_grad and not (y.detach() + x).requires_grad
    with torch.no_grad():
        assert not (w + x).requires_grad
        assert w.add_(x) is w
    view = x[:1]
    view.add_(w[:1])
    assert x.requires_grad and (x + x).requires_grad
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        w.add_(y)


def test_a_change_of_what_is_saved_is_noticed(loop: Any, x: Any) -> None:
    w = torch.ones(2, 3, requires_grad=True)
    for change in (lambda: x.add_(x), x[0].zero_, lambda: x.detach().add_(x, alpha=0.5)):
        change()
        before, product = x._version, (w * x).sum()
        change()
        assert x._version == before + 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_a_result_of_a_function_with_its_own_derivative(loop: Any, x: Any) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value + value

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2.0

    w = torch.ones(2, 3, requires_grad=True)
    (Twice.apply(w) + x).sum().backward()
    assert monarch.inspect(w.grad).tolist() == [[2.0] * 3] * 2


class _Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_see_them(loop: Any, x: Any) -> None:
    for mode in (Seen(), _Functions()):
        with mode:
            x + x
            x.add_(x)
        assert len(mode.calls) == 2
    with Seen() as outer, loop.activate():
        x + x
    assert not outer.calls  # the mesh is nearer
    with loop.activate(), Seen() as inner:
        x + x
    assert len(inner.calls) == 1
    with monarch.no_mesh.activate():
        x + x
        with Seen() as local:
            x + x
        assert len(local.calls) == 1
    with Seen() as last:
        x + x
    assert len(last.calls) == 1


def test_activations_that_ended_leave_the_way_open(loop: Any, x: Any, issued: list[Any]) -> None:
    with loop.activate():
        x + x
    with monarch.no_mesh.activate():
        x + x
        with loop.activate():
            x + x
    with pytest.raises(ValueError), loop.activate():
        raise ValueError
    x + x
    assert issued == []


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated")
def test_who_watches_torch_sees_them(loop: Any, x: Any) -> None:
    with torch.profiler.profile() as profile:
        x + x
    assert any(event.name == "aten::add" for event in profile.events())
    traced: Callable[[Any], Any] = torch.jit.trace(lambda value: value + value, (x,), check_trace=False)
    assert "aten::add" in str(traced.graph)  # type: ignore[attr-defined]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(2, 3))
        assert forward_ad.unpack_dual(dual + x).tangent is not None
        assert forward_ad.unpack_dual(x + dual).tangent is not None


def test_tensors_of_inference_mode(loop: Any, x: Any) -> None:
    with torch.inference_mode():
        made = x + x
        before = x._version
        made.add_(x)
        x.add_(x)
        assert x._version == before + 1
    assert made.is_inference() and not (made + x).is_inference()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        made.add_(x)


def test_what_may_not_be_used_is_refused(loop: Any, x: Any) -> None:
    y = torch.ones(2, 3)
    other = monarch.Stream("other")
    with other.activate(), pytest.raises(TypeError, match="WRONG_STREAM"):
        y + y
    part = torch.ones(2, 3)
    with loop.slice(gpus=0).activate():
        there = torch.ones(2, 3)
        with pytest.raises(TypeError, match="WRONG_MESH"):
            part + there
    borrowed, borrow = other.borrow(y)
    for change in (lambda: y.add_(y), lambda: y.add_(x)):
        with pytest.raises(TypeError, match="MUTATING_BORROW"):
            change()
    with other.activate():
        borrowed + borrowed
    borrow.drop()
    y.drop()
    for use in (lambda: y + x, lambda: x + y, lambda: y * 2.0, lambda: x.add_(y), lambda: -y):
        with pytest.raises(TypeError, match="DROPPED"):
            use()


def test_the_default_dtype_counts(loop: Any) -> None:
    count = torch.ones(2, 3, dtype=torch.int64)
    assert (count / count).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (count / count).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert (count / count).dtype is torch.float32


def test_errors_show_the_line(loop: Any, x: Any) -> None:
    frames = loop.client.issued.frames((x + x).ref)
    assert frames[-1].name == "test_errors_show_the_line" and frames[-1].line is not None
    assert "(x + x).ref" in frames[-1].line
