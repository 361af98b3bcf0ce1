"""The torch groups of this process end when one of their ranks dies: with errors that name it, in every collective.

torch leaves ranks that do not speak to the dead one directly in their collective, for as long as the group's timeout says:
ten minutes or thirty. So the process of each rank hears of the ends of the others from its host agent, which sees them at
once, and breaks its own groups then: gloo's connections are shut down (`gloo_sockets`), nccl's communicators aborted.

All groups of the process end together, those of its submeshes included: the ranks of each wait for others that wait for
the dead one.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from monarch._linux.locks import Condition
from monarch._linux.thread_frames import thread_frames
from monarch._text import first_line
from monarch.actor import ProcMesh
from monarch.actor.lowlevel import explain_errors, hold_health, own_process, start_thread, watch_processes
from monarch.spmd import gloo_sockets
from monarch.spmd.gloo_sockets import Store

logger = logging.getLogger("monarch")

ADVICE = "When healthy() of its actors is done, call setup_torch_distributed() again"
OWN_THREADS = "monarch-torch-"  # begins the names of threads that are ours

LEAVING = 10.0  # seconds that ranks get to leave what they are in
_NEWS = 1.0  # seconds that the error of a broken connection waits for word of a death that explains it
_PAUSE, _LONG_PAUSE = 0.01, 0.5  # seconds between two looks whether a thread is still in a collective
_QUIET = 3  # looks in a row at which none was, after which none will be
_ERRORS = ("DistError", "DistBackendError", "DistNetworkError", "DistStoreError")
_WORDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
_CODE = ("/torch/distributed/", "/torch/nn/parallel/distributed.py")


class Member(NamedTuple):
    """The process of a rank."""

    address: str
    incarnation: int


class Membership:
    """The ranks of one group, and what became of it. Pure."""

    def __init__(self, rank: int, members: Sequence[Member]) -> None:
        self.rank = rank
        self.members = list(members)
        self.dead: dict[int, str] = {}  # rank -> how it died
        self.ended = ""  # why it ended, if not by a death

    @property
    def others(self) -> dict[str, int]:
        """The addresses of the other ranks, and their incarnations."""
        return {one.address: one.incarnation for rank, one in enumerate(self.members) if rank != self.rank}

    def died(self, address: str, how: str) -> int:
        """Takes note of the end of a process. Returns its rank."""
        rank = next(rank for rank, one in enumerate(self.members) if one.address == address)
        self.dead.setdefault(rank, how)
        return rank

    @property
    def speaks(self) -> bool:
        """True if this is the rank that logs for all."""
        return self.rank == min((rank for rank in range(len(self.members)) if rank not in self.dead), default=-1)

    def why(self) -> str:
        """Returns why its collectives fail; "" when nothing is known."""
        count = len(self.members)
        if not self.dead:
            return self.ended
        ranks = sorted(self.dead)
        of = f"of this process's torch group of {count} ranks"
        if len(ranks) == 1:
            return f"rank {ranks[0]} {of} has died ({self.dead[ranks[0]]}). {ADVICE}"
        each = "; ".join(f"rank {rank}: {self.dead[rank]}" for rank in ranks)
        listed = f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
        return f"ranks {listed} {of} have died ({each}). {ADVICE}"


class GroupGuard:
    """The guard of this process. Any thread."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._membership: Membership | None = None
        self._before: Membership | None = None  # whose errors may still be on their way
        self._unwatch: Callable[[], None] | None = None
        self._stores: set[Store] = set()
        self._entering = False

    @property
    def membership(self) -> Membership | None:
        return self._membership

    def enter(self, membership: Membership, stores: Sequence[Store] = ()) -> None:
        """From now on the groups of this process end with the death of one of these ranks, and what waits at these stores.
        The process has left those before."""
        with self._changed:
            self._forget()
            self._before, self._membership = self._membership, membership
            self._stores, self._entering = set(stores), True
        unwatch = watch_processes(membership.others, lambda *told: self._hear(membership, *told))
        with self._changed:
            if self._membership is membership:
                self._unwatch = unwatch
            else:
                unwatch()

    def entered(self) -> None:
        """Every rank is in the group."""
        with self._changed:
            self._before, self._entering = None, False

    def leave(self, why: str, patience: float) -> list[str]:
        """Ends the groups of this process, and returns when no thread is in a collective of theirs. After so many seconds,
        which threads still are, and where."""
        with self._changed:
            membership = self._membership
            if membership is not None:
                membership.ended = membership.ended or why
            elif not is_in_group():  # a backward pass of its own may run
                return []
        return self._end(membership, time.monotonic() + patience)

    def explain(self, exc: BaseException) -> BaseException:
        """Returns an error that a broken collective raised as one that says which rank has died. Waits a moment for word of
        it."""
        if self._membership is None or not _is_of_collective(exc):
            return exc
        why = self._why_broken(0.0 if "timed out" in str(exc).lower() else _NEWS)
        if not why or why in str(exc):
            return exc
        if type(exc) is RuntimeError:
            exc.args = (f"{why}\n(torch: {exc})",)
        elif type(exc).__name__ in _ERRORS:  # who reads it need not import torch, which takes seconds
            told = RuntimeError(f"{why}\n(torch: {type(exc).__name__}: {exc})").with_traceback(exc.__traceback__)
            told.__cause__, told.__context__ = exc.__cause__, exc.__context__
            told.__suppress_context__ = exc.__suppress_context__
            return told
        else:
            exc.add_note(why)
        return exc

    def _why_broken(self, patience: float) -> str:
        with self._changed:
            before = self._before.why() if self._entering and self._before is not None else ""
            if before:
                return before
            self._changed.wait_for(lambda: self._membership is None or bool(self._membership.why()), patience)
            return self._membership.why() if self._membership is not None else ""

    def forget(self) -> None:
        """From now on the groups of this process end with nobody's death."""
        with self._changed:
            self._forget()
            self._before, self._membership = self._membership, None

    def _forget(self) -> None:
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()

    def _hear(self, membership: Membership, address: str, how: str, stopped: bool) -> None:
        """On the I/O thread, which must not wait. The ranks are not healthy while they are in what cannot end well."""
        left = hold_health(LEAVING)
        start_thread(self._died, f"{OWN_THREADS}abort", membership, address, how, stopped, left)

    def _died(self, membership: Membership, address: str, how: str, stopped: bool, left: Callable[[], None]) -> None:
        try:
            self._abort(membership, address, how, stopped)
        finally:
            left()

    def _abort(self, membership: Membership, address: str, how: str, stopped: bool) -> None:
        with self._changed:
            if membership is not self._membership:
                return
            first = not membership.dead
            membership.died(address, how)
            self._changed.notify_all()
        if first and "torch" in sys.modules:
            if membership.speaks and not stopped and is_in_group():
                logger.warning("%s", membership.why())
            start_thread(abort_nccl, f"{OWN_THREADS}nccl")
            self._end(membership, float("inf"))

    def _end(self, membership: Membership | None, deadline: float) -> list[str]:
        quiet, pause = 0, _PAUSE
        pairs = len(membership.members) if membership is not None else 0
        while True:
            with self._changed:  # so that no group is broken that is made after this one
                if self._membership is not membership:
                    return []
                inside = list(threads_inside())
                if any(one.making for one in inside):
                    gloo_sockets.end_rendezvous(pairs)
                gloo_sockets.shut_down(self._stores)
                left = [one.where for one in inside if not one.ours]
                quiet = 0 if inside else quiet + 1
                if quiet >= _QUIET or time.monotonic() > deadline:
                    return left
                self._changed.wait(pause)
            pause = min(2 * pause, _LONG_PAUSE)


