"""Figures of accelerators: load, memory, temperature, power. NVIDIA's by NVML (the package nvidia-ml-py),
AMD's by what the amdgpu driver shows in sysfs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]  # columns of the table gpu_metrics, and `timestamp`


class NvidiaMeasure:
    """Rows of `gpu_metrics` by NVML. Raises what pynvml does where there is no driver."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._hostname = socket.gethostname()

    def __call__(self) -> list[Row]:
        nvml = self._nvml
        return [
            self._device(index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())
        ]

    def at(self, address: str) -> Row:
        """Returns the row of the device at that place of the PCI bus."""
        return self._device(0, self._nvml.nvmlDeviceGetHandleByPciBusId(address.encode()))

    def _device(self, index: int, handle: Any) -> Row:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        power = self._maybe(nvml.nvmlDeviceGetPowerUsage, handle)
        rates = self._maybe(nvml.nvmlDeviceGetUtilizationRates, handle)
        return {
            "timestamp": time.time(),
            "hostname": self._hostname,
            "gpu_index": index,
            "gpu_uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "gpu_name": _text(nvml.nvmlDeviceGetName(handle)),
            "utilization_percent": None if rates is None else float(rates.gpu),
            "memory_used_bytes": int(memory.used),
            "memory_total_bytes": int(memory.total),
            "temperature_c": self._maybe(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "power_watts": None if power is None else power / 1000,
        }

    def _maybe(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """None for what this device does not tell."""
        try:
            return ask(*arguments)
        except self._nvml.NVMLError:
            return None


class SysfsMeasure:
    """Rows of `gpu_metrics` for AMD devices, from what the amdgpu driver shows in sysfs. FileNotFoundError without any."""

    def __init__(self, root: str = "/sys/class/drm") -> None:
        self._hostname = socket.gethostname()
        names = sorted(name for name in os.listdir(root) if name.startswith("card") and name[4:].isdigit())
        places = [os.path.join(root, name, "device") for name in names]
        self._devices = [place for place in places if os.path.exists(os.path.join(place, "mem_info_vram_total"))]
        if not self._devices:
            raise FileNotFoundError("no AMD device")

    def __call__(self) -> list[Row]:
        return [self._device(index, place) for index, place in enumerate(self._devices)]

    def at(self, address: str) -> Row:
        """Returns the row of the device at that place of the PCI bus. LookupError where there is none."""
        for index, place in enumerate(self._devices):
            if os.path.basename(os.path.realpath(place)) == address:
                return self._device(index, place)
        raise LookupError(address)

    def _device(self, index: int, place: str) -> Row:
        busy, power = _number(place, "gpu_busy_percent"), _sensor(place, "power1_average")
        temperature = _sensor(place, "temp1_input")
        return {
            "timestamp": time.time(),
            "hostname": self._hostname,
            "gpu_index": index,
            "gpu_uuid": _read(place, "unique_id") or os.path.basename(os.path.realpath(place)),
            "gpu_name": _read(place, "product_name") or "AMD GPU",
            "utilization_percent": None if busy is None else float(busy),
            "memory_used_bytes": _number(place, "mem_info_vram_used") or 0,
            "memory_total_bytes": _number(place, "mem_info_vram_total") or 0,
            "temperature_c": None if temperature is None else temperature // 1000,
            "power_watts": None if power is None else power / 1e6,
        }


def _read(*parts: str) -> str:
    try:
        with open(os.path.join(*parts)) as file:
            return file.read().strip()
    except OSError:
        return ""


def _number(*parts: str) -> int | None:
    text = _read(*parts)
    return int(text) if text.isdigit() else None


def _sensor(place: str, name: str) -> int | None:
    try:
        monitors = sorted(os.listdir(os.path.join(place, "hwmon")))
    except OSError:
        return None
    found = (_number(place, "hwmon", monitor, name) for monitor in monitors)
    return next((value for value in found if value is not None), None)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def measure_devices() -> NvidiaMeasure | SysfsMeasure | None:
    """Returns what measures this host's accelerators; None when it has none that can be measured."""
    for measure in (NvidiaMeasure, SysfsMeasure):
        try:
            return measure()
        except Exception:  # the package, the driver or a device is not there
            continue
    return None


def measure_of(address: str) -> Callable[[], Row] | None:
    """Returns what measures the accelerator at that place of the PCI bus (0000:17:00.0); None when nothing can."""
    measure = measure_devices()
    return None if measure is None else lambda: measure.at(address)
