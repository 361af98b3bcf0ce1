"""An imitation of RDMA devices: the interface of `ibverbs_binding`, over files in a folder and process_vm_readv.

What is registered, and which queue pairs there are, stands in the folder, so that processes reach each other's. Keys follow
from what is registered, so that they are given again: the worst that real devices do. Requests are done when they are
posted; `hold` keeps them, as a device that gets no answers would.
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
from pathlib import Path
from typing import Any

from monarch._devices import DmaBuf
from monarch.rdma.backends import process_vm
from monarch.rdma.backends.ibverbs_binding import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, Limits
from monarch.rdma.backends.ibverbs_choice import Gid
from monarch.rdma.backends.ibverbs_messages import End
from monarch.rdma.backends.ibverbs_queue import Request

LOCAL, FLUSHED, REFUSED, NO_ANSWER = 4, 5, 10, 12  # enum ibv_wc_status
_serial = itertools.count()


def nic_tree(root: Path, *nics: str, **more: dict[str, Any]) -> Path:
    """A /sys with such devices, all alike unless `more` says otherwise of one."""
    for number, name in enumerate(nics):
        say = {"node": 0, "pci": f"pci0000:00/0000:00:0{number}.0/0000:{number + 1:02x}:00.0", "link_layer": "Ethernet"}
        say |= {
            "state": "4: ACTIVE",
            "node_type": "1: CA",
            "gids": (("fe80::1", "IB/RoCE v1"), ("::ffff:10.0.0.1", "RoCE v2")),
        }
        say |= more.get(name, {})
        device = root / "devices" / str(say["pci"])
        port = root / "class/infiniband" / name / "ports/1"
        for folder in (device, port / "gids", port / "gid_attrs/types"):
            folder.mkdir(parents=True, exist_ok=True)
        (device / "numa_node").write_text(f"{say['node']}\n")
        (root / "class/infiniband" / name / "device").symlink_to(device)
        (root / "class/infiniband" / name / "node_type").write_text(f"{say['node_type']}\n")
        (port / "state").write_text(f"{say['state']}\n")
        (port / "link_layer").write_text(f"{say['link_layer']}\n")
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

    return ipaddress.IPv6Address(address).exploded


class FakeBinding:
    """`folder` is the fabric: processes and bindings that share it reach each other."""

    def __init__(self, folder: Path, names: Sequence[str], limits: Limits | None = None) -> None:
        self.folder = folder
        self.limits = limits or Limits()
        self._names = list(names)

    def names(self) -> list[str]:
        return self._names

    def open(self, name: str, gid: Gid) -> FakeDevice:
        assert name in self._names
        return FakeDevice(self, name, gid)


class FakeDevice:
    def __init__(self, binding: FakeBinding, name: str, gid: Gid) -> None:
        self.folder = binding.folder
        self.name = name
        self.gid = gid
        self.limits = binding.limits
        self.registered: list[FakeRegistration] = []
        self.pairs: list[FakePair] = []
        self.refuse = 0  # registrations that fail from now on
        self.hold = False
        self.posted = 0

    def register(self, address: int, size: int, access: int) -> FakeRegistration:
        if self.refuse:
            self.refuse -= 1
            raise OSError(12, "Cannot allocate memory")
        return FakeRegistration(self, address, size, access)

    def register_dmabuf(self, buffer: DmaBuf, address: int, size: int, access: int) -> FakeRegistration:
        os.fstat(buffer.file)
        return FakeRegistration(self, address, size, access)

    def pair(self, work: int, pieces: int) -> FakePair:
        self.pairs.append(FakePair(self, work, pieces))
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


def allows(folder: Path, key: int, pid: int, address: int, size: int, access: int) -> bool:
    for file in folder.glob(f"mr-{key}-*"):
        has = _read(file)
        inside = has and has["address"] <= address and address + size <= has["address"] + has["size"]
        if inside and has["pid"] == pid and has["access"] & access == access:
            return True
    return False


class FakePair:
    def __init__(self, device: FakeDevice, work: int, pieces: int) -> None:
        self.device = device
        self.work = work
        self.pieces = pieces
        number = int.from_bytes(os.urandom(3), "big")
        self._end = End.of(device.name, number, 0, device.gid.raw, 5, device.limits.reads)
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

    def end(self) -> End:
        return self._end

    def to_init(self, access: int) -> None:
        assert self._state == "reset"
        self._state, self._access = "init", access
        self._say()

    def to_rtr(self, peer: End) -> None:
        assert self._state == "init"
        self._state, self._peer = "rtr", peer.number
        self._say()

    def to_rts(self, peer: End) -> None:
        assert self._state == "rtr" and peer.number == self._peer
        self._state = "rts"
        self._say()

    def _say(self) -> None:
        access = getattr(self, "_access", 0)
        _write(self._file, {"pid": os.getpid(), "state": self._state, "peer": self._peer, "access": access})

    def post(self, work: Sequence[tuple[int, Request]], write: bool, key: int, remote_key: int) -> None:
        assert self._state == "rts"
        hold = self.device.hold  # a test that has seen `posted` may change it at once
        for number, request in work:
            assert len(request.pieces) <= self.pieces and request.size <= self.device.limits.message
            self._under_way += 1
            assert self._under_way <= self.work, "the send queue overflows"
            self.device.posted += 1
            self._held.append((number, request, write, key, remote_key))
        if not hold:
            self.go_on()

    def go_on(self) -> None:
        """Does what is held."""
        held, self._held = self._held, []
        for number, request, write, key, remote_key in held:
            status = FLUSHED if self._failed else self._do(request, write, key, remote_key)
            self._failed = self._failed or status != 0
            self._done.append((number, status))
        if held and self._armed:
            self._armed = False
            os.eventfd_write(self._event, 1)

    def _do(self, request: Request, write: bool, key: int, remote_key: int) -> int:
        folder = self.device.folder
        peer = _read(folder / f"qp-{self._peer}")
        if peer is None or peer["peer"] != self._end.number or peer["state"] not in ("rtr", "rts"):
            return NO_ANSWER
        wants = REMOTE_WRITE if write else REMOTE_READ
        for address, size in request.pieces:
            if not allows(folder, key, os.getpid(), address, size, 0 if write else LOCAL_WRITE):
                return LOCAL
        may = peer["access"] & wants and allows(folder, remote_key, peer["pid"], request.remote, request.size, wants)
        if not may:
            return REFUSED
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


def move(pid: int, request: Request, write: bool) -> bool:
    """False when the process is gone."""
    calls = process_vm.CALLS
    assert calls is not None
    local = _vector(request.pieces)
    remote = _vector([(request.remote, request.size)])
    call = calls.write if write else calls.read
    return bool(call(pid, ctypes.addressof(local), len(request.pieces), ctypes.addressof(remote), 1, 0) == request.size)


def _vector(pieces: Sequence[tuple[int, int]]) -> Any:
    packed = b"".join(struct.pack("=QQ", *piece) for piece in pieces)
    return ctypes.create_string_buffer(packed, len(packed))


def _write(file: Path, what: Any) -> None:
    new = file.with_name(f".{file.name}-{os.getpid()}-{next(_serial)}")
    new.write_text(json.dumps(what))
    new.rename(file)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return None
