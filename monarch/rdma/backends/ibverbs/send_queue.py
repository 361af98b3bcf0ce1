"""A queue pair as its user sees it: its states, what is posted and what waits, and what a completion means. No I/O.

States and their order: InfiniBand Architecture Specification, volume 1, 10.3.1. Completions of one send queue come in the
order of its requests (10.8), and once one fails, all behind it are flushed and the queue pair is of no more use.

Not thread-safe.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple

MESSAGE = 1 << 30  # bytes of a request, at most
WINDOW = 128  # requests posted and not completed, at most; a device has memory for so many of each queue pair


class QueuePairState(Enum):
    RESET = "reset"
    INIT = "init"
    RTR = "ready to receive"
    RTS = "ready to send"
    ERROR = "error"


_NEXT = {
    QueuePairState.RESET: QueuePairState.INIT,
    QueuePairState.INIT: QueuePairState.RTR,
    QueuePairState.RTR: QueuePairState.RTS,
}


class TransferFault(Enum):
    """The ways in which a transfer fails, and whose fault each is."""

    REFUSED = "the owner's device refused the access: the key is not valid there (any more)"
    UNREACHABLE = (
        "the owner's device did not answer: retry exceeded (if there is no way between the two devices, see "
        "rdma_peer_device_affinity and rdma_ib_gid_index; if the network was away, rdma_ib_timeout and rdma_ib_retry_count)"
    )
    LOCAL = "this side's memory is not registered as the request needs it"
    FLUSHED = "the queue pair failed before the request's turn came"
    DEVICE = "the device failed"
    LATE = "it timed out"


# enum ibv_wc_status of libibverbs' verbs.h
_FAULTS = {
    **dict.fromkeys((1, 2, 4, 8), TransferFault.LOCAL),
    5: TransferFault.FLUSHED,
    **dict.fromkeys((9, 10, 11, 15), TransferFault.REFUSED),
    **dict.fromkeys((12, 13, 16, 20), TransferFault.UNREACHABLE),
}
SUCCESS = 0


def fault_of(status: int) -> TransferFault:
    """Returns what `status`, which is not SUCCESS, means."""
    return _FAULTS.get(status, TransferFault.DEVICE)


class WorkRequest(NamedTuple):
    """One work request: `size` bytes at `local`, to or from `remote`. One piece of memory at either end, so every device can
    do it, whatever it allows for lists of pieces (max_sge, max_sge_rd)."""

    local: int
    remote: int
    size: int


def split(local: int, remote: int, size: int, message: int = MESSAGE) -> list[WorkRequest]:
    """Returns as few requests as move `size` bytes, none with more than `message`. ValueError when that is not positive."""
    if message < 1:
        raise ValueError(f"a request of at most {message} bytes moves nothing")
    return [WorkRequest(local + at, remote + at, min(message, size - at)) for at in range(0, size, message)]


class PostedRequest(NamedTuple):
    """A request to be posted, under a number that its completion gives back."""

    number: int
    job: Hashable
    request: WorkRequest


class QueuePairFailure(NamedTuple):
    """The queue pair failed. `job`'s request was the first that did; `others` were not done either, by no fault of theirs."""

    job: Hashable
    fault: TransferFault
    others: list[Hashable]


class SendQueue:
    """Requests of many jobs, in the order in which they came."""

    def __init__(self, window: int = WINDOW) -> None:
        if window < 1:
            raise ValueError(f"a window of {window} requests lets nothing through")
        self.state = QueuePairState.RESET
        self._window = window
        self._numbers = itertools.count(1)
        self._waiting: deque[tuple[Hashable, WorkRequest]] = deque()
        self._posted: dict[int, Hashable] = {}
        self._left: dict[Hashable, int] = {}

    def advance(self, state: QueuePairState) -> None:
        """One step towards RTS, or to ERROR from anywhere. ValueError for any other."""
        if state is not QueuePairState.ERROR and _NEXT.get(self.state) is not state:
            raise ValueError(f"a queue pair cannot go from {self.state.value} to {state.value}")
        self.state = state

    def submit(self, job: Hashable, requests: list[WorkRequest]) -> None:
        """At least one request; a job submits once. ValueError, also when the queue pair is not ready to send."""
        if self.state is not QueuePairState.RTS:
            raise ValueError(f"a queue pair in state {self.state.value} takes no requests")
        if job in self._left or not requests:
            raise ValueError("a job submits its requests at once, and at least one")
        self._left[job] = len(requests)
        self._waiting.extend((job, request) for request in requests)

    def post(self) -> list[PostedRequest]:
        """Returns the requests that there is room for now; they count as posted from here on."""
        if self.state is not QueuePairState.RTS:
            return []
        result = []
        while self._waiting and len(self._posted) < self._window:
            job, request = self._waiting.popleft()
            number = next(self._numbers)
            self._posted[number] = job
            result.append(PostedRequest(number, job, request))
        return result

    def complete(self, number: int, status: int) -> Hashable | QueuePairFailure | None:
        """A job that is done with this completion, or what has failed. Numbers that nobody waits for are ignored."""
        job = self._posted.pop(number, None)
        if job is None:
            return None
        if status != SUCCESS:
            others = [other for other in self.fail() if other != job]
            return QueuePairFailure(job, fault_of(status), others)
        self._left[job] -= 1
        if self._left[job]:
            return None
        del self._left[job]
        return job

    def withdraw(self, job: Hashable) -> bool:
        """Takes back what is not posted. True when nothing of the job is under way any more, also when it is not known.

        False: requests of it are posted, and only the end of the queue pair ends them.
        """
        if job not in self._left:
            return True
        if job in self._posted.values():
            return False
        self._waiting = deque(one for one in self._waiting if one[0] != job)
        del self._left[job]
        return True

    def fail(self) -> list[Hashable]:
        """The end: all jobs that are not done, in the order in which they came."""
        self.state = QueuePairState.ERROR
        left = list(self._left)
        self._left.clear()
        self._posted.clear()
        self._waiting.clear()
        return left

    @property
    def busy(self) -> bool:
        return bool(self._left)
