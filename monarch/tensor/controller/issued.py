"""Commands as they were issued: where in the program, to be told when one of them fails; and what they were, for what keeps
them to issue them later, or again."""

from __future__ import annotations

import linecache
import traceback
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monarch.tensor.frames import internal

if TYPE_CHECKING:
    from monarch.tensor import worker_commands
    from monarch.tensor.controller.stream_placement import StreamPlacement
    from monarch.tensor.signature import Runner, WorkerCall
    from monarch.tensor.worker.executor import Executor

# Commands whose stacks are kept; those of earlier ones say so. A stack costs half a microsecond and shares code objects.
KEPT = 1 << 16

_gather = torch._C._profiler.gather_traceback


class CommandStacks:
    """The stacks of the latest commands, by ident, in a compact form."""

    __slots__ = ("_stacks", "note")

    def __init__(self) -> None:
        self._stacks: deque[tuple[int, object]] = deque(maxlen=KEPT)
        self.note = self._stacks.append

    def add(self, ident: int) -> None:
        """Remembers the caller's stack as that of command `ident`; idents grow."""
        self.note((ident, _gather(True, False, False)))

    def frames(self, ident: int) -> list[traceback.FrameSummary]:
        """Returns the program's frames, outermost first, without those of torch and of this package. Empty when no
        longer kept."""
        stacks = list(self._stacks)
        at = bisect_right(stacks, ident, key=lambda entry: entry[0]) - 1
        if at < 0 or stacks[at][0] != ident:
            return []
        found = torch._C._profiler.symbolize_tracebacks([stacks[at][1]])[0]
        return [
            traceback.FrameSummary(
                frame["filename"],
                frame["line"],
                frame["name"],
                lookup_line=False,
                line=linecache.getline(frame["filename"], frame["line"]).strip(),
            )
            for frame in reversed(found)
            if not internal(frame["filename"])
        ]


class IssuedCommand:
    """A command as it was issued: at `place`, call `call` (the signature `signature`, or 0 for a call that is made once)."""

    __slots__ = ("call", "ident", "inputs", "numbers", "place", "results", "signature", "stack")

    def __init__(
        self, place: StreamPlacement, ident: int, call: WorkerCall | None, inputs: tuple[int, ...],
        numbers: tuple[int | float, ...], results: int, signature: int, stack: object,
    ) -> None:  # fmt: skip
        self.place = place
        self.ident = ident
        # None where the signature is no longer known: then nothing replays it.
        self.call: Any = call
        self.inputs = inputs
        self.numbers = numbers
        self.results = results
        self.signature = signature
        self.stack = stack

    def name(self) -> str:
        return str(self.call.name())


class RepeatedConstant:
    """A signature.WorkerCall that gives a tensor the program sent: a new copy each time, because it may be changed."""

    keeps: tuple[int, ...] | None = None
    mutates: tuple[int, ...] = ()
    repeatable = True

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def name(self) -> str:
        return "a constant"

    def prepare(self, executor: Executor) -> Runner:
        return lambda tensors, numbers: self.value.clone()


class UnsentBatch(NamedTuple):
    """A batch that waits to be sent. `mark`: the Fetch, Sync or ident by which its answers are asked for, if they are."""

    number: int
    waiting: list[int | worker_commands.AnyCommand]
    payloads: list[object]
    mark: worker_commands.Fetch | worker_commands.Sync | int | None
