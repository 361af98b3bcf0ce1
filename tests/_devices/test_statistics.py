"""Tests of what a process says of its device's memory."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from monarch._devices import statistics

GIB = 1 << 30


class Cuda(types.SimpleNamespace):
    """torch.cuda with 1 of 4 devices in use."""

    def __init__(self) -> None:
        super().__init__(begun=True, asked=set(), reset=[])

    def is_initialized(self) -> bool:
        return bool(self.begun)

    def current_device(self) -> int:
        assert self.begun, "asking makes no context"
        return 3

    def get_device_name(self, index: int) -> str:
        return "H200"

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 2 * GIB, 140 * GIB

    def memory_allocated(self, index: int) -> int:
        self.asked.add(index)
        return GIB

    def memory_reserved(self, index: int) -> int:
        return 3 * GIB

    def max_memory_allocated(self, index: int) -> int:
        return 5 * GIB // 2

    def max_memory_reserved(self, index: int) -> int:
        return 4 * GIB

    def reset_peak_memory_stats(self, index: int) -> None:
        self.reset.append(index)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=made))  # type: ignore[misc]
    return made


def test_all_of_it_is_of_the_device_in_use(cuda: Cuda) -> None:
    found = statistics.of_this_process()
    assert cuda.asked == {3}
    assert found[2:] == ("cuda:3", "H200", GIB, 3 * GIB, 5 * GIB // 2, 4 * GIB, 2 * GIB, 140 * GIB)
    assert str(found).endswith(
        "cuda:3 (H200): 1.00 GiB in tensors (peak 2.50 GiB), 3.00 GiB reserved by torch (peak 4.00 GiB), 2.00 GiB of "
        "140.00 GiB free"
    )
    statistics.reset_peaks()
    assert cuda.reset == [3]


def test_a_process_that_uses_no_device_says_so_and_begins_with_none(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda.begun = False
    assert statistics.of_this_process().device == ""
    assert "no device, or none used yet" in str(statistics.of_this_process())
    statistics.reset_peaks()
    assert cuda.reset == []
    monkeypatch.delitem(sys.modules, "torch")
    assert statistics.of_this_process().total == 0


def test_out_of_memory_says_where_and_what_is_used(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    assert "2.00 GiB of 140.00 GiB free" in statistics.at_out_of_memory(OutOfMemoryError())
    assert statistics.at_out_of_memory(RuntimeError("x")) == ""

    def broken(index: int) -> Any:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(cuda, "mem_get_info", broken)
    assert statistics.at_out_of_memory(OutOfMemoryError()).startswith("host ")
