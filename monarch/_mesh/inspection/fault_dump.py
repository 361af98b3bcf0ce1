"""Reads what Python's faulthandler writes about the threads of a process. Pure.

It writes from a signal handler, whatever the interpreter is doing, so there is less in it than a process tells by itself:
threads by number only, functions by their plain names, no suspended tasks. Its forms differ between Python versions:

    Thread 0x00007f2c8b7fe640 (most recent call first):            3.14: 0x00007f2c8b7fe640 [name] (most ...
      File "/srv/train.py", line 12 in step
      File "/srv/train.py", line ??? in <module>
      ...                                                          a deeper stack, or more threads
      <no Python frame>
    <blank line>
    Current thread 0x00007f2c9d0c7740 (most recent call first):
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from monarch._mesh.failures import stacks
from monarch._mesh.inspection.stack_records import StackFrame, ThreadStack

_THREAD = re.compile(r"^(Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_TRUNCATED = "  ..."
# The frame of the runtime that calls an endpoint, and those in which an actor's thread begins.
_CALLS_ENDPOINT = ("/_mesh/actors/behaviour.py", "/_mesh/actors/async_behaviour.py")
_ACTOR_THREAD = ("/_runtime/driver.py", "/_runtime/async_driver.py")


def parse(text: str, all_threads: bool = False) -> list[ThreadStack]:
    """The threads of a dump in which the program is, and actors that do nothing; with `all_threads` all of them, with the
    frames of the runtime. What cannot be read is passed over: the last lines may not be written yet. Of several dumps in one
    text (two have asked at once) the last one counts."""
    found: dict[str, ThreadStack] = {}
    name, left_out, begun = "", 0, False
    frames: list[StackFrame] = []

    def end() -> None:
        if begun:
            stack = _stack(name, list(reversed(frames)), left_out, all_threads)
            if stack is not None:
                found[name] = stack

    for line in text.splitlines():
        thread = _THREAD.match(line)
        if thread is not None:
            end()
            begun, frames, left_out = True, [], 0
            name = thread[3] or f"thread 0x{thread[2].lstrip('0') or '0'}"
        elif begun and (frame := _FRAME.match(line)) is not None:
            frames.append(StackFrame(frame[1], 0 if frame[2] == "???" else int(frame[2]), frame[3]))
        elif begun and line == _TRUNCATED:
            left_out = 1  # at least
    end()
    return list(found.values())


def _stack(name: str, frames: Sequence[StackFrame], left_out: int, all_threads: bool) -> ThreadStack | None:
    actor, endpoint = actor_of(frames)
    own = [frames[index] for index in stacks.of_program([frame.file for frame in frames])]
    if not own and not actor and not all_threads:
        return None
    shown = list(frames) if all_threads else own
    return ThreadStack(name, 0, shown, actor, endpoint=endpoint, idle=bool(actor) and not own, left_out=left_out)


def actor_of(frames: Sequence[StackFrame]) -> tuple[str, str]:
    """(whether the thread is an actor's, which endpoint it runs), by its frames, outermost first: "an actor", or ""."""
    if not any(frame.file.endswith(_ACTOR_THREAD) for frame in frames):
        return "", ""
    for outer, inner in itertools.pairwise(frames):
        if outer.file.endswith(_CALLS_ENDPOINT) and not stacks.is_hidden(inner.file):
            return "an actor", inner.function.rpartition(".")[2]
    return "an actor", ""
