"""Tests of how machines are measured."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from monarch._devices.measures import NvidiaMeasure, SysfsMeasure
from monarch.telemetry.machine import HostMeasure, Sampler, period
from monarch.telemetry.tables import TABLES
from tests.support.devices import skip_without_gpu


def columns(table: str) -> set[str]:
    return {column.name for column in TABLES[table].columns} - {"timestamp_us"} | {"timestamp"}


@pytest.mark.parametrize(("drawn", "seconds"), [(1.0, 2.0), (9.0, 3.0), (-1.0, 1.0)])
def test_periods_vary_within_bounds(drawn: float, seconds: float) -> None:
    assert period(2.0, lambda mean, deviation: drawn) == seconds


def test_a_streak_of_failures_is_told_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [[{"a": 1}], OSError("no"), OSError("no"), [{"a": 2}], [{"a": 3}], OSError("again")]
    taken: list[Any] = []

    def take() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    sampler = Sampler("host_metrics", take, taken.append, 1.0)
    with caplog.at_level(logging.WARNING, "monarch.telemetry"):
        for _ in range(6):
            sampler.once()
    assert taken == [{"a": 1}, {"a": 2}, {"a": 3}]
    said = [record.getMessage().removeprefix("[actor=<root>] ") for record in caplog.records]  # a client may be running
    assert said == [
        "host_metrics cannot be measured at present: OSError: no",
        "host_metrics can be measured again",
        "host_metrics cannot be measured at present: OSError: again",
    ]


def test_this_machine_is_measured() -> None:
    (row,) = HostMeasure()()
    assert row.keys() == columns("host_metrics")
    assert row["memory_total_bytes"] > row["memory_available_bytes"] > 0
    assert row["disk_root_free_bytes"] > 0


def test_an_amd_device_is_measured_through_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "card0" / "device"
    monitor = device / "hwmon" / "hwmon3"
    monitor.mkdir(parents=True)
    (tmp_path / "card0-DP-1").mkdir()
    (tmp_path / "card1" / "device").mkdir(parents=True)  # of another maker
    for name, text in {
        "mem_info_vram_total": "1000",
        "mem_info_vram_used": "250",
        "gpu_busy_percent": "40",
        "unique_id": "abc",
        "product_name": "MI300X",
    }.items():
        (device / name).write_text(text + "\n")
    (monitor / "power1_average").write_text("300000000\n")
    (monitor / "temp1_input").write_text("51000\n")
    (row,) = SysfsMeasure(str(tmp_path))()
    assert row.keys() == columns("gpu_metrics")
    assert (row["utilization_percent"], row["memory_used_bytes"], row["power_watts"]) == (40.0, 250, 300.0)
    assert (row["gpu_uuid"], row["gpu_name"], row["temperature_c"]) == ("abc", "MI300X", 51)
    (device / "gpu_busy_percent").unlink()  # an older driver
    assert SysfsMeasure(str(tmp_path))()[0]["utilization_percent"] is None


def test_without_an_amd_device_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SysfsMeasure(str(tmp_path))


def test_an_nvidia_device_is_measured_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(Exception):
        pass

    def power(handle: str) -> int:
        raise Missing("not supported")

    nvml = types.SimpleNamespace(
        NVMLError=Missing,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: f"handle{index}",
        nvmlDeviceGetHandleByPciBusId=lambda place: f"handle of {place.decode()}",
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=5, total=10),
        nvmlDeviceGetPowerUsage=power,
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=70),
        nvmlDeviceGetUUID=lambda handle: b"GPU-1",
        nvmlDeviceGetName=lambda handle: "H200",
        nvmlDeviceGetTemperature=lambda handle, kind: 60,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    first, second = NvidiaMeasure()()
    assert first.keys() == columns("gpu_metrics")
    assert (first["gpu_uuid"], first["utilization_percent"], first["power_watts"]) == ("GPU-1", 70.0, None)
    assert second["gpu_index"] == 1
    assert NvidiaMeasure().at("0000:17:00.0")["gpu_uuid"] == "GPU-1"


@pytest.mark.device
def test_the_gpus_of_this_machine_are_measured() -> None:
    pytest.importorskip("pynvml")
    skip_without_gpu()
    rows = NvidiaMeasure()()
    assert [row["gpu_index"] for row in rows] == list(range(len(rows))) and len(rows) >= 1
    for row in rows:
        assert row.keys() == columns("gpu_metrics")
        assert row["gpu_uuid"].startswith("GPU-") and row["gpu_name"]
        assert 0 <= row["utilization_percent"] <= 100
