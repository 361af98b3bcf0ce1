"""The memory of their devices that the processes of a mesh use."""

from __future__ import annotations

from typing import Any

from monarch._devices import statistics
from monarch._devices.statistics import DeviceMemory
from monarch.actor import Actor, Future, ProcMesh, ValueMesh, endpoint
from monarch.actor.lowlevel import in_thread

__all__ = ["DeviceMemory", "device_memory", "reset_peak_memory"]


class _Reader(Actor):
    """One for each process, for one question."""

    _is_system_actor = True

    @endpoint
    def read(self) -> DeviceMemory:
        return statistics.of_this_process()

    @endpoint
    def reset(self) -> None:
        statistics.reset_peaks()


def device_memory(procs: ProcMesh) -> Future[ValueMesh[DeviceMemory]]:
    """A DeviceMemory of each process, in the mesh's shape: allocated, reserved, their peaks, free and total bytes of the
    device that the process uses. `str()` of one is a sentence.

    Asked beside the program's own actors, so also while these compute. A process that has no device, or has not used it yet,
    says that: asking makes no context on one. CUDA and ROCm. Raises what calls raise when a process has ended.
    """
    found: Future[ValueMesh[DeviceMemory]] = _asked(procs, "read")
    return found


def reset_peak_memory(procs: ProcMesh) -> Future[ValueMesh[None]]:
    """Makes each process count the peaks of its device's memory anew."""
    done: Future[ValueMesh[None]] = _asked(procs, "reset")
    return done


def _asked(procs: ProcMesh, what: str) -> Any:
    if not isinstance(procs, ProcMesh):
        raise TypeError(f"give processes, a ProcMesh or a slice of one, and not {type(procs).__name__}")

    def ask() -> Any:
        readers: Any = procs.spawn("device_memory", _Reader)
        try:
            return getattr(readers, what).call().get()
        finally:
            readers.stop()

    return in_thread(ask, "monarch-device-memory")
