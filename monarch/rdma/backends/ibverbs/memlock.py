"""Why memory cannot be registered with a device, and what to do: nearly always a limit on locked memory.

The kernel pins registered pages and counts them against RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK.
"""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

_CAP_IPC_LOCK = 14  # include/uapi/linux/capability.h
_LIMITED = (errno.ENOMEM, errno.EAGAIN, errno.EPERM)  # EPERM when the limit is 0
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class NotRegisteredError(OSError):
    """A device cannot register memory; the text says why and what to do."""

    def __str__(self) -> str:
        return str(self.args[1])


def not_registered(nic: str, size: int, exc: OSError) -> NotRegisteredError:
    return NotRegisteredError(exc.errno, explained(nic, size, exc, *locking()))


def explained(nic: str, size: int, exc: OSError, limit: int, unlimited: bool) -> str:
    """`limit`: bytes that this process may lock, -1 for no limit; `unlimited`: it may lock more (CAP_IPC_LOCK)."""
    why = os.strerror(exc.errno) if exc.errno else str(exc)
    said = f"{nic} cannot register {size} bytes: {why}"
    if exc.errno not in _LIMITED:
        return said if str(exc) == f"[Errno {exc.errno}] {why}" else f"{said} ({exc})"
    if unlimited or limit < 0:
        return (
            f"{said}. Locked memory is not limited here (RLIMIT_MEMLOCK), so the machine's memory or the device's table of "
            "regions is full"
        )
    return (
        f"{said}. This process may lock {_shown(limit)} (RLIMIT_MEMLOCK). Raise it where it is started: "
        "`ulimit -l unlimited` or a memlock line in /etc/security/limits.conf; LimitMEMLOCK=infinity in its systemd unit; "
        "on Slurm the same in slurmd's unit, and PropagateResourceLimitsExcept=MEMLOCK; on Kubernetes the capability "
        "IPC_LOCK in the container's securityContext"
    )


def locking() -> tuple[int, bool]:
    """The limit on locked memory, -1 for none, and whether this process may exceed it."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return (-1 if limit == resource.RLIM_INFINITY else limit), _capable(Path("/proc/self/status"))


def _capable(status: Path) -> bool:
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)


def _shown(count: int) -> str:
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
