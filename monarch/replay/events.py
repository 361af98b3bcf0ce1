"""Events of a recording: one event after another, each a small struct and the bytes that came with it. Pure.

    b"MONARCHREC1\\n"  then for each event:  length u32, CRC-32 u32 (of what follows), size of the head u32, head, payload

The head is msgpack: an event and the sizes of the pieces that follow it, which are a message's body and its buffers as they
came. The first event is BeginEvent. Reading a head runs no code; decoding a payload does, for it is a pickle.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec

from monarch._wire.message import UNREADABLE

MAGIC = b"MONARCHREC1\n"
SUFFIX = ".monarchrec"
KEPT_WHOLE = 4096  # bytes of what the actor sent: of more, only size and checksum are kept
_PREFIX = struct.Struct("<III")
_LARGEST = 1 << 31  # bytes of one event, as a guard against other files

Piece = bytes | bytearray | memoryview


class RecordingError(ValueError):
    """A file is no recording, or cannot be replayed here."""


class _Event(msgspec.Struct, array_like=True):
    at: int  # microseconds since the epoch


class BeginEvent(_Event, tag=1):
    """The actor was made; the payload is its class and arguments."""

    key: str
    name: str
    rank: int
    view: bytes
    cls: str
    loop: bool  # it has an event loop
    display: str
    incarnation: int
    proc: str  # address of its process
    mesh: str  # name of the mesh of processes
    host: str  # what the machine called itself
    pid: int
    facts: dict[str, str]  # versions, folder, and so on: for people, and compared with what is here
    path: list[str]  # sys.path
    environment: dict[str, str]
    modules: dict[str, str]  # packages loaded then, and their versions


class SeedsEvent(_Event, tag=2):
    """States of the random generators before it was constructed; the payload is a pickle of them."""


class StartedEvent(_Event, tag=3):
    """It took a message from its mailbox. The payload is the arguments."""

    number: int  # of the message, from 1
    call: bytes  # the head, as it came
    source: str


class DoneEvent(_Event, tag=4):
    """A message was handled. The payload is the answer when it is short."""

    number: int
    outcome: str  # "returned", "raised", "nothing" (nobody waited, or it answers through a port)
    text: str  # of what was raised
    size: int
    check: int


class AskedEvent(_Event, tag=5):
    """It called others. The payload is the arguments when they are short. `port`: of its ports, the one that answers come to;
    0 for none."""

    mesh: str
    method: str
    adverb: int
    ranks: list[int]
    port: int
    size: int
    check: int


class OpenedEvent(_Event, tag=6):
    """It opened a channel."""

    port: int


class AnsweredEvent(_Event, tag=7):
    """One of its ports got an answer or a message, the payload."""

    port: int
    rank: int
    kind: int


class GaveUpEvent(_Event, tag=8):
    """One of its ports ended without an answer: a failure, or a timeout. The payload is the exception."""

    port: int
    text: str


class SentEvent(_Event, tag=9):
    """It sent to a port. The payload is the message when it is short."""

    kind: int
    size: int
    check: int


class SupervisedEvent(_Event, tag=10):
    """It was told of a failure of what it owns; the payload is it."""


class ReturnedEvent(_Event, tag=11):
    """A message of it came back; the payload says which."""


class EndedEvent(_Event, tag=12):
    """It ended, in order or by a failure."""

    failed: bool
    reason: str


class StoppedEvent(_Event, tag=13):
    """Recording stopped before the actor did."""

    why: str


class SourcesEvent(_Event, tag=14):
    """The file that its class is from, so that it can be shown where there is no such file."""

    files: dict[str, str]


Event = (
    BeginEvent
    | SeedsEvent
    | SourcesEvent
    | StartedEvent
    | DoneEvent
    | AskedEvent
    | OpenedEvent
    | AnsweredEvent
    | GaveUpEvent
    | SentEvent
    | SupervisedEvent
    | ReturnedEvent
    | EndedEvent
    | StoppedEvent
)
OUTPUTS = (DoneEvent, AskedEvent, OpenedEvent, SentEvent)  # what the actor did; the others are done to it


class RecordedEvent(msgspec.Struct):
    """An event and the pieces of its payload."""

    event: Event
    pieces: list[bytes]


class _Head(msgspec.Struct, array_like=True):
    event: Event
    sizes: list[int]


_decoder = msgspec.msgpack.Decoder(_Head)
_encoder = msgspec.msgpack.Encoder()


def encode(event: Event, pieces: Sequence[Piece] = ()) -> list[Piece]:
    """Returns what is written for an event; the pieces themselves are not copied."""
    flat: list[Piece] = [piece if isinstance(piece, bytes) else memoryview(piece).cast("B") for piece in pieces]
    head = _encoder.encode(_Head(event, [len(piece) for piece in flat]))
    check = zlib.crc32(head)
    for piece in flat:
        check = zlib.crc32(piece, check)
    length = len(head) + sum(len(piece) for piece in flat)
    return [_PREFIX.pack(length, check, len(head)) + head, *flat]


def read(file: BinaryIO) -> Iterator[RecordedEvent]:
    """The events of a recording, up to the first that is not whole (its process was killed as it wrote) or is damaged: then
    the last is a StoppedEvent that says so. RecordingError when the file is no recording."""
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        if magic.startswith(b"MONARCHREC"):
            raise RecordingError(
                "it was recorded by another version of pymonarch, whose recordings this one cannot read"
            )
        raise RecordingError("it is no recording of an actor (the file does not begin as one)")
    left = _left(file)
    while True:
        prefix = file.read(_PREFIX.size)
        if not prefix:
            return
        if len(prefix) < _PREFIX.size:
            yield _cut("its process was killed as it wrote")
            return
        length, check, head_size = _PREFIX.unpack(prefix)
        if length > _LARGEST or head_size > length:
            yield _cut("the file is damaged from here on")
            return
        left -= _PREFIX.size + length
        data = file.read(length) if left >= 0 else b""  # no memory for what is not there
        if len(data) < length:
            yield _cut("its process was killed as it wrote")
            return
        if zlib.crc32(data) != check:
            yield _cut("the file is damaged from here on")
            return
        try:
            head = _decoder.decode(memoryview(data)[:head_size])
        except UNREADABLE as exc:
            raise RecordingError(f"an event of it cannot be read: {exc}") from None
        if min(head.sizes, default=0) < 0 or sum(head.sizes) != length - head_size:
            yield _cut("the file is damaged from here on")
            return
        pieces, start = [], head_size
        for size in head.sizes:
            pieces.append(data[start : start + size])
            start += size
        yield RecordedEvent(head.event, pieces)


def _left(file: BinaryIO) -> int:
    """Returns how many bytes are still to be read; a large number where that is not known."""
    if not file.seekable():
        return sys.maxsize
    here = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(here)
    return end - here


def _cut(why: str) -> RecordedEvent:
    return RecordedEvent(StoppedEvent(0, why), [])


def summary(pieces: Sequence[Piece]) -> tuple[int, int, list[Piece]]:
    """Returns (size, checksum, copies of the pieces if they are short) of what the actor sent."""
    size, check = 0, 0
    for piece in pieces:
        flat = piece if isinstance(piece, bytes) else memoryview(piece).cast("B")
        size += len(flat)
        check = zlib.crc32(flat, check)
    return size, check, [bytes(piece) for piece in pieces] if size <= KEPT_WHOLE else []
