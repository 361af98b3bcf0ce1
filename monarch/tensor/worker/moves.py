"""Tensors on their way from rank to rank, as workers carry them: the halves of a move, and the connections they use."""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

import torch

from monarch._linux.locks import Condition, Lock
from monarch.actor.lowlevel import start_thread
from monarch.tensor.worker import current
from monarch.tensor.worker.expected import Expected, problem_with
from monarch.tensor.worker.handover import ready_here, taken_here, used_here
from monarch.tensor.worker.process_groups import ProcessGroups, groups_of

if TYPE_CHECKING:
    from monarch.tensor.signature import Runner, Scalar
    from monarch.tensor.worker.executor import Executor
    from monarch.tensor.worker.reductions import Backend


class CopyTensor:
    """The signature of a move that stays where it is."""

    keeps: tuple[int, ...] | None = None
    mutates: tuple[int, ...] = ()

    def name(self) -> str:
        return "to_mesh"

    def prepare(self, executor: Executor) -> Runner:
        return lambda tensors, numbers: tensors[0].clone(memory_format=torch.contiguous_format)


class AdoptTensors(CopyTensor):
    """The signature of taking over what another stream of the rank has made or lent, when that was waited for."""

    keeps: tuple[int, ...] | None = ()
    adopts = True  # its number, if any, is that of the event that was waited for

    def prepare(self, executor: Executor) -> Runner:
        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> None:
            for tensor in tensors:
                used_here(tensor)

        return run


class SendTensor:
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

    def _is_exchange(self, rank: int, other: int) -> bool:
        """True if these two ranks send to each other in this very move, on one line."""
        return (
            rank != other
            and self._streams[0] == self._streams[1]
            and (rank, other) in self._pairs
            and (other, rank) in self._pairs
        )

    def prepare(self, executor: Executor) -> Runner:
        shape, dtype, device = self._what
        receivers = [receiver for sender, receiver in self._pairs if sender == executor.rank]
        lines = lines_of(executor)

        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> None:
            if not receivers:
                return
            problem = problem_with(tensors[0], self._what)
            if problem is None:
                copy = tensors[0].clone(memory_format=torch.contiguous_format)
            else:
                copy = torch.zeros(shape, dtype=dtype, device=device.type)
            for receiver in receivers:
                both = self._is_exchange(executor.rank, receiver)
                lines.send(executor.rank, receiver, self._streams, int(numbers[0]), copy, both)
            if problem is not None:
                raise problem

        return run


class ReceiveTensor(SendTensor):
    """The signature of the receiving half."""

    between_ranks = False
    keeps: tuple[int, ...] | None = None

    def prepare(self, executor: Executor) -> Runner:
        shape, dtype, device = self._what
        sender = next((sender for sender, receiver in self._pairs if receiver == executor.rank), -1)
        lines = lines_of(executor)

        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> torch.Tensor:
            both = self._is_exchange(executor.rank, sender)
            return lines.receive(sender, executor.rank, self._streams, int(numbers[0]), shape, dtype, device, both)

        return run


class MoveConnections:
    """The connections of one worker over which tensors move: see `route`."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._lines: dict[tuple[str, tuple[int, ...]], _MoveConnection] = {}
        self._changed = Condition()
        self._kept: dict[
            tuple[tuple[int, int], int], deque[object]
        ] = {}  # several of a number: recordings repeat theirs
        self._closed = False

    def send(
        self, sender: int, receiver: int, streams: tuple[int, int], number: int, tensor: torch.Tensor,
        exchange: bool = False,
    ) -> None:  # fmt: skip
        """Does not wait, and nothing may be done to `tensor` any more. With `exchange` it leaves with the next `receive`
        from that rank."""
        if sender == receiver:
            own = ready_here(tensor.clone())  # other receivers may be sent the original yet
            with self._changed:
                self._kept.setdefault((streams, number), deque()).append(own)
                self._changed.notify_all()
            return
        self._line(sender, receiver, streams).send(receiver, number, tensor, exchange)

    def receive(
        self, sender: int, receiver: int, streams: tuple[int, int], number: int, shape: tuple[int, ...], dtype: torch.dtype,
        device: torch.device,
        exchange: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Waits for the tensor; on a device its stream does, not this thread. GroupLost when the sender has ended,
        RuntimeError when it is too late."""
        if sender == receiver:
            return self._own((streams, number))
        # The sender's number says nothing here: it is this thread's device of that type.
        device = torch.empty(0, device=torch.device(device).type).device
        return self._line(sender, receiver, streams).receive(sender, number, shape, dtype, device, exchange)

    def _line(self, sender: int, receiver: int, streams: tuple[int, int]) -> _MoveConnection:
        label, members = route(sender, receiver, streams)
        with self._changed:
            if self._closed:
                raise RuntimeError("the tensor engine has ended")
            line = self._lines.get((label, members))
            if line is None:
                line = self._lines[label, members] = _MoveConnection(self._groups, label, members)
        return line

    def _own(self, key: tuple[tuple[int, int], int]) -> torch.Tensor:
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
        """Nothing is sent any more, and nobody waits."""
        with self._changed:
            self._closed = True
            found = list(self._lines.values())
            self._changed.notify_all()
        for line in found:
            line.close()


