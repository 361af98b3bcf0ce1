"""The way to libibverbs: what is used of it here, and the PyPI package `ibverbs` behind it.

The package (https://github.com/d4l3k/rdma4py, BSD-3-Clause, extra `rdma-verbs`) calls libibverbs' inline functions from
compiled code and releases the interpreter lock; it loads libibverbs.so.1 when it is imported. `VerbsPackage` has never run on
hardware. It has moved bytes over soft RoCE; `register_dmabuf` has never run at all.

Everything else here works with whatever has these methods, so that tests can put an imitation in their place. All of them
raise OSError when the device or the kernel refuses.
"""

from __future__ import annotations

import errno
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from monarch._devices import DmaBuf
from monarch.config import settings
from monarch.rdma.backends.ibverbs.control_messages import QueuePairEnd
from monarch.rdma.backends.ibverbs.pairing import Gid
from monarch.rdma.backends.ibverbs.send_queue import MESSAGE, WINDOW, WorkRequest
from monarch.rdma.backends.ibverbs.sysfs import PORT

# enum ibv_access_flags of libibverbs' verbs.h
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
RELAXED_ORDERING = 1 << 20  # libibverbs takes it away itself where the kernel or the device does not know it

MTU_4096 = 5  # enum ibv_mtu
READS = 16  # RDMA reads that a queue pair has under way
HOPS = 64  # routers that a packet may pass; the default of 1 would keep RoCE v2 within its link
_TURN = 64  # completions taken at a time


class NoVerbsError(Exception):
    """There is no binding to libibverbs here; the text says what to do."""


class DeviceLimits(NamedTuple):
    """The limits of a device: requests posted to a queue pair, bytes of a request, reads under way."""

    work: int = WINDOW
    message: int = MESSAGE
    reads: int = READS


class PacketPath(NamedTuple):
    """The path of a queue pair's packets: its own address, and what they carry. `pkey_index`: a slot of the port's
    partition table.

    A packet that is not acknowledged is sent again after 4.096 us x 2^`timeout`, `retries` times; by the
    specification (InfiniBand Architecture Specification, volume 1, 9.7.6.1.3) a device may wait up to four times as
    long. With the defaults, 20 and 7, the connection survives a network that is away for half a minute, and fails
    34 s to 2.5 min after its last acknowledgement. Nobody waits for that when the other process has ended or has
    closed its side: that is asked for by message (see `queue_pair_link`), and a transfer's own timeout ends it
    whatever the device does.
    """

    gid: Gid
    pkey_index: int = 0
    traffic_class: int = 0
    service_level: int = 0
    timeout: int = 20
    retries: int = 7


def packet_path(gid: Gid) -> PacketPath:
    """Returns the path that the settings ask for now."""
    return PacketPath(
        gid,
        settings.rdma_ib_pkey_index(),
        settings.rdma_ib_traffic_class(),
        settings.rdma_ib_service_level(),
        settings.rdma_ib_timeout(),
        settings.rdma_ib_retry_count(),
    )


class Registration(Protocol):
    """Memory that a device may use. `key` is for requests of this process, `remote_key` for those of others."""

    key: int
    remote_key: int

    def close(self) -> None:
        """Once it has returned the device does not touch the memory any more."""
        ...


class QueuePair(Protocol):
    """A queue pair with a completion queue of its own, in state RESET."""

    def end(self) -> QueuePairEnd:
        """Returns what the other side needs to know of it."""
        ...

    def to_init(self, access: int) -> None: ...

    def to_rtr(self, peer: QueuePairEnd) -> None: ...

    def to_rts(self, peer: QueuePairEnd) -> None: ...

    def post(self, work: Sequence[tuple[int, WorkRequest]], write: bool, key: int, remote_key: int) -> None:
        """Requests under their numbers; `key` and `remote_key` are those of the memory at either side."""
        ...

    def poll(self) -> list[tuple[int, int]]:
        """Completions that have come: number and status (enum ibv_wc_status). Some; call it until there is none."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable once completions have come since `acknowledge` (or the beginning)."""
        ...

    def acknowledge(self) -> None:
        """Only when the descriptor is readable: it is told of the next completion. Then `poll`."""
        ...

    def close(self) -> None:
        """Once it has returned nothing that was posted touches memory any more (InfiniBand Architecture Specification, volume
        1, 11.2.5.4), and no completion comes."""
        ...


class VerbsDevice(Protocol):
    limits: DeviceLimits

    def register(self, address: int, size: int, access: int) -> Registration: ...

    def register_dmabuf(self, buffer: DmaBuf, address: int, size: int, access: int) -> Registration: ...

    def pair(self, work: int, path: PacketPath) -> QueuePair: ...

    def close(self) -> None: ...


class Binding(Protocol):
    def names(self) -> list[str]:
        """Returns the devices that can be opened."""
        ...

    def open(self, name: str) -> VerbsDevice: ...


