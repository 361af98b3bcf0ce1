"""`monarch.to_mesh` and `monarch.slice_mesh`: tensors go from the ranks of one mesh to those of another."""

from __future__ import annotations

import itertools
import queue
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch.actor import start_thread
from monarch.tensor import metadata
from monarch.tensor.controller import misuse
from monarch.tensor.controller.borrows import Events, follow_stream
from monarch.tensor.controller.dispatch import trouble
from monarch.tensor.controller.mesh import DeviceMesh
from monarch.tensor.controller.misuse import Problem
from monarch.tensor.controller.records import Record, Storage
from monarch.tensor.controller.tensor import Tensor, make
from monarch.tensor.failures import Failed
from monarch.tensor.worker.process_groups import Groups, groups_of

if TYPE_CHECKING:
    from monarch.tensor.controller.mesh import Place
    from monarch.tensor.controller.stream import Stream

_numbers = itertools.count(1)
_moving = threading.Lock()  # the two halves of a move are issued together


def to_mesh(tree: Any, mesh: Any, stream: Stream | None = None) -> Any:
    """`tree` with each distributed tensor, or MeshSliceTensor, replaced by a copy on `mesh` (a DeviceMesh or ProcMesh).

    The copy of a rank comes from the rank with the same coordinates: dimensions are matched by name and have equal
    sizes. Along those that the source does not have, all ranks get a copy, and a warning says so. It lives on
    `stream`, by default that of the source, and shows nothing that is done to the source later. Data goes directly
    from process to process; a sender does not wait for its receivers.

    ValueError when the source has dimensions that `mesh` does not have, for other sizes, and for meshes of different
    engines; TypeError for tensors that cannot be used, or that require grad while grad mode is on.
    """
    there = _device_mesh(mesh)
    leaves, spec = pytree.tree_flatten(tree, is_leaf=lambda leaf: isinstance(leaf, MeshSliceTensor))
    moved = [
        _moved(leaf, there, stream) if isinstance(leaf, MeshSliceTensor | torch.Tensor) else leaf for leaf in leaves
    ]
    return pytree.tree_unflatten(moved, spec)


