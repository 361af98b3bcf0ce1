"""This process's RDMA devices: which are usable, which serve a piece of memory, and those that are open.

Settings are read when something is asked for: `rdma_ibverbs_target`, `rdma_max_nics_per_buffer`, `rdma_ib_gid_index`,
`rdma_ib_pkey_index`, `rdma_ib_relaxed_ordering`.

Relaxed ordering is for bytes in the host's memory that a device writes to. Not for a GPU's: a read behind a write says
there that the bytes have come. And never for control words. Nobody
reads bytes before their transfer is done, and a device writes a completion only behind the data it stands for (a PCIe write
without the attribute does not pass one that has it). A control word is asked for when the data has come, by a request of
its own; so what it says holds for all of the data.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from monarch._devices import DmaBuf, dma_buf
from monarch._linux import processors
from monarch._linux.locks import Lock
from monarch.config import settings
from monarch.rdma.backends.ibverbs import sysfs
from monarch.rdma.backends.ibverbs.binding import (
    LOCAL_WRITE,
    RELAXED_ORDERING,
    Binding,
    NoVerbsError,
    Registration,
    VerbsDevice,
    VerbsPackage,
)
from monarch.rdma.backends.ibverbs.nic_choice import Locality, Nic, nearest, node_of, place_of_target
from monarch.rdma.backends.ibverbs.pairing import ChoiceError, NicPort, offered
from monarch.rdma.local_memory import LocalMemory
from monarch.rdma.once import OncePerProcess

FULL_MEMBER = 0xFFFF  # the partition that every port is in unless a subnet manager says otherwise
PORTS_KEPT = 256  # sets of near devices and settings for which it is known what the other side is told
SPREAD = 2 << 20  # bytes: memory that lies so far apart begins with another of equally near devices

Export = Callable[[int, int, int], DmaBuf]
Address = Callable[[int], str]


class NoDevicesError(Exception):
    """No RDMA device can be used from here; the text says why."""


def gpu_address(ordinal: int) -> str:
    """The PCI address of that GPU, as torch numbers them (of either vendor); "" without torch, or without such a GPU."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    try:
        has = torch.cuda.get_device_properties(ordinal)
        return f"{has.pci_domain_id:04x}:{has.pci_bus_id:02x}:{has.pci_device_id:02x}.0"
    except Exception:  # no GPU, no such GPU, or a torch that does not tell
        return ""


