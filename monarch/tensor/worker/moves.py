"""Tensors on their way from rank to rank, as workers carry them: the halves of a move, and the connections they use."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from monarch.actor import start_thread
from monarch.tensor.worker import current
from monarch.tensor.worker.expected import Expected, problem_with
from monarch.tensor.worker.handover import ready_here, taken_here, used_here
from monarch.tensor.worker.process_groups import Groups, groups_of


class Copy:
    """The signature of a move that stays where it is."""

    keeps: tuple[int, ...] | None = None
    mutates: tuple[int, ...] = ()

    def name(self) -> str:
        return "to_mesh"

    def prepare(self, executor: Any) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        return lambda tensors, numbers: tensors[0].clone(memory_format=torch.contiguous_format)


class Adopt(Copy):
    """The signature of taking over a copy that another stream of the rank has made, when that was waited for."""

    keeps: tuple[int, ...] | None = ()

    def prepare(self, executor: Any) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        return lambda tensors, numbers: used_here(tensors[0])


class Send:
    """The signature of the sending half of a move. `what`: (shape, dtype, device) of the tensor. The Run's number is
    the move's."""

    between_ranks = True
    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def __init__(self, pairs: tuple[tuple[int, int], ...], streams: tuple[int, int], what: Expected) -> None:
        self._pairs = pairs
        self._streams = streams
        self._what = what

    def name(self) -> str:
        return "to_mesh"

    def prepare(self, executor: Any) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        shape, dtype, device = self._what
        receivers = [receiver for sender, receiver in self._pairs if sender == executor.rank]
        lines = lines_of(executor)

        def run(tensors: Sequence[Any], numbers: Sequence[Any]) -> None:
            if not receivers:
                return
            problem = problem_with(tensors[0], self._what)
            if problem is None:
                copy = tensors[0].clone(memory_format=torch.contiguous_format)
            else:
                copy = torch.zeros(shape, dtype=dtype, device=device.type)
            for receiver in receivers:
                lines.send(executor.rank, receiver, self._streams, int(numbers[0]), copy)
            if problem is not None:
                raise problem

        return run


class Receive(Send):
    """The signature of the receiving half."""

    between_ranks = False
    keeps: tuple[int, ...] | None = None

    def prepare(self, executor: Any) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        shape, dtype, device = self._what
        sender = next((sender for sender, receiver in self._pairs if receiver == executor.rank), -1)
        lines = lines_of(executor)

        def run(tensors: Sequence[Any], numbers: Sequence[Any]) -> torch.Tensor:
            return lines.receive(sender, executor.rank, self._streams, int(numbers[0]), shape, dtype, device)

        return run


class Lines:
    """The connections of one worker over which tensors move: one for each sender, receiver and pair of streams."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._senders: dict[tuple[Any, ...], _Sender] = {}
        self._changed = threading.Condition()
        self._kept: dict[tuple[Any, ...], deque[Any]] = {}  # several of a number: recordings repeat theirs
        self._closed = False

    def send(self, sender: int, receiver: int, streams: tuple[int, int], number: int, tensor: torch.Tensor) -> None:
        """Does not wait, and nothing may be done to `tensor` any more."""
        if sender == receiver:
            own = ready_here(tensor.clone())  # other receivers may be sent the original yet
            with self._changed:
                self._kept.setdefault((streams, number), deque()).append(own)
                self._changed.notify_all()
            return
        key = (sender, receiver, streams)
        with self._changed:
            line = self._senders.get(key)
            if line is None:
                line = self._senders[key] = _Sender(self._groups, sender, receiver, streams)
        line.put(number, tensor)

    def receive(
        self, sender: int, receiver: int, streams: tuple[int, int], number: int, shape: Any, dtype: Any, device: Any
    ) -> torch.Tensor:
        """Waits for the tensor. GroupLost when the sender has ended, RuntimeError when it is too late."""
        if sender == receiver:
            return self._own((streams, number))
        made = torch.empty(shape, dtype=dtype, device=device.type)
        backend = self._groups.backend(_label(streams), (sender, receiver), 0, made.device.type)
        if made.numel():
            backend.recv([_bytes(made)], 0, number % _TAGS).wait()
        return made

    def _own(self, key: tuple[Any, ...]) -> torch.Tensor:
        with self._changed:
            self._changed.wait_for(lambda: key in self._kept or self._closed)
            if key not in self._kept:
                raise RuntimeError("the tensor engine has ended")
            waiting = self._kept[key]
            kept = waiting.popleft()
            if not waiting:
                del self._kept[key]
        tensor: torch.Tensor = taken_here(kept)
        return tensor

    def close(self) -> None:
        """Nothing is sent any more."""
        with self._changed:
            self._closed = True
            found = list(self._senders.values())
            self._changed.notify_all()
        for line in found:
            line.put(0, None)


class _Sender:
    """What goes to one receiver, sent by a thread of its own: a receiver may be late."""

    def __init__(self, groups: Groups, sender: int, receiver: int, streams: tuple[int, int]) -> None:
        self._groups = groups
        self._members = (sender, receiver)
        self._label = _label(streams)
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        start_thread(self._run, f"tensor-send-{receiver}")

    def put(self, number: int, tensor: torch.Tensor | None) -> None:
        self._queue.put((number, ready_here(tensor)))

    def _run(self) -> None:
        while True:
            number, handed = self._queue.get()
            if handed is None:
                return
            try:
                tensor = taken_here(handed)
                if tensor.device.type != "cpu":
                    torch.accelerator.set_device_index(tensor.device.index)
                backend = self._groups.backend(self._label, self._members, 0, tensor.device.type)
                if tensor.numel():
                    backend.send([_bytes(tensor)], 1, number % _TAGS).wait()
            except Exception as exc:  # the receiver meets it itself
                self._groups.lose(self._label, f"rank {self._members[0]} could not send: {exc}", self._members)
            tensor = handed = None


_TAGS = 1 << 30
_making = threading.Lock()


def lines_of(executor: Any) -> Lines:
    """The connections of the worker whose stream this thread is."""
    groups = groups_of(current.worker())
    with _making:
        found = executor.extras.get("lines")
        if found is None:
            found = executor.extras["lines"] = Lines(groups)
    lines: Lines = found
    return lines


def _label(streams: tuple[int, int]) -> str:
    return f"move {streams[0]} {streams[1]}"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
