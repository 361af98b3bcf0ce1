"""`monarch.DataLoaders`: a data loader in each process of a mesh, whose batches are distributed tensors here."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from monarch.actor import Future
from monarch.tensor import patterns
from monarch.tensor.controller import dispatch
from monarch.tensor.controller.groups import dims_of
from monarch.tensor.controller.mesh import DeviceMesh, get_active_mesh
from monarch.tensor.controller.stream import Stream, get_active_stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.remote.remote_function import Remote
from monarch.tensor.worker import batches

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree

_keys = itertools.count(1)
_beside = Stream("data")  # batches are waited for there, beside what the mesh computes
_left: deque[tuple[StreamPlacement, int]] = deque()  # loaders whose iterator the collector took


class DataLoaders:
    """`make(rank, size, *args, **kwargs)` in each process of the active mesh gives an iterable, a torch DataLoader as a rule;
    its batches stay in that process. Here each `for batch in loaders:` starts them anew and gives one batch after the other:
    what the loaders give, a tensor or a tree, with distributed tensors.

    `rank` and `size` are those along `dims`, by default all dimensions of the mesh: processes that differ in other dimensions
    get the same and read the same data. `ahead`: how many batches a process has ready at most.

    The iteration ends when the first process has no more. All processes' batches have to be of one form: same structure,
    shapes and dtypes (`drop_last=True` leaves out a smaller last batch); ValueError names two that differ. Values that are no
    tensors are those of the first process. What a loader raises is raised here as a RemoteException that names its rank.

    A loader runs on a thread beside the operations of its process: give its sampler a generator of its own if its order is
    to be repeatable. Where a process has used its GPU, worker processes of a DataLoader (`num_workers`) have to be started
    with multiprocessing_context="forkserver" or "spawn": CUDA does not survive a fork.
    """

    def __init__(
        self, make: Callable[..., Iterable[PyTree]], *args: object, dims: str | Sequence[str] | None = None,
        mesh: object = None, ahead: int = 2, **kwargs: object,
    ) -> None:  # fmt: skip
        found = get_active_mesh() if mesh is None else mesh
        found = found if isinstance(found, DeviceMesh) else getattr(found, "_device_mesh", None)
        if not isinstance(found, DeviceMesh):
            raise TypeError(f"`mesh` is a DeviceMesh or a ProcMesh, and not {mesh!r}")
        if ahead < 1:
            raise ValueError(f"ahead={ahead}: a process has at least one batch ready")
        self._mesh = found
        self._dims = found.names if dims is None else dims_of(found, dims)
        self._make = make
        self._arguments = batches.OpaqueValue((args, kwargs))
        self._ahead = ahead

    def __iter__(self) -> Iterator[PyTree]:
        _sweep()
        key = next(_keys)
        with self._mesh.activate(), _beside.activate():
            _start.broadcast(key, self._make, self._arguments, self._mesh, self._dims, self._ahead)
        return _Batches(self._mesh, key, self._ahead)


class _Batches(Iterator[Any]):
    def __init__(self, mesh: DeviceMesh, key: int, ahead: int) -> None:
        self._mesh = mesh
        self._key = key
        self._taken = 0
        self._open = True
        self._place = mesh.place(get_active_stream())
        self._asked: deque[Future[Any]] = deque()
        for number in range(ahead):
            self._ask(number)

    def _ask(self, number: int) -> None:
        with self._mesh.activate(), _beside.activate():
            self._asked.append(_describe.call(self._key, number))

    def __next__(self) -> PyTree:
        if not self._open:
            raise StopIteration
        try:
            found = list(self._asked.popleft().get().values())
            if any(sent is None for sent in found):
                raise StopIteration
            _check(found, self._taken, list(self._mesh.processes))
        except BaseException:
            self._close()
            raise
        outcome = patterns.received(found[0])
        place = self._place = self._mesh.place(get_active_stream())
        call = batches.TakeBatch(self._key, self._taken, outcome.keeps)
        ident = place.engine.do(place, call, (), len(outcome.fresh))
        made = dispatch.fresh_leaves(outcome, [], place, ident, None)
        # Behind this take, and so with room for it: a process describes a batch as soon as it has it.
        self._ask(self._taken + len(self._asked) + 1)
        self._taken += 1
        return made[0] if outcome.structure is None else outcome.structure(made)

    def _close(self) -> None:
        self._open = False
        _end(self._place, self._key)

    def __del__(self) -> None:
        # From whatever the collector interrupts: a deque's append is all that may happen here.
        if self._open:
            _left.append((self._place, self._key))


def _sweep() -> None:
    """Ends the loaders whose iteration was left early."""
    while _left:
        with contextlib.suppress(IndexError):
            _end(*_left.popleft())


def _end(place: StreamPlacement, key: int) -> None:
    if not place.engine.ended:
        place.engine.do(place, batches.CloseLoader(key), (), 0)


def _check(found: Sequence[patterns.SentOutcome], number: int, ranks: Sequence[int]) -> None:
    """ValueError unless all processes have a batch of one form."""
    first = _form(found[0])
    for rank, sent in zip(ranks, found, strict=True):
        if _form(sent) != first:
            raise ValueError(
                f"batch {number} of rank {ranks[0]} is {_text(found[0])}, and that of rank {rank} is {_text(sent)}: the "
                f"local tensors of a distributed tensor are of one shape. drop_last=True leaves out a smaller last batch"
            )


def _form(sent: patterns.SentOutcome) -> object:
    return repr(sent.tree), [(leaf.view, leaf.meta) for leaf in sent.leaves]


def _text(sent: patterns.SentOutcome) -> str:
    metas = [leaf.meta for leaf in sent.leaves if leaf.meta is not None]
    found = [f"{str(meta.dtype).removeprefix('torch.')}{list(meta.shape)}" for meta in metas]
    return ", ".join(found) or "without tensors"


_start = Remote(batches.start, "inspect")
_describe = Remote(batches.describe, "inspect")
