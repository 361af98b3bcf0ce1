"""Reductions: answers that are combined on their way, in processes below each agent of the tree, rather than all at the
caller.

Agents run no code of programs. One that has the answers of its whole part gives them to a process of its host that is a
receiver itself (Combine), which folds those of neighbouring ranks into one and answers (Combined); that goes up in
their place. The result is that of folding in the order of ranks, provided that `combine` is associative.
"""

from __future__ import annotations

import operator
import queue
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch._runtime.loop import start_thread
from monarch._runtime.remote_errors import RemoteError, decode_answer, encode_error, formatted
from monarch._wire import codec
from monarch._wire.address import agent_of
from monarch._wire.frame import Frame
from monarch._wire.message import ERROR, VALUE, Combine, Combined
from monarch._wire.peer import PeerEnded

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

_ARRAYS = ("numpy", "torch")


def _library(value: Any) -> Any:
    """numpy or torch, of whose arrays `value` is one; else None."""
    name = type(value).__module__.partition(".")[0]
    return sys.modules.get(name) if name in _ARRAYS else None


def _least(one: Any, other: Any) -> Any:
    arrays = _library(one)
    return min(one, other) if arrays is None else arrays.minimum(one, other)


def _most(one: Any, other: Any) -> Any:
    arrays = _library(one)
    return max(one, other) if arrays is None else arrays.maximum(one, other)


def _concatenated(one: Any, other: Any) -> Any:
    arrays = _library(one)
    if arrays is None:
        return one + other
    return (arrays.cat if arrays.__name__ == "torch" else arrays.concatenate)((one, other))


COMBINERS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "min": _least,
    "max": _most,
    "concat": _concatenated,
}


def combiner(combine: Callable[[Any, Any], Any] | str) -> Callable[[Any, Any], Any]:
    """Returns the combiner that a name stands for. ValueError for unknown ones."""
    if not isinstance(combine, str):
        return combine
    try:
        return COMBINERS[combine]
    except KeyError:
        raise ValueError(f"no combine function is called {combine!r} (known: {', '.join(COMBINERS)})") from None


def serve(proc: Proc) -> None:
    """Lets a process combine answers for its agent, on a thread of its own that starts with the first."""
    waiting: queue.SimpleQueue[tuple[Combine, Frame]] = queue.SimpleQueue()
    started = False

    def work() -> None:
        while True:
            ask, frame = waiting.get()
            try:
                _answer(proc, ask, frame)
            except (PeerEnded, RuntimeError):  # this process is ending
                return

    def on_combine(connection: Any, ask: Combine, frame: Frame) -> None:
        nonlocal started
        waiting.put((ask, frame))
        if not started:
            started = True
            start_thread(work, "monarch-combine")

    proc.receivers[Combine] = on_combine


def _answer(proc: Proc, ask: Combine, frame: Frame) -> None:
    """One Combined for each group of neighbours."""
    raws = _raws(ask, frame)
    agent = agent_of(proc.address)
    start = 0
    for group, size in enumerate(ask.groups):
        kind, body, buffers = _folded(ask, raws[start : start + size])
        proc.post(agent, Combined(ask.back, ask.port, group, kind), body, buffers)
        start += size


def _folded(ask: Combine, raws: list[Any]) -> tuple[int, bytes, Any]:
    try:
        combine = combiner(codec.decode(ask.combine, ()))
        result = decode_answer(raws[0], None)
        for raw in raws[1:]:
            result = combine(result, decode_answer(raw, None))
        return (VALUE, *codec.encode_value(result))
    except BaseException as exc:  # of the program's function, on a thread that serves others as well
        where = "the combine function of an Accumulator failed."
        return (ERROR, *encode_error(exc, RemoteError(where, formatted(exc))))


def _raws(ask: Combine, frame: Frame) -> list[Any]:
    view, buffers = memoryview(frame.body), list(frame.buffers)
    raws, start, first = [], 0, 0
    for size, count in zip(ask.sizes, ask.buffers, strict=True):
        raws.append((0, VALUE, view[start : start + size], buffers[first : first + count]))
        start, first = start + size, first + count
    return raws
