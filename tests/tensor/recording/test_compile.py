"""`monarch.tensor.compile`: recorded once, replayed in one command."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import monarch
from monarch.common import _coalescing
from monarch.tensor import RemoteException, Stream, compile, inspect
from tests.tensor.recording.looked_at import values


class Traced:
    """A function, compiled, that counts how often it ran."""

    def __init__(self, body: Callable[..., Any], **options: Any) -> None:
        self.runs = 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.runs += 1
            return body(*args, **kwargs)

        self.call = compile(counted, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def test_the_older_path_is_the_same() -> None:
    assert _coalescing.compile is compile
    assert _coalescing.coalescing is monarch.coalescing


def test_a_call_is_one_command(loop: Any) -> None:
    def body(x: Any) -> Any:
        for _ in range(50):
            x = x * 2 - 1
        return x

    call = Traced(body)
    x = torch.full((2,), 3.0)
    expected = values(loop, body(x))
    for _ in range(2):
        assert values(loop, call(x)) == expected
    before = len(loop.client.runs())
    assert values(loop, call(x)) == expected
    assert len(loop.client.runs()) == before + 1
    assert call.runs == 2


def test_without_verify_the_second_call_is_a_replay(loop: Any) -> None:
    call = Traced(lambda x: x + 1, verify=False)
    assert [values(loop, call(torch.ones(1)))[0] for _ in range(3)] == [2.0] * 3
    assert call.runs == 1


def test_a_recording_for_each_pattern(loop: Any) -> None:
    call = Traced(lambda x, y, n=1: x * n + y, verify=False)
    a, b, wide = torch.ones(2), torch.ones(2), torch.ones(3, 2)
    for x, y, n, runs in (
        (a, b, 1, 1),
        (b, a, 1, 1),  # swapped
        (a, a, 1, 2),  # one twice
        (b, b, 1, 2),
        (wide, a, 1, 3),  # another shape
        (a, b, 2, 4),  # another value
        (a, a[:], 1, 5),  # two views of one memory
    ):
        call(x, y, n=n)
        assert call.runs == runs


def test_divergence(loop: Any) -> None:
    counts = iter(range(10))

    @compile
    def call(x: Any) -> Any:
        return x + next(counts)

    call(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"diverges at operation 1: aten.add.Tensor\[0\]"):
        call(torch.ones(2))


def test_divergence_in_number(loop: Any) -> None:
    counts = iter(range(1, 10))

    @compile
    def call(x: Any) -> Any:
        for _ in range(next(counts)):
            x = x + 1
        return x

    call(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"diverges at operation 2: aten.detach.default .* first, aten.add.Tensor"):
        call(torch.ones(2))


def test_verify_does_not_repeat_effects(loop: Any) -> None:
    a = torch.zeros(1)
    call = compile(lambda: a.add_(1) and None if False else a.add_(1).sum())
    assert [values(loop, call()) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_grad_in(loop: Any) -> None:
    call = compile(lambda x: x + 1)
    with pytest.raises(TypeError, match="REQUIRES_GRAD"):
        call(torch.ones(2, requires_grad=True))


def test_grad_out(loop: Any) -> None:
    w = torch.ones(2, requires_grad=True)
    call = compile(lambda: w + 1)
    with pytest.raises(TypeError, match="REQUIRES_GRAD"):
        call()
    with torch.no_grad():
        assert values(loop, call()) == [2.0] * 2


def test_what_leaks_is_dropped(loop: Any) -> None:
    leaked = []

    @compile
    def call() -> Any:
        leaked.append(torch.ones(2))
        return leaked[-1] + 1

    assert values(loop, call()) == [2.0] * 2
    assert leaked[0].dropped
    with pytest.raises(TypeError, match=r"(?s)DROPPED.*return it instead"):
        leaked[0].add(1)


def test_permissions_are_checked_at_each_call(loop: Any) -> None:
    w = torch.ones(2)
    call = Traced(lambda: w + 1, verify=False)
    call()
    other = Stream("other")
    _, borrow = other.borrow(w)
    assert values(loop, call()) == [2.0] * 2
    borrow.drop()
    _, borrow = other.borrow(w, mutable=True)
    with pytest.raises(TypeError, match=r"ERROR_0 BORROWED"):
        call()
    borrow.drop()
    assert values(loop, call()) == [2.0] * 2
    w.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        call()
    assert call.runs <= 2


def test_writing_what_is_borrowed(loop: Any) -> None:
    call = compile(lambda x: x.add_(1), verify=False)
    x = torch.ones(2)
    call(x)
    _, borrow = Stream("other").borrow(x)
    with pytest.raises(TypeError, match="MUTATING_BORROW"):
        call(x)
    borrow.drop()
    call(x)
    assert values(loop, x) == [3.0] * 2


def test_a_borrowed_argument_needs_no_recording_of_its_own(mesh: Any) -> None:
    other = Stream("other")
    call = Traced(lambda x: x + 1, verify=False)
    with other.activate():
        call(torch.ones(2))
        assert call.runs == 1
    w = torch.full((2,), 4.0)
    there, borrow = other.borrow(w)
    with other.activate():
        assert inspect(call(there)).tolist() == [5.0] * 2
    assert call.runs == 1
    borrow.drop()


def test_nested_it_is_part_of_the_outer_one(loop: Any) -> None:
    inner = Traced(lambda x: x + 1)
    outer = compile(lambda x: inner(inner(x)), verify=False)
    for _ in range(3):
        assert values(loop, outer(torch.ones(1))) == [3.0]
    assert inner.runs == 2
    with monarch.coalescing():
        made = inner(torch.ones(1))
    assert values(loop, made) == [2.0]


def test_fetching_and_numbers_are_refused(loop: Any) -> None:
    x = torch.ones(2)
    with pytest.raises(NotImplementedError, match="NYI: fetching results in a compiled function"):
        compile(lambda: inspect(x))()
    with pytest.raises(NotImplementedError, match=r"NYI: item\(\) in a compiled function"):
        compile(lambda factor: x * factor.item())(torch.tensor(2.0))
    double = compile(lambda: x * torch.tensor(2.0).item())  # the same at each call
    assert values(loop, double()) == values(loop, double()) == [2.0, 2.0]


def test_arguments_that_cannot_be_compared(loop: Any) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        compile(lambda x: None)({1, 2})


def test_an_exception_inside_leaves_nothing(loop: Any) -> None:
    a = torch.zeros(1)

    @compile
    def call() -> Any:
        a.add_(1)
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            call()
    assert values(loop, a) == [0.0]


def test_a_captured_tensor_that_is_replaced(loop: Any) -> None:
    state = [torch.ones(1)]
    call = Traced(lambda: state[0] + 1, verify=False)
    assert values(loop, call()) == [2.0]
    state[0] = torch.full((1,), 7.0)
    assert values(loop, call()) == [8.0]
    assert call.runs == 2


def test_recordings_are_bounded(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("monarch.tensor.recording.function"), "TRACES", 2)
    call = Traced(lambda x, n: x + n, verify=False)
    x = torch.ones(1)
    for n in (1, 2, 3):
        call(x, n)
    assert call.runs == 3
    call(x, 3)
    assert values(loop, call(x, 2)) == [3.0]
    assert call.runs == 3
    call(x, 1)
    assert call.runs == 4


def test_memory_of_a_replay_is_given_back(loop: Any) -> None:
    engine = loop.client

    @compile(verify=False)
    def call(x: Any) -> Any:
        y = x + 1
        return y * 2, y

    x = torch.ones(2)
    call(x)
    engine.living()
    start = engine.living()
    for _ in range(5):
        call(x)
    assert engine.living() == start


@pytest.mark.parametrize("verify", [False, True])
def test_a_failure_is_that_of_every_result(loop: Any, verify: bool) -> None:
    engine = loop.client
    state = torch.zeros(1)

    @compile(verify=verify)
    def call(index: Any) -> Any:
        state.add_(1)
        fine = state + 1
        return fine, torch.ones(3)[index]

    good = torch.tensor([1])
    for _ in range(3):
        call(good)
    bad = torch.tensor([7])
    fine, picked = call(bad)
    for made in (fine, picked, state):
        with pytest.raises(
            RemoteException, match=r"aten.index.Tensor \(operation \d of \d of .*test_compile.py:\d+ in call"
        ):
            inspect(made)
    assert inspect(bad).tolist() == [7]
    engine.sync()


def test_the_first_call_fails_as_a_whole_too(loop: Any) -> None:
    @compile
    def call(index: Any) -> Any:
        return torch.ones(2), torch.ones(3)[index]

    fine, _ = call(torch.tensor([7]))
    with pytest.raises(RemoteException, match="out of bounds"):
        inspect(fine)
