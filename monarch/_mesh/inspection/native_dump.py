"""Reads what `py-spy dump --json --native` says of a process. Pure."""

from __future__ import annotations

from typing import Any

from monarch._mesh.failures import stacks
from monarch._mesh.inspection.fault_dump import actor_of
from monarch._mesh.inspection.stack_records import Frame, ThreadStack
from monarch._text import NAME_LIMIT, sendable


def parse(threads: Any, all_threads: bool = False) -> list[ThreadStack]:
    """Of the decoded JSON; ValueError when it is something else. Without `all_threads`, the threads in which lines of the
    program are, each from its outermost line of the program on: native frames below that are what it has called."""
    try:
        found = [_thread(thread, all_threads) for thread in threads]
    except (TypeError, KeyError, AttributeError) as exc:
        raise ValueError(f"py-spy said something that is not understood ({type(exc).__name__}: {exc})") from None
    return [stack for stack in found if stack is not None]


def _thread(thread: dict[str, Any], all_threads: bool) -> ThreadStack | None:
    frames = [
        Frame(
            sendable(frame["filename"] or frame.get("module") or "?", NAME_LIMIT),
            int(frame["line"] or 0),
            sendable(frame["name"], NAME_LIMIT),
        )
        for frame in reversed(thread["frames"])
    ]
    actor, endpoint = actor_of(frames)
    if not all_threads:
        first = next(
            (i for i, frame in enumerate(frames) if frame.file.endswith(".py") and not stacks.is_hidden(frame.file)),
            None,
        )
        if first is None:
            return None
        frames = [frame for frame in frames[first:] if not stacks.is_hidden(frame.file)]
    name = thread.get("thread_name") or f"thread {thread['thread_id']}"
    number = int(thread.get("os_thread_id") or 0)
    gil = bool(thread.get("owns_gil"))
    return ThreadStack(sendable(name, NAME_LIMIT), number, frames, actor, endpoint=endpoint, gil=gil)
