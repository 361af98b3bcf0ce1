"""Errors that a call raises: those of endpoints and failures of actors, on their way from one process to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from monarch._errors import ActorError, SupervisionError, format_remote, with_local_source
from monarch._text import NAME_LIMIT, sendable, text_of
from monarch._wire import codec, message
from monarch._wire.frame import Buffer
from monarch._wire.message import ERROR, RAISED, VALUE, Failure
from monarch.config import settings

# (rank, kind, body, buffers) as they came; decoded by their observer.
Raw = tuple[int, int, Buffer, Sequence[Buffer]]

decode_failure = msgspec.msgpack.Decoder(Failure).decode


class RemoteError(msgspec.Struct, array_like=True):
    """An exception of an endpoint on its way to the caller: its text, itself where it can be pickled, and who raised it."""

    message: str
    formatted: str
    pickled: bytes = b""
    rank: int = -1  # in the mesh that the actor was spawned as
    point: dict[str, int] = {}
    host: str = ""


decode_remote_error = msgspec.msgpack.Decoder(RemoteError).decode


def failure_error(failure: Failure, label: str | None) -> BaseException:
    """The exception a caller gets when its target failed."""
    if failure.error:
        try:
            error = codec.decode(failure.error)
        except Exception as exc:
            error = exc
        if isinstance(error, Exception):
            return error
    return SupervisionError(failure.report, label)


def formatted(exc: BaseException) -> str:
    """Its traceback, as a caller in another process is shown it."""
    return format_remote(exc, settings.show_internal_frames())


def encode_error(exc: BaseException, error: RemoteError) -> tuple[bytes, Sequence[memoryview]]:
    """An endpoint's exception for its caller: the exception where it can be pickled, its text always. Never raises."""
    buffers: Sequence[memoryview] = ()
    try:
        error.pickled, buffers = codec.encode(exc)
        # A constructor that cannot be replayed must fail here, not at the caller.
        if not isinstance(codec.decode(error.pickled, buffers), BaseException):
            error.pickled, buffers = b"", ()
    except BaseException:  # of the exception's own methods, which may raise anything
        error.pickled, buffers = b"", ()
    error.message, error.formatted = sendable(error.message, NAME_LIMIT), sendable(error.formatted)
    return message.encode(error), buffers


def decode_answer(raw: Raw, label: str | None, raised: int = 1, ranks: int = 1) -> Any:
    """The value of an answer, or raises the exception that it carries, which `raised` of the `ranks` called have."""
    _rank, kind, body, buffers = raw
    if kind == VALUE:
        return codec.decode(body, buffers)
    if kind == ERROR:
        error = decode_remote_error(body)
        text = with_local_source(error.formatted)
        exception: BaseException | None = None
        if error.pickled:
            try:
                decoded = codec.decode(error.pickled, buffers)
                exception = decoded if isinstance(decoded, BaseException) else None
            except Exception as exc:
                why = f"{type(exc).__name__}: {text_of(exc)}"
                text += f"\n(the exception itself could not be unpickled here: {why})"
        found = ActorError(exception, error.message, text)
        if error.rank >= 0:
            found.rank, found.point, found.host = error.rank, error.point, error.host
        found.raised, found.ranks = raised, ranks
        raise found
    if kind == RAISED:
        value = codec.decode(body, buffers)
        if isinstance(value, Exception):
            raise value
        raise ActorError(value, "A port was given what is no ordinary exception.")
    raise failure_error(decode_failure(body), label)
