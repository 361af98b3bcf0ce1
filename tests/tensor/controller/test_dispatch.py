"""An operation becomes a command: what is looked up, what travels, what is known here, what goes when the program lets go."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import monarch.tensor as mt
from monarch.tensor.controller import engine, issued


def learned(mesh: Any) -> int:
    return len(mesh.client.entries)


# --- the key -------------------------------------------------------------------------------------------------


def test_equal_metadata_is_worked_out_once(loop: Any) -> None:
    x, y = torch.ones(2, 3), torch.zeros(2, 3)
    _ = x + y
    before = learned(loop)
    for _ in range(5):
        x = x + y
    assert learned(loop) == before


@pytest.mark.parametrize(
    "differ",
    [
        lambda x: x[:1] + x[:1],  # shape
        lambda x: x.t() + x.t(),  # strides
        lambda x: x.double() + x.double(),  # dtype
        lambda x: x + 1,  # a number is no tensor
        lambda x: x * 2.0,  # nor is an int a float
    ],
)
def test_what_could_give_another_outcome_is_worked_out_anew(loop: Any, differ: Any) -> None:
    x = torch.ones(2, 3)
    _ = x + x, x[:1], x.t(), x.double(), x * 2
    before = learned(loop)
    differ(x)
    assert learned(loop) > before


def test_numbers_travel_and_are_not_worked_out_anew(loop: Any) -> None:
    x = torch.ones(2)
    _ = x * 2.0 + 1
    before = learned(loop)
    sums = [mt.inspect(x * float(factor) + factor).tolist() for factor in range(4)]
    assert learned(loop) == before
    assert sums == [[0.0, 0.0], [2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]


def test_integers_of_shapes_are_part_of_the_key(loop: Any) -> None:
    x = torch.arange(6.0)
    assert [tuple(x.reshape(n, -1).shape) for n in (1, 2, 3)] == [(1, 6), (2, 3), (3, 2)]
    assert [x[n].storage_offset() for n in range(3)] == [0, 1, 2]


def test_numbers_that_are_equal_and_differ(loop: Any) -> None:
    _ = torch.linspace(0.0, 1, 2)
    before = learned(loop)
    _ = torch.linspace(-0.0, 1, 2)
    assert learned(loop) == before + 1


def test_nan_is_worked_out_once(loop: Any) -> None:
    _ = torch.linspace(float("nan"), 1, 2)
    before = learned(loop)
    _ = torch.linspace(float("nan"), 1, 2)
    assert learned(loop) == before


def test_the_default_dtype_counts(loop: Any) -> None:
    whole = torch.tensor([1, 2])
    assert torch.ones(2).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        made, quotient = torch.ones(2), whole / 3
        assert (made.dtype, quotient.dtype) == (torch.float64, torch.float64)
        found = mt.inspect((made, quotient))
    finally:
        torch.set_default_dtype(torch.float32)
    assert [tensor.dtype for tensor in found] == [torch.float64, torch.float64]
    assert (whole / 3).dtype is torch.float32
    assert mt.inspect(whole / 3).dtype is torch.float32


def test_tables_are_bounded(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ENTRIES", 8)
    monkeypatch.setattr(engine, "SIGNATURES", 8)
    x = torch.arange(200.0)
    for n in range(1, 60):
        assert mt.inspect(x.narrow(0, n, 2).sum(), gpus=1).item() == 2 * n + 1
    assert learned(loop) <= 8
    for one in loop.client.executors:
        assert len(one.signatures) <= 2 * 8 + 1


# --- what travels ------------------------------------------------------------------------------------------


def test_commands_wait_for_a_full_batch(loop: Any) -> None:
    x = torch.ones(2)
    loop.client.flush()
    before = len(loop.client.batches)
    for _ in range(engine.BATCH // 4):
        x = x + 1
    assert len(loop.client.batches) == before
    for _ in range(engine.BATCH):
        x = x + 1
    assert len(loop.client.batches) > before
    assert max(map(len, loop.client.batches)) < 2 * engine.BATCH


def test_what_the_program_lets_go_of_is_deleted_in_order(loop: Any) -> None:
    x = torch.ones(2)
    for _ in range(3 * engine.BATCH):
        x = x + 1
    assert mt.inspect(x).tolist() == [1.0 + 3 * engine.BATCH] * 2
    assert loop.client.living() == [[x.ref], [x.ref]]
    del x
    assert loop.client.living() == [[], []]


def test_nothing_waits_for_the_collector(loop: Any) -> None:
    """Results of several tensors, views, errors and gradients are let go of with the last name for them."""
    x = torch.ones(3, 4)
    parts = x.split(2), x.unbind(1), torch.stack([x, x]), x.sort(), x.var()
    with pytest.raises(RuntimeError, match="reduction dim"):
        x @ x
    p = x.clone().requires_grad_()
    (p * p).sum().backward()
    assert mt.inspect(p.grad[0, 1]).item() == 2.0
    del parts, p
    assert loop.client.living() == [[x.ref], [x.ref]]


def test_a_local_tensor_that_changes_afterwards_was_sent_as_it_was(loop: Any) -> None:
    array = np.zeros((2, 3))
    made = torch.as_tensor(array.T)
    array += 1
    assert made.stride() == (1, 3)
    assert mt.inspect(made).tolist() == [[0.0, 0.0]] * 3


def test_several_threads_issue_at_once(loop: Any) -> None:
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        with loop.activate():
            x = torch.full((3,), float(number))
            for step in range(150):
                y = x + step
                x = y - step
            results[number] = x * 2 + x[:1]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(2):
        assert [mt.inspect(results[n], gpus=rank).tolist() for n in range(6)] == [[3.0 * n] * 3 for n in range(6)]
    results.clear()
    assert loop.client.living() == [[], []]


def test_stacks_are_bounded(loop: Any) -> None:
    kept = issued.CommandStacks()
    for ident in range(issued.KEPT + 10):
        kept.note((ident, None))
    kept.add(issued.KEPT + 10)
    assert kept.frames(3) == []
    (frame,) = [one for one in kept.frames(issued.KEPT + 10) if one.name == "test_stacks_are_bounded"]
    assert frame.line is not None and "kept.add" in frame.line


# --- views, drop() -----------------------------------------------------------------------------------------


def test_a_change_through_a_view_is_seen_through_all(loop: Any) -> None:
    x = torch.zeros(2, 3)
    row, column, turned = x[0], x[:, 1], x.t()
    row.add_(1)
    column.mul_(5)
    turned[2, 1] = 7
    for rank in range(2):
        assert mt.inspect(x, gpus=rank).tolist() == [[1.0, 5.0, 1.0], [0.0, 0.0, 7.0]]
    assert mt.inspect(turned).tolist()[2] == [1.0, 7.0]


def test_drop_takes_the_views_along(loop: Any) -> None:
    x = torch.zeros(2, 3)
    y = x + 1
    views = [x[0], x.t(), x.view(-1)[1:], *x.unbind(1)]
    views[1].drop()
    assert x.dropped and all(view.dropped for view in views) and not y.dropped
    assert x.ref is None
    x.drop()  # a second time is nothing
    for view in (x, *views):
        with pytest.raises(TypeError, match=r"(?s)DROPPED.*is dropped at:\n.*views.1..drop"):
            view.add(1)
    assert loop.client.living() == [[y.ref], [y.ref]]
    assert mt.inspect(y).tolist() == [[1.0] * 3] * 2


def test_a_tensor_moves_into_another_storage(loop: Any) -> None:
    x, y = torch.zeros(2), torch.ones(2)
    view = x[:1]
    x.set_(y)
    x.add_(1)
    assert [t.tolist() for t in mt.inspect((x, y, view))] == [[2.0, 2.0], [2.0, 2.0], [0.0]]
    y.drop()
    assert x.dropped and not view.dropped


def test_assigning_data(loop: Any) -> None:
    x = torch.zeros(2, 2).requires_grad_()
    values = torch.ones(3)
    x.data = values
    values.add_(1)
    assert x.requires_grad and x.shape == (3,)
    assert mt.inspect(x).tolist() == [2.0, 2.0, 2.0]
    del values
    assert loop.client.living() == [[x.ref], [x.ref]]
    with mt.no_mesh.activate():
        local = torch.full((3,), 5.0)
    x.data = local
    assert mt.inspect(x, gpus=1).tolist() == [5.0, 5.0, 5.0] and x.requires_grad


# --- scalars that are known here -----------------------------------------------------------------------------


def test_scalars_made_of_constants_are_known(loop: Any) -> None:
    step = torch.tensor(0.0)
    for _ in range(3):
        step += 1
    rate = 1 - 0.9**step
    assert step.item() == 3.0 and int(step) == 3 and bool(step) and f"{rate:.3f}" == "0.271"
    assert [10, 20, 30][torch.tensor(1)] == 20
    assert torch.equal(step, torch.tensor(3.0)) and step.tolist() == 3.0
    torch._foreach_add_([step], 1)
    assert step.item() == 4.0 == mt.inspect(step, gpus=1).item()
    assert step[None].item() == 4.0
    step.zero_()
    assert not step


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x.add_(torch.ones(3).sum()),
        lambda x: x[None].add_(torch.ones(1)),
        lambda x: x.copy_(torch.ones(1)[0]),
        lambda x: x.uniform_(),
        lambda x: torch.add(torch.ones(()), torch.ones(3).sum(), out=x),
        lambda x: x.resize_(3),
        lambda x: x.view(torch.int32).add_(1),
        lambda x: x.set_(torch.ones(3)[1]),
    ],
)
def test_what_is_overwritten_by_others_is_known_no_more(loop: Any, spoil: Any) -> None:
    x = torch.tensor(1.0)
    assert x.item() == 1.0
    spoil(x)
    with pytest.raises(RuntimeError):
        x.item()


@pytest.mark.parametrize(
    "unknown",
    [
        lambda: torch.empty(()),
        lambda: torch.rand(()),
        lambda: torch.ones(2).sum(),
        lambda: torch.tensor(1.0).expand(1 << 14).sum(),
        lambda: torch.tensor(1.0).view(torch.int32),
        lambda: torch.view_as_real(torch.tensor(1j))[0],
        lambda: torch.tensor(1j).conj(),
        lambda: torch.tensor(1.0).bernoulli(),
    ],
)
def test_other_scalars_are_not(loop: Any, unknown: Any) -> None:
    with pytest.raises(Exception, match="needs the values"):
        unknown().item()


def test_a_view_that_was_expanded_sums_all_its_elements(loop: Any) -> None:
    assert mt.inspect(torch.tensor(2.0).expand(3).sum()).item() == 6.0


def test_a_dropped_scalar_is_not_known(loop: Any) -> None:
    x = torch.tensor(1.0)
    x.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        x.item()
