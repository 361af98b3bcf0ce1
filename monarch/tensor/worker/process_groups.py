"""The torch process groups of one worker: made when first used, one for each (purpose, ranks, stream, kind of device).

gloo carries what is on the CPU, nccl (RCCL under ROCm) what is on a GPU. The processes find each other through messages
(`rendezvous`), so no port is opened for that; gloo itself listens on a port of the interface by which this host is
known to the others, and takes connections there that name a pair of the group. None of these groups is torch's
default one.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from monarch._linux.locks import Lock
from monarch.tensor.failures import GroupLost
from monarch.tensor.worker.rendezvous import MessageStore

if TYPE_CHECKING:
    from monarch.tensor.worker.reductions import Backend
    from monarch.tensor.worker.worker_actor import TensorWorker

ON_ERROR = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
TIMEOUT = 300.0  # seconds that a rank waits in a collective for the others, before it fails there

_making = Lock()


class _Slot:
    """One group: made by the first thread that comes, while the others wait."""

    __slots__ = ("backend", "lock", "lost")

    def __init__(self) -> None:
        self.lock = Lock()
        self.backend: Backend | None = None
        self.lost = ""


class UnfinishedWorks:
    """Works of nccl that are not known to have gone well. Their `wait` lets the stream wait, and no thread; one that fails
    later, because a rank is late or lost, is aborted, and the stream goes on with what it has. Any thread."""

    def __init__(self) -> None:
        self._works: deque[tuple[dist.Work, str]] = deque()
        self._failed = ""
        self._lock = Lock()

    def add(self, work: object, what: str) -> None:
        with self._lock:
            self._look()  # a work keeps what it gives alive
            self._works.append((work, what))

    def failed(self) -> str | None:
        """Returns why one of them failed, from then on for good: what depends on what is not known."""
        with self._lock:
            self._look()
            return self._failed or None

    def _look(self) -> None:
        while self._works and self._works[0][0].is_completed():  # those of one communicator end in order
            work, what = self._works.popleft()
            if (error := work.exception()) is not None:
                self._failed = self._failed or f"{what} failed: {error}"


class TrackedBackend:
    """A Backend whose works are `unfinished` until they are done."""

    def __init__(self, backend: Backend, members: tuple[int, ...], unfinished: UnfinishedWorks) -> None:
        self._backend = backend
        self._members = members
        self._unfinished = unfinished

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if not callable(found):
            return found

        def call(*args: object, **kwargs: object) -> object:
            made = found(*args, **kwargs)
            if isinstance(made, dist.Work):
                self._unfinished.add(made, f"{name} of ranks {list(self._members)}")
            return made

        return call


class ProcessGroups:
    """`call(name, seconds, *args)` asks the engine's Rendezvous; `address`: this host's, as others know it."""

    def __init__(self, rank: int, engine: str, call: Callable[..., Any], address: str) -> None:
        self.rank = rank
        self.engine = engine
        self._call = call
        self._address = address
        self._store = MessageStore(call, TIMEOUT)
        self._addresses = MessageStore(call, TIMEOUT, write_once=True)
        self._slots: dict[tuple[str, tuple[int, ...], int, str], _Slot] = {}
        self._lock = Lock()
        self._device: Any = None
        self.unfinished = UnfinishedWorks()

    def confirm(self) -> None:
        """GroupLost when a collective of nccl has failed: what its stream did after it is not to be used. For who has
        waited for its stream."""
        failed = self.unfinished.failed()
        if failed is not None:
            raise GroupLost(failed)

    def backend(self, label: str, members: tuple[int, ...], stream: int, device: str) -> Backend:
        """The Backend over the ranks `members`, in this order. All of them have to ask, or to have asked, within TIMEOUT.

        GroupLost when it could not be made, or was lost since.
        """
        slot = self._slot(label, members, stream, device)
        if slot.backend is not None:
            return slot.backend
        with slot.lock:
            if slot.lost:
                raise GroupLost(slot.lost)
            if slot.backend is None:
                try:
                    slot.backend = self._make(label, members, stream, device)
                except Exception as exc:
                    slot.lost = f"the process group of ranks {list(members)} could not be made: {exc}"
                    raise GroupLost(slot.lost) from exc
            return slot.backend

    def lose(self, label: str, why: str, members: tuple[int, ...] | None = None, stream: int | None = None) -> None:
        """Closes groups of this label: other processes that wait in one fail at once; later use here is GroupLost(why)."""
        with self._lock:
            found = [(key, slot) for key, slot in self._slots.items() if key[0] == label]
        for key, slot in found:
            if (members is None or key[1] == members) and (stream is None or key[2] == stream):
                self._close(slot, why)

    def shun(self, label: str, members: tuple[int, ...], why: str) -> None:
        """Closes the groups of these ranks as `lose` does, and lets nobody wait for this rank to come to one."""
        self._call("lose", TIMEOUT, _name(label, members), why)
        self.lose(label, why, members)

    def forget(self, label: str) -> None:
        """Closes the groups of this label; none will be asked for again."""
        with self._lock:
            found = [self._slots.pop(key) for key in list(self._slots) if key[0] == label]
        for slot in found:
            self._close(slot, "the group was dropped")

    def close(self) -> None:
        """Closes all groups; who still waits in one hears that the engine has ended."""
        with self._lock:
            found, self._slots = list(self._slots.values()), {}
        for slot in found:
            self._close(slot, "the tensor engine has ended")

    def _close(self, slot: _Slot, why: str) -> None:
        slot.lost = slot.lost or why
        backend, slot.backend = slot.backend, None
        if backend is not None and backend.name() != "gloo":
            backend.abort()  # a gloo group closes its connections when the last reference goes

    def _slot(self, label: str, members: tuple[int, ...], stream: int, device: str) -> _Slot:
        key = (label, members, stream, device)
        slot = self._slots.get(key)
        if slot is None:
            with self._lock:
                slot = self._slots.setdefault(key, _Slot())
        return slot

    def _make(self, label: str, members: tuple[int, ...], stream: int, device: str) -> Backend:
        name = f"{_name(label, members)}/{stream}/{device}"
        place, size = members.index(self.rank), len(members)
        if device == "cpu":
            return self._gloo(dist.PrefixStore(name, self._addresses), place, size)
        if device == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=TIMEOUT)
            options.global_ranks_in_group = list(members)
            options.group_name = name
            with failing_without_the_process():
                made = dist.ProcessGroupNCCL(dist.PrefixStore(name, self._store), place, size, options)
            return TrackedBackend(made, members, self.unfinished)
        raise NotImplementedError(
            f"no collectives between devices of kind {device!r}: the CPU has gloo, CUDA and ROCm have nccl"
        )

    def _gloo(self, store: object, place: int, size: int) -> Any:
        with self._lock:
            if self._device is None:
                self._device = dist.ProcessGroupGloo.create_device(hostname=self._address)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [self._device]
        options._timeout = timedelta(seconds=TIMEOUT)
        return dist.ProcessGroupGloo(store, place, size, options)


@contextlib.contextmanager
def failing_without_the_process() -> Iterator[None]:
    """An nccl group that is made in here fails when a rank is late or lost, where torch would end the process: mode 2 of
    ProcessGroupNCCL.hpp, CleanUpOnly, aborts its communicators and leaves the error with each Work. The constructor
    reads the variable. One that the program has set stays."""
    with _making:
        given = os.environ.get(ON_ERROR)
        if given is None:
            os.environ[ON_ERROR] = "2"
        try:
            yield
        finally:
            if given is None:
                del os.environ[ON_ERROR]


def _name(label: str, members: tuple[int, ...]) -> str:
    return f"{label.replace('/', '_')}/{'.'.join(map(str, members))}"


def groups_of(worker: TensorWorker) -> ProcessGroups:
    """Returns the groups of a TensorWorker."""
    extras = worker.executor.extras
    with _making:
        if "groups" not in extras:
            rendezvous, engine = worker.services
            ask = worker.ask

            def call(name: str, seconds: float, *args: object) -> object:
                return ask(getattr(rendezvous, name), seconds, *args)

            extras["groups"] = ProcessGroups(worker.executor.rank, engine, call, worker.address)
    found: ProcessGroups = extras["groups"]
    return found
