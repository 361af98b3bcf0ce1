"""A worker's side: failures and what depends on them, batches that come twice, references."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch

import monarch.tensor as mt
from monarch.tensor import worker_commands
from monarch.tensor.failures import Tainted
from monarch.tensor.signature import OpCall, TensorHole
from monarch.tensor.worker.executor import Executor, StreamThreads


def broken() -> Any:
    """A tensor that could not be made: an index that does not exist is met by the workers alone."""
    return torch.ones(3).index_select(0, torch.tensor([7]))


def failing_line() -> int:
    return broken.__code__.co_firstlineno + 2


def assert_broken(*values: Any) -> None:
    for value in values:
        for rank in range(2):
            with pytest.raises(
                mt.RemoteException, match=r"(?s)failed asynchronously on rank 0.*index out of range"
            ) as raised:
                mt.inspect(value, gpus=rank)
            assert [frame.lineno for frame in raised.value.controller_frames if frame.name == "broken"] == [
                failing_line()
            ]
            assert raised.value.rank == 0
            assert "index_select" in raised.value.command


def test_what_depends_on_a_failure_is_that_failure(loop: Any) -> None:
    bad = broken()
    assert_broken(bad, bad + 1, bad.t(), torch.cat([torch.ones(1), bad]), *bad.split(1))
    assert_broken((torch.ones(1), bad.sum()))


def test_nothing_else_is(loop: Any) -> None:
    x = torch.ones(3)
    before = x + 1
    _ = broken() + x
    after = x + 2
    assert [one.tolist() for one in mt.inspect((x, before, after))] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_a_failure_in_place_takes_all_that_shares_the_memory(loop: Any) -> None:
    x, other = torch.ones(3), torch.ones(3)
    early, middle = x[:1], x.view(3, 1)
    middle.add_(broken())
    late = x[1:]
    assert_broken(x, early, middle, late)
    assert mt.inspect(other).tolist() == [1.0] * 3
    x2 = torch.ones(3)
    x2.index_copy_(0, torch.tensor([7]), torch.ones(1))
    with pytest.raises(mt.RemoteException, match="index_copy_"):
        mt.inspect(x2)


def test_a_failure_in_place_through_out(loop: Any) -> None:
    x = torch.ones(1)
    view = x.view(1, 1)
    torch.add(broken(), 1, out=x)
    assert_broken(x, view)


def test_a_lost_tensor_can_be_let_go_of(loop: Any) -> None:
    bad = broken()
    _ = bad + 1
    del bad, _
    assert loop.client.living() == [[], []]


def test_the_failure_issued_first_is_told(loop: Any) -> None:
    first = broken()
    second = torch.ones(2).gather(0, torch.tensor([5]))
    assert_broken((second, first), second + first)
    with pytest.raises(mt.RemoteException, match="gather"):
        mt.inspect(second)


def test_a_value_that_cannot_be_sent_is_a_failure_of_the_fetch() -> None:
    executor = Executor(0)
    executor.tensors[7] = torch.ones(2)
    executor.failures.append(Tainted(3))
    given: list[Any] = []

    def answer(value: Any) -> None:
        if not given:
            given.append(None)
            raise TypeError("t cannot be sent")
        given.append(value)

    executor.run([worker_commands.Fetch(9, (7,), 0)], (), answer)
    _, (failed, told, ident) = given
    assert "t cannot be sent" in failed.text and ident == 9
    assert Tainted(3) in told  # what the first answer would have told


def test_a_stream_whose_thread_fails_ends_the_worker() -> None:
    """Ends the worker: what waits for the thread would wait for ever."""
    executor = Executor(0)
    ended: list[str] = []
    executor.end = ended.append
    began: list[Any] = []
    threads = StreamThreads(
        executor, lambda *work: began.append(work) or threading.Thread(), lambda name: contextlib.nullcontext()
    )
    threads._put(0, [worker_commands.Sync(1)], (), lambda value: 1 / 0)
    work, _, *rest = began[0]
    with pytest.raises(ZeroDivisionError):
        work(*rest)
    assert "the thread of stream 'main' failed on rank 0" in ended[0] and "ZeroDivisionError" in ended[0]


def test_a_failure_nobody_was_told_of_is_raised_at_the_end(loop: Any) -> None:
    _ = broken()
    with pytest.raises(mt.RemoteException, match="index out of range"):
        loop.client.exit()
    loop.client.exit()
    with pytest.raises(RuntimeError, match=r"tensor engine of .* has ended.*exit.. was called"):
        torch.ones(2)


def test_a_failure_that_was_told_is_not_raised_at_the_end(loop: Any) -> None:
    assert_broken(broken())
    loop.client.exit()


def test_the_cause_is_the_original_exception(loop: Any) -> None:
    with pytest.raises(mt.RemoteException) as raised:
        mt.inspect(broken())
    assert isinstance(raised.value.__cause__, (IndexError, RuntimeError))


def test_shapes_that_do_not_fit_are_raised_at_the_call(loop: Any) -> None:
    x = torch.ones(2, 3)
    for wrong in (
        lambda: x @ x,
        lambda: x.view(7),
        lambda: x + torch.ones(2),
        lambda: x[5],
        lambda: torch.cat([x, x[0]]),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            wrong()
    assert mt.inspect(x).tolist() == [[1.0] * 3] * 2


# --- batches, without an engine -----------------------------------------------------------------------------


class Now(StreamThreads):
    def __init__(self, executor: Executor) -> None:
        super().__init__(executor, None, None)  # type: ignore[arg-type]

    def _put(self, stream: int, part: Any, payloads: Any, answer: Any) -> None:
        self.executor.run(part, payloads, answer)


class Opened:
    """A call that was opened, in the form of a sealed one."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def open(self) -> Any:
        if isinstance(self.call, Exception):
            raise self.call
        return self.call


