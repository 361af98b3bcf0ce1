"""Streams beside each other, and tensors that one of them borrows from another."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any

import pytest
import torch

import monarch
from monarch.tensor import Stream, get_active_stream, inspect
from monarch.tensor.controller import borrows
from monarch.tensor.remote.remote_function import remote
from monarch.tensor.worker import current
from monarch.tensor.worker.events import Events
from tests.support.devices import every_device, skip_with_fewer_gpus
from tests.support.patience import TIMEOUT

pytestmark = [every_device, pytest.mark.usefixtures("device")]


@remote(propagate=lambda tensor, name: torch.empty_like(tensor))
def meet(tensor: Any, name: str) -> Any:
    """Waits until two streams of this process are here."""
    barrier = current.worker().executor.extras.setdefault(name, threading.Barrier(2))
    barrier.wait(TIMEOUT)
    return tensor + 1


@remote(propagate=torch.empty_like)
def when_told(tensor: Any) -> Any:
    """Waits for `tell`, then adds to it in place and copies."""
    told = current.worker().executor.extras.setdefault("told", threading.Event())
    assert told.wait(TIMEOUT)
    told.clear()
    return tensor.add_(1).clone()


@remote(propagate="inspect")
def tell() -> None:
    current.worker().executor.extras.setdefault("told", threading.Event()).set()


def test_two_streams_run_beside_each_other(mesh: Any) -> None:
    second = Stream("second")
    one = meet(torch.ones(2), "barrier")
    with second.activate():
        assert get_active_stream() is second
        two = meet(torch.ones(2), "barrier")
        assert inspect(two, gpus=1).tolist() == [2, 2]
    assert inspect(one, gpus=0).tolist() == [2, 2]


def test_a_tensor_belongs_to_its_stream(mesh: Any) -> None:
    tensor = torch.ones(2)
    with Stream("second").activate(), pytest.raises(TypeError, match="WRONG_STREAM"):
        tensor.add(1)


def test_a_borrow_waits_for_the_stream_it_is_from(mesh: Any) -> None:
    second = Stream("second")
    tensor = torch.zeros(2)
    when_told(tensor)
    borrowed, borrow = second.borrow(tensor)
    with second.activate():
        copy = borrowed + 1
    with Stream("third").activate():
        tell()
    with second.activate():
        assert inspect(copy, gpus=1).tolist() == [2, 2]
    borrow.drop()


def test_a_stream_waits_for_its_tensor_to_come_back(mesh: Any) -> None:
    second = Stream("second")
    tensor = torch.zeros(2)
    borrowed, borrow = second.borrow(tensor, mutable=True)
    with second.activate():
        when_told(borrowed)
    borrow.drop()
    copy = tensor + 1
    with Stream("third").activate():
        tell()
    assert inspect(copy, gpus=0).tolist() == [2, 2]


def test_an_unused_borrow_costs_the_borrower_nothing(mesh: Any) -> None:
    """Its stream does not wait for one it has not used, whether it is kept or dropped."""
    second = Stream("second")
    tensor = torch.zeros(2)
    when_told(tensor)
    kept, borrow = second.borrow(tensor)
    _, dropped = second.borrow(tensor)
    dropped.drop()
    with second.activate():
        assert inspect(torch.ones(2) * 3, gpus=0).tolist() == [3, 3]
        tell()
        assert inspect(kept, gpus=0).tolist() == [1, 1]
    borrow.drop()
    assert inspect(tensor, gpus=0).tolist() == [1, 1]


def test_both_may_read_what_is_borrowed_to_read(mesh: Any) -> None:
    second = Stream("second")
    tensor = torch.ones(2)
    borrowed, borrow = second.borrow(tensor)
    assert borrowed.stream is second and borrowed.mesh is tensor.mesh
    assert inspect(tensor + 1, gpus=0).tolist() == [2, 2]
    with pytest.raises(TypeError, match=r"MUTATING_BORROW: would be mutated(.|\n)*second\.borrow\(tensor\)"):
        tensor.add_(1)
    with second.activate():
        with pytest.raises(TypeError, match="would be mutated"):
            borrowed.add_(1)
        assert inspect(borrowed[:1], gpus=0).tolist() == [1]
    with pytest.raises(RuntimeError, match="cannot be borrowed mutably"):
        second.borrow(tensor, mutable=True)
    again, other = Stream("third").borrow(tensor)
    borrow.drop()
    with pytest.raises(TypeError, match="would be mutated"):
        tensor.add_(1)
    other.drop()
    assert other.dropped and again.stream.name == "third"
    tensor.add_(1)
    assert inspect(tensor, gpus=1).tolist() == [2, 2]


def test_only_the_borrower_may_use_what_is_borrowed_to_write(mesh: Any) -> None:
    second = Stream("second")
    tensor = torch.ones(2)
    view = tensor[:1]
    borrowed, borrow = second.borrow(tensor, mutable=True)
    with borrow:
        for use in (lambda: tensor + 1, lambda: view + 1, lambda: tensor.add_(1), lambda: inspect(tensor, gpus=0)):
            with pytest.raises(TypeError, match=r"BORROWED: is borrowed(.|\n)*second\.borrow\(tensor, mutable=True\)"):
                use()
        with pytest.raises(TypeError, match="BORROWED"):
            Stream("third").borrow(tensor)
        with second.activate():
            borrowed.mul_(5)
            part = borrowed[1:]
            assert inspect(borrowed, gpus=1).tolist() == [5, 5]
    assert inspect(view, gpus=1).tolist() == [5]
    tensor.add_(1)
    with second.activate():
        for use in (lambda: borrowed + 1, lambda: part + 1):
            with pytest.raises(TypeError, match=r"is dropped at:(.|\n)*with borrow"):
                use()
    borrow.drop()  # again: nothing


def test_a_dropped_borrow_says_where(mesh: Any) -> None:
    second = Stream("second")
    borrowed, borrow = second.borrow(torch.ones(2))
    borrow.drop()
    with second.activate(), pytest.raises(TypeError, match=r"is dropped at:(.|\n)*borrow\.drop\(\)"):
        borrowed.add(1)


def test_what_is_borrowed_can_be_borrowed_on(mesh: Any) -> None:
    second, third = Stream("second"), Stream("third")
    tensor = torch.ones(2)
    two, outer = second.borrow(tensor, mutable=True)
    with second.activate():
        two.add_(1)
    three, inner = third.borrow(two, mutable=True)
    with second.activate(), pytest.raises(TypeError, match="BORROWED"):
        two.add_(1)
    with third.activate():
        three.add_(1)
    inner.drop()
    with second.activate():
        two.add_(1)
        assert inspect(two, gpus=0).tolist() == [4, 4]
    three, inner = third.borrow(two)
    outer.drop()
    assert inner.dropped
    with third.activate(), pytest.raises(TypeError, match="DROPPED"):
        three.add(1)
    assert inspect(tensor.add_(1), gpus=1).tolist() == [5, 5]
    read, reading = second.borrow(tensor)
    with pytest.raises(RuntimeError, match="immutable borrow"):
        third.borrow(read, mutable=True)
    reading.drop()


def test_a_forgotten_borrow_is_given_back_with_a_warning(mesh: Any) -> None:
    second = Stream("second")
    tensor = torch.ones(2)
    borrowed, borrow = second.borrow(tensor, mutable=True)
    with pytest.raises(TypeError, match="BORROWED"):
        tensor.add_(1)
    with pytest.warns(
        ResourceWarning, match=r"without drop\(\)(.|\n)*second\.borrow(.|\n)*It was collected at"
    ) as told:
        del borrow
        gc.collect()
    assert len(told) == 1
    with second.activate(), pytest.raises(TypeError, match="DROPPED"):
        borrowed.add(1)
    assert inspect(tensor.add_(1), gpus=0).tolist() == [2, 2]


def test_a_borrow_that_was_dropped_is_collected_in_silence(mesh: Any) -> None:
    _, borrow = Stream("second").borrow(torch.ones(2))
    borrow.drop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del borrow
        gc.collect()


def test_what_cannot_be_borrowed(mesh: Any) -> None:
    second = Stream("second")
    dropped = torch.ones(2)
    dropped.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        second.borrow(dropped)
    with monarch.tensor.no_mesh.activate(), pytest.raises(TypeError, match="LOCAL_TENSOR"):
        second.borrow(torch.ones(2))


def test_the_memory_is_the_same(mesh: Any) -> None:
    second = Stream("second")
    tensor = torch.ones(4)
    borrowed, borrow = second.borrow(tensor[1:3], mutable=True)
    with second.activate():
        borrowed.zero_()
    borrow.drop()
    assert inspect(tensor, gpus=0).tolist() == [1, 0, 0, 1]


def test_a_stream_of_its_own_for_collectives(mesh: Any, device: str) -> None:
    """The gradients of one layer travel while the next is computed."""
    if device == "cuda":
        skip_with_fewer_gpus(2)
    side = Stream("collectives")
    total = torch.zeros(3)
    for step in range(20):
        grad = torch.ones(3) * (mesh.rank("gpus") + step)
        borrowed, borrow = side.borrow(grad, mutable=True)
        with side.activate():
            monarch.reduce_(borrowed, "gpus")
        meanwhile = total * 2
        borrow.drop()
        total = total + grad + 0 * meanwhile
    assert inspect(total, gpus=1).tolist() == [2 * sum(range(20)) + 20] * 3


def test_borrows_and_moves_between_streams_in_any_order(mesh: Any, device: str) -> None:
    if device == "cuda":
        skip_with_fewer_gpus(2)
    second = Stream("second")
    left, right = mesh.slice(gpus=0), mesh.slice(gpus=1)
    tensor = torch.ones(2) + mesh.rank("gpus")
    for _ in range(10):
        mine = tensor.slice_mesh(gpus=0).to_mesh(right, stream=second)
        with second.activate():
            back = mine.to_mesh(left)
            on_main, borrow = monarch.tensor.controller.stream.MAIN.borrow(back)
        with left.activate():
            result = on_main + 1
        borrow.drop()
    assert inspect(result).tolist() == [2, 2]


def test_events_are_counted() -> None:
    events = Events()
    events.post(1)
    events.post(1)
    events.wait(1)
    events.wait(1)
    thread = threading.Thread(target=events.wait, args=(2,))
    thread.start()
    events.post(2)
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert not events._posted
    events.close()
    with pytest.raises(RuntimeError, match="has ended"):
        events.wait(3)


def test_nothing_is_left_of_dropped_borrows(mesh: Any) -> None:
    borrows.sweep()
    assert not borrows._orphans