class ThreadInside(NamedTuple):
    """A thread that is in torch's code for groups."""

    where: str
    making: bool  # a group
    ours: bool


def threads_inside() -> Iterator[ThreadInside]:
    """Yields the threads of this process that are in a collective, in a backward pass, or in the making of a group."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in list(thread_frames().items()):
        codes = list(_codes(frame))
        found = next((code for code in codes if _is_of_group(code)), None)
        if found is not None:
            name = names.get(ident, str(ident))
            making = any(code.co_name == "_new_process_group_helper" for code in codes)
            yield ThreadInside(f"thread {name!r} in {found.co_name}()", making, name.startswith(OWN_THREADS))


def _codes(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _is_of_group(code: CodeType) -> bool:
    return code.co_name == "_engine_run_backward" or any(part in code.co_filename for part in _CODE)


def _is_of_collective(exc: BaseException) -> bool:
    """True if it may come of a broken connection between ranks."""
    seen: set[int] = set()
    current: BaseException | None = exc
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, RuntimeError):
            text = str(current).lower()
            if type(current).__name__ in _ERRORS or any(word in text for word in _WORDS):
                return True
        current = current.__cause__ or current.__context__
    return False


def is_in_group() -> bool:
    """True if this process has a default group of torch."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available()) and bool(dist.is_initialized())


def abort_nccl() -> None:
    """Aborts the communicators of all groups of nccl in this process, the one that was made last first: kernels that wait
    for a rank that is gone end, and collectives that begin raise."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    names: Mapping[Any, str] = getattr(getattr(c10d, "_world", None), "pg_names", None) or {}
    backends = [backend for group in sorted(list(names), key=lambda one: names[one], reverse=True)
                if (backend := _nccl_of(group)) is not None]  # fmt: skip
    if not backends:
        return
    try:
        backends[0]._group_start()  # else one abort may wait for another
        try:
            for backend in backends:
                backend.abort()
        finally:
            backends[0]._group_end()
    except Exception as exc:
        logger.warning("the nccl groups of this process could not be aborted: %s", first_line(exc))


def _nccl_of(group: Any) -> Any:
    """The group's backend of nccl; None when it has none."""
    import torch

    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:
        return None
    return backend if "nccl" in str(backend.name()).lower() else None


guard = GroupGuard()
explain_errors(guard.explain)


def own_member() -> Member:
    return Member(*own_process())


def members_of(procs: ProcMesh) -> list[Member]:
    """The processes of a mesh, whichever live there now."""
    return [Member(address, -1) for address in procs._addresses()]


def stores_at(host: str, port: int) -> list[Store]:
    """The store at that address or name, as connections to it have it."""
    try:
        found = {str(name[0]) for *_, name in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:  # whoever connects to it says so
        return []
    return [(address, port) for address in found]
