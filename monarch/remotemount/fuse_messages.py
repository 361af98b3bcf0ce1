"""Messages between a process that serves a FUSE mount and its owner, over a socket that only they have."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from monarch._linux import local_socket, memory_map
from monarch._linux.locks import Lock

_SMALL = 64 << 10  # bytes of a block that are quicker copied than sent by themselves
_LARGEST = 64 << 20  # of one message: a tree of a million files, or some blocks
_MAPPED, _SENT = b"m", b"s"  # before the bytes of a block: they are in the memory that comes along, or follow
_DESCRIPTOR = struct.Struct("@i")

# path, kind, size, mode, mtime_ns, target, content. Names are bytes: not all of them are text.
TreeEntry = tuple[bytes, str, int, int, int, bytes, int]


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class BeginMount(Message, frozen=True):
    """A message to the process: mount at `point`. Its other words depend on `kind`: "tree" or "gather"."""

    point: bytes
    kind: str
    name: str  # of the mount, as /proc/mounts shows it


class SetTree(Message, frozen=True):
    """A message to the process: the tree is this from now on. In parts; the last one makes it so. `number` is of the tree."""

    entries: list[TreeEntry]
    last: bool
    number: int


class Content(Message, frozen=True):
    """A message to the process: block number `block` of a content, or the errno that reading it gives. Its bytes are in
    memory that the process maps, and go through the socket only where there is none."""

    content: int
    block: int
    data: Any  # bytes, or a buffer of them
    error: int = 0
    follow: int = 0  # so many bytes


class FuseReply(Message, frozen=True):
    """A message to the process: the answer to request `number`."""

    number: int
    error: int
    value: Any


class Unmount(Message, frozen=True):
    """A message to the process: end, unless the mount is in use."""


class Mounted(Message, frozen=True):
    pass


class Settled(Message, frozen=True):
    """A message from the process: nobody is shown a tree before this one any more."""

    number: int


class NotMounted(Message, frozen=True):
    why: str


class Want(Message, frozen=True):
    """A message from the process: somebody reads this block, which has not come yet."""

    content: int
    block: int


class FuseRequest(Message, frozen=True):
    """A message from the process: `what` of the path; answered by `FuseReply`."""

    number: int
    what: str
    path: bytes
    offset: int = 0
    size: int = 0


class UnmountRefused(Message, frozen=True):
    """A message from the process: it could not be unmounted, and goes on."""

    why: str


class Unmounted(Message, frozen=True):
    pass


_ANY = (
    BeginMount
    | SetTree
    | Content
    | FuseReply
    | Unmount
    | Mounted
    | Settled
    | NotMounted
    | Want
    | FuseRequest
    | UnmountRefused
    | Unmounted
)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_ANY)


@contextmanager
def _memory_of(data: Any) -> Iterator[int | None]:
    """Memory with these bytes, that another process can map; None where there is none."""
    with ExitStack() as stack:
        file = None
        try:
            file = os.memfd_create("monarch-block", os.MFD_CLOEXEC)
            stack.callback(os.close, file)
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        except OSError:
            file = None
        yield file


class Wire:
    """One end of the socket. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = Lock()

    def send(self, message: Message) -> None:
        """Sends a message. OSError when the other end is gone."""
        if not isinstance(message, Content) or len(message.data) <= _SMALL:
            with self._sending:
                local_socket.send(self._end, _encoder.encode(message), _LARGEST)
            return
        body = message.data
        head = _encoder.encode(msgspec.structs.replace(message, data=b"", follow=len(body)))
        with _memory_of(body) as file, self._sending:
            local_socket.send(self._end, head, _LARGEST)
            if file is None or not self._lend(file):
                self._end.sendall(_SENT)
                self._end.sendall(body)

    def _lend(self, file: int) -> bool:
        """Sends the descriptor. False when the other end has gone, or too many are under way."""
        try:
            socket.send_fds(self._end, [_MAPPED], [file])
        except OSError:
            return False
        return True

    def _receive_body(self, size: int) -> Any:
        # `socket.recv_fds` would not set close-on-exec.
        how, extra, _, _ = self._end.recvmsg(1, socket.CMSG_SPACE(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC)
        if how == _SENT:
            return local_socket.read_rest(self._end, size)
        if not extra:
            raise EOFError("the other end has gone")
        (file,) = _DESCRIPTOR.unpack_from(extra[0][2])
        try:
            return memory_map.view_of(file, size)
        finally:
            os.close(file)

    def receive(self) -> Message | None:
        """Returns the next message; None when the other end is gone."""
        try:
            message: Message = _decoder.decode(local_socket.receive(self._end, _LARGEST))
            if isinstance(message, Content) and message.follow:
                if message.follow > _LARGEST:
                    return None
                return msgspec.structs.replace(message, data=self._receive_body(message.follow))
        except (OSError, ValueError, EOFError):
            return None
        return message

    def shut(self) -> None:
        """Shuts the socket: the other end reads that we are gone, and so does the receiver here."""
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self._end.close()
