"""RDMA devices and how far NUMA nodes are apart, as /sys tells of them. Nothing here opens a device.

The files are described in the kernel's Documentation/ABI/stable/sysfs-class-infiniband and
Documentation/ABI/stable/sysfs-devices-node. What cannot be read is left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from monarch._linux.processors import node_folders, node_of_pci, number
from monarch.rdma.backends.ibverbs.nic_choice import Distances, Locality, Nic
from monarch.rdma.backends.ibverbs.pairing import Gid

ROOT = Path("/sys")
PORT = 1
GIDS = 256  # entries of a port's table that are looked at
PKEYS = 128  # the same of its partition table
CHANNEL_ADAPTER = "1"  # others have no reliable connections that can be made without a connection manager (iWARP, EFA)
ACTIVE = "4"

_COMPLEX = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", re.IGNORECASE)
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec", re.ASCII)
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


def present(root: Path = ROOT) -> list[str]:
    """Names of the RDMA devices, usable or not."""
    try:
        return sorted(entry.name for entry in (root / "class/infiniband").iterdir())
    except OSError:
        return []


def usable(root: Path = ROOT) -> tuple[list[Nic], str]:
    """The devices whose port is up and can carry reliable connections, and why the others are none."""
    nics, why = [], []
    for name in present(root):
        folder = root / "class/infiniband" / name
        port = folder / "ports" / str(PORT)
        kind = _text(folder / "node_type")
        if kind.partition(":")[0] != CHANNEL_ADAPTER:
            why.append(f"{name} is of type {kind or 'unknown'}, not a channel adapter")
        elif down := port_down(name, root):
            why.append(down)
        else:
            ethernet = _text(port / "link_layer") == "Ethernet"
            device = folder / "device"
            rate = _rate(_text(port / "rate"))
            nics.append(
                Nic(name, _pci_of(device), number(device / "numa_node"), ethernet, _gids(port), rate, _pkeys(port))
            )
    if not nics and not why:
        why.append("this machine has no RDMA device")
    return nics, "; ".join(why)


def port_down(name: str, root: Path = ROOT) -> str:
    """Returns why the port of that device carries nothing at the moment; "" when it is up."""
    state = _text(root / "class/infiniband" / name / "ports" / str(PORT) / "state")
    return (
        "" if state.partition(":")[0] == ACTIVE else f"port {PORT} of {name} is not active ({state or 'state unknown'})"
    )


def pci_place(address: str, root: Path = ROOT) -> Locality:
    """Returns the place of the PCI device with that address, such as 0000:17:00.0."""
    return Locality(node_of_pci(address, root), _pci_of(root / "bus/pci/devices" / address.lower()))


def distances(root: Path = ROOT) -> Distances:
    result = {}
    for node, folder in node_folders(root):
        row = _text(folder / "distance").split()
        result[node] = tuple(int(one) for one in row if one.isdigit())
    return result


def _pci_of(device: Path) -> tuple[str, ...]:
    """Root complex, bridges and the device itself, as the real path names them."""
    parts = device.resolve().parts
    start = next((index for index, part in enumerate(parts) if _COMPLEX.fullmatch(part)), len(parts))
    return tuple(part for part in parts[start:] if _COMPLEX.fullmatch(part) or _PCI.fullmatch(part))


def _gids(port: Path) -> tuple[Gid, ...]:
    result = []
    for index in range(GIDS):
        text = _text(port / "gids" / str(index))
        if not text:
            if not (port / "gids" / str(index)).exists():
                break
            continue
        try:
            raw = bytes.fromhex(text.replace(":", ""))
        except ValueError:
            continue
        if len(raw) == 16 and any(raw[8:]):  # an entry that is not in use has no interface
            result.append(Gid(index, raw, _text(port / "gid_attrs/types" / str(index))))
    return tuple(result)


def _pkeys(port: Path) -> tuple[int, ...]:
    """0 for an entry that is not in use."""
    result: list[int] = []
    while len(result) < PKEYS and (text := _text(port / "pkeys" / str(len(result)))):
        try:
            result.append(int(text, 16))
        except ValueError:
            result.append(0)
    return tuple(result)


def _rate(text: str) -> int:
    """Mb/s of text such as "400 Gb/sec (4X NDR)"; 0 when it says nothing of the kind."""
    match = _RATE.match(text)
    return round(float(match[1]) * 1000) if match else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