def route(sender: int, receiver: int, streams: tuple[int, int]) -> tuple[str, tuple[int, ...]]:
    """The group that carries a move: its label, and its ranks.

    What one stream of two ranks moves to the same stream of the other, in either direction, it does in the order in which
    the program issued it, on both ranks. So one group carries it all: neither rank is at a send while the other is at an
    opposite one, and nccl needs one communicator. (Two that send to each other in one move do both at once.) Two
    different streams have no common order: each direction between them is a group of its own.
    """
    here, there = streams
    if here == there:
        return f"move {here}", (min(sender, receiver), max(sender, receiver))
    return f"move {here} {there}", (sender, receiver)


class _MoveConnection:
    """The moves of two ranks over one group, done by its own thread, one after another: a receiver may be late, and the
    stream that sends goes on. On a device the thread has a stream of its own too, which alone waits for the other rank.

    Unbounded but for the controller, which is never more than a window of batches ahead of the workers."""

    def __init__(self, groups: ProcessGroups, label: str, members: tuple[int, ...]) -> None:
        self._groups = groups
        self._label = label
        self._members = members
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._offered: deque[object] = deque()  # of exchanges: sent with the receive that follows in the same stream
        self._open: set[Future[object]] = set()  # of receives that somebody waits for
        self._lock = Lock()
        self._closed = False
        self._stream: torch.Stream | None = None
        start_thread(self._run, f"tensor-move-{'-'.join(map(str, members))}")

    def send(self, receiver: int, number: int, tensor: torch.Tensor, exchange: bool) -> None:
        handed = ready_here(tensor)
        if exchange:
            self._offered.append(handed)
        else:
            self._queue.put(lambda: self._send(receiver, number, handed))

    def receive(
        self, sender: int, number: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, exchange: bool
    ) -> torch.Tensor:
        made: Future[object] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the tensor engine has ended")
            self._open.add(made)
        offered = self._offered.popleft() if exchange and self._offered else None
        self._queue.put(lambda: self._receive(made, sender, number, shape, dtype, device, offered))
        try:
            tensor: torch.Tensor = taken_here(made.result())
        finally:
            with self._lock:
                self._open.discard(made)
        return tensor

    def close(self) -> None:
        """Tells those who wait. What is under way ends with its group."""
        self._queue.put(None)
        with self._lock:
            self._closed = True
            found = list(self._open)
        for made in found:
            _fail(made, RuntimeError("the tensor engine has ended"))

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            job()
            del job  # with the tensors in it

    def _send(self, receiver: int, number: int, handed: Any) -> None:
        try:
            self._enter(getattr(handed, "tensor", handed).device)
            tensor = taken_here(handed)
            if tensor.numel():
                backend = self._backend(tensor.device)
                backend.send([_bytes(tensor)], self._members.index(receiver), number % _TAGS).wait()
        except Exception as exc:  # the receiver meets it itself
            rank = next(rank for rank in self._members if rank != receiver)
            self._groups.lose(self._label, f"rank {rank} could not send: {exc}", self._members)

    def _receive(
        self,
        made: Future[object],
        sender: int,
        number: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        offered: object,
    ) -> None:
        try:
            self._enter(device)
            tensor = torch.empty(shape, dtype=dtype, device=device)
            if tensor.numel():
                backend = self._backend(device)
                place, tag = self._members.index(sender), number % _TAGS
                if offered is None:
                    backend.recv([_bytes(tensor)], place, tag).wait()
                else:
                    _exchange(backend, _bytes(taken_here(offered)), _bytes(tensor), place, tag)
            handed = ready_here(tensor)
        except Exception as exc:
            _fail(made, exc)
        else:
            with contextlib.suppress(InvalidStateError):  # the engine has ended meanwhile
                made.set_result(handed)

    def _backend(self, device: torch.device) -> Backend:
        return self._groups.backend(self._label, self._members, 0, device.type)

    def _enter(self, device: torch.device) -> None:
        """This thread works on a stream of its own from the first tensor of a device on. A new thread is on the default
        stream, which is that of "main": its operations would wait for the other rank."""
        if self._stream is None and device.type != "cpu":
            torch.accelerator.set_device_index(device.index or 0)
            self._stream = torch.Stream(device)
            torch.accelerator.set_stream(self._stream)


def _exchange(backend: Backend, outgoing: torch.Tensor, incoming: torch.Tensor, place: int, tag: int) -> None:
    """Sends and receives at once. nccl runs what is in one group side by side, and all else in order: a send that comes
    before its receive would wait for that of the other rank, which does the same."""
    if outgoing.device.type == "cpu":
        works = [backend.send([outgoing], place, tag), backend.recv([incoming], place, tag)]
    else:
        backend._start_coalescing()
        backend.send([outgoing], place, tag)
        backend.recv([incoming], place, tag)
        works = [backend._end_coalescing()]
    for work in works:
        work.wait()


def _fail(made: Future[object], error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):
        made.set_exception(error)


_TAGS = 1 << 30
_making = Lock()


def lines_of(executor: Executor) -> MoveConnections:
    """The connections of the worker whose stream this thread is."""
    groups = groups_of(current.worker())
    with _making:
        found = executor.extras.get("lines")
        if found is None:
            found = executor.extras["lines"] = MoveConnections(groups)
    lines: MoveConnections = found
    return lines


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
