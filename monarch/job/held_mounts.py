"""The mounts of a job, as whoever holds them has them: the program, or the job's sidecar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch.actor import HostMesh
from monarch.job.mount_orders import Order


class HeldMounts:
    """Not for several threads at a time."""

    def __init__(self) -> None:
        self._open: dict[Order, Any] = {}

    def __len__(self) -> int:
        return len(self._open)

    def update(self, orders: Sequence[Order], meshes: Mapping[str, HostMesh]) -> None:
        """What is mounted is what `orders` say: others are closed, those that are there refreshed. Raises what the first that
        failed met; the others are as they should be."""
        failures: list[Exception] = []
        for order in [order for order in self._open if order not in orders]:
            _try(failures, self._close, order)
        for order in orders:
            if order in self._open:
                _try(failures, self._open[order].refresh)
            else:
                _try(failures, self._mount, order, meshes[order.mesh])
        if failures:
            raise failures[0]

    def close(self) -> None:
        """All that are not in use, the last one first: what is gathered may lie in what was brought. RuntimeError names those
        that are in use, which stay."""
        failures: list[Exception] = []
        for order in reversed(list(self._open)):
            _try(failures, self._close, order)
        if failures:
            raise RuntimeError("; ".join(str(failure) for failure in failures))

    def _mount(self, order: Order, mesh: HostMesh) -> None:
        if order.kind == "remote":
            from monarch.remotemount.remotemount import remotemount

            self._open[order] = remotemount(mesh, order.here, order.there, order.mode).open()
        else:
            from monarch.gather_mount import gather_mount

            self._open[order] = gather_mount(mesh, order.there, order.here, order.mode)

    def _close(self, order: Order) -> None:
        self._open[order].close()
        del self._open[order]


def _try(failures: list[Exception], do: Any, *args: Any) -> None:
    try:
        do(*args)
    except Exception as exc:
        failures.append(exc)
