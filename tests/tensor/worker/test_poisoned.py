"""Tests of what a worker does when its device fails, and when a collective fails behind its stream's back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monarch.actor import SupervisionError, this_host
from monarch.tensor import RemoteException, inspect, worker_commands
from monarch.tensor.failures import Failed, GroupLost
from monarch.tensor.remote.remote_function import remote
from monarch.tensor.worker import poisoned
from monarch.tensor.worker.executor import Executor
from monarch.tensor.worker.process_groups import ProcessGroups, TrackedBackend, UnfinishedWorks
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

ASSERTED = "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"


class Call:
    """A call that raises `error`, or gives a tensor."""

    keeps = None
    mutates = ()

    def __init__(self, error: Exception | None, label: str = "aten.add.Tensor") -> None:
        self.error = error
        self.label = label
        self.runs = 0

    def open(self) -> Call:
        return self

    def name(self) -> str:
        return self.label

    def prepare(self, executor: Any) -> Any:
        def run(tensors: Any, numbers: Any) -> Any:
            self.runs += 1
            if self.error is not None:
                raise self.error
            return torch.ones(2)

        return run


class Worker:
    """An Executor of rank 3 whose device answers a query with `asked`, an error or None."""

    def __init__(self, patch: pytest.MonkeyPatch, asked: Exception | None) -> None:
        def query() -> bool:
            if asked is not None:
                raise asked
            return True

        patch.setattr(torch.accelerator, "current_stream", lambda: SimpleNamespace(query=query))
        patch.setattr(torch.accelerator, "current_accelerator", lambda: "cuda")
        patch.setattr(torch.accelerator, "current_device_index", lambda: 0)
        self.executor = Executor(3)
        self.ended: list[str] = []
        self.answers: list[Any] = []
        self.executor.end = self.ended.append
        self.count = 0

    def run(self, *calls: Call, then: Any = ()) -> list[Any]:
        """Returns what each of them left."""
        batch: list[Any] = []
        for call in calls:
            self.count += 1
            self.executor.define(worker_commands.Define(self.count, 0), [call])
            batch.append(worker_commands.Run(self.count, self.count, ()))
        self.executor.run([*batch, *then], [], self.answers.append)
        return [self.executor._there(one.ident) for one in batch]


def device_error(text: str) -> Exception:
    return getattr(torch, "AcceleratorError", RuntimeError)(text)


@pytest.mark.parametrize("kind", [device_error, RuntimeError])
def test_a_device_that_refuses_everything_ends_the_worker(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch, kind(ASSERTED))
    later = Call(None)
    before, failed, behind = worker.run(Call(None), Call(kind(ASSERTED)), later)
    assert isinstance(before, torch.Tensor)
    assert isinstance(failed, Failed) and isinstance(behind, Failed)
    text = failed.text
    assert text.startswith("cuda:0 of rank 3 on ")
    assert "at or before aten.add.Tensor: CUDA error: device-side assert triggered." in text
    assert "CUDA_LAUNCH_BLOCKING" in text and "procs.restart()" in text
    assert "Traceback" in text
    assert later.runs == 0
    assert worker.ended == [worker.executor.poisoned]
    another = Call(None)
    (refused,) = worker.run(another)
    assert isinstance(refused, Failed) and another.runs == 0
    assert "at or before aten.add.Tensor" in refused.text


def test_it_is_met_by_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch, device_error(ASSERTED))

    class Late(torch.Tensor):
        def detach(self) -> Any:
            raise device_error(ASSERTED)

    worker.executor.tensors[7] = torch.ones(2).as_subclass(Late)
    worker.run(then=[worker_commands.Fetch(9, (7,), 3)])
    ((failed, _, _),) = worker.answers
    assert "at or before fetch" in failed.text
    assert worker.ended


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        device_error("CUDA error: invalid configuration argument"),
        RuntimeError("shapes do not fit"),
        ValueError("CUDA error: said by a program"),
    ],
    ids=["memory", "launch", "shapes", "program"],
)
def test_other_errors_pass(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch, None)
    later = Call(None)
    failed, after = worker.run(Call(error), later)
    assert isinstance(failed, Failed) and isinstance(after, torch.Tensor)
    assert worker.ended == [] and not worker.executor.poisoned


def test_memory_that_is_all_taken_is_no_reason_to_ask_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch, RuntimeError("not to be asked"))
    worker.run(Call(torch.OutOfMemoryError("CUDA out of memory")))
    assert not worker.executor.poisoned


def test_attention_that_a_device_cannot_run_says_who_chose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch, None)
    name = "aten._scaled_dot_product_flash_attention.default"
    (failed,) = worker.run(Call(RuntimeError("FlashAttention only supports Ampere GPUs or newer."), name))
    assert "torch.nn.attention.sdpa_kernel" in failed.text
    assert poisoned.advice("aten.mm.default") == ""


# --- collectives that fail later --------------------------------------------------------------------------------


class Work:
    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None

    def is_completed(self) -> bool:
        return self.done

    def exception(self) -> Any:
        return self.error


def test_values_do_not_leave_behind_a_collective_that_failed() -> None:
    executor = Executor(0)
    groups = executor.extras["groups"] = ProcessGroups(0, "engine", lambda *args: None, "127.0.0.1")
    good, late = Work(), Work()
    groups.unfinished.add(good, "allreduce of ranks [0, 1]")
    groups.unfinished.add(late, "allreduce of ranks [0, 2]")
    executor.tensors[1] = torch.ones(2)
    answers: list[Any] = []
    fetch = worker_commands.Fetch(5, (1,), 0)
    good.done = True
    executor.run([fetch], [], answers.append)
    late.done, late.error = True, RuntimeError("timed out after 300000 ms")
    executor.run([fetch, fetch], [], answers.append)
    values = [value for value, _, _ in answers]
    assert isinstance(values[0], list)
    for failed in values[1:]:
        assert isinstance(failed, Failed) and failed.echo
        assert "allreduce of ranks [0, 2] failed: timed out" in failed.text
    with pytest.raises(GroupLost):
        groups.confirm()


def test_works_are_kept_only_until_they_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    monkeypatch.setattr(dist, "Work", Work)
    unfinished = UnfinishedWorks()
    made: list[Work] = []

    class Backend:
        ranks = 2

        def allreduce(self, tensors: Any) -> Work:
            made.append(Work())
            return made[-1]

        def name(self) -> str:
            return "nccl"

    backend = TrackedBackend(Backend(), (0, 1), unfinished)
    for _ in range(5):
        if made:
            made[-1].done = True
        assert backend.allreduce([]) is made[-1]
    assert len(unfinished._works) == 1
    assert (backend.name(), backend.ranks) == ("nccl", 2)


# --- in a process -----------------------------------------------------------------------------------------------


@full
def test_the_program_is_told_and_goes_on_with_new_processes() -> None:
    def asserts(t: Any) -> Any:
        import torch

        def query() -> bool:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")

        torch.accelerator.current_stream = lambda device=None: SimpleNamespace(query=query)
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    procs = this_host().spawn_procs({"gpus": 2})
    try:
        with procs.activate():
            x = torch.ones(2)
            with pytest.raises(
                (RemoteException, SupervisionError), match="has failed at or before remote function"
            ) as caught:
                inspect(remote(asserts, propagate=lambda t: t)(x))
            assert "procs.restart()" in str(caught.value)
            with pytest.raises(SupervisionError, match=r"engine of .* has ended"):
                for _ in range(1000):  # the end of the worker comes behind the answer
                    inspect(torch.ones(2))
        procs.restart().get(timeout=TIMEOUT)
        with procs.activate():
            assert inspect(torch.ones(2)).tolist() == [1, 1]
    finally:
        procs.stop().get(timeout=TIMEOUT)
