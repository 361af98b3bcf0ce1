"""System calls that fail: sockets and epolls under the runtime's own calls, which now and then say what a kernel may say.

A `Faults` decides by a seed. While it is `on`, `installed` has every Unix socket that the runtime makes be a FaultySocket,
and `watch` puts a FaultyEpoll under a loop. The runtime knows nothing of it, and nothing is left of it afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from monarch._wire.transport import unix

# What a kernel may say for a while, and nothing is lost by it.
WRITES = (errno.EAGAIN, errno.EINTR, errno.ENOBUFS, errno.ENOMEM)
READS = (errno.EAGAIN, errno.EINTR, errno.ENOMEM, errno.ENOBUFS)
MAKES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
CONNECTS = (errno.EAGAIN, errno.ENOMEM, errno.EINTR)
ACCEPTS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED, errno.EINTR, errno.ENOBUFS)
REGISTERS = (errno.ENOSPC, errno.ENOMEM)
# What is said of a connection that is gone.
BREAKS = (errno.ECONNRESET, errno.EPIPE)

CALLS = {
    "write": WRITES,
    "short write": (0,),
    "read": READS,
    "short read": (0,),
    "make": MAKES,
    "connect": CONNECTS,
    "accept": ACCEPTS,
    "register": REGISTERS,
    "break": BREAKS,
}


class _Quiet(threading.local):
    here = False


class Faults:
    """A plan of which call fails, and how. Any thread may ask; `told` counts what happened.

    Each seed has its own rates, and leaves most kinds of calls alone: what happens rarely together is found so. `breaks`:
    connections may break as well; `broke(sock)` is called just before one does. It may refuse.
    """

    def __init__(self, seed: int, *, breaks: bool = False, rates: dict[str, float] | None = None) -> None:
        self._rng = random.Random(f"faults {seed}")
        self._lock = threading.Lock()
        self._quiet = _Quiet()
        self.on = False
        self.told: Counter[str] = Counter()
        self.broke: Callable[[FaultySocket], bool] = lambda sock: False
        if rates is None:
            rates = {call: self._rng.choice((0.0, 0.02, 0.2)) for call in CALLS if breaks or call != "break"}
            if "break" in rates:
                rates["break"] = self._rng.choice((0.0, 0.01, 0.05))
        self.rates = rates

    def __repr__(self) -> str:
        told = ", ".join(f"{count} x {what}" for what, count in sorted(self.told.items()))
        return f"<Faults { ({call: rate for call, rate in self.rates.items() if rate}) }: {told or 'none yet'}>"

    def error(self, call: str) -> int:
        """The errno that this call gives; 0: it goes well."""
        if not self.on or self._quiet.here or not (rate := self.rates.get(call, 0.0)):
            return 0
        with self._lock:
            if self._rng.random() >= rate:
                return 0
            number = self._rng.choice(CALLS[call])
            self.told[f"{call} {errno.errorcode.get(number, '')}".strip()] += 1
            return number

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Calls of this thread go well in the block: what a process cannot begin without."""
        before, self._quiet.here = self._quiet.here, True
        try:
            yield
        finally:
            self._quiet.here = before

    def check(self, call: str) -> None:
        """Raises what this call gives, if it fails."""
        number = self.error(call)
        if number:
            raise OSError(number, os.strerror(number))

    def part(self, call: str, size: int) -> int:
        """Returns how many of `size` bytes the call moves."""
        if size < 2 or not self.on or not (rate := self.rates.get(call, 0.0)):
            return size
        with self._lock:
            if self._rng.random() >= rate:
                return size
            self.told[call] += 1
            return self._rng.randrange(1, min(size, 1 << self._rng.randrange(1, 20)) + 1)


class FaultySocket(socket.socket):
    """A socket whose calls fail as `faults` says."""

    faults: Faults
    begun = False  # whether anything was sent

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "fileno" not in kwargs:
            self.faults.check("make")
        super().__init__(*args, **kwargs)

    def connect(self, address: Any) -> None:
        self.faults.check("connect")
        super().connect(address)

    def accept(self) -> tuple[socket.socket, Any]:
        number = self.faults.error("accept")
        if number == errno.ECONNABORTED or number == errno.EINTR:
            raise OSError(number, os.strerror(number))
        if number:
            raise OSError(number, os.strerror(number))
        fd, address = self._accept()  # type: ignore[attr-defined]
        return type(self)(fileno=fd), address

    def send(self, data: Any, *args: Any) -> int:
        self._before("write")
        view = memoryview(data).cast("B")
        begun, self.begun = self.begun, True
        if not begun:  # a new socket has room
            return super().send(view, *args)
        return super().send(view[: self.faults.part("short write", len(view))], *args)

    def sendmsg(self, buffers: Any, *args: Any) -> int:
        self._before("write")
        if args:  # with a descriptor: whole or not at all
            return super().sendmsg(buffers, *args)
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        return super().sendmsg(_first(views, self.faults.part("short write", sum(map(len, views)))))

    def recv_into(self, buffer: Any, *args: Any) -> int:
        self._before("read")
        view = memoryview(buffer).cast("B")
        return super().recv_into(view[: self.faults.part("short read", len(view))], *args)

    def _before(self, call: str) -> None:
        if self.faults.rates.get("break") and (number := self.faults.error("break")) and self.faults.broke(self):
            with contextlib.suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)
            raise OSError(number, os.strerror(number))
        self.faults.check(call)


def _first(views: Sequence[memoryview], size: int) -> list[memoryview]:
    """The first `size` bytes."""
    found = []
    for view in views:
        found.append(view[:size])
        size -= len(found[-1])
        if not size:
            break
    return found


class FaultyEpoll:
    """An epoll that sometimes has no room for another descriptor."""

    def __init__(self, epoll: Any, faults: Faults) -> None:
        self._epoll = epoll
        self._faults = faults

    def register(self, fd: int, mask: int) -> None:
        self._faults.check("register")
        self._epoll.register(fd, mask)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


class _Module:
    """The module `socket`, with another class of sockets."""

    def __init__(self, kind: type[socket.socket]) -> None:
        self.socket = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)


@contextlib.contextmanager
def installed(faults: Faults) -> Iterator[type[FaultySocket]]:
    """Every Unix socket that is made in the block is faulty."""
    kind = type("FaultySocket", (FaultySocket,), {"faults": faults})
    before = unix.socket
    unix.socket = _Module(kind)  # type: ignore[assignment]
    try:
        yield kind
    finally:
        faults.on = False
        unix.socket = before


def watch(loop: Any, faults: Faults) -> None:
    """Puts a FaultyEpoll under a loop that does not run yet."""
    loop.epoll = FaultyEpoll(loop.epoll, faults)
