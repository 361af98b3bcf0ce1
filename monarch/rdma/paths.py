"""The path of bytes between this process and a buffer's owner: the first of BACKENDS that nothing stands in the way
of.
"""

from __future__ import annotations

import logging
import warnings
from typing import Literal

from monarch._devices import vendors
from monarch.config import settings
from monarch.rdma.backends import Backend
from monarch.rdma.backends.device_ipc import DeviceIpc
from monarch.rdma.backends.ibverbs import devices as ibverbs_devices
from monarch.rdma.backends.ibverbs.backend import Ibverbs
from monarch.rdma.backends.mapped_segment import MappedSegment
from monarch.rdma.backends.nixl.backend import Nixl
from monarch.rdma.backends.process_vm import ProcessVm
from monarch.rdma.backends.same_process import SameProcess
from monarch.rdma.backends.tcp.backend import TcpStreams
from monarch.rdma.backends.through_actors import ThroughActors
from monarch.rdma.buffer_handle import BufferHandle, Owner
from monarch.rdma.rerouting import first_usable

LOCAL = SameProcess()
_OTHERS = (MappedSegment(), ProcessVm(), Ibverbs(), Nixl(), TcpStreams(), ThroughActors())
BACKENDS: tuple[Backend, ...] = (LOCAL, DeviceIpc(_OTHERS), *_OTHERS)


def allow(*names: str) -> None:
    """Leaves this process the paths of these names, or all of them if none is given. For tests."""
    global BACKENDS
    others = tuple(one for one in _OTHERS if not names or one.name in names)
    fast = (LOCAL, DeviceIpc(others))
    BACKENDS = (*(one for one in fast if not names or one.name in names), *others)


_WARNED_LIMIT = 1024
_warned: set[Owner] = set()
_allocator_seen = False


class RDMATcpFallbackWarning(UserWarning):
    """A transfer leaves memory for sockets, which is slower; the text says what stood in the way. Once for each owner."""


class RDMAReadTransferWarning(UserWarning):
    """Never raised; programs name it in their filters."""


class RDMAWriteTransferWarning(UserWarning):
    """Never raised; programs name it in their filters."""


for _category in (RDMATcpFallbackWarning, RDMAReadTransferWarning, RDMAWriteTransferWarning):
    warnings.filterwarnings("once", category=_category, append=True)


def choose(handle: BufferHandle) -> Backend:
    """The fastest way. RDMAUnavailableError when there is none, with what stands in the way of each."""
    return first_usable(BACKENDS, handle)


def warn_once(handle: BufferHandle, backend: Backend, stacklevel: int) -> None:
    """Tells the user that a transfer takes a slow way, and why, once for each owner (of at most so many)."""
    if not backend.uses_network or handle.owner in _warned or len(_warned) >= _WARNED_LIMIT:
        return
    _warned.add(handle.owner)
    reasons = [other.why_unavailable(handle) for other in BACKENDS if not other.uses_network]
    text = f"transfers to {handle.owner} go through sockets ({backend.name}): {'; '.join(filter(None, reasons))}"
    logging.getLogger("monarch").info(text)
    warnings.warn(text, RDMATcpFallbackWarning, stacklevel=stacklevel)


def warn_of_allocator(stacklevel: int) -> None:
    """Tells the user, once, that memory of devices goes to RDMA devices only from segments that may grow.

    Where there is no RDMA device it makes no difference, and nothing is said.
    """
    global _allocator_seen
    if _allocator_seen or get_rdma_backend() != "ibverbs":
        return
    _allocator_seen = True
    if not vendors.expandable_segments():
        warnings.warn(
            "RDMA devices work best with expandable segments on this device: set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before torch is imported",
            UserWarning,
            stacklevel=stacklevel,
        )


def get_rdma_backend() -> Literal["ibverbs", "tcp", "none"]:
    """Returns what transfers to other hosts use: "ibverbs" where a device is there and allowed, else "tcp" if
    `rdma_allow_tcp_fallback`, else "none". As the settings are now, in this process. Transfers within a host take
    neither: `RDMABuffer.path` names what they do take.
    """
    if is_ibverbs_available() and not settings.rdma_disable_ibverbs():
        return "ibverbs"
    return "tcp" if settings.rdma_allow_tcp_fallback() else "none"


def is_ibverbs_available() -> bool:
    """True if this machine has RDMA devices that can be used from here: their port is up, and the package ibverbs and
    libibverbs are there. Looked at once; whatever `rdma_disable_ibverbs` says. Raises nothing.
    """
    try:
        ibverbs_devices.found()
    except ibverbs_devices.NoDevicesError:
        return False
    return True


def is_rdma_available() -> bool:
    """Deprecated: the same as `is_ibverbs_available`."""
    warnings.warn("is_rdma_available() is deprecated: use is_ibverbs_available()", DeprecationWarning, stacklevel=2)
    return is_ibverbs_available()
