"""The mounts of a job, as the process that holds them has them: the program, or the job's sidecar."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.actor import HostMesh
from monarch.job.mounts.orders import MountOrder
from monarch.remotemount.fuse_process import MountBusy

logger = logging.getLogger("monarch")


class HeldMounts:
    """Not for several threads at a time."""

    def __init__(self) -> None:
        self._open: dict[MountOrder, Any] = {}

    def __len__(self) -> int:
        return len(self._open)

    def update(self, orders: Sequence[MountOrder], meshes: Mapping[str, HostMesh]) -> None:
        """Mounts what `orders` say: closes others, and refreshes those that are there. Raises what the first that
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
        """All, the last one first: what is gathered may lie in what was brought. RuntimeError names those that are in use,
        which stay. Whatever else keeps one from being taken away, such as a lost host, is a warning: hosts are given back
        even so.
        """
        busy: list[str] = []
        for order in reversed(list(self._open)):
            try:
                self._open[order].close()
            except MountBusy as exc:
                busy.append(str(exc))
                continue
            except Exception as exc:
                logger.warning("what %s has of %s may be left there: %s", order.mesh, order.here, exc)
            del self._open[order]
        if busy:
            raise RuntimeError("; ".join(busy))

    def _mount(self, order: MountOrder, mesh: HostMesh) -> None:
        if order.kind == "remote":
            from monarch.remotemount.remotemount import remotemount

            self._open[order] = remotemount(mesh, order.here, order.there, order.mode).open()
        else:
            from monarch.gather_mount import gather_mount

            self._open[order] = gather_mount(mesh, order.there, order.here, order.mode)

    def _close(self, order: MountOrder) -> None:
        self._open[order].close()
        del self._open[order]


def _try(failures: list[Exception], do: Any, *args: Any) -> None:
    try:
        do(*args)
    except Exception as exc:
        failures.append(exc)
