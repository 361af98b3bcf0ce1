"""The beginning of a transfer, its change of path when one cannot do it, and paths that are not tried for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from time import monotonic
from typing import Generic, TypeVar

from monarch._errors import RDMAUnavailableError
from monarch.rdma import staging
from monarch.rdma.backends import Backend
from monarch.rdma.buffer_handle import BufferHandle
from monarch.rdma.transfer import Transfer

AVOIDED = 1024  # of which a way is known to fail; the one met first is forgotten

K = TypeVar("K")


def first_usable(backends: Iterable[Backend], handle: BufferHandle, obstacles: Iterable[str] = ()) -> Backend:
    """The first that nothing stands in the way of. RDMAUnavailableError when there is none, with what does, after
    `obstacles`, which are known already."""
    met = list(obstacles)
    for backend in backends:
        why = backend.why_unavailable(handle)
        if not why:
            return backend
        met.append(f"{backend.name}: {why}")
    raise RDMAUnavailableError(f"no compatible RDMA backend for buffer: {handle}; {'; '.join(met)}")


def begin(backend: Backend, transfer: Transfer) -> None:
    """Has the backend do the transfer; through pinned memory where the local side is a device's that it does not take."""
    if transfer.memory.device is None or backend.takes_devices:
        backend.start(transfer)
    else:
        staging.start(backend, transfer)


def hand_over(transfer: Transfer, backend: Backend) -> None:
    """Begins a transfer that another path cannot do. A failure ends it."""
    try:
        transfer.path = backend.name
        begin(backend, transfer)
    except Exception as exc:
        transfer.finish(exc)


def reroute(transfer: Transfer, backends: Iterable[Backend], obstacles: Iterable[str] = ()) -> None:
    """Begins a transfer that another path cannot do by the first of these that can be used. A failure ends it."""
    try:
        backend = first_usable(backends, transfer.handle, obstacles)
    except Exception as exc:
        transfer.finish(exc)
    else:
        hand_over(transfer, backend)


class AvoidedRoutes(Generic[K]):
    """The owners (or some of their memory) that a path has failed with, why, and until when it is not tried again. Any
    thread.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[K, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        self._known.clear()

    def why(self, key: K) -> str:
        """ "" where it may be tried."""
        why, until = self._known.get(key, ("", 0.0))
        return why if monotonic() < until else ""

    def add(self, key: K, why: str, seconds: float) -> bool:
        """Adds it, and returns whether it was not known before.

        Each step is atomic by itself: no lock, which a forked child might find taken.
        """
        first = key not in self._known
        self._known[key] = (why, monotonic() + seconds)
        if len(self._known) > AVOIDED:
            try:
                self._known.popitem(last=False)
            except KeyError:  # another thread has just emptied it
                pass
        return first
