"""Messages between a program and its job's sidecar, one request at a time on each connection."""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from monarch._linux import local_socket
from monarch.job.mounts.orders import MountOrder

OBSERVER = "observer"  # the folder of the job's observer in the sidecar's
_LARGEST = 16 << 20


class OpenMounts(msgspec.Struct, frozen=True, tag=True):
    """These are to be mounted, up to date, and no others."""

    orders: list[MountOrder]


class CloseMounts(msgspec.Struct, frozen=True, tag=True):
    pass


class StartObserver(msgspec.Struct, frozen=True, tag=True):
    """The job's observer is to run, in `observer` in the sidecar's folder, as long as the sidecar does."""


class AnswerPlease(msgspec.Struct, frozen=True, tag=True):
    """The sidecar is to say at once that it is there, whatever another connection has it do."""


class EndSidecar(msgspec.Struct, frozen=True, tag="End"):
    """The sidecar ends, whatever is mounted."""


class SidecarDone(msgspec.Struct, frozen=True, tag="Done"):
    warnings: list[str]  # what its logger said meanwhile


class SidecarFailed(msgspec.Struct, frozen=True, tag="Failed"):
    why: str


Request = OpenMounts | CloseMounts | StartObserver | AnswerPlease | EndSidecar
Reply = SidecarDone | SidecarFailed

_encoder = msgspec.msgpack.Encoder()


def send(connection: socket.socket, message: Request | Reply) -> None:
    local_socket.send(connection, _encoder.encode(message))


def receive(connection: socket.socket, kind: Any) -> Any:
    """Returns the next message, of the types `kind`. EOFError when the other side has gone; ValueError for anything else."""
    return msgspec.msgpack.decode(local_socket.receive(connection, _LARGEST), type=kind)
