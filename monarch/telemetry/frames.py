"""Frames of an observer's socket: each of a length, a kind and a body. Both ends are of one user, which each end
checks before it reads (`local_socket.check_peer`)."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from monarch._linux import local_socket

HEAD = struct.Struct("!IB")  # bytes of the body, and its kind
LARGEST = 16 << 20
LARGEST_BATCH = 2 << 20  # bytes of rows that one process sends at a time: it sends half of that at most

# Kinds.
SERVE = 1  # a Serve, answered by SERVING or FAILED
SERVING = 2
FAILED = 3  # a sentence, in UTF-8
PROGRAM = 4  # a ProgramHere: what follows on this connection are rows of that program
ROWS = 5  # of one process: a Batch
MARK = 6  # 8 bytes, sent back as MARKED when all frames before it are in the tables
MARKED = 7
END = 8  # the observer ends


class Serve(msgspec.Struct, frozen=True):
    config: dict[str, Any]  # fields of an ObserverConfig
    folder: str  # the run folder of the program that asks
    token: str  # that lets people in from other machines


class UseProgram(msgspec.Struct, frozen=True):
    folder: str
    pid: int


_encoder = msgspec.msgpack.Encoder()


def pack(kind: int, body: bytes = b"") -> bytes:
    return HEAD.pack(len(body), kind) + body


def pack_struct(kind: int, body: msgspec.Struct) -> bytes:
    return pack(kind, _encoder.encode(body))


def receive(connection: socket.socket) -> tuple[int, bytes]:
    """Returns the next frame, kind and body. EOFError when the other side has gone; ValueError for one that is too large."""
    length, kind = HEAD.unpack(local_socket.read_exactly(connection, HEAD.size))
    if length > LARGEST:
        raise ValueError(f"a frame of {length:,} bytes is over the limit of {LARGEST:,}")
    return kind, bytes(local_socket.read_rest(connection, length))
