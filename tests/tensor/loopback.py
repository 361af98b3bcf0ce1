"""A tensor engine whose workers are Executors in this very thread: real commands, real bytes, no processes, no threads."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch._wire import codec
from monarch.actor import NDSlice, Promise, Shape
from monarch.tensor import worker_commands
from monarch.tensor.controller.engine import TensorEngine
from monarch.tensor.controller.mesh import DeviceMesh
from monarch.tensor.worker import current, executor


class Loopback(TensorEngine):
    """An Engine for a mesh of `sizes`. Every flush runs its batch on each rank before it returns.

    `batches`: the commands of every batch so far, oldest first, as the workers decode them.
    """

    def __init__(self, **sizes: int) -> None:
        sizes = sizes or {"gpus": 1}
        self.executors = [executor.Executor(rank) for rank in range(math.prod(sizes.values()))]
        self.inline = [_Inline(one) for one in self.executors]
        self.batches: list[list[Any]] = []
        shape = Shape(list(sizes), NDSlice.new_row_major(list(sizes.values())))
        super().__init__("loopback", shape, None, lambda: None)
        self._workers = _Workers(self.inline)
        self._timer = _Still()  # type: ignore[assignment]  # no thread flushes by the clock

    def _send(self, wanted: Any = None) -> Any:
        answers = None
        while self._unsent:
            number, waiting, payloads, mark = self._unsent[0]
            data = worker_commands.encode(waiting)
            self.batches.append(worker_commands.decode(data))
            promise: Promise[Any] = Promise()
            found = {}
            for rank, worker in enumerate(self.inline):
                got: list[Any] = []
                with _as_a_worker(worker.executor):
                    worker.take(number, data, _copied(tuple(payloads)), got.append)
                if mark is not None:
                    (found[rank],) = _copied(tuple(got))
                else:
                    assert not got
            if mark is not None:
                promise.set(found)
                answers = promise.future
                if mark is not wanted:
                    self._acks.append(answers)
            self._unsent.popleft()
        return answers

    def local(self, tensor: Any, rank: int = 0) -> Any:
        """Returns what rank `rank` has for a distributed tensor."""
        self.flush()
        return self.executors[rank].tensors[tensor.ref]

    def living(self) -> list[list[int]]:
        """The references that each rank still has, once everything the program let go of is deleted."""
        self.sync()
        return [sorted(one.tensors) for one in self.executors]

    def runs(self) -> list[Any]:
        """Every Run that was sent."""
        self.flush()
        return [command for batch in self.batches for command in batch if type(command) is worker_commands.Run]


class _Workers:
    """The workers that `Engine.ask` sends to: some ranks, who answer at once."""

    def __init__(self, workers: Sequence[_Inline]) -> None:
        self._workers = workers
        self.execute = self

    def _new_with_shape(self, shape: Shape) -> _Workers:
        return _Workers([worker for worker in self._workers if worker.executor.rank in set(shape.ndslice)])

    def _answers(self, number: int, data: bytes, payloads: tuple[Any, ...]) -> list[Any]:
        got: list[Any] = []
        for worker in self._workers:
            with _as_a_worker(worker.executor):
                worker.take(number, data, _copied(payloads), lambda answer: got.append(_copied(answer)))
        return got

    def call(self, *batch: Any) -> Any:
        promise: Promise[Any] = Promise()
        promise.set(dict(enumerate(self._answers(*batch))))
        return promise.future

    def stream(self, *batch: Any) -> list[Any]:
        promises: list[Promise[Any]] = []
        for answer in self._answers(*batch):
            promises.append(Promise())
            promises[-1].set(answer)
        return [promise.future for promise in promises]


class _Inline(executor.StreamThreads):
    """Streams that run in the caller's thread."""

    def __init__(self, one: executor.Executor) -> None:
        super().__init__(one, None, None)  # type: ignore[arg-type]

    def _put(self, stream: int, part: list[Any], payloads: Sequence[Any], answer: Any) -> None:
        current.thread.stream = stream
        self.executor.run(part, payloads, answer)


class _Still:
    idle = False

    def wake(self) -> None: ...

    def stop(self) -> None: ...


_generators: weakref.WeakKeyDictionary[executor.Executor, torch.Tensor] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def _own_generator(one: executor.Executor) -> Iterator[None]:
    """A process draws from a generator of its own: torch's one of this process is each rank's in turn."""
    here = torch.default_generator.get_state()
    if one not in _generators:
        fresh = torch._C.Generator()
        fresh.seed()
        _generators[one] = fresh.get_state()
    torch.default_generator.set_state(_generators[one])
    try:
        yield
    finally:
        _generators[one] = torch.default_generator.get_state()
        torch.default_generator.set_state(here)


@contextlib.contextmanager
def _as_a_worker(one: executor.Executor) -> Iterator[None]:
    """Nothing of what the program has switched on in its thread reaches its workers, and neither does it here."""
    current.thread.worker = SimpleNamespace(executor=one)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with (
            _disable_current_modes(),
            torch._C._DisableAutocast(),
            torch._C.DisableTorchFunction(),
            torch.inference_mode(False),
            torch.no_grad(),
            _own_generator(one),
        ):
            yield
    finally:
        torch.set_default_dtype(before)
        del current.thread.worker


def _copied(value: Any) -> Any:
    """Copies it as a message would carry it."""
    body, buffers = codec.encode(value)
    return codec.decode(body, [bytearray(buffer) for buffer in buffers])


@contextlib.contextmanager
def loopback(**sizes: int) -> Iterator[DeviceMesh]:
    """The mesh of a Loopback, its `client`, active; nothing of the program is left on its workers when the block has
    ended."""
    engine = Loopback(**sizes)
    with engine.root.activate() as mesh:
        yield mesh
