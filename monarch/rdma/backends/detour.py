"""A transfer that cannot go the way it was given to goes another one; and with whom a way is not tried for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Generic, TypeVar

from monarch._errors import RDMAUnavailableError
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
        obstacle = backend.obstacle(handle)
        if not obstacle:
            return backend
        met.append(f"{backend.name}: {obstacle}")
    raise RDMAUnavailableError(f"no compatible RDMA backend for buffer: {handle}; {'; '.join(met)}")


def _start(backend: Backend, transfer: Transfer) -> None:
    backend.start(transfer)


def reroute(
    transfer: Transfer, choose: Callable[[BufferHandle], Backend], begin: Callable[[Backend, Transfer], None] = _start
) -> None:
    """Begins it by the backend that `choose` gives. Whatever that raises, or beginning it, is how it ends."""
    try:
        backend = choose(transfer.handle)
        transfer.path = backend.name
        begin(backend, transfer)
    except Exception as exc:
        transfer.finish(exc)


class AvoidedRoutes(Generic[K]):
    """What a way has failed with (an owner, or some of its memory), why, and until when it is not tried again. Any thread."""

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
        """Whether it was not known before. Each step is atomic by itself: no lock, which a forked child might find taken."""
        first = key not in self._known
        self._known[key] = (why, monotonic() + seconds)
        if len(self._known) > AVOIDED:
            try:
                self._known.popitem(last=False)
            except KeyError:  # another thread has just emptied it
                pass
        return first
