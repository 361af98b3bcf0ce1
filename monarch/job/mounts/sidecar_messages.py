"""What a program and its job's sidecar say to each other, one request at a time on each connection."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

import msgspec

from monarch.job.mounts.orders import Order

OBSERVER = "observer"  # the folder of the job's observer in the sidecar's
_LENGTH = struct.Struct("!I")
_LARGEST = 16 << 20
_CREDENTIALS = struct.Struct("3i")


class OpenMounts(msgspec.Struct, frozen=True, tag=True):
    """These are to be mounted, up to date, and no others."""

    orders: list[Order]


class CloseMounts(msgspec.Struct, frozen=True, tag=True):
    pass


class StartObserver(msgspec.Struct, frozen=True, tag=True):
    """The job's observer is to run, in `observer` in the sidecar's folder, as long as the sidecar does."""


class End(msgspec.Struct, frozen=True, tag=True):
    """The sidecar ends, whatever is mounted."""


class Done(msgspec.Struct, frozen=True, tag=True):
    warnings: list[str]  # what its logger said meanwhile


class Failed(msgspec.Struct, frozen=True, tag=True):
    why: str


Request = OpenMounts | CloseMounts | StartObserver | End
Reply = Done | Failed

_encoder = msgspec.msgpack.Encoder()


def send(connection: socket.socket, message: Request | Reply) -> None:
    data = _encoder.encode(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket, kind: Any) -> Any:
    """The next message, of the types `kind`. EOFError when the other side has gone; ValueError for what is none."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if length > _LARGEST:
        raise ValueError(f"a message of {length:,} bytes is over the limit of {_LARGEST:,}")
    return msgspec.msgpack.decode(_read(connection, length), type=kind)


def peer(connection: socket.socket) -> int:
    """The pid of the other side. PermissionError when it is another user's: the kernel says whose it is."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid not in (os.geteuid(), 0):
        raise PermissionError(f"process {pid} of user {uid} is at the other end of the job's sidecar's socket")
    return int(pid)


def _read(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError("the other side has gone")
        data += part
    return bytes(data)
