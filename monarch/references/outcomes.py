"""The outcomes of what was to be kept, values and errors, as owners, readers and programs have them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from monarch import _text
from monarch._errors import format_remote
from monarch.actor import ActorError, SupervisionError
from monarch.actor.lowlevel import Sealed
from monarch.config import settings
from monarch.references.errors import ReferenceLimitError, ReferenceLost
from monarch.references.object_ref import ObjectRef, RefFacts
from monarch.references.stored_value import MemoryPlace, StoredValue


class KeptValue(NamedTuple):
    """A value that was made here, and the references within it."""

    stored: StoredValue
    refs: Sequence[ObjectRef[Any]]


class KeptError(NamedTuple):
    """An error that was raised in place of a value; `error` is sealed, None if it cannot be pickled."""

    error: Sealed | None
    text: str


class FetchedValue(NamedTuple):
    """The answer of an owner: where the value is, or its pickle and buffers; and the references within it."""

    place: MemoryPlace | None
    lengths: Sequence[int]
    pieces: Sequence[Any]
    refs: Sequence[ObjectRef[Any]]


class KeptElsewhere(NamedTuple):
    """A value that another process has made in place of this one, which named it."""

    ref: ObjectRef[Any]


class LocalValue(NamedTuple):
    """A value as this process has it."""

    pieces: Sequence[Any]
    refs: Sequence[ObjectRef[Any]]


Kept = KeptValue | KeptError | KeptElsewhere


def no_room(size: int, used: int, limit: int, maker: str) -> ReferenceLimitError:
    return ReferenceLimitError(
        f"a value of {_text.size(size)}, made by {maker}, is not kept: pid {os.getpid()} keeps {_text.size(used)} for "
        f"references already, and {_text.size(limit)} is the most it may (setting reference_bytes). Nothing is written to "
        f"disk. Drop references that you need no more, make the value in another process, or raise the setting"
    )


def no_room_for_task(name: str, size: int, used: int, limit: int) -> ReferenceLimitError:
    return ReferenceLimitError(
        f"{name}, of {_text.size(size)}, is not accepted: it would wait here, pid {os.getpid()} keeps {_text.size(used)} for "
        f"references and tasks that wait already, and {_text.size(limit)} is the most it may (setting reference_bytes). Wait "
        f"for some of those that were submitted before you submit more, put() what several of them take, or raise the setting"
    )


def failed_with(exc: BaseException) -> KeptError:
    text = format_remote(exc, settings.show_internal_frames())
    try:
        return KeptError(Sealed(exc.with_traceback(None)), text)
    except Exception:  # of the exception's own methods
        return KeptError(None, text)


def error_of(kept: KeptError, facts: RefFacts) -> Exception:
    try:
        exc = None if kept.error is None else kept.error.open()
    except Exception:  # its class is not here, or raises
        exc = None
    if isinstance(exc, ReferenceLost):
        return ReferenceLost(f"the value that {facts.maker} made is lost: {exc}")
    if isinstance(exc, ReferenceLimitError):
        return exc
    return ActorError(exc, f"{facts.maker}, whose result was kept, failed.", kept.text)


def lost_with(facts: RefFacts, exc: Exception) -> Exception:
    if isinstance(exc, SupervisionError):
        _, *why = exc.message.splitlines()  # the first names an actor that no program knows
        return ReferenceLost(
            f"the value that {facts.maker} made is lost with its process, {facts.owner}: "
            f"{why[0].strip() if why else exc.message}. Make it again"
        )
    return exc
