"""A RemoteProcessGroup in a worker: what it is unpickled as, and how it is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch._linux.locks import Lock
from monarch.tensor.worker import current
from monarch.tensor.worker.process_groups import TIMEOUT
from monarch.tensor.worker.stream_group import Arrived, StreamGroup
from monarch.tensor.worker.worker_mesh import WorkerMesh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.tensor.signature import Runner, Scalar
    from monarch.tensor.worker.executor import Executor


class DropGroup:
    """The call by which each process leaves a group."""

    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def __init__(self, label: str, stream: int, leaving: int) -> None:
        self._label = label
        self._stream = stream
        self._leaving = leaving

    def name(self) -> str:
        return "RemoteProcessGroup.drop"

    def prepare(self, executor: Executor) -> Runner:
        def run(tensors: object, numbers: Sequence[Scalar]) -> None:
            for (label, _), group in list(executor.extras.get("arrived", {}).items()):
                if label == self._label:
                    group.leave(self._stream)
            # The last to leave has the rendezvous forget the group: before that others may still be on their way to it.
            worker = current.worker()
            rendezvous, _ = worker.services
            worker.ask(rendezvous.leave, TIMEOUT, self._label, self._leaving)

        return run


_arriving = Lock()


def arrive(
    label: str, names: tuple[str, ...], sizes: tuple[int, ...], ranks: tuple[int, ...], dims: tuple[str, ...]
) -> Any:
    """Returns what a RemoteProcessGroup is unpickled as: the same object each time in a worker."""
    worker = current.worker()
    members = WorkerMesh(names, sizes, ranks).along(worker.executor.rank, tuple(dims))
    with _arriving:
        known = worker.executor.extras.setdefault("arrived", Arrived())
        group = known.get((label, tuple(members)))
        if group is None:
            group = known[label, tuple(members)] = StreamGroup(worker, label, tuple(members))
    group.register()
    current.opening().append(group)
    return group
