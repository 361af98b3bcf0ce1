"""Events of a process as bytes for the client, in batches of MOST_BYTES at most. Pure.

One event cannot hold up the others: texts that UTF-8 does not have, that are too long or of a class of their own are mended,
and an event that cannot be sent even so is left out and counted. What a batch has no room for is for the next one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from monarch._text import sendable

BATCH = 1_000  # events
MOST_BYTES = 1 << 20  # or what a message may have, if that is less
LONGEST = 4_096  # characters of a text in an event that is mended

Event = tuple[Any, ...]


class BatchHead(msgspec.Struct, array_like=True):
    """The process that events are of, and how their times are to be read: a time of `monotonic` is `wall - now` seconds
    before the epoch's time, by a clock that is `offset` seconds behind the client's, give or take `error`."""

    address: str
    process: str  # its name for people
    hostname: str
    pid: int
    now: float
    wall: float
    offset: float
    error: float
    number: int  # of the process's batches
    dropped: int  # events that were left out so far


class EncodedBatch(NamedTuple):
    """`body`: what travels. `rest`: events for which it had no room. `left_out`: how many are in neither."""

    body: bytes
    rest: list[Event]
    left_out: int


_encode = msgspec.msgpack.Encoder().encode


def encode(head: BatchHead, events: list[Event], most: int = MOST_BYTES) -> EncodedBatch:
    """Encodes a batch of `most` bytes. `head.dropped` grows by what is left out of it."""
    try:
        body = _encode((head, events))
    except Exception:  # of whatever class a field has
        body = b""
    if body and len(body) <= most:
        return EncodedBatch(body, [], 0)
    taken: list[msgspec.Raw] = []
    left_out = 0
    whole = room = most - len(_encode(head)) - _AROUND
    for place, event in enumerate(events):
        encoded = _encoded(event, whole)
        if encoded is None:
            left_out += 1
        elif len(encoded) > room:
            return EncodedBatch(_joined(head, taken, left_out), events[place:], left_out)
        else:
            taken.append(msgspec.Raw(encoded))
            room -= len(encoded)
    return EncodedBatch(_joined(head, taken, left_out), [], left_out)


_AROUND = 32  # bytes of the lists that hold head and events, and of a larger number in the head


def _joined(head: BatchHead, taken: list[msgspec.Raw], left_out: int) -> bytes:
    return _encode((msgspec.structs.replace(head, dropped=head.dropped + left_out), taken))


def _encoded(event: Event, most: int) -> bytes | None:
    """None for an event that cannot be sent, or takes more than `most` bytes."""
    try:
        encoded = _encode(event)
    except Exception:
        encoded = b""
    if not encoded or len(encoded) > most // 4:
        try:
            encoded = _encode(_mended(event))
        except Exception:  # a number of more than 64 bits, an object of the program, a list in itself
            return None
    return encoded if len(encoded) <= most else None


def _mended(value: Any) -> Any:
    """Replaces what an encoder does not take by what it does. Runs no code of the program."""
    if isinstance(value, str):
        return sendable(str.__str__(value), LONGEST)
    if isinstance(value, (tuple, list)):
        return [_mended(each) for each in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(each) for key, each in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value
