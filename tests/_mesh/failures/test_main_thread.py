"""Tests of when and where a fault is raised, and whose handler of SIGINT counts as the program's own.

Real programs, with real signals, are in tests/procs/test_faults.py.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from monarch._errors import UnhandledFaultError
from monarch._mesh.failures.main_thread import Fault, Faults, Raised, _has_part, has_own_handler


def test_a_fault_is_over_when_its_exception_is_gone() -> None:
    raised = Raised()
    assert not raised.exists(0.0)
    error = UnhandledFaultError("report")
    raised.now(100.0, error)
    assert raised.exists(100.0) and raised.exists(109.0)
    assert not raised.as_interrupt(100.0)
    del error
    assert not raised.exists(100.0)


def test_who_keeps_the_exception_hears_of_the_next_fault_all_the_same() -> None:
    raised = Raised()
    error = UnhandledFaultError("report")
    raised.now(100.0, error)
    assert not raised.exists(110.0)
    assert str(error) == "report"


def test_without_an_exception_of_ours_time_decides() -> None:
    raised = Raised()
    raised.now(100.0, None)
    assert raised.as_interrupt(109.0) and not raised.as_interrupt(110.0)
    assert not raised.exists(109.0)
    raised.now(200.0, None)
    raised.over()
    assert not raised.as_interrupt(200.0)


def test_what_is_raised_while_a_fault_is_handled_belongs_to_it() -> None:
    kinds = (UnhandledFaultError,)
    assert not _has_part(None, kinds)
    assert not _has_part(KeyboardInterrupt(), kinds)
    fault = UnhandledFaultError("report")
    assert _has_part(fault, kinds)
    cancelled = asyncio.CancelledError()
    assert not _has_part(cancelled, kinds) and _has_part(cancelled, (*kinds, asyncio.CancelledError))
    cancelled.__context__ = fault
    error = RuntimeError()
    error.__cause__, error.__context__ = ValueError(), cancelled
    assert _has_part(error, kinds)
    circle = ValueError()
    other = ValueError()
    circle.__context__, other.__context__ = other, circle
    assert not _has_part(circle, kinds)


def frame_of(module: str, function: str) -> FrameType:
    namespace: dict[str, Any] = {"__name__": module, "sys": sys}
    exec(f"def {function}(): return sys._getframe()", namespace)
    return namespace[function]()  # type: ignore[no-any-return]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Returns what was told of a fault that the main thread has not taken yet."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    faults = Faults()
    faults._pending = Fault("the report", "the block")
    return faults


def test_it_is_raised_where_the_main_thread_is(told: Faults) -> None:
    assert str(told._error_for(frame_of("program", "work"))) == "the report"
    assert told._error_for(frame_of("program", "work")) is None  # once


def test_it_is_not_raised_where_it_would_be_lost(told: Faults) -> None:
    for _ in range(3):
        assert told._error_for(frame_of("program", "__del__")) is None
    assert told._error_for(frame_of("program", "work")) is not None


def test_a_message_may_be_written_to_its_end_first(told: Faults) -> None:
    assert told._error_for(frame_of("monarch._wire.transport.stream", "send")) is None
    assert told._error_for(frame_of("monarch._wire.transport.stream", "send")) is not None


@pytest.fixture
def interrupts() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("handler", "own"),
    [
        (signal.default_int_handler, False),
        (signal.SIG_IGN, False),
        (signal.SIG_DFL, False),
        (lambda number, frame: None, True),
    ],
    ids=["Python's", "ignored", "the system's", "a function"],
)
def test_whose_handler_it_is(interrupts: None, handler: Any, own: bool) -> None:
    signal.signal(signal.SIGINT, handler)
    assert has_own_handler() is own


def test_the_handler_of_asyncio_run_is_not_the_program_s(interrupts: None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)

    async def main(own: bool) -> tuple[bool, bool]:
        if own:
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler, has_own_handler()

    assert asyncio.run(main(own=False)) == (True, False)
    assert asyncio.run(main(own=True)) == (True, True)