class VerbsPackage:
    """The package `ibverbs`. NoVerbsError when it, or libibverbs, is not there."""

    def __init__(self) -> None:
        try:
            self._ib = importlib.import_module("ibverbs")
        except ModuleNotFoundError as exc:
            if exc.name != "ibverbs":
                raise NoVerbsError(f"the package ibverbs cannot be loaded: {exc}") from exc
            raise NoVerbsError("the package ibverbs is not installed: pip install 'pymonarch[rdma-verbs]'") from None
        except ImportError as exc:
            raise NoVerbsError(
                f"the package ibverbs cannot be loaded: {exc}. It needs libibverbs.so.1 (libibverbs1 and "
                "ibverbs-providers, or rdma-core)"
            ) from exc

    def names(self) -> list[str]:
        try:
            return [device.name for device in self._ib.get_device_list()]
        except OSError:  # the kernel has no RDMA
            return []

    def open(self, name: str) -> VerbsDevice:
        for device in self._ib.get_device_list():
            if device.name == name:
                return _Device(self._ib, device.open(), name)
        raise OSError(f"libibverbs knows no device {name}")


class _Device:
    def __init__(self, ib: Any, context: Any, name: str) -> None:
        self.ib = ib
        self.context = context
        self.name = name
        has, self.port = context.query_device(), context.query_port(PORT)
        self.limits = DeviceLimits(
            max(1, min(WINDOW, has.max_qp_wr, has.max_cqe)),
            max(1, min(MESSAGE, self.port.max_msg_sz)),
            max(1, min(READS, has.max_qp_rd_atom)),
        )
        self.domain = context.alloc_pd()

    def register(self, address: int, size: int, access: int) -> Registration:
        return _Registered(self.domain.reg_mr(address, size, access))

    def register_dmabuf(self, buffer: DmaBuf, address: int, size: int, access: int) -> Registration:
        try:
            return _Registered(self.domain.reg_dmabuf_mr(buffer.offset, size, address, buffer.file, access))
        except RuntimeError as exc:  # libibverbs is older than rdma-core 34
            raise OSError(errno.EOPNOTSUPP, str(exc)) from exc

    def pair(self, work: int, path: PacketPath) -> QueuePair:
        return _Pair(self, work, path)

    def close(self) -> None:
        self.domain.close()
        self.context.close()


class _Registered:
    def __init__(self, region: Any) -> None:
        self._region = region
        self.key: int = region.lkey
        self.remote_key: int = region.rkey

    def close(self) -> None:
        self._region.close()


class _Pair:
    def __init__(self, device: _Device, work: int, path: PacketPath) -> None:
        ib = self._ib = device.ib
        self._path = path
        self._channel = device.context.create_comp_channel()
        self._completions = device.context.create_cq(work, self._channel)
        self._completions.req_notify()
        queues = self._completions
        self._pair = device.domain.create_qp(
            ib.QPInitAttr(send_cq=queues, recv_cq=queues, max_send_wr=work, max_recv_wr=1, max_send_sge=1)
        )
        port, gid = device.port, path.gid.raw
        self._end = QueuePairEnd.of(device.name, self._pair.qp_num, port.lid, gid, port.active_mtu, device.limits.reads)

    def end(self) -> QueuePairEnd:
        return self._end

    def to_init(self, access: int) -> None:
        self._pair.to_init(PORT, access, self._path.pkey_index)

    def to_rtr(self, peer: QueuePairEnd) -> None:
        mtu = min(MTU_4096, self._end.mtu, peer.mtu)
        other = self._ib.QPInfo(peer.number, peer.sequence, peer.lid, peer.gid, PORT, mtu)
        reads = min(self._end.reads, peer.reads)
        path = self._path
        self._pair.to_rtr(
            other,
            sgid_index=path.gid.slot,
            mtu=mtu,
            hop_limit=HOPS,
            max_dest_rd_atomic=reads,
            sl=path.service_level,
            traffic_class=path.traffic_class,
        )

    def to_rts(self, peer: QueuePairEnd) -> None:
        reads = min(self._end.reads, peer.reads)
        path = self._path
        self._pair.to_rts(self._end.sequence, timeout=path.timeout, retry_cnt=path.retries, max_rd_atomic=reads)

    def post(self, work: Sequence[tuple[int, WorkRequest]], write: bool, key: int, remote_key: int) -> None:
        self._pair.post_send(send_requests(self._ib, work, write, key, remote_key))

    def poll(self) -> list[tuple[int, int]]:
        return [(done.wr_id, int(done.status)) for done in self._completions.poll(_TURN)]

    def fileno(self) -> int:
        return int(self._channel.fd)

    def acknowledge(self) -> None:
        self._channel.get_cq_event().ack_events(1)
        self._completions.req_notify()

    def close(self) -> None:
        self._pair.close()
        self._completions.close()
        self._channel.close()


def send_requests(
    ib: Any, work: Sequence[tuple[int, WorkRequest]], write: bool, key: int, remote_key: int
) -> list[Any]:
    """The package's own form of them. Each says when it is done."""
    opcode = ib.WROpcode.RDMA_WRITE if write else ib.WROpcode.RDMA_READ
    return [
        ib.SendWR(
            wr_id=number,
            sg_list=[ib.SGE(request.local, request.size, key)],
            opcode=opcode,
            send_flags=ib.SendFlags.SIGNALED,
            remote_addr=request.remote,
            rkey=remote_key,
        )
        for number, request in work
    ]
