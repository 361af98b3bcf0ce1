"""Tests of what a process tells of the load of its device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from monarch._devices import measures
from monarch._devices.own_figures import DeviceFigures, OwnFigures
from tests.support.patience import TIMEOUT

Measure = Callable[[], dict[str, Any]]


class Measured:
    """A driver that answers when it is let. `load`: what it says."""

    def __init__(self) -> None:
        self.index: int | None = 3
        self.now = 100.0
        self.load: float | None = 12.0
        self.asked: list[int] = []
        self.answers = threading.Event()
        self.own = OwnFigures(lambda: self.index, self._find, lambda: self.now)

    def _find(self, index: int) -> Measure | None:
        self.asked.append(index)
        assert self.answers.wait(TIMEOUT)
        return lambda: {"utilization_percent": self.load, "memory_used_bytes": 5, "memory_total_bytes": 10}

    def measured(self) -> None:
        thread = self.own._thread
        assert thread is not None
        thread.join(TIMEOUT)


def test_what_was_measured_last_is_told_and_a_driver_that_hangs_holds_nobody_up() -> None:
    device = Measured()
    assert device.own.last() is None, "nothing is measured yet"
    device.now += 10
    assert device.own.last() is None and device.asked == [3], "it is asked once, however often one looks"
    device.answers.set()
    device.measured()
    assert device.own.last() == DeviceFigures(3, 12.0, 5, 10)
    device.measured()
    device.load = None
    device.now += 10
    device.own.last()
    device.measured()
    assert device.own.last() == DeviceFigures(3, None, 5, 10) and device.asked == [3], (
        "what measures it is looked for once"
    )


def test_a_process_without_a_device_and_one_that_nobody_can_measure() -> None:
    device = Measured()
    device.answers.set()
    device.index = None
    assert device.own.last() is None and device.own._thread is None

    def find(index: int) -> Measure | None:
        raise ValueError("MIG")

    broken = OwnFigures(lambda: 0, find, lambda: 0.0)
    broken.once(0)
    assert broken.last() is None


def test_a_device_is_found_by_its_place(monkeypatch: Any) -> None:
    class Driver:
        def at(self, address: str) -> dict[str, Any]:
            return {"address": address}

    monkeypatch.setattr(measures, "measure_devices", Driver)
    measure = measures.measure_of("0000:17:00.0")
    assert measure is not None and measure() == {"address": "0000:17:00.0"}
    monkeypatch.setattr(measures, "measure_devices", lambda: None)
    assert measures.measure_of("0000:17:00.0") is None
