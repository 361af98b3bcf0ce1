"""Slots of a host's devices, and the processes of a mesh that get them.

A slot is a device, or, beyond so many as there are, one that is shared; how many there are, the processes find out (see
`monarch._devices.own_device`, which carries it out in them). A mesh with a dimension `gpus` or `gpu` takes slots: the lowest
that are free in a row, as long as it lives. Others use the lowest ones that are free and take none, so that a mesh of helpers
leaves the first device to the processes that train. One whose environment names devices has those, and takes none either.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from monarch._wire.message import DeviceSlots

DIMENSIONS = ("gpus", "gpu")
VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/kfd")

_given: dict[str, tuple[str | None, str]] = {}  # variables that this process was given: what they were, and are


def driver_here() -> bool:
    """True if the host may have devices."""
    return any(map(os.path.exists, _DRIVERS))


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """Returns what children inherit of an environment: not the order of devices that was for this process's mesh."""
    kept = dict(env)
    for name, (before, given) in _given.items():
        if kept.get(name) == given:
            del kept[name]
            if before is not None:
                kept[name] = before
    return kept


def changed(changes: Mapping[str, tuple[str | None, str]]) -> None:
    """This process was given other variables than it was started with."""
    _given.update(changes)


def wanted(env: Mapping[str, str | None], labels: Iterable[str]) -> str:
    """LaunchSpec.share_devices of a mesh with these dimensions, for which the program gave this environment."""
    if any(env.get(name) is not None for name in VARIABLES):
        return "see"
    return "take" if any(label in DIMENSIONS for label in labels) else "use"


class HostDeviceSlots:
    """The device slots of one host agent."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, DeviceSlots]] = {}  # mesh -> its name, and what it has
        self._taken: dict[str, range] = {}  # mesh -> its slots

    def give(self, mesh: str, name: str, rank: int, processes: int, share: str) -> DeviceSlots:
        """Gives devices to the processes of a mesh, the first of which here is its rank `rank`. Those that take the
        place of others of the mesh get what those had. `share`: see LaunchSpec.share_devices."""
        known = self._given.get(mesh)
        if known is not None:
            return known[1]
        if share == "see":
            given = DeviceSlots(0, processes, rank, [])
        else:
            others = [(self._given[other][0], slots.start, len(slots)) for other, slots in self._taken.items()]
            given = DeviceSlots(self._free(processes), processes, rank, others)
        if share == "take":
            self._taken[mesh] = range(given.first, given.first + processes)
        self._given[mesh] = name, given
        return given

    def release(self, mesh: str) -> None:
        self._given.pop(mesh, None)
        self._taken.pop(mesh, None)

    def _free(self, count: int) -> int:
        """The lowest slot from which on `count` are free."""
        first = 0
        for slots in sorted(self._taken.values(), key=lambda slots: slots.start):
            if slots.start >= first + count:
                break
            first = max(first, slots.stop)
        return first
