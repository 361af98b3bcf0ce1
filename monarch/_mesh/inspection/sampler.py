"""A profile of this process: its Python stacks, looked at many times a second (question "samples").

It needs neither ptrace nor another program. It runs on a thread of its own beside the program, and sees every thread that
the interpreter knows; a thread that is inside native code shows the Python line that called it. It needs the GIL for each
look: code that holds the GIL for long is seen less often, and `overhead` says what share of one core the looking took.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from monarch._errors import PACKAGE
from monarch._linux.thread_frames import thread_frames
from monarch._text import sendable

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._runtime.proc import Proc

MOST_SECONDS = 300.0
MOST_HERTZ = 1000.0
_MOST_STACKS = 20_000  # distinct ones; further ones count under OTHER
_MOST_BYTES = 8 << 20  # of their text, likewise
_DEEPEST = 200  # frames of one stack; those in between are left out
_LONGEST = 200  # characters of a frame, or of the name of a thread
_MOST_REPLY = 2 * _MOST_BYTES * 4  # bytes of an answer: characters have four at most
_MOST_NAMES = 50_000  # texts of frames kept; then they are made anew
_SHARE = 0.05  # of one core that looking may take: beyond that it looks less often
OTHER = "(further stacks)"
IDLE = "(waits for a message)"


class SamplingOptions(msgspec.Struct):
    """The threads to look at: actors' threads and the program's main thread (`actors`), or every thread but those of
    ours (`all`).

    `threads`: each thread under its own name, else actors of one mesh are one. `idle`: also those who wait for a
    message.
    """

    duration_s: float = 1.0
    rate_hz: float = 100.0
    threads: bool = False
    which: Literal["actors", "all"] = "actors"
    idle: bool = False


class Samples(msgspec.Struct):
    """`samples`: stack, outermost frame first, frames separated by ";" -> how often it was seen. `taken`: looks.
    `idle`: threads seen that waited for a message. `overhead`: share of one core that looking took."""

    samples: dict[str, int]
    taken: int
    idle: int = 0
    missed: int = 0  # looks that came too late, or were given up to keep the overhead low
    left_out: int = 0  # seen in stacks of which there were too many
    seconds: float = 0.0
    overhead: float = 0.0
    pid: int = 0
    who: list[str] = []  # actors of this process: "trainers[3]"


def answer(proc: Proc, argument: bytes) -> bytes:
    """Answers the question "samples": counts stacks for as long as is asked."""
    wanted = msgspec.msgpack.decode(argument, type=SamplingOptions) if argument else SamplingOptions()
    check(wanted.duration_s, wanted.rate_hz)
    return msgspec.msgpack.encode(sample(proc, wanted))


def check(seconds: float, hertz: float) -> None:
    """ValueError for what is out of bounds."""
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"a profile takes more than 0 and at most {MOST_SECONDS:g} s, got {seconds!r}")
    if not 1 <= hertz <= MOST_HERTZ:
        raise ValueError(f"a profile takes 1 to {MOST_HERTZ:g} samples a second, got {hertz!r}")


def sample(proc: Proc, wanted: SamplingOptions, now: Callable[[], float] = time.perf_counter) -> Samples:
    """Looks for as long as `wanted` says, or until the process closes."""
    stacks = StackCounts()
    began = now()
    spent, idle, taken, missed = 0.0, 0, 0, 0
    step, due, deadline = 1.0 / wanted.rate_hz, began, began + wanted.duration_s
    me = threading.get_ident()
    while proc.closed is None:
        look_began = time.thread_time()
        frames = thread_frames()
        frames.pop(me, None)
        for ident, name, waits in _threads(proc, wanted, frames):
            if waits:
                idle += 1
            if not waits or wanted.idle:
                stacks.add(name, frames[ident], waits, wanted.which == "all")
        del frames
        taken += 1
        spent += time.thread_time() - look_began
        at = now()
        if spent > _SHARE * (at - began + 0.05):  # it costs too much: half as often from now on
            step *= 2
        due += step
        if due < at:
            skipped = int((at - due) / step) + 1
            missed += skipped
            due += skipped * step
        if due >= deadline:
            break
        time.sleep(max(0.0, due - at))
    left = deadline - now()
    if left > 0 and proc.closed is None:
        time.sleep(left)
    seconds = now() - began
    return Samples(
        stacks.counts, taken, idle, missed, stacks.left_out, seconds, spent / seconds if seconds else 0.0, proc.pid,
        sorted(_plain(f"{instance.name}[{instance.rank}]") for instance in list(proc.actors.values())),
    )  # fmt: skip


def _threads(proc: Proc, wanted: SamplingOptions, frames: Mapping[int, FrameType]) -> list[tuple[int, str, bool]]:
    """(ident, name to show, whether it only waits for a message) of the threads to look at."""
    actors: dict[int, Instance] = {actor.thread_ident: actor for actor in list(proc.actors.values())}
    found = []
    for ident in frames:
        actor = actors.get(ident)
        if actor is not None:
            waits = actor.current is None and not actor.concurrent and actor.ready.ready
            found.append((ident, f"{actor.name}[{actor.rank}]" if wanted.threads else actor.name, waits))
            continue
        thread = threading._active.get(ident)  # type: ignore[attr-defined]  # enumerate() would wait for its lock
        name = thread.name if thread is not None else f"thread {ident}"
        if name.startswith("monarch-"):
            continue
        if ident == threading.main_thread().ident:
            if proc.root_name:  # of another process it only waits for the end
                found.append((ident, name, False))
        elif wanted.which == "all":
            found.append((ident, name, False))
    return found


class StackCounts:
    def __init__(self, most: int = _MOST_STACKS, most_bytes: int = _MOST_BYTES) -> None:
        self.counts: dict[str, int] = {}
        self.left_out = 0
        self._most = most
        self._room = most_bytes
        self._names: dict[tuple[CodeType, int], str] = {}

    def add(self, thread: str, frame: FrameType | None, waits: bool = False, ours: bool = False) -> None:
        """`ours`: with the runtime's frames below the program's, of which otherwise only the first one stays."""
        names = [IDLE] if waits else []
        while frame is not None and not waits:
            names.append(self._name(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        names = _without_ours(names)
        if not ours:
            names = _first_of_ours(names)
        if len(names) > _DEEPEST:
            half = _DEEPEST // 2
            names[half:-half] = [f"({len(names) - _DEEPEST} frames)"]
        names.append(_plain(thread))
        self.count(";".join(reversed(names)))

    def count(self, stack: str, times: int = 1) -> None:
        counts = self.counts
        if stack in counts:
            counts[stack] += times
        elif len(counts) < self._most and len(stack) <= self._room:
            self._room -= len(stack)
            counts[stack] = times
        else:
            counts[OTHER] = counts.get(OTHER, 0) + times
            self.left_out += times

    def _name(self, code: CodeType, line: int) -> str:
        key = (code, line)
        name = self._names.get(key)
        if name is None:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            ours = "monarch/" if code.co_filename.startswith(PACKAGE) else ""
            place = f"{ours}{os.path.basename(code.co_filename)}:{line}"
            name = self._names[key] = _plain(f"{code.co_qualname} ({place})")
        return name


def _without_ours(names: list[str]) -> list[str]:
    """The frames under which an endpoint runs are the same for all of them: from the outer end, those of ours go."""
    count = len(names)
    while count and ("(monarch/" in names[count - 1] or "(threading.py:" in names[count - 1]):
        count -= 1
    return names[:count] if count else names[:1]


def _first_of_ours(names: list[str]) -> list[str]:
    """Returns where the runtime's part begins: what it does for a call is one box: of its frames at the inner end, the
    one that the program called."""
    count = 0
    while count < len(names) and "(monarch/" in names[count]:
        count += 1
    return names[max(0, count - 1) :]


def _plain(text: str) -> str:
    return sendable(text, _LONGEST).replace(";", ",").replace("\n", " ")


def decode(reply: Any) -> Samples:
    """Decodes the answer of a process. ValueError for one that is larger or deeper than a process gives."""
    if len(reply) > _MOST_REPLY:
        raise ValueError(f"its answer has {len(reply):,} bytes, more than {_MOST_REPLY:,}")
    found = msgspec.msgpack.decode(reply, type=Samples)
    if len(found.samples) > _MOST_STACKS + 1:
        raise ValueError(f"its answer has {len(found.samples):,} stacks, more than {_MOST_STACKS:,}")
    for stack, count in found.samples.items():
        if count < 0 or stack.count(";") > _DEEPEST + 2:
            raise ValueError("its answer holds stacks that no process gives")
    return found