class RDMADevices:
    """Any thread. `export(address, size, ordinal)` gives a GPU's memory as a dma-buf, of which a device makes a region as it
    does of the host's memory; `gpu_address(ordinal)` says where a GPU is.
    """

    def __init__(
        self, binding: Binding, root: Path = sysfs.ROOT, export: Export = dma_buf, gpu_address: Address = gpu_address
    ) -> None:
        self._binding = binding
        self._root = root
        self._export = export
        self._gpu_address = gpu_address
        self._lock = Lock()
        self._open: dict[str, VerbsDevice] = {}
        nics, why = sysfs.usable(root)
        self._unusable = why
        self._ports: dict[tuple[object, ...], tuple[NicPort, ...]] = {}
        known = set(binding.names()) if nics else set()
        self.nics: dict[str, Nic] = {nic.name: nic for nic in nics if nic.name in known and nic.gids}
        if not self.nics:
            unknown = ", ".join(nic.name for nic in nics)
            raise NoDevicesError(why or f"libibverbs cannot use {unknown}: no provider, no address, or no permission")
        self._distances = sysfs.distances(root)
        self._node = node_of(os.sched_getaffinity(0), processors.of_nodes(root))

    def near(self, memory: LocalMemory) -> list[str]:
        """Names of the devices for that memory, at least one. ChoiceError, which names the setting that is wrong."""
        place = place_of_target(settings.rdma_ibverbs_target(), self._gpu) or self._place(memory)
        spread = memory.address // SPREAD
        most = settings.rdma_max_nics_per_buffer()
        nics = list(self.nics.values())
        return [nic.name for nic in nearest(nics, place, self._distances, spread, most, self._unusable)]

    def ports(self, near: Sequence[str]) -> tuple[NicPort, ...]:
        """Returns what the other side is told: those near the memory, and all others, unless `rdma_ibverbs_target`
        names one device. ChoiceError when a near one has not what a setting names; a far one is left out then.
        """
        target = settings.rdma_ibverbs_target()
        name = (tuple(near), target, settings.rdma_ib_gid_index(), settings.rdma_ib_pkey_index())
        known = self._ports.get(name)
        if known is None:
            others = () if target.startswith("nic:") else tuple(name for name in self.nics if name not in near)
            ports = [self._port(nic, True) for nic in sorted(near)]
            for nic in others:
                try:
                    ports.append(self._port(nic, False))
                except ChoiceError:
                    pass
            if len(self._ports) >= PORTS_KEPT:
                self._ports.clear()
            known = self._ports[name] = tuple(ports)
        return known

    def _port(self, name: str, near: bool) -> NicPort:
        nic = self.nics[name]
        gids = offered(name, nic.gids, nic.ethernet, settings.rdma_ib_gid_index())
        return NicPort(name, near, nic.ethernet, nic.rate, self._pkey(nic), gids)

    def _pkey(self, nic: Nic) -> int:
        index = settings.rdma_ib_pkey_index()
        if not nic.pkeys and index == 0:  # the kernel does not tell
            return FULL_MEMBER
        key = nic.pkeys[index] if index < len(nic.pkeys) else 0
        if not key & 0x7FFF:
            has = ", ".join(f"{slot}: {key:#06x}" for slot, key in enumerate(nic.pkeys) if key & 0x7FFF) or "none"
            raise ChoiceError(
                f"MONARCH_RDMA_IB_PKEY_INDEX (rdma_ib_pkey_index) is {index}, but the port of {nic.name} has no such "
                f"partition key (it has {has}); the subnet manager gives them out"
            )
        return key

    def device(self, name: str) -> VerbsDevice:
        """Opened by the first use, for good. OSError; ChoiceError for a name that is not usable here."""
        with self._lock:
            device = self._open.get(name)
            if device is None:
                if name not in self.nics:
                    why = f"; {self._unusable}" if self._unusable else ""
                    raise ChoiceError(f"no RDMA device {name} is usable here ({', '.join(self.nics)}){why}")
                device = self._open[name] = self._binding.open(name)
            return device

    def up(self, name: str) -> VerbsDevice:
        """The same, of a device that is to be connected now. ChoiceError also when its port has gone down."""
        device = self.device(name)
        down = sysfs.port_down(name, self._root)
        if down:
            raise ChoiceError(f"{down}: its cable, its switch or `ip link set ... up`")
        return device

    def register(self, name: str, memory: LocalMemory, address: int, size: int, access: int) -> Registration:
        """`size` bytes at `address`, which belong to `memory`. OSError."""
        if memory.device is None and access & LOCAL_WRITE and settings.rdma_ib_relaxed_ordering():
            access |= RELAXED_ORDERING
        device = self.device(name)
        if memory.device is None:
            return _register(device, name, address, size, access)
        buffer = self._export(address, size, memory.keep.device.index or 0)
        try:
            return device.register_dmabuf(buffer, address, size, access)
        finally:
            os.close(buffer.file)

    def register_words(self, name: str, address: int, size: int, access: int) -> Registration:
        """Control words, which are read and written in order. OSError."""
        return _register(self.device(name), name, address, size, access)

    def close(self) -> None:
        with self._lock:
            for device in self._open.values():
                device.close()
            self._open.clear()

    def _place(self, memory: LocalMemory) -> Locality:
        if memory.device is None:
            return Locality(self._node)
        address = self._gpu_address(memory.keep.device.index or 0)
        return sysfs.pci_place(address, self._root) if address else Locality()

    def _gpu(self, ordinal: int) -> Locality:
        address = self._gpu_address(ordinal)
        if not address:
            raise ChoiceError(
                f"MONARCH_RDMA_IBVERBS_TARGET (rdma_ibverbs_target) names GPU {ordinal}, which torch does not see"
            )
        return sysfs.pci_place(address, self._root)


def _register(device: VerbsDevice, name: str, address: int, size: int, access: int) -> Registration:
    try:
        return device.register(address, size, access)
    except OSError as exc:
        raise not_registered(name, size, exc) from exc


_made: OncePerProcess[RDMADevices | NoDevicesError] = OncePerProcess()


def devices() -> RDMADevices:
    """This process's, looked for by the first call. NoDevicesError, also while `rdma_disable_ibverbs` is on."""
    if settings.rdma_disable_ibverbs():
        raise NoDevicesError("the setting rdma_disable_ibverbs is on")
    return found()


def use(devices: RDMADevices | None) -> None:
    """Has this process use these, or look for them anew (None). For tests."""
    _made.replace(devices)


def found() -> RDMADevices:
    """Returns the same, whatever the setting."""
    known = _made.get(_find)
    if isinstance(known, NoDevicesError):
        raise NoDevicesError(str(known))
    return known


def _find() -> RDMADevices | NoDevicesError:
    nics, why = sysfs.usable()
    if not nics:
        return NoDevicesError(why)
    try:
        return RDMADevices(VerbsPackage())
    except NoVerbsError as exc:
        logging.getLogger("monarch").warning("RDMA devices are not used: %s", exc)
        return NoDevicesError(str(exc))
    except NoDevicesError as exc:
        return exc
    except Exception as exc:  # a driver's surprise must not keep transfers from the next path
        logging.getLogger("monarch").warning("RDMA devices are not used: %r", exc)
        return NoDevicesError(f"they cannot be used: {exc!r}")


# --- memory that cannot be registered: nearly always a limit on locked memory. The kernel pins registered pages and counts
# them against RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK.

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