@pytest.fixture
def worker() -> Now:
    made = Now(Executor(0))
    mesh = worker_commands.DefineMesh(1, ("gpus",), (1,), (0,))
    take(made, 1, mesh, worker_commands.SetPlacement(1, 0), worker_commands.Constant(1, 0), payloads=[torch.ones(2)])
    return made


def take(worker: StreamThreads, number: int, *batch: Any, payloads: Any = ()) -> list[Any]:
    answers: list[Any] = []
    worker.take(number, worker_commands.encode(list(batch)), payloads, answers.append)
    return answers


def test_a_batch_that_comes_twice_is_done_once(worker: Now) -> None:
    add = Opened(OpCall("aten.add_.Tensor", [TensorHole(0), 1], {}, (), (0,)))
    batch = (worker_commands.Define(2, 0), worker_commands.SetPlacement(1, 0), worker_commands.Run(2, 5, (1,)))
    assert take(worker, 2, *batch, payloads=[add]) == []
    assert take(worker, 2, *batch, payloads=[add]) == [None]
    assert worker.executor.tensors[1].tolist() == [2.0, 2.0]


def test_commands_for_other_ranks_are_passed_over(worker: Now) -> None:
    elsewhere = worker_commands.DefineMesh(2, ("gpus",), (1,), (3,))
    answers = take(
        worker,
        2,
        elsewhere,
        worker_commands.SetPlacement(2, 0),
        worker_commands.Constant(7, 0),
        worker_commands.Fetch(8, (7,), 3),
        payloads=[torch.ones(1)],
    )
    assert answers == [None]
    assert list(worker.executor.tensors) == [1]


def test_a_call_that_cannot_be_read_fails_alone(worker: Now) -> None:
    unreadable = Opened(ModuleNotFoundError("No module named 'nomod'"))
    take(worker, 2, worker_commands.SetPlacement(1, 0), worker_commands.Do(3, 0, (1,)), payloads=[unreadable])
    (answer,) = take(worker, 3, worker_commands.SetPlacement(1, 0), worker_commands.Fetch(9, (1,), 0))
    assert answer[0][0].tolist() == [1.0, 1.0]
    assert "nomod" in answer[1][0].text
    add = Opened(OpCall("aten.add.Tensor", [TensorHole(0), TensorHole(1)], {}, None, ()))
    take(worker, 4, worker_commands.SetPlacement(1, 0), worker_commands.Do(6, 0, (1, 4)), payloads=[add])
    for number, ref in ((5, 4), (6, 6)):  # a result of it, and what depends on one
        (answer,) = take(worker, number, worker_commands.SetPlacement(1, 0), worker_commands.Fetch(9, (ref,), 0))
        assert answer[0].ident == 3 and "nomod" in answer[0].text


def test_an_unknown_operation_says_how_to_register_it(worker: Now) -> None:
    unknown = Opened(OpCall("mine.twice.default", [TensorHole(0)], {}, None, ()))
    take(
        worker,
        2,
        worker_commands.Define(2, 0),
        worker_commands.SetPlacement(1, 0),
        worker_commands.Run(2, 3, (1,)),
        payloads=[unknown],
    )
    (answer,) = take(worker, 3, worker_commands.SetPlacement(1, 0), worker_commands.Fetch(9, (3,), 0))
    assert "'mine.twice.default' is not registered in this process" in answer[0].text
    assert "bootstrap" in answer[0].text


def test_failures_are_told_once_and_bounded(worker: Now) -> None:
    bad = Opened(OpCall("aten.view.default", [TensorHole(0), [5]], {}, None, ()))
    runs = [worker_commands.Run(2, ident, (1,)) for ident in range(10, 400)]
    take(worker, 2, worker_commands.Define(2, 0), worker_commands.SetPlacement(1, 0), *runs, payloads=[bad])
    (first,) = take(worker, 3, worker_commands.SetPlacement(1, 0), worker_commands.Sync(500))
    (second,) = take(worker, 4, worker_commands.SetPlacement(1, 0), worker_commands.Sync(501))
    assert len(first[1]) == 256 and not second[1]
