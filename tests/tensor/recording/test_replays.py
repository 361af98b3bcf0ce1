"""Tests of what replays of `monarch.function` and of `monarch.tensor.compile` have in common: memory, effects, streams,
meshes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monarch.tensor import RemoteException, Stream, compile, function, inspect
from tests.tensor.recording.looked_at import values

both = pytest.mark.parametrize("record", [function, compile], ids=["function", "compile"])


@both
def test_side_effects_happen_at_every_call(loop: Any, record: Any) -> None:
    a, z = torch.zeros(2), torch.ones(2)

    @record
    def step() -> Any:
        a.add_(z)
        return a * 10

    assert [values(loop, step()) for _ in range(4)] == [[10.0] * 2, [20.0] * 2, [30.0] * 2, [40.0] * 2]
    z.fill_(5)
    assert values(loop, step()) == [90.0] * 2


@both
def test_arguments_are_written_in_place(loop: Any, record: Any) -> None:
    @record
    def step(x: Any) -> Any:
        before = x.sum()
        x[0].add_(1)
        return before, x.sum()

    for number in range(4):
        x = torch.full((2, 2), float(number))
        before, after = step(x)
        assert values(loop, before) == 4.0 * number
        assert values(loop, after) == 4.0 * number + 2
        assert values(loop, x)[0] == [number + 1.0] * 2


@both
def test_a_variable_that_is_an_argument_once_is_not_the_argument(loop: Any, record: Any) -> None:
    w = torch.ones(2)
    call = record(lambda x: x + w)
    assert values(loop, call(w)) == [2.0] * 2
    assert values(loop, call(torch.full((2,), 5.0))) == [6.0] * 2


@both
def test_a_returned_argument_is_the_argument(loop: Any, record: Any) -> None:
    call = record(lambda x, y: (y, x, [y, 7]))
    for _ in range(4):
        x, y = torch.ones(2), torch.zeros(2)
        first, second, (third, seven) = call(x, y)
        assert first is y and second is x and third is y and seven == 7


@both
def test_a_returned_view_shares_the_arguments_memory(loop: Any, record: Any) -> None:
    call = record(lambda x: (x[0], x.t()))
    for _ in range(4):
        x = torch.zeros(2, 2)
        row, turned = call(x)
        row.add_(1)
        assert values(loop, turned) == [[1.0, 0.0], [1.0, 0.0]]
        x.drop()
        assert row.dropped


@both
def test_results_that_share_memory_do_so_at_each_call(loop: Any, record: Any) -> None:
    def body() -> Any:
        made = torch.zeros(4)
        return made, made[1:], made

    call = record(body)
    for _ in range(4):
        whole, part, again = call()
        assert again is whole
        part.add_(1)
        assert values(loop, whole) == [0.0, 1.0, 1.0, 1.0]
        whole.drop()
        assert part.dropped


@both
def test_a_returned_variable_is_an_alias(loop: Any, record: Any) -> None:
    w = torch.ones(2)
    call = record(lambda: w)
    for number in range(4):
        call().add_(1)
        assert values(loop, w) == [number + 2.0] * 2


@both
def test_borrows_inside(mesh: Any, record: Any) -> None:
    other = Stream("other")
    w = torch.ones(2)

    @record
    def call() -> Any:
        there, borrow = other.borrow(w, mutable=True)
        with other.activate():
            there.add_(1)
        borrow.drop()
        return w * 1

    for number in range(5):
        assert inspect(call()).tolist() == [number + 2.0] * 2


@both
def test_an_outer_borrow(mesh: Any, record: Any) -> None:
    other = Stream("other")
    w = torch.ones(2)
    there, borrow = other.borrow(w)
    call = record(lambda: there + 1)
    with other.activate():
        for _ in range(4):
            assert inspect(call()).tolist() == [2.0] * 2
    borrow.drop()


@both
def test_two_meshes(mesh: Any, record: Any) -> None:
    first, second = mesh.slice(gpus=slice(0, 1)), mesh.slice(gpus=slice(1, 2))
    with first.activate():
        a = torch.ones(2)
    with second.activate():
        b = torch.full((2,), 5.0)

    @record
    def call(x: Any, y: Any) -> Any:
        x = x + 1
        y = y * 2
        return x + x, y

    for _ in range(4):
        x, y = call(a, b)
        assert inspect(x).tolist() == [4.0] * 2
        assert inspect(y).tolist() == [10.0] * 2


@both
def test_collectives(mesh: Any, record: Any) -> None:
    @record
    def call(x: Any) -> Any:
        total = (x + 1).reduce("gpus")
        total.add_(1)
        return total.reduce("gpus") * 2

    for _ in range(5):
        assert inspect(call(torch.ones(2))).tolist() == [20.0] * 2


@both
def test_a_failed_argument(loop: Any, record: Any) -> None:
    call = record(lambda x: x + 1)
    failed = torch.ones(3)[torch.tensor([7])]
    made = call(failed)
    with pytest.raises(RemoteException, match=r"remote operation \(aten.index.Tensor\)"):
        inspect(made)
    assert values(loop, call(torch.ones(1))) == [2.0]
