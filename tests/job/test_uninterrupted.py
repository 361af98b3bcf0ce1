"""A step that interrupts do not cut in two."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from monarch.job.scheduled import InterruptedAfterwardsError, uninterrupted


def test_interrupts_wait_for_the_end_of_the_step() -> None:
    steps = []

    def step() -> None:
        for number in range(200):
            signal.raise_signal(signal.SIGINT)
            steps.append(number)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(InterruptedAfterwardsError):
            uninterrupted(step)
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == list(range(200))


def test_a_handler_of_the_program_is_called_after_the_step() -> None:
    steps: list[Any] = []

    def step() -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("step")

    before = signal.signal(signal.SIGINT, lambda number, frame: steps.append(number))
    try:
        uninterrupted(step)
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == ["step", signal.SIGINT]


def test_what_the_step_raises_is_raised() -> None:
    with pytest.raises(LookupError):
        uninterrupted(lambda: {}["missing"])
    uninterrupted(lambda: None)
