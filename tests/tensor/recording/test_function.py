"""`monarch.function`: first as ever, then recorded, then replayed; with training inside."""

from __future__ import annotations

import gc
import importlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import monarch
from monarch.tensor import RemoteException, Stream, function, inspect
from monarch.tensor.controller.activation import no_modes
from monarch.tensor.worker.recorded import RecordedSegment
from tests.tensor.recording.looked_at import local, values


def runs(mesh: Any, call: Callable[[], Any]) -> int:
    """Returns how many commands `call` issues."""
    before = len(mesh.client.runs())
    kept = call()
    found = len(mesh.client.runs()) - before
    del kept
    return found


def recordings(mesh: Any) -> int:
    """Returns how many of them rank 0 keeps."""
    return sum(type(defined.call) is RecordedSegment for defined in mesh.client.executors[0].signatures.values())


class Net:
    """A small network with fixed weights, and steps of training it."""

    def __init__(self, optimizer: Callable[..., Any], zero: str, clip: bool) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        with torch.no_grad():
            for number, weight in enumerate(self.model.parameters()):
                weight.copy_(torch.linspace(-1 - number, 1, weight.numel()).reshape(weight.shape))
        self.optimizer = optimizer(self.model.parameters())
        self.zero = zero
        self.clip = clip

    def step(self, x: Any, y: Any) -> Any:
        if self.zero == "before":
            self.optimizer.zero_grad()
        loss = (self.model(x) - y).pow(2).mean()
        loss.backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.zero == "after":
            self.optimizer.zero_grad()
        return loss

    def train(self, mesh: Any, step: Any, steps: int = 6) -> list[Any]:
        """Losses, weights and gradients along the way."""
        found = []
        for number in range(steps):
            x = torch.linspace(0, 1 + number, 20).reshape(5, 4)
            y = torch.full((5, 1), float(number))
            if self.zero == "outside":
                self.optimizer.zero_grad()
            found.append(local(mesh, step(x, y)))
            for weight in self.model.parameters():
                found.append(local(mesh, weight))
                found.append(local(mesh, weight.grad) if weight.grad is not None else None)
        return found


def same(first: list[Any], second: list[Any]) -> bool:
    with no_modes():
        return len(first) == len(second) and all(
            (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
            for a, b in zip(first, second, strict=True)
        )


OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01, fused=True),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, fused=True),
}


@pytest.mark.parametrize(
    ("optimizer", "zero", "clip"),
    [
        ("sgd", "before", True),
        ("sgd", "after", False),
        ("sgd", "outside", False),
        ("sgd", "never", True),
        ("adam", "before", False),
        ("adam", "after", True),
        ("adam", "outside", True),
        ("adam", "never", False),
        ("adamw", "before", True),
        ("adamw", "outside", False),
    ],
)
def test_training_is_what_it_is_op_by_op(loop: Any, optimizer: str, zero: str, clip: bool) -> None:
    plain = Net(OPTIMIZERS[optimizer], zero, clip)
    traced = Net(OPTIMIZERS[optimizer], zero, clip)
    step = function(traced.step)
    assert same(plain.train(loop, plain.step), traced.train(loop, step))
    assert step.traces == 1


def test_a_step_is_one_command(loop: Any) -> None:
    net = Net(OPTIMIZERS["adam"], "before", clip=True)
    step = function(net.step)
    x, y = torch.ones(5, 4), torch.zeros(5, 1)
    assert runs(loop, lambda: step(x, y)) > 50
    assert runs(loop, lambda: step(x, y)) > 50
    assert runs(loop, lambda: step(x, y)) == 1


def test_gradients_over_several_calls_add_up(loop: Any) -> None:
    def train(step: Callable[[Any], Any]) -> list[Any]:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        found = []
        call = step(lambda x: (weight * x).sum().backward())
        for number in range(16):
            call(torch.full((3,), float(number)))
            found.append(local(loop, weight.grad))
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        return [*found, local(loop, weight)]

    assert same(train(lambda fn: fn), train(function))


def test_two_kinds_of_call_leave_the_gradients_of_the_last(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(3))

    @function
    def call(x: Any) -> Any:
        weight.grad = None
        (weight * x.sum()).sum().backward()

    for _ in range(4):
        for count in (1, 2):
            call(torch.ones(count))
            assert weight.grad is not None
            assert values(loop, weight.grad) == [float(count)] * 3
    assert call.traces == 2


