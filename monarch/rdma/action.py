"""RDMAAction: many transfers, one submit."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from monarch._errors import RDMAError
from monarch._linux.locks import Lock
from monarch.actor import Future, Promise
from monarch.rdma import copying
from monarch.rdma.buffer import TIMEOUT, RDMABuffer
from monarch.rdma.copying import INLINE
from monarch.rdma.local_memory import memory_of
from monarch.rdma.transfer import Transfer, check_timeout

_Make = Callable[[float], Transfer]


class RDMAAction:
    """A list of transfers that `submit` begins together, as often as you like. Methods return the action, for chaining.

    Each is checked when it is added: RDMASizeError, RDMAReadOnlyError, RDMAMemoryError. Nothing compares them with each
    other: two that write to the same bytes are the program's race. The memory is kept alive as long as the action.
    """

    def __init__(self) -> None:
        self._queued: list[tuple[RDMABuffer, _Make]] = []
        self._lock = Lock()
        self._submits: deque[_Submit] = deque()  # the first is under way

    def read_remote(self, dst: Any, src: RDMABuffer, *, offset: int = 0, size: int | None = None) -> RDMAAction:
        """Queues a copy of the buffer `src`, or of a part of it, into the leading bytes of local `dst`, as `read_into`."""
        memory = memory_of(dst)
        src._reading(memory, offset, size, 0.0)
        return self._add(src, lambda timeout: src._reading(memory, offset, size, timeout))

    def write_remote(self, dst: RDMABuffer, src: Any, *, offset: int = 0, size: int | None = None) -> RDMAAction:
        """Queues a copy of local `src` into the buffer `dst` from byte `offset` on, as `write_from`."""
        memory = memory_of(src)
        dst._writing(memory, offset, size, 0.0)
        return self._add(dst, lambda timeout: dst._writing(memory, offset, size, timeout))

    def fetch_add(self, src: Any, dst: Any, add: Any) -> NoReturn:
        """Always NotImplementedError."""
        raise NotImplementedError("Not yet supported")

    def compare_and_swap(self, src: Any, dst: Any, compare: Any, swap: Any) -> NoReturn:
        """Always NotImplementedError."""
        raise NotImplementedError("Not yet supported")

    def submit(self, *, timeout: float = TIMEOUT) -> Future[None]:
        """Begins all of them now; the Future gives None when all are done, or raises once none moves any more.

        One that failed is raised as it is; of several, one RDMAError (of their type, if they share it) tells of all.
        `timeout` is for each, in seconds from when it begins. While a submit is under way, another one begins after it,
        and adding raises RuntimeError.
        """
        timeout = check_timeout(timeout)
        submit = _Submit(self, list(self._queued), timeout)
        with self._lock:
            self._submits.append(submit)
            first = len(self._submits) == 1
        if first:
            submit.begin()
        return submit.promise.future

    def _add(self, buffer: RDMABuffer, make: _Make) -> RDMAAction:
        with self._lock:
            if self._submits:
                raise RuntimeError("the action is currently being submitted; await its Future before adding to it")
            self._queued.append((buffer, make))
        return self

    def _ended(self) -> None:
        with self._lock:
            self._submits.popleft()
            following = self._submits[0] if self._submits else None
        if following is not None:
            following.begin()


class _Submit:
    """One run of an action's transfers."""

    def __init__(self, action: RDMAAction, queued: list[tuple[RDMABuffer, _Make]], timeout: float) -> None:
        self.promise: Promise[None] = Promise()
        self._action = action
        self._queued = queued
        self._timeout = timeout
        self._context = contextvars.copy_context()  # it may begin on another's thread
        self._lock = Lock()
        self._left = 1
        self._errors: list[BaseException] = []

    def begin(self) -> None:
        self._context.run(self._begin)

    def _begin(self) -> None:
        self._left += len(self._queued)
        transfers = [(buffer, make(self._timeout)) for buffer, make in self._queued]
        for _, transfer in transfers:
            transfer.ended = self._one
        if sum(transfer.size for _, transfer in transfers) <= INLINE:
            _begin_all(transfers)
        else:
            # Small ones together: handing each to another thread would cost more than copying it.
            small = [pair for pair in transfers if pair[1].size <= INLINE]
            for at in range(0, len(small), _BATCH):
                copying.later(partial(self._context.copy().run, _begin_all, small[at : at + _BATCH]))
            _begin_all([pair for pair in transfers if pair[1].size > INLINE])
        self._one(None)

    def _one(self, error: BaseException | None) -> None:
        with self._lock:
            if error is not None:
                self._errors.append(error)
            self._left -= 1
            if self._left:
                return
        self._action._ended()
        if self._errors:
            self.promise.fail(_together(self._errors))
        else:
            self.promise.set(None)


_BATCH = 64  # small transfers that one thread does in one go


def _begin_all(transfers: list[tuple[RDMABuffer, Transfer]]) -> None:
    for buffer, transfer in transfers:
        buffer._begin(transfer)


def _together(errors: list[BaseException]) -> BaseException:
    if len(errors) == 1:
        return errors[0]
    kinds = {type(error) for error in errors}
    shared = kinds.pop() if len(kinds) == 1 else RDMAError
    lines = [str(error).partition("\n")[2] or str(error) for error in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        lines.append(f"and {len(errors) - _SHOWN} more")
    text = "\n".join(lines)
    return shared(f"RdmaAction.submit failed: RDMA submit failed on {len(errors)} backend(s):\n{text}")


_SHOWN = 20  # failures told in full
