"""Environment variables, paths and arguments on their way to another process: to the operating system they are bytes.

Python shows bytes that are not UTF-8 as lone surrogates in a `str` (`os.fsdecode`), which msgpack cannot carry. They travel
as bytes, and arrive as the `str` they were. What is UTF-8, nearly always everything, is plain msgpack.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_BYTES = 1  # the msgpack extension of a value; a key is a bin, which no other key of ours is


def encode(value: Any) -> bytes:
    """A struct or container as msgpack."""
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(_with_bytes(msgspec.to_builtins(value, builtin_types=(bytes,))))


def decode(data: Any, type: type[T]) -> T:
    """Returns what `encode` was given. msgspec.DecodeError when it is nothing of that type."""
    try:
        return msgspec.msgpack.decode(data, type=type)
    except msgspec.ValidationError:
        return msgspec.convert(_with_text(msgspec.msgpack.decode(data, ext_hook=_text)), type)


def _with_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return value if _is_utf8(value) else msgspec.msgpack.Ext(_BYTES, os.fsencode(value))
    if isinstance(value, dict):
        return {
            key if not isinstance(key, str) or _is_utf8(key) else os.fsencode(key): _with_bytes(item)
            for key, item in value.items()
        }
    return [_with_bytes(item) for item in value] if isinstance(value, list | tuple) else value


def _with_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {os.fsdecode(key) if isinstance(key, bytes) else key: _with_text(item) for key, item in value.items()}
    return [_with_text(item) for item in value] if isinstance(value, list) else value


def _text(code: int, data: memoryview) -> str:
    if code != _BYTES:
        raise msgspec.ValidationError(f"no message of ours has the extension {code}")
    return os.fsdecode(bytes(data))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
