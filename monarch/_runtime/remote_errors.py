"""Errors that a call raises: those of endpoints and failures of actors, on their way from one process to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from monarch._errors import ActorError, SupervisionError, format_remote, stand_in, with_local_source
from monarch._text import NAME_LIMIT, first_line, sendable, text_of
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
    told = SupervisionError(failure.report, label)
    if failure.stopped and not failure.will_restart and "restarted" not in failure.report:
        told.add_note(
            "What was stopped answers no more: spawn it anew, on new processes of spawn_procs() where they were stopped too"
        )
    return told


def formatted(exc: BaseException) -> str:
    """Its traceback, as a caller in another process is shown it."""
    return format_remote(exc, settings.show_internal_frames())


def encode_error(exc: BaseException, error: RemoteError) -> tuple[bytes, Sequence[memoryview]]:
    """An endpoint's exception for its caller: the exception or a stand-in for it, its text always. Never raises."""
    buffers: Sequence[memoryview] = ()
    text = error.formatted
    try:
        error.pickled, buffers = encode_whole(exc)
    except BaseException as failed:  # of the exception's own methods, which may raise anything
        why = f"{type(failed).__name__}: {first_line(text_of(failed))}"
        text += f"\n(the exception itself cannot be sent, and error.exception stands in for it: {why})"
        try:
            error.pickled, buffers = _tried(_stand_in(exc, why))
        except BaseException:
            error.pickled, buffers = b"", ()
            text = f"{error.formatted}\n(the exception itself cannot be sent: {why})"
    error.message, error.formatted = sendable(error.message, NAME_LIMIT), sendable(text)
    return message.encode(error), buffers


def encode_whole(exc: BaseException) -> tuple[bytes, Sequence[memoryview]]:
    """The exception as bytes that give one of its class, with its arguments, attributes and notes. Raises what pickling
    raises."""
    try:
        return _tried(exc)
    except BaseException:
        if not any([_learn(each) for each in _within(exc)]):
            raise
    return _tried(exc)


def _tried(value: BaseException) -> tuple[bytes, Sequence[memoryview]]:
    """Encodes it, and decodes it here: else it fails at the caller."""
    body, buffers = codec.encode(value)
    if not isinstance(codec.decode(body, buffers), BaseException):
        raise TypeError("it is no exception once it is unpickled")
    return body, buffers


# --- exceptions whose constructor takes other arguments than it hands on: pickle would call it with those

_LEARNED = 1_000  # classes
_CAUSES = 5  # causes of causes that are sent
_learned: set[type] = set()


def _within(exc: BaseException) -> list[BaseException]:
    return [exc, *(exc.exceptions if isinstance(exc, BaseExceptionGroup) else ())]


def _learn(exc: BaseException) -> bool:
    """From now on its class travels without the constructor, if it is that which fails."""
    try:
        body, buffers = codec.encode(exc)
        if exc.__reduce_ex__(4)[0] is not type(exc):  # it says itself how it is made
            return False
    except BaseException:
        return False
    try:
        codec.decode(body, buffers)
        return False
    except BaseException:
        return _note(type(exc))


def _note(kind: type) -> bool:
    if kind in _learned or len(_learned) >= _LEARNED:
        return False
    _learned.add(kind)
    codec.reduce_as(kind, _reduced)
    return True


def _reduced(exc: BaseException) -> tuple[Any, ...]:
    reduced: Any = exc.__reduce_ex__(4)
    kind, args, *state = reduced
    return _unconstructed, (kind, args, state[0] if state else None, _cause(exc))


def _unconstructed(kind: type[BaseException], args: tuple[Any, ...], state: Any, cause: BaseException | None) -> Any:
    exc = kind.__new__(kind, *args)
    _built_in(kind).__init__(exc, *args)  # what OSError and its like keep beside their arguments
    if state:
        exc.__setstate__(state)
    exc.__cause__ = cause
    _note(kind)  # it may travel on
    return exc


def _built_in(kind: type[BaseException]) -> type[BaseException]:
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def _cause(exc: BaseException) -> BaseException | None:
    """Its cause, or a stand-in for that."""
    cause = last = exc.__cause__
    for _ in range(_CAUSES):
        last = None if last is None else last.__cause__
    if cause is None or last is not None:  # a long chain: each is tried with those behind it
        return None
    try:
        encode_whole(cause)
    except BaseException as failed:
        return _stand_in(cause, text_of(failed))
    return cause


# --- those of which something cannot be sent


def _stand_in(exc: BaseException, why: str) -> BaseException:
    kind = type(exc)
    attributes = {sendable(name): _or_text(value) for name, value in vars(exc).items()}
    return stand_in(
        sendable(kind.__module__, NAME_LIMIT),
        sendable(kind.__qualname__, NAME_LIMIT),
        (_built_in(kind),),
        tuple(map(_or_text, exc.args)),
        {**attributes, "why": sendable(why)},
        _cause(exc),
    )


def _or_text(value: Any) -> Any:
    """`value`, or its text where it cannot be sent."""
    try:
        body, buffers = codec.encode(value)
        codec.decode(body, buffers)
    except BaseException:
        return text_of(value)
    return value


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
