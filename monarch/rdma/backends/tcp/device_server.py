"""The owner's side of a stream, for memory of a device: through two pieces of pinned memory that take turns.

The buffer is in use only while the device copies, which waits for no other process: what the socket takes or has meanwhile
is sent or received beside it, the rest afterwards.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from monarch._devices.memory import interface
from monarch._devices.pinned import two
from monarch._errors import RDMAReadOnlyError, RDMASizeError
from monarch.rdma.backends.tcp.protocol import OK, PolledStream, StreamClosedError, rest, view_of
from monarch.rdma.registry import registry

STEP = 1 << 20  # bytes of one copy


class DeviceRequest:
    """A READ or WRITE of a buffer on a device. After an error `left` says how many bytes are still to be sent, or received,
    before the stream can go on; -1 when nothing has been sent yet.
    """

    def __init__(self, way: PolledStream, number: int, token: int, offset: int, size: int) -> None:
        self.left = -1
        self._way = way
        self._buffer = number, token
        self._offset = offset
        self._size = size
        self._unsent: list[bytes | memoryview] = []

    def read(self) -> None:
        """Sends OK and the bytes. Raises BufferDroppedError, RDMASizeError, OSError (EFAULT when the device fails)."""
        with two() as pieces:
            for number, at in enumerate(range(0, max(1, self._size), STEP)):
                piece, count = pieces[number % 2], min(STEP, self._size - at)
                try:
                    self._copy(at, count, lambda bytes, host=piece.bytes: (host, bytes), self._push)  # type: ignore[misc]
                except Exception:
                    self._way.send(self._unsent)
                    raise
                self._way.send(self._unsent)
                self._unsent = [view_of(piece.address, count)] if at else [bytes([OK]), view_of(piece.address, count)]
                self.left = self._size - at - count
            self._way.send(self._unsent)

    def write(self) -> None:
        """Receives the bytes. Raises what `read` does, and RDMAReadOnlyError."""
        self.left, have = self._size, 0
        with two() as pieces:
            for number, at in enumerate(range(0, self._size, STEP)):
                piece, following = pieces[number % 2], pieces[1 - number % 2]
                count = min(STEP, self._size - at)
                self._way.receive(view_of(piece.address + have, count - have))
                self.left, have = self._size - at - count, 0

                def pull(address: int = following.address) -> None:
                    nonlocal have
                    have = self._pull(address)

                self._copy(at, count, lambda bytes, host=piece.bytes: (bytes, host), pull, write=True)  # type: ignore[misc]

    def _copy(
        self,
        at: int,
        count: int,
        ends: Callable[[Any], tuple[Any, Any]],
        meanwhile: Callable[[], None],
        write: bool = False,
    ) -> None:
        """The device copies `count` bytes, from the second of `ends` to the first."""
        with registry().using(*self._buffer) as region:
            if self._offset + self._size > region.memory.size:
                raise RDMASizeError
            if write and not region.memory.writable:
                raise RDMAReadOnlyError
            if not count:
                return
            start = self._offset + at
            target, source = ends(region.memory.keep[start : start + count])
            try:
                wait = interface().begin(target[:count], source[:count])
            except RuntimeError as exc:
                raise OSError(errno.EFAULT, str(exc)) from exc
            try:
                meanwhile()
            finally:
                try:
                    wait()
                except RuntimeError as exc:
                    raise OSError(errno.EFAULT, str(exc)) from exc

    def _push(self) -> None:
        """Sends what the socket takes of the piece before."""
        if self._unsent:
            try:
                sent = self._way.sock.sendmsg(self._unsent, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            self._unsent = rest(self._unsent, sent)

    def _pull(self, address: int) -> int:
        """Receives what the socket has of the piece to come, and returns how many bytes that was."""
        wanted = min(STEP, self.left)
        if not wanted:
            return 0
        try:
            have = self._way.sock.recv_into(view_of(address, wanted), 0, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        if not have:
            raise StreamClosedError("the other side has closed the stream")
        self.left -= have
        return have
