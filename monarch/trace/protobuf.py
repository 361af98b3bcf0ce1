"""Just enough of protobuf's wire format to write a trace: varints, 64-bit fields, and bytes. Pure.

The format is described at https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import functools
import struct

_FIXED64 = struct.Struct("<Q")
_DOUBLE = struct.Struct("<d")


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def uint(field: int, value: int) -> bytes:
    """An unsigned number, or a bool or an enumeration."""
    return _tag(field << 3) + varint(value)


_tag = functools.cache(varint)


def sint(field: int, value: int) -> bytes:
    """int32 and int64: what is negative takes ten bytes."""
    return _tag(field << 3) + varint(value & 0xFFFFFFFFFFFFFFFF)


def fixed64(field: int, value: int) -> bytes:
    return _tag(field << 3 | 1) + _FIXED64.pack(value & 0xFFFFFFFFFFFFFFFF)


def double(field: int, value: float) -> bytes:
    return _tag(field << 3 | 1) + _DOUBLE.pack(value)


def data(field: int, value: bytes) -> bytes:
    """Bytes, or a message inside a message."""
    return _tag(field << 3 | 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return data(field, value.encode("utf-8", "replace"))