def test_results_are_new_and_without_a_graph(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    call = function(lambda x: {"out": weight * x, "in": x})
    seen = []
    for number in range(5):
        x = torch.full((3,), float(number))
        made = call(x)
        assert made["in"] is x
        assert not made["out"].requires_grad
        seen.append(made["out"])
    assert [values(loop, out)[0] for out in seen] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_dropout_draws_new_numbers(loop: Any) -> None:
    call = function(lambda x: torch.nn.functional.dropout(x, 0.5))
    x = torch.ones(64)
    found = [values(loop, call(x)) for _ in range(6)]
    assert call.traces == 1
    assert all(first != second for first, second in itertools.pairwise(found))
    assert {number for one in found for number in one} == {0.0, 2.0}


def test_training_mode_is_part_of_the_kind(loop: Any) -> None:
    model = torch.nn.Dropout(0.5)
    call = function(model)
    x = torch.ones(64)
    for _ in range(3):
        call(x)
    model.eval()
    for _ in range(3):
        assert values(loop, call(x)) == [1.0] * 64
    model.train()
    assert 0.0 in values(loop, call(x))


def test_other_tensors_that_stay_behind_have_new_values(loop: Any) -> None:
    class State:
        last: Any = None

    state = State()

    @function
    def call(x: Any) -> Any:
        state.last = x + 1
        return x * 2

    for number in range(5):
        call(torch.full((2,), float(number)))
        assert values(loop, state.last) == [number + 1.0] * 2


def test_state_that_is_replaced_is_not_replayed(loop: Any) -> None:
    state = [torch.zeros(1)]

    @function
    def call() -> Any:
        state[0] = state[0] + 1
        return state[0] * 1

    found = []
    with pytest.warns(RuntimeWarning, match="is replaced by a new one each time: change it in place"):
        for _ in range(6):
            found.append(values(loop, call())[0])
    assert found == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_tensor_that_the_program_replaces_is_recorded_anew(loop: Any) -> None:
    state = [torch.ones(1)]
    call = function(lambda: state[0] + 1)
    for _ in range(3):
        assert values(loop, call()) == [2.0]
    state[0] = torch.full((1,), 5.0)
    for _ in range(3):
        assert values(loop, call()) == [6.0]
    assert call.traces == 1


def test_numbers_that_are_read_end_recording_with_one_warning(loop: Any) -> None:
    count = torch.tensor(0.0)

    @function
    def call(x: Any) -> Any:
        count.add_(1)
        return x * count.item()

    with pytest.warns(RuntimeWarning, match=r"call runs operation by operation .* item\(\).*fused=True") as told:
        found = [values(loop, call(torch.ones(1))) for _ in range(5)]
    assert len(told) == 1
    assert call.traces == 0
    assert found == [[1.0], [2.0], [3.0], [4.0], [5.0]]


def test_fetching_ends_recording(loop: Any) -> None:
    @function
    def call(x: Any) -> Any:
        return x * float(inspect(x.sum()).tolist())

    found = []
    with pytest.warns(RuntimeWarning, match="fetching results") as told:
        for number in range(4):
            found.append(values(loop, call(torch.full((2,), float(number)))))
    assert found == [[0.0] * 2, [2.0] * 2, [8.0] * 2, [18.0] * 2]
    assert len(told) == 1


def test_a_gradient_in_an_argument_ends_recording(loop: Any) -> None:
    call = function(lambda x: (x * 2).sum().backward())
    with pytest.warns(RuntimeWarning, match="leaves a gradient in an argument"):
        for _ in range(4):
            x = torch.ones(2, requires_grad=True)
            call(x)
            assert values(loop, x.grad) == [2.0] * 2


def test_derivatives_of_arguments(loop: Any) -> None:
    call = function(lambda x: torch.autograd.grad((x * x).sum(), x)[0])
    for number in range(4):
        x = torch.full((2,), float(number), requires_grad=True)
        assert values(loop, call(x)) == [2.0 * number] * 2
    assert call.traces == 1


def test_arguments_that_cannot_be_compared(loop: Any) -> None:
    call = function(lambda x, names: x + len(names))
    with pytest.warns(RuntimeWarning, match="unhashable"):
        assert values(loop, call(torch.ones(1), {"a", "b"})) == [3.0]
    assert values(loop, call(torch.ones(1), {"a"})) == [2.0]


def test_values_and_trees_of_arguments(loop: Any) -> None:
    call = function(lambda x, scale=1, *, more: x["a"] * scale + more[0])
    for _ in range(4):
        for scale in (2, 3):
            made = call({"a": torch.ones(1)}, scale, more=[torch.full((1,), 10.0)])
            assert values(loop, made) == [10.0 + scale]
    assert call.traces == 2


def test_grad_mode_is_part_of_the_kind(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    call = function(lambda: torch.autograd.grad((weight * 2).sum(), weight)[0])
    for _ in range(3):
        assert values(loop, call()) == [2.0]
    with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
        call()
    assert call.traces == 1


def test_methods(loop: Any) -> None:
    class Owner:
        def __init__(self, by: int) -> None:
            self.by = by

        @function
        def call(self, x: Any) -> Any:
            return x + self.by

    one, two = Owner(1), Owner(2)
    for _ in range(4):
        assert values(loop, one.call(torch.zeros(1))) == [1.0]
        assert values(loop, two.call(torch.zeros(1))) == [2.0]
    assert Owner.call.traces == 2


def test_nested_it_is_part_of_the_outer_one(loop: Any) -> None:
    inner = function(lambda x: x * weight)
    weight = torch.nn.Parameter(torch.full((1,), 3.0))
    outer = function(lambda x: torch.autograd.grad(inner(x).sum(), weight)[0])
    for number in range(4):
        assert values(loop, outer(torch.full((1,), float(number)))) == [float(number)]
    assert (outer.traces, inner.traces) == (1, 0)


def test_in_a_coalescing_block(loop: Any) -> None:
    call = function(lambda x: x + 1)
    x = torch.ones(1)
    for _ in range(2):
        with monarch.coalescing():
            made = call(x)
        assert values(loop, made) == [2.0]
    for _ in range(2):
        call(x)
    with monarch.coalescing():
        made = call(call(x))
    assert values(loop, made) == [3.0]


def test_an_exception_in_the_second_call(loop: Any) -> None:
    fails = False

    @function
    def call(x: Any) -> Any:
        x.add_(1)
        if fails:
            raise ZeroDivisionError
        return x * 2

    x = torch.zeros(1)
    call(x)
    fails = True
    with pytest.raises(ZeroDivisionError):
        call(x)
    fails = False
    assert [values(loop, call(x)) for _ in range(3)] == [[6.0], [8.0], [10.0]]
    assert call.traces == 1


def test_a_write_is_seen_by_autograd(loop: Any) -> None:
    call = function(lambda x: x.add_(1))
    for number in range(4):
        x = torch.ones(2)
        weight = torch.ones(2, requires_grad=True)
        made = (weight * x).sum()
        call(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made.backward()
        assert call.traces == (number > 0)


def test_a_write_of_a_variable_is_seen_by_autograd(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(2))

    @function
    def call() -> Any:
        with torch.no_grad():
            weight.add_(1)

    for number in range(4):
        made = (weight * weight).sum()
        call()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made.backward()
        assert call.traces == (number > 0)


def test_recordings_are_bounded(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("monarch.tensor.recording.function"), "TRACES", 2)
    call = function(lambda x, n: x + n)
    x = torch.ones(1)
    for n in (1, 2, 3):
        for _ in range(3):
            assert values(loop, call(x, n)) == [n + 1.0]
    assert call.traces == 2
    for one in loop.client.executors:
        assert (
            sum("recording" in defined.name() for defined in one.signatures.values() if defined.call is not None) == 2
        )


def test_nothing_is_left_on_the_workers(loop: Any) -> None:
    net = Net(OPTIMIZERS["adamw"], "before", clip=True)
    step = function(net.step)
    x, y = torch.ones(5, 4), torch.zeros(5, 1)
    for _ in range(3):
        step(x, y)
    loop.client.living()
    start = [len(refs) for refs in loop.client.living()]
    for _ in range(5):
        step(x, y)
    assert [len(refs) for refs in loop.client.living()] == start
    del step, net
    gc.collect()
    assert [len(refs) for refs in loop.client.living()] == [2, 2]
    assert not recordings(loop)


def test_a_failure_names_the_operation(loop: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(3))

    @function
    def call(index: Any) -> Any:
        weight.grad = None
        picked = weight[index] * 2
        picked.sum().backward()
        with torch.no_grad():
            weight.add_(1)
        return picked, index + 1

    good = torch.tensor([1])
    for _ in range(3):
        call(good)
    picked, other = call(torch.tensor([7]))
    for made in (picked, other, weight.detach(), weight.grad):
        with pytest.raises(
            RemoteException,
            match=r"aten.index.Tensor \(operation \d of \d+ of .*call, .*test_function.py:\d+ in call\)",
        ) as raised:
            inspect(made)
    assert isinstance(raised.value.__cause__, IndexError)
    loop.client.sync()


# --- between processes ----------------------------------------------------------------------------------------


def test_training_between_processes(mesh: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ranks = mesh.rank("gpus").float()

    @function
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = ((x + ranks) @ weight).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            weight.grad.reduce_("gpus", reduction="avg")
        optimizer.step()
        return loss

    def alone() -> list[float]:
        with no_modes():
            weight = torch.nn.Parameter(torch.ones(4, 4))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            losses = []
            for number in range(6):
                optimizer.zero_grad()
                both = [((torch.full((2, 4), number * 0.1) + rank) @ weight).pow(2).mean() for rank in (0.0, 1.0)]
                (sum(both) / 2).backward()
                optimizer.step()
                losses.append(both[1].item())
            return losses

    found = [inspect(step(torch.full((2, 4), number * 0.1)), gpus=1).tolist() for number in range(6)]
    assert found == pytest.approx(alone(), rel=1e-5)
    assert step.traces == 1


def test_a_failure_on_one_rank_reaches_those_that_reduce_with_it(mesh: Any) -> None:
    ranks = mesh.rank("gpus")

    @function
    def call(limit: Any) -> Any:
        picked = torch.ones(2)[(ranks + limit).reshape(1)]
        total = picked.reduce("gpus")
        again = (total + 1).reduce("gpus")
        return again

    for _ in range(3):
        assert inspect(call(torch.tensor(0))).tolist() == [6.0]
    made = call(torch.tensor(1))  # out of bounds on rank 1
    for rank in (0, 1):
        with pytest.raises(RemoteException, match="out of bounds"):
            inspect(made, gpus=rank)
    assert inspect(call(torch.tensor(0))).tolist() == [6.0]


def test_moves_between_meshes(mesh: Any) -> None:
    first, second = mesh.slice(gpus=0), mesh.slice(gpus=1)
    with first.activate():
        a = torch.ones(2)

    @function
    def call(x: Any) -> Any:
        there = (x * 2).to_mesh(second)
        return (there + 1).to_mesh(first)

    with first.activate():
        for number in range(5):
            a.fill_(number)
            assert inspect(call(a)).tolist() == [2.0 * number + 1] * 2
    assert call.traces == 1


def test_streams(mesh: Any) -> None:
    other = Stream("other")
    total = torch.zeros(2)

    @function
    def call(x: Any) -> Any:
        there, borrow = other.borrow(x)
        with other.activate():
            made = there + 1
        borrow.drop()
        back, again = monarch.get_active_stream().borrow(made)
        total.add_(back)
        again.drop()
        return total * 1

    expected = 0.0
    for number in range(6):
        expected += number + 1
        assert inspect(call(torch.full((2,), float(number)))).tolist() == [expected] * 2
    assert call.traces == 1


@monarch.remote(propagate=torch.empty_like)
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_remote_functions(mesh: Any) -> None:
    @monarch.remote
    def found_out(x: torch.Tensor, by: int) -> torch.Tensor:
        return x + by

    for wrapped in (function, monarch.tensor.compile):
        call = wrapped(lambda x: found_out(doubled(x), 3).clone())
        for number in range(5):
            assert inspect(call(torch.full((2,), float(number)))).tolist() == [2.0 * number + 3] * 2


def test_no_warning_is_given_where_none_is_due(mesh: Any) -> None:
    call = function(lambda x: x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            assert inspect(call(torch.ones(1))).tolist() == [2.0]


# --- memory


def test_a_sum_takes_the_memory_of_an_operand_that_ends(mesh: Any) -> None:
    @monarch.function
    def both(x: Any) -> Any:
        product = x * 2  # ends in the sum
        kept = x * 3  # does not: it is given back
        part = (x * 5)[:2]  # lies in memory that nothing else names, but the sum has another shape
        seen = x * 7
        view = seen.view(-1)  # lies in `seen`, which ends before it does
        total = seen + kept
        return product + kept, kept, part + part, total, view

    x = torch.arange(4.0)
    for _ in range(4):
        found = [value.tolist() for value in monarch.inspect(both(x))]
        assert found == [[0, 5, 10, 15], [0, 3, 6, 9], [0, 10], [0, 10, 20, 30], [0, 7, 14, 21]]
    assert monarch.inspect(x).tolist() == [0, 1, 2, 3]


def test_the_default_dtype_inside_is_kept(mesh: Any) -> None:
    @monarch.function
    def doubled(x: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.ones(2)
        finally:
            torch.set_default_dtype(torch.float32)

    for _ in range(4):
        result = doubled(torch.full((2,), 1 / 3))
        assert result.dtype is torch.float64
        assert monarch.inspect(result).dtype is torch.float64
