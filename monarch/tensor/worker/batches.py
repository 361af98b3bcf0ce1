"""A data loader in the process of a rank: a thread takes batches from it ahead of their use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch._devices import own_device
from monarch._linux.locks import Condition
from monarch.tensor import patterns
from monarch.tensor.worker import current

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

    from monarch.tensor.signature import Runner, Scalar
    from monarch.tensor.worker.executor import Executor
    from monarch.tensor.worker.worker_mesh import WorkerMesh

_EXTRA = "loaders"
_CLOSING = 2.0  # seconds that a worker's end waits for loaders that are making a batch


class Loader:
    """Takes batches from what `make()` gives, on a thread, until `ahead` of them wait to be taken."""

    def __init__(self, make: Callable[[], Iterable[PyTree]], ahead: int) -> None:
        self._changed = Condition()
        self._batches: dict[int, PyTree] = {}  # by number, from 0 on
        self._ahead = ahead
        self._made = 0
        self._ended = False
        self._error: BaseException | None = None
        # A daemon: a loader that hangs in the program's code does not keep the process.
        self._thread = threading.Thread(target=self._run, args=(make,), name="monarch-loader", daemon=True)
        self._thread.start()

    def _run(self, make: Callable[[], Iterable[PyTree]]) -> None:
        error: BaseException | None = None
        try:
            own_device.enter()  # a loader may pin memory, or put batches on the device itself
            for batch in make():
                if not self._put(pytree.tree_map_only(torch.Tensor, _own, batch)):
                    break
                del batch
        except BaseException as exc:
            error = exc
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()

    def _put(self, batch: object) -> bool:
        """Waits for room; True if more are wanted."""
        with self._changed:
            while len(self._batches) >= self._ahead and not self._ended:
                self._changed.wait()
            if self._ended:
                return False
            self._batches[self._made] = batch
            self._made += 1
            self._changed.notify_all()
            return True

    def describe(self, number: int) -> patterns.SentOutcome | None:
        """Returns what batch `number` consists of; None when there is none. Waits for it. Raises, once, what the
        loader raised."""
        with self._changed:
            while self._made <= number and not self._ended:
                self._changed.wait()
            batch = self._batches.get(number)
            if number >= self._made or batch is None:
                if (error := self._error) is not None:
                    self._error = None  # told once: those who have asked for later batches hear of the end
                    raise error
                return None
            return patterns.to_send(batch, (), ())

    def take(self, number: int) -> list[object]:
        """The leaves of batch `number`, which was described."""
        with self._changed:
            batch = self._batches.pop(number)
            self._changed.notify_all()
        return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(batch)]

    def close(self) -> None:
        """Ends it: nothing takes batches any more."""
        with self._changed:
            self._ended = True
            self._batches.clear()
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Waits until its thread has ended."""
        self._thread.join(seconds)


class _Loaders(dict[int, Loader]):
    def close(self) -> None:
        """Ends all, with the worker. A thread that is in the midst of a torch operation when the interpreter ends would bring
        the process down, so it waits a little for what each is at."""
        loaders = list(self.values())
        self.clear()
        for loader in loaders:
            loader.close()
        end = time.monotonic() + _CLOSING
        for loader in loaders:
            loader.join(max(0.0, end - time.monotonic()))


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Returns it in its own memory: where in a larger tensor a batch lies differs from process to process."""
    whole = tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def _loaders() -> _Loaders:
    found: _Loaders = current.worker().executor.extras.setdefault(_EXTRA, _Loaders())
    return found


def start(
    key: int,
    make: Callable[..., Iterable[PyTree]],
    args: OpaqueValue,
    mesh: WorkerMesh,
    dims: Sequence[str],
    ahead: int,
) -> None:
    """Starts loader `key` with `make(rank, size, *args, **kwargs)`, where `rank` is this process's place along `dims` of
    `mesh`."""
    worker = current.worker()
    members = mesh.along(worker.executor.rank, tuple(dims))
    positional, named = args.value
    rank, size = members.index(worker.executor.rank), len(members)
    _loaders()[key] = Loader(lambda: make(rank, size, *positional, **named), ahead)


def describe(key: int, number: int) -> patterns.SentOutcome | None:
    """See `Loader.describe`; None too for a loader that was closed."""
    loader = _loaders().get(key)
    return loader.describe(number) if loader is not None else None


class OpaqueValue:
    """A value that is handed on as it is, whatever it consists of."""

    def __init__(self, value: Any) -> None:
        self.value = value


class TakeBatch:
    """A `signature.WorkerCall` that gives the tensors of a batch which was described."""

    mutates: tuple[int, ...] = ()

    def __init__(self, key: int, number: int, keeps: tuple[int, ...] | None) -> None:
        self.key = key
        self.number = number
        self.keeps = keeps

    def name(self) -> str:
        return f"batch {self.number} of monarch.DataLoaders"

    def prepare(self, executor: Executor) -> Runner:
        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> object:
            leaves = _loaders()[self.key].take(self.number)
            return leaves[0] if self.keeps is None else leaves

        return run


class CloseLoader:
    """A `signature.WorkerCall` that ends a loader, behind what was taken from it."""

    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def __init__(self, key: int) -> None:
        self.key = key

    def name(self) -> str:
        return "the end of monarch.DataLoaders"

    def prepare(self, executor: Executor) -> Runner:
        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> list[object]:
            loader = _loaders().pop(self.key, None)
            if loader is not None:
                loader.close()
            return []

        return run
