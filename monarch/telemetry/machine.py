"""Measurements of a machine: processors, memory, network, disks and accelerators, measured by one process of each host."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._devices.measures import measure_devices
from monarch._linux.locks import Lock
from monarch._runtime import recorder as recorders
from monarch._runtime.recorder import DEVICE, MACHINE

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

logger = logging.getLogger("monarch.telemetry")

_SPREAD = 0.1  # standard deviation of a period, as a part of it: hosts do not measure all at once
_LEAST, _MOST = 0.5, 1.5  # bounds of a period, as parts of it

Row = dict[str, Any]


def period(seconds: float, normal: Callable[[float, float], float] = random.gauss) -> float:
    """Returns how long to wait until the next measurement."""
    return seconds * min(max(normal(1.0, _SPREAD), _LEAST), _MOST)


class Sampler:
    """Calls `take` about every `seconds` on a thread of its own, and gives its rows to `emit`. The first failure of a streak
    is logged, and its end."""

    def __init__(
        self, what: str, take: Callable[[], Sequence[Row]], emit: Callable[[Row], None], seconds: float
    ) -> None:
        self._what = what
        self._take = take
        self._emit = emit
        self._seconds = seconds
        self._ended = threading.Event()
        self.failing = False
        self._thread = threading.Thread(target=self._run, name=f"monarch-{what}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while True:
            self.once()
            if self._ended.wait(period(self._seconds)):
                return

    def once(self) -> None:
        try:
            for row in self._take():
                self._emit(row)
        except Exception as exc:
            if not self.failing:
                logger.warning("%s cannot be measured at present: %s: %s", self._what, type(exc).__name__, exc)
            self.failing = True
        else:
            if self.failing:
                logger.warning("%s can be measured again", self._what)
            self.failing = False


# --- the host


class HostMeasure:
    """Rows of `host_metrics`. ImportError without psutil."""

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        self._hostname = socket.gethostname()
        psutil.cpu_percent(None)  # the next one is since this

    def __call__(self) -> list[Row]:
        psutil = self._psutil
        memory, swap, load = psutil.virtual_memory(), psutil.swap_memory(), os.getloadavg()
        network, disk = psutil.net_io_counters(), _disk(psutil)
        return [
            {
                "timestamp": time.time(),
                "hostname": self._hostname,
                "cpu_percent": psutil.cpu_percent(None),
                "cpu_count": psutil.cpu_count(),
                "load_avg_1m": load[0],
                "load_avg_5m": load[1],
                "load_avg_15m": load[2],
                "memory_total_bytes": memory.total,
                "memory_available_bytes": memory.available,
                "memory_used_bytes": memory.used,
                "swap_used_bytes": swap.used,
                "net_rx_bytes": network.bytes_recv if network else 0,
                "net_tx_bytes": network.bytes_sent if network else 0,
                "disk_read_bytes": disk.read_bytes if disk else None,
                "disk_write_bytes": disk.write_bytes if disk else None,
                "disk_root_free_bytes": _free("/"),
                "disk_tmp_free_bytes": _free("/tmp"),
            }
        ]


def _disk(psutil: Any) -> Any:
    """None where the system does not tell, as in some containers."""
    try:
        return psutil.disk_io_counters()
    except (OSError, RuntimeError, NotImplementedError):
        return None


def _free(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def samplers(
    host_seconds: float, device_seconds: float, on_host: Callable[[Row], None], on_device: Callable[[Row], None]
) -> list[Sampler]:
    """Returns the samplers to start, for periods over 0."""
    found = []
    if host_seconds > 0:
        try:
            found.append(Sampler("host_metrics", HostMeasure(), on_host, host_seconds))
        except ImportError:
            logger.warning("this host is not measured: psutil is missing (pip install 'pymonarch[telemetry]')")
    take = measure_devices() if device_seconds > 0 else None
    if take is not None:
        found.append(Sampler("gpu_metrics", take, on_device, device_seconds))
    return found


# --- in a process of a host where no observer runs

_running: list[Sampler] = []
_lock = Lock()


def measure(proc: Proc, argument: bytes) -> bytes:
    """Question "telemetry.measure": this process measures its host from now on, unless that is the one the observer is on.
    Argument: the two periods, and the name of the observer's host."""
    host_seconds, device_seconds, measured = msgspec.msgpack.decode(argument, type=tuple[float, float, str])
    with _lock:
        if not _running and socket.gethostname() != measured:
            _running.extend(samplers(host_seconds, device_seconds, _recorder(MACHINE), _recorder(DEVICE)))
            for sampler in _running:
                sampler.start()
    return b"\xc0"


def _recorder(kind: int) -> Callable[[Row], None]:
    def emit(row: Row) -> None:
        recorder = recorders.active
        if recorder is not None:
            recorder.add((kind, row))

    return emit
