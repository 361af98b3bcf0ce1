"""The memory of the accelerators in a mesh: what is in use now and at most, and its history, written to files."""

from __future__ import annotations

from monarch.tensor.remote.device_memory import DeviceMemory, device_memory, reset_peak_memory
from monarch.tensor.remote.memory_history import dump_memory_snapshot, record_memory_history

__all__ = ["DeviceMemory", "device_memory", "dump_memory_snapshot", "record_memory_history", "reset_peak_memory"]
