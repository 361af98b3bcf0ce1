"""Two processes, each on a host of its own, that reach each other by one path; what every such path promises."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ProcMesh, endpoint
from monarch.config import configure
from monarch.rdma import RDMABuffer, get_rdma_backend, paths
from monarch.rdma.backends.ibverbs import backend as ibverbs
from monarch.rdma.backends.ibverbs import devices as ibverbs_devices
from monarch.rdma.backends.nixl import backend as nixl
from monarch.rdma.backends.nixl import nixl_agent
from monarch.rdma.backends.tcp import backend as tcp
from tests.rdma.buffers import Owner, Reader, call
from tests.rdma.ibverbs_fake import FakeBinding, nic_tree

MIB = 1 << 20
NICS = ("mlx5_0", "mlx5_1")


def yama() -> str:
    try:
        return Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return "0"


copies = pytest.mark.skipif(
    yama() in "23", reason="the imitation copies by process_vm_readv, which this kernel forbids"
)


class Side(Owner, Reader):
    """Owns buffers, and reads and writes those of others."""

    @endpoint
    def reach_by(self, path: str, fabric: str, nics: tuple[str, ...]) -> None:
        """Processes of a test are on one machine: only what leads to others is used. RDMA devices are imitations, and so is
        NIXL where it is not installed; without `nics` they are not there.
        """
        paths.allow(path, "tcp", "actor")
        configure(rdma_tcp_fallback_parallelism=2, rdma_max_chunk_size_mb=1, rdma_nixl=path == "nixl" and bool(nics))
        if not any(importlib.util.find_spec(name.partition(".")[0]) for name in nixl_agent.MODULES):
            nixl_agent.MODULES = ("tests.rdma.nixl_fake",)
        if path == "ibverbs" and nics:
            root = nic_tree(Path(fabric) / nics[0] / str(os.getpid()), *nics)
            ibverbs_devices.use(ibverbs_devices.RDMADevices(FakeBinding(Path(fabric), nics), root))

    @endpoint
    def configure(self, settings: dict[str, Any]) -> None:
        configure(**settings)

    @endpoint
    def backend(self) -> str:
        return get_rdma_backend()

    @endpoint
    def avoided(self) -> int:
        """Owners with whom RDMA devices or NIXL are not tried."""
        return len(ibverbs.unreachable) + len(nixl.unreachable)

    @endpoint
    def lanes(self) -> int:
        """Streams open here, and those that cannot be had."""
        return sum(lanes._count for lanes in tcp._lanes.values())

    @endpoint
    def record_faults(self) -> None:
        """From here on `faults` has what devices say of transfers that fail."""
        self.seen: list[str] = []
        failed = ibverbs.StripedTransfer._failed

        def recorded(transfer: Any, fault: Any) -> None:
            self.seen.append(fault.name)
            failed(transfer, fault)

        ibverbs.StripedTransfer._failed = recorded  # type: ignore[method-assign]

    @endpoint
    def faults(self) -> list[str]:
        return self.seen


def sides(
    two: ProcMesh, path: str, fabric: Path, there: tuple[str, ...] = NICS, here: tuple[str, ...] = NICS
) -> tuple[Any, Any]:
    """An owner and one that reads and writes its buffers."""
    owner = two.slice(hosts=0).spawn("owner", Side)
    other = two.slice(hosts=1).spawn("other", Side)
    call(owner.reach_by, path, str(fabric), there)
    call(other.reach_by, path, str(fabric), here)
    return owner, other


def read(side: Any, buffer: RDMABuffer, offset: int = 0, timeout: float = 30) -> Any:
    """The bytes from `offset` on, or the name of the error."""
    done = call(side.read, buffer, buffer.size() - offset, {"offset": offset, "timeout": timeout})
    return done if isinstance(done, bytes) else done[0]


def write(side: Any, buffer: RDMABuffer, data: bytes, offset: int = 0) -> Any:
    """The bytes, or the name of the error."""
    done = call(side.write, buffer, data, {"offset": offset, "timeout": 30})
    return done if isinstance(done, bytes) else done[0]


def moves(owner: Any, other: Any, path: str) -> None:
    """Reads and writes of all of a buffer and of parts arrive by that path."""
    data = os.urandom(5 * MIB + 1)
    number, buffer = call(owner.make, data)
    assert call(other.path, buffer) == path
    assert read(other, buffer) == data
    assert read(other, buffer, 4 * MIB + 3) == data[4 * MIB + 3 :]
    assert write(other, buffer, b"new", 7) == b"new"
    assert call(owner.bytes_of, number) == data[:7] + b"new" + data[10:]
    assert write(other, buffer, data[::-1]) == data[::-1]
    assert call(owner.bytes_of, number) == data[::-1]
    _, second = call(owner.make, b"another buffer")
    assert read(other, second) == b"another buffer"
    assert call(other.path, second) == path and call(other.avoided) == 0  # nothing was found against it


def drops(owner: Any, other: Any) -> None:
    """A dropped buffer is neither read nor written, and its successor is."""
    for number in range(4):
        data = os.urandom(MIB)  # most likely where the last one was
        _, buffer = call(owner.make, data)
        assert read(other, buffer) == data
        assert write(other, buffer, data[::-1]) == data[::-1]
        call(other.drop, buffer)
        assert read(other, buffer) == "BufferDroppedError"
        assert write(other, buffer, b"late") == "BufferDroppedError"
        assert call(owner.bytes_of, number) == data[::-1]
    assert call(other.avoided) == 0
