"""Tests of asking what all threads run."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from monarch._linux import thread_frames as module
from monarch._linux.thread_frames import thread_frames
from tests.support.threads import join, start

ROUNDS = 300
Frames = dict[int, FrameType]


@contextmanager
def collecting_always(note: Callable[[str, dict[str, int]], None]) -> Iterator[None]:
    """Begins a collection whenever an object is made that can be in a cycle."""
    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)


class Interpreter:
    """Asks the interpreter, and counts the collections that begin while it answers."""

    def __init__(self) -> None:
        self.asked = False
        self.collections = 0

    def note(self, phase: str, info: dict[str, int]) -> None:
        self.collections += self.asked

    def frames(self) -> Frames:
        self.asked = True
        try:
            return sys._current_frames()
        finally:
            self.asked = False


def ask_often(interpreter: Interpreter, ask: Callable[[], Frames]) -> None:
    """Beside threads for each of which something has to be made."""
    over = threading.Event()
    waiting = [start(over.wait) for _ in range(3)]
    try:
        with collecting_always(interpreter.note):
            found = [ask() for _ in range(ROUNDS)]
    finally:
        over.set()
        join(*waiting)
    assert all({thread.ident for thread in waiting} < frames.keys() for frames in found)


def test_nothing_is_collected_while_the_interpreter_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection may run what waits for a thread, and that thread for the interpreter."""
    interpreter = Interpreter()
    monkeypatch.setattr(module, "_WITHOUT_COLLECTING", (gc.disable, interpreter.frames, gc.enable))
    ask_often(interpreter, thread_frames)
    assert interpreter.collections == 0 and gc.isenabled()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="collects between steps of Python only")
def test_the_interpreter_alone_collects() -> None:
    interpreter = Interpreter()
    ask_often(interpreter, interpreter.frames)
    assert interpreter.collections > 0


def test_the_collector_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.disable()
    try:
        assert threading.get_ident() in thread_frames() and not gc.isenabled()
    finally:
        gc.enable()

    def fail() -> Frames:
        raise MemoryError

    monkeypatch.setattr(sys, "version_info", (3, 11))
    monkeypatch.setattr(module, "_WITHOUT_COLLECTING", (gc.disable, fail, gc.enable))
    with pytest.raises(MemoryError):
        thread_frames()
    assert gc.isenabled()