def slice_mesh(tree: Any, **dims: Any) -> Any:
    """`tree` with each distributed tensor replaced by a MeshSliceTensor: its part on the ranks of `mesh.slice(**dims)`."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: _sliced(tensor, dims), tree)


class MeshSliceTensor:
    """Part of the ranks of `tensor`: those of the mesh `slicing`. It can be sent with `to_mesh`, and nothing else."""

    def __init__(self, tensor: Tensor, slicing: DeviceMesh) -> None:
        self.tensor = tensor
        self.slicing = slicing

    def to_mesh(self, mesh: Any, stream: Stream | None = None) -> Tensor:
        """As `monarch.to_mesh`."""
        return _moved(self, _device_mesh(mesh), stream)

    def __repr__(self) -> str:
        return f"MeshSliceTensor({self.tensor!r}, {self.slicing!r})"


def _sliced(tensor: Any, dims: dict[str, Any]) -> MeshSliceTensor:
    if type(tensor) is not Tensor:
        raise misuse.incorrect("slice_mesh", (tensor,), dims, [Problem(tensor, "LOCAL_TENSOR")], None, None)
    return MeshSliceTensor(tensor, tensor.mesh.slice(**dims))


def _device_mesh(mesh: Any) -> DeviceMesh:
    found = mesh if isinstance(mesh, DeviceMesh) else getattr(mesh, "_device_mesh", None)
    if not isinstance(found, DeviceMesh):
        raise TypeError(f"to_mesh takes a DeviceMesh or a ProcMesh, and not {mesh!r}")
    return found


def _moved(source: Any, mesh: DeviceMesh, stream: Stream | None) -> Tensor:
    tensor = source.tensor if isinstance(source, MeshSliceTensor) else source
    if type(tensor) is not Tensor:
        raise misuse.incorrect("to_mesh", (tensor, mesh), {}, [Problem(tensor, "LOCAL_TENSOR")], mesh, stream)
    record = tensor._record
    origin: Place = record.place
    problem = trouble(tensor, origin, False)
    if problem is None and tensor.requires_grad and torch.is_grad_enabled():
        problem = Problem(tensor, "REQUIRES_GRAD")
    if problem is not None:
        raise misuse.incorrect("to_mesh", (tensor, mesh), {}, [problem], origin.mesh, origin.stream)
    start = source.slicing if isinstance(source, MeshSliceTensor) else origin.mesh
    pairs = routes(start, mesh)
    there = mesh.place(stream if stream is not None else origin.stream)
    meta = metadata.contiguous(tensor.shape, tensor.dtype, tensor.device)
    with _moving:
        if all(sender == receiver for sender, receiver in pairs):
            ident, taint = _copied(record, mesh, there), record.storage.taint
        else:
            ident, taint = _sent(record, start, there, pairs)
    return make(Record(ident, meta, there, Storage(taint)))


def routes(start: DeviceMesh, mesh: DeviceMesh) -> tuple[tuple[int, int], ...]:
    """(sender, receiver) for each rank of `mesh`, in the engine's numbers. ValueError when they do not fit."""
    if start.client is not mesh.client:
        raise ValueError(
            f"{start} and {mesh} belong to different engines: tensors move between slices of one ProcMesh. Spawn the "
            f"processes as one mesh and slice it"
        )
    if lacking := [name for name in start.names if name not in mesh.names]:
        raise ValueError(
            f"destination mesh does not have dimensions {set(lacking)} of the source, which has {start.names}"
        )
    sizes, theirs = start.sizes, mesh.sizes
    if wrong := [name for name in start.names if sizes[name] != theirs[name]]:
        raise ValueError(
            f"destination mesh has other sizes than the source: {', '.join(f'{n}={theirs[n]} for {sizes[n]}' for n in wrong)}"
        )
    if spread := [name for name in mesh.names if name not in sizes and theirs[name] > 1]:
        warnings.warn(
            f"broadcasting along {', '.join(spread)} is inefficient: every copy is sent from the same rank",
            stacklevel=_outside(),
        )
    strides = dict(zip(start.names, start.processes.strides, strict=True))
    found = []
    for coordinates in itertools.product(*(range(theirs[name]) for name in mesh.names)):
        at = dict(zip(mesh.names, coordinates, strict=True))
        sender = start.processes.offset + sum(strides[name] * at[name] for name in start.names)
        found.append(sender)
    return tuple(zip(found, mesh.processes, strict=True))


def _outside() -> int:
    """How far up the first frame outside this package is, for `stacklevel` of who calls this."""
    import sys

    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("monarch.tensor", "torch.")):
        level, frame = level + 1, frame.f_back
    return level


def _copied(record: Record, mesh: DeviceMesh, there: Place) -> int:
    """A copy on the same ranks, made on the source's stream; another stream waits for it."""
    engine = there.engine
    here = mesh.place(record.place.stream)
    ident = engine.run(here, engine.define("copy", Copy()), (record.ref,), (), 1)
    if here is not there:
        follow_stream(here, there.stream)
    return ident


def _sent(record: Record, start: DeviceMesh, there: Place, pairs: tuple[tuple[int, int], ...]) -> tuple[int, Any]:
    origin: Place = record.place
    engine = origin.engine
    here = start.place(origin.stream)
    meta = record.meta
    what = (tuple(meta.shape), meta.dtype, meta.device)
    streams = (here.stream_number, there.stream_number)
    number = next(_numbers)
    send = engine.define(("send", pairs, streams, what), Send(pairs, streams, what))
    ident = engine.run(here, send, (record.ref,), (number,), 0)
    taint = engine.taints.issued(ident, here, [record.storage.taint])
    receive = engine.define(("receive", pairs, streams, what), Receive(pairs, streams, what))
    return engine.run(there, receive, (), (number,), 1), taint


