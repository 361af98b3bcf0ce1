"""The knowledge of a stream's thread: the worker it belongs to, its stream, the call it is about to read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.tensor.worker.worker_actor import TensorWorker


class _Thread(threading.local):
    worker: TensorWorker | None = None
    stream = 0
    groups: list[Any] | None = None  # process groups among the arguments of the call that is unpickled now


thread = _Thread()


def worker() -> TensorWorker:
    """The worker whose stream this thread is. RuntimeError anywhere else."""
    if thread.worker is None:
        raise RuntimeError("this is only possible inside a remote function, in a worker of a mesh")
    return thread.worker


def stream() -> int:
    """The number of the stream whose thread this is. RuntimeError anywhere else."""
    worker()
    return thread.stream


def opening() -> list[Any]:
    """Process groups among the arguments of the call that this thread is unpickling: they are aborted should it fail."""
    return thread.groups if thread.groups is not None else []
