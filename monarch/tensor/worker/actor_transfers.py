"""Local tensors on their way between the worker of a process and the actors beside it, in that process.

A stream puts each of them into a table of the process (`waiting`), where the actor's thread takes it when it unpickles
the message, and waits if the stream is not that far. The results of `endpoint.rref` go the other way (`keep`): the
actor puts, the stream takes.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils import _pytree as pytree

from monarch._linux.locks import Condition
from monarch.actor.lowlevel import lives_here
from monarch.tensor.failures import Failed, RemoteException, remote_exception
from monarch.tensor.worker.handover import ready_here, taken_here

if TYPE_CHECKING:
    from monarch.tensor.signature import Runner, Scalar
    from monarch.tensor.worker.executor import Executor

LEFT_OVER = 1024  # values in a table from which on those of actors that have ended are thrown away
LATE = 60.0  # seconds after which a message to an actor that is not there will not come any more
STARTING = 60.0  # seconds that somebody waits for a worker which has not come up yet
KEPT = 4096  # results of rref that wait for their stream; beyond that the oldest are let go and fail


class _FailureSource(Protocol):
    def exception_of(self, failed: Failed) -> RemoteException: ...


# By their workers' key: the engines of this process, where it is the controller's, that have sent tensors to actors.
engines: weakref.WeakValueDictionary[str, _FailureSource] = weakref.WeakValueDictionary()


class WorkerGone(RuntimeError):
    """The local tensor will not come: the tensor worker of this process has ended."""


class HandoverTable:
    """Values of one process that wait to be taken, each once, by name. `open` and `close` follow the workers of the
    process: nobody waits for one that has ended. `now` is in seconds."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._values: dict[Hashable, tuple[Any, str, float]] = {}
        self._workers: dict[str, bool] = {}  # key -> whether it runs

    def __len__(self) -> int:
        return len(self._values)

    def open(self, worker: str) -> None:
        with self._changed:
            self._workers[worker] = True
            self._changed.notify_all()

    def close(self, worker: str) -> None:
        """Notes that `worker` has ended: what it put is gone, and so is what was put for it once it was the last."""
        with self._changed:
            self._workers[worker] = False
            last = not any(self._workers.values())
            for name, (_, receiver, _) in list(self._values.items()):
                if (not receiver and last) or (type(name) is tuple and name[0] == worker):
                    del self._values[name]
            self._changed.notify_all()

    def put(self, name: Hashable, value: object, receiver: str, now: float) -> None:
        """`receiver`: the key of the actors that will take it; "" for a result, which a stream takes."""
        with self._changed:
            if receiver and type(name) is tuple and self._workers.get(name[0]) is False:
                return  # from the last operations of a worker that ends
            self._values[name] = (value, receiver, now)
            self._changed.notify_all()
            if len(self._values) > LEFT_OVER and len(self._values) & (LEFT_OVER - 1) == 0:
                self._tidy(now)

    def put_if_absent(self, name: Hashable, value: object, now: float) -> None:
        with self._changed:
            present = name in self._values
        if not present:
            self.put(name, value, "", now)

    def take(self, name: Hashable, worker: str) -> Any:
        """Waits for the value of that name. WorkerGone when `worker` has ended, or does not come up."""
        deadline: float | None = None
        with self._changed:
            while name not in self._values:
                runs = self._workers.get(worker)
                if runs is False:
                    raise WorkerGone(
                        "the tensor worker of this process has ended (its engine was exited, or failed), and with it "
                        "the tensor that this message was sent with"
                    )
                timeout: float | None = None
                if runs is None:
                    now = time.monotonic()
                    deadline = deadline or now + STARTING
                    timeout = deadline - now
                    if timeout <= 0:
                        raise WorkerGone(
                            f"this process has no tensor worker of the engine that this message's tensor belongs to, "
                            f"and none came up within {STARTING:g} s"
                        )
                self._changed.wait(timeout)
            return self._values.pop(name)[0]

    def _tidy(self, now: float) -> None:
        """Drops what nothing will take: of actors that are not here any more, their messages with them."""
        results = [name for name, (_, receiver, _) in self._values.items() if not receiver]
        for name in results[:-KEPT]:
            self._values[name] = (RuntimeError(f"more than {KEPT} results of rref wait in this process"), "", now)
        for name, (_, receiver, since) in list(self._values.items()):
            if receiver and now - since > LATE and not lives_here(receiver):
                del self._values[name]


waiting = HandoverTable()


class PublishTensors:
    """A call on a stream: its inputs go into the table of the process under `numbers`, on the ranks `ranks` of the
    engine."""

    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def __init__(
        self, worker: str, numbers: Sequence[int], ranks: Sequence[int] | None, receiver: str, what: str
    ) -> None:
        self.worker = worker
        self.numbers = tuple(numbers)
        self.ranks = None if ranks is None else frozenset(ranks)
        self.receiver = receiver
        self.what = what

    def name(self) -> str:
        return f"the arguments of {self.what}"

    def prepare(self, executor: Executor) -> Runner:
        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> list[object]:
            if self.ranks is None or executor.rank in self.ranks:
                now = time.monotonic()
                for number, value in zip(self.numbers, tensors, strict=True):
                    waiting.put((self.worker, number), ready_here(value), self.receiver, now)
            return []

        return run


def claim(worker: str, number: int) -> Any:
    """Returns the local tensor, in the actor's thread; waits for it. RemoteException when it failed, WorkerGone when
    its worker has ended."""
    value = taken_here(waiting.take((worker, number), worker))
    if isinstance(value, Failed):
        raise InputFailed(value, worker)
    return value.detach() if isinstance(value, torch.Tensor) else value


class InputFailed(RemoteException):
    """The failure of what an argument was to be. In the controller's process it arrives as the RemoteException that
    a fetch raises."""

    _as_it_is = True  # the caller gets this, not an ActorError around it: the endpoint never ran

    def __init__(self, failed: Failed, worker: str) -> None:
        self.failed = failed
        self.worker = worker
        error = remote_exception(failed, [])
        super().__init__(error.worker_error_string, [], failed.rank, failed.command)
        self.__cause__ = error.__cause__

    def __reduce__(self) -> tuple[object, ...]:
        return _arrived, (self.failed, self.worker)


def _arrived(failed: Failed, worker: str) -> RemoteException:
    engine = engines.get(worker)
    return InputFailed(failed, worker) if engine is None else engine.exception_of(failed)


def keep(name: Hashable, result: object, error: BaseException | None) -> None:
    """Keeps, in the actor's thread, what an endpoint called with `rref` gave, for the stream that waits for it."""
    now = time.monotonic()
    if error is not None:
        waiting.put(name, error.failed if isinstance(error, InputFailed) else error, "", now)
        return
    leaves = pytree.tree_leaves(result)
    waiting.put(name, [ready_here(leaf) for leaf in leaves], "", now)


def kept(name: Hashable, worker: str) -> list[object]:
    """Returns, in a stream's thread, the leaves of that result; waits for it. Raises what the endpoint raised."""
    value = waiting.take(name, worker)
    if isinstance(value, Failed):
        raise InputFailed(value, worker)
    if isinstance(value, BaseException):
        raise value
    return [taken_here(leaf) for leaf in value]