# --- in the workers -------------------------------------------------------------------------------------------


class Copy:
    """The signature of a move that stays where it is."""

    keeps: tuple[int, ...] | None = None
    mutates: tuple[int, ...] = ()

    def name(self) -> str:
        return "to_mesh"

    def prepare(self, executor: Any) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        return lambda tensors, numbers: tensors[0].clone(memory_format=torch.contiguous_format)


class Send:
    """The signature of the sending half of a move. `what`: (shape, dtype, device) of the tensor. The Run's number is
    the move's."""

    between_ranks = True
    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def __init__(self, pairs: tuple[tuple[int, int], ...], streams: tuple[int, int], what: tuple[Any, ...]) -> None:
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
            tensor, problem = tensors[0], None
            if type(tensor) is Failed:
                problem = RuntimeError(tensor.text)
            elif tuple(tensor.shape) != shape or tensor.dtype != dtype:
                problem = RuntimeError(
                    f"the local tensor is {tensor.dtype}{list(tensor.shape)}, and the controller knows it as "
                    f"{dtype}{list(shape)}"
                )
            if problem is None:
                copy = tensor.clone(memory_format=torch.contiguous_format)
            else:
                copy = torch.zeros(shape, dtype=dtype, device=device)
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
        self._lock = threading.Lock()
        self._senders: dict[tuple[Any, ...], _Sender] = {}
        self._kept: dict[tuple[Any, ...], deque[torch.Tensor]] = {}  # several of a number: recordings repeat theirs
        self._events = Events()

    def send(self, sender: int, receiver: int, streams: tuple[int, int], number: int, tensor: torch.Tensor) -> None:
        """Does not wait, and nothing may be done to `tensor` any more."""
        if sender == receiver:
            with self._lock:
                self._kept.setdefault((streams, number), deque()).append(tensor.clone())
            self._events.post(number)
            return
        key = (sender, receiver, streams)
        with self._lock:
            line = self._senders.get(key)
            if line is None:
                line = self._senders[key] = _Sender(self._groups, sender, receiver, streams)
        line.put(number, tensor)

    def receive(
        self, sender: int, receiver: int, streams: tuple[int, int], number: int, shape: Any, dtype: Any, device: Any
    ) -> torch.Tensor:
        """Waits for the tensor. GroupLost when the sender has ended, RuntimeError when it is too late."""
        if sender == receiver:
            self._events.wait(number)
            with self._lock:
                waiting = self._kept[streams, number]
                kept = waiting.popleft()
                if not waiting:
                    del self._kept[streams, number]
            return kept
        made = torch.empty(shape, dtype=dtype, device=device)
        backend = self._groups.backend(_label(streams), (sender, receiver), 0, made.device.type)
        if made.numel():
            backend.recv([_bytes(made)], 0, number % _TAGS).wait()
        return made

    def close(self) -> None:
        """Nothing is sent any more."""
        self._events.close()
        with self._lock:
            found = list(self._senders.values())
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
        event = None
        if tensor is not None and tensor.device.type != "cpu":
            event = torch.Event(tensor.device)
            event.record()
        self._queue.put((number, tensor, event))

    def _run(self) -> None:
        while True:
            number, tensor, event = self._queue.get()
            if tensor is None:
                return
            try:
                backend = self._groups.backend(self._label, self._members, 0, tensor.device.type)
                if event is not None:
                    torch.accelerator.set_device_index(tensor.device.index)
                    event.wait()
                if tensor.numel():
                    backend.send([_bytes(tensor)], 1, number % _TAGS).wait()
            except Exception as exc:  # the receiver meets it itself
                self._groups.lose(self._label, f"rank {self._members[0]} could not send: {exc}", self._members)
            del tensor, event


_TAGS = 1 << 30
_making = threading.Lock()


def lines_of(executor: Any) -> Lines:
    """The connections of the worker whose stream this thread is."""
    from monarch.tensor.worker.executor import current

    groups = groups_of(current())
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
