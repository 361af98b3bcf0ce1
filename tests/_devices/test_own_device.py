"""Which device a process takes, with vendors that are not here."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from monarch._devices import own_device, vendors  # noqa: E402

CUDA = ("CUDA_VISIBLE_DEVICES",)
HIP = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("environ", "rank", "present", "variables", "wanted"),
    [
        ({}, 0, 0, (), None),
        ({}, 3, 8, CUDA, "3"),
        ({}, 9, 8, CUDA, "1"),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 1, 4, CUDA, "5"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 1, 2, CUDA, "GPU-b"),
        ({"CUDA_VISIBLE_DEVICES": "4"}, 1, 1, CUDA, None),
        ({"HIP_VISIBLE_DEVICES": "2, 3"}, 0, 2, HIP, "2"),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1, 2, CUDA, "1"),
    ],
)
def test_the_entry_of_a_rank(
    environ: dict[str, str], rank: int, present: int, variables: tuple[str, ...], wanted: str | None
) -> None:
    assert own_device.visible(environ, rank, present, variables) == wanted


@pytest.mark.parametrize("variables", [CUDA, HIP])
def test_both_vendors_are_told_in_their_own_variables(
    monkeypatch: pytest.MonkeyPatch, variables: tuple[str, ...]
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(vendors, "count", lambda: 4)
    monkeypatch.setattr(vendors, "vendor", lambda: "hip" if variables is HIP else "cuda")
    own_device.take(6)
    assert {name: os.environ[name] for name in variables} == dict.fromkeys(variables, "2")
    assert "ROCR_VISIBLE_DEVICES" not in os.environ
    for name in variables:
        monkeypatch.delenv(name)


def test_a_process_that_uses_devices_already_only_changes_its_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    taken: list[int] = []
    monkeypatch.setattr(vendors, "count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: "cuda")
    monkeypatch.setattr(torch.accelerator, "set_device_index", taken.append)
    monkeypatch.setattr(own_device, "_begun", lambda: True)
    own_device.take(5)
    assert taken == [1]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_cpu_rank_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before: Any = dict(os.environ)
    monkeypatch.setattr(vendors, "count", lambda: 0)
    own_device.take(1)
    assert dict(os.environ) == before
