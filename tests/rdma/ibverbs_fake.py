"""An imitation of RDMA devices: the interface of `ibverbs.binding`, over files in a folder and process_vm_readv.

What is registered, and which queue pairs there are, stands in the folder, so that processes reach each other's. Keys follow
from what is registered, so that they are given again: the worst that real devices do. Requests are done when they are
posted; `hold` keeps them, as a device that gets no answers would.

It knows the rules that real fabrics have: packets pass only between two addresses of the same kind and family whose subnets
(the first three bytes of IPv4, the first eight of IPv6) are one, only within a partition, and only between ports that
`FakeBinding.rails` does not keep apart. What gets no answer fails after its retries, which a test need not wait for:
`patient` devices keep it for good.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path as Folder
from typing import Any

from monarch._devices import DmaBuf
from monarch.rdma.backends import owner_view
from monarch.rdma.backends.ibverbs.binding import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, DeviceLimits, PacketPath
from monarch.rdma.backends.ibverbs.control_messages import QueuePairEnd
from monarch.rdma.backends.ibverbs.pairing import Gid
from monarch.rdma.backends.ibverbs.send_queue import WorkRequest

LOCAL, FLUSHED, REFUSED, NO_ANSWER = 4, 5, 10, 12  # enum ibv_wc_status
_serial = itertools.count()


def nic_tree(root: Folder, *nics: str, **more: dict[str, Any]) -> Folder:
    """A /sys with such devices, all alike unless `more` says otherwise of one."""
    for number, name in enumerate(nics):
        say = {"node": 0, "pci": f"pci0000:00/0000:00:0{number}.0/0000:{number + 1:02x}:00.0", "link_layer": "Ethernet"}
        say |= {
            "state": "4: ACTIVE",
            "node_type": "1: CA",
            "gids": (("fe80::1", "IB/RoCE v1"), ("::ffff:10.0.0.1", "RoCE v2")),
            "rate": "100 Gb/sec (4X EDR)",
            "pkeys": (0xFFFF,),
        }
        say |= more.get(name, {})
        device = root / "devices" / str(say["pci"])
        port = root / "class/infiniband" / name / "ports/1"
        for folder in (device, port / "gids", port / "gid_attrs/types", port / "pkeys"):
            folder.mkdir(parents=True, exist_ok=True)
        (device / "numa_node").write_text(f"{say['node']}\n")
        (root / "class/infiniband" / name / "device").symlink_to(device)
        (root / "class/infiniband" / name / "node_type").write_text(f"{say['node_type']}\n")
        (port / "state").write_text(f"{say['state']}\n")
        (port / "link_layer").write_text(f"{say['link_layer']}\n")
        (port / "rate").write_text(f"{say['rate']}\n")
        for slot, pkey in enumerate(say["pkeys"]):
            (port / "pkeys" / str(slot)).write_text(f"{pkey:#06x}\n")
        for slot, (address, kind) in enumerate(say["gids"]):
            (port / "gids" / str(slot)).write_text(f"{gid(address)}\n")
            (port / "gid_attrs/types" / str(slot)).write_text(f"{kind}\n")
        bus = root / "bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        if not (bus / device.name).exists():
            (bus / device.name).symlink_to(device)
    return root


def gid(address: str) -> str:
    import ipaddress

    return ipaddress.IPv6Address(address).packed.hex(":", 2)


class FakeBinding:
    """`folder` is the fabric: processes and bindings that share it reach each other."""

    def __init__(
        self, folder: Folder, names: Sequence[str], limits: DeviceLimits | None = None, rails: Sequence[set[str]] = ()
    ) -> None:
        """`rails`: devices that reach each other; all of them when it is empty."""
        self.folder = folder
        self.rails = rails
        self.limits = limits or DeviceLimits()
        self._names = list(names)

    def names(self) -> list[str]:
        return self._names

    def open(self, name: str) -> FakeDevice:
        assert name in self._names
        return FakeDevice(self, name)


class FakeDevice:
    def __init__(self, binding: FakeBinding, name: str) -> None:
        self.folder = binding.folder
        self.name = name
        self.rails = binding.rails
        self.limits = binding.limits
        self.registered: list[FakeRegistration] = []
        self.pairs: list[FakePair] = []
        self.refuse = 0  # registrations that fail from now on
        self.hold: bool | list[FakePair] = False  # what all queue pairs post, or these
        self.patient = False  # what gets no answer is tried again for ever
        self.posted = 0
        self.moved = 0  # bytes

    def register(self, address: int, size: int, access: int) -> FakeRegistration:
        if self.refuse:
            self.refuse -= 1
            raise OSError(12, "Cannot allocate memory")
        return FakeRegistration(self, address, size, access)

    def register_dmabuf(self, buffer: DmaBuf, address: int, size: int, access: int) -> FakeRegistration:
        os.fstat(buffer.file)
        return FakeRegistration(self, address, size, access)

    def pair(self, work: int, path: PacketPath) -> FakePair:
        self.pairs.append(FakePair(self, work, path))
        return self.pairs[-1]

    def close(self) -> None:
        assert not self.registered
        assert not self.pairs


class FakeRegistration:
    def __init__(self, device: FakeDevice, address: int, size: int, access: int) -> None:
        what = f"{device.name} {os.getpid()} {address} {size} {access}"
        self.key = self.remote_key = int.from_bytes(hashlib.sha256(what.encode()).digest()[:4], "big")
        self.device, self.address, self.size, self.access = device, address, size, access
        self.file = device.folder / f"mr-{self.key}-{os.getpid()}-{next(_serial)}"
        _write(self.file, {"pid": os.getpid(), "address": address, "size": size, "access": access, "nic": device.name})
        device.registered.append(self)

    def close(self) -> None:
        self.file.unlink()
        self.device.registered.remove(self)


def allows(folder: Folder, key: int, pid: int, address: int, size: int, access: int) -> bool:
    for file in folder.glob(f"mr-{key}-*"):
        has = _read(file)
        inside = has and has["address"] <= address and address + size <= has["address"] + has["size"]
        if inside and has["pid"] == pid and has["access"] & access == access:
            return True
    return False


class FakePair:
    def __init__(self, device: FakeDevice, work: int, path: PacketPath) -> None:
        self.device = device
        self.work = work
        self.path = path
        number = int.from_bytes(os.urandom(3), "big")
        self._end = QueuePairEnd.of(device.name, number, 0, path.gid.raw, 5, device.limits.reads)
        self._file = device.folder / f"qp-{number}"
        self._peer = -1
        self._state = "reset"
        self._done: deque[tuple[int, int]] = deque()
        self._held: list[Any] = []
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._armed = True
        self._failed = False
        self._under_way = 0
        self._say()

    def end(self) -> QueuePairEnd:
        return self._end

    def to_init(self, access: int) -> None:
        assert self._state == "reset"
        self._state, self._access = "init", access
        self._say()

    def to_rtr(self, peer: QueuePairEnd) -> None:
        assert self._state == "init"
        self._state, self._peer, self._peer_gid = "rtr", peer.number, peer.gid
        self._say()

    def to_rts(self, peer: QueuePairEnd) -> None:
        assert self._state == "rtr" and peer.number == self._peer
        self._state = "rts"
        self._say()

    def _say(self) -> None:
        access = getattr(self, "_access", 0)
        has = {"pid": os.getpid(), "state": self._state, "peer": self._peer, "access": access, "nic": self.device.name}
        has |= {"gid": self.path.gid.raw.hex(), "kind": self.path.gid.kind}
        _write(self._file, has)

    def post(self, work: Sequence[tuple[int, WorkRequest]], write: bool, key: int, remote_key: int) -> None:
        assert self._state == "rts"
        hold = self.device.hold  # a test that has seen `posted` may change it at once
        if isinstance(hold, list):
            hold = self in hold
        for number, request in work:
            assert request.size <= self.device.limits.message
            self._under_way += 1
            assert self._under_way <= self.work, "the send queue overflows"
            self.device.posted += 1
            self._held.append((number, request, write, key, remote_key))
        if not hold:
            self.go_on()

    def go_on(self) -> None:
        """Does what is held."""
        held, self._held = self._held, []
        for at, (number, request, write, key, remote_key) in enumerate(held):
            status = FLUSHED if self._failed else self._do(request, write, key, remote_key)
            if status == NO_ANSWER and self.device.patient:
                self._held = held[at:]
                held = held[:at]
                break
            self._failed = self._failed or status != 0
            self._done.append((number, status))
        if held and self._armed:
            self._armed = False
            os.eventfd_write(self._event, 1)

    def _do(self, request: WorkRequest, write: bool, key: int, remote_key: int) -> int:
        folder = self.device.folder
        peer = _read(folder / f"qp-{self._peer}")
        if peer is None or peer["peer"] != self._end.number or peer["state"] not in ("rtr", "rts"):
            return NO_ANSWER
        if not passes(self.path.gid, self._peer_gid, peer, {self.device.name, peer["nic"]}, self.device.rails):
            return NO_ANSWER
        wants = REMOTE_WRITE if write else REMOTE_READ
        if not allows(folder, key, os.getpid(), request.local, request.size, 0 if write else LOCAL_WRITE):
            return LOCAL
        may = peer["access"] & wants and allows(folder, remote_key, peer["pid"], request.remote, request.size, wants)
        if not may:
            return REFUSED
        self.device.moved += request.size
        return 0 if move(peer["pid"], request, write) else NO_ANSWER

    def poll(self) -> list[tuple[int, int]]:
        taken = [self._done.popleft() for _ in range(min(3, len(self._done)))]
        self._under_way -= len(taken)
        return taken

    def fileno(self) -> int:
        return self._event

    def acknowledge(self) -> None:
        os.eventfd_read(self._event)
        self._armed = True

    def close(self) -> None:
        self._held.clear()
        self._done.clear()
        self._file.unlink()
        os.close(self._event)
        self.device.pairs.remove(self)


def passes(mine: Gid, theirs: bytes, peer: Any, nics: set[str], rails: Sequence[set[str]]) -> bool:
    """Returns whether packets of these two queue pairs reach each other. `peer`: what the other says of itself."""
    if mine.kind != peer["kind"] or theirs.hex() != peer["gid"] or _subnet(mine.raw) != _subnet(theirs):
        return False
    return not rails or any(nics <= rail for rail in rails)


def _subnet(raw: bytes) -> bytes:
    return raw[:15] if raw[:12] == bytes(10) + b"\xff\xff" else raw[:8]


def move(pid: int, request: WorkRequest, write: bool) -> bool:
    """False when the process is gone."""
    calls = owner_view.CALLS
    assert calls is not None
    local, remote = _vector(request.local, request.size), _vector(request.remote, request.size)
    call = calls.write if write else calls.read
    return bool(call(pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0) == request.size)


def _vector(address: int, size: int) -> Any:
    packed = struct.pack("=QQ", address, size)
    return ctypes.create_string_buffer(packed, len(packed))


def _write(file: Folder, what: Any) -> None:
    new = file.with_name(f".{file.name}-{os.getpid()}-{next(_serial)}")
    new.write_text(json.dumps(what))
    new.rename(file)


def _read(file: Folder) -> Any:
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return None
