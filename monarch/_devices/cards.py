"""The cards of this machine, as the kernel and the vendors' libraries list them. Torch is not asked: its answer would fix
what the process sees from then on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monarch._devices.visible import Vendor

ROOT = Path("/")
_NVML = "libnvidia-ml.so.1"
_UUID = 96  # bytes: NVML_DEVICE_UUID_V2_BUFFER_SIZE


class AmdCard(NamedTuple):
    """A node of ROCm's topology that computes: a card, or a partition of one. `unique_id` is the card's (hexadecimal, ""
    for none): its partitions share it. `gpu_id` and the render node are the partition's own."""

    gpu_id: int
    unique_id: str
    domain: int
    location: int  # on the PCI bus: the bus's number and, in the last byte, device and function
    render: int  # /dev/dri/renderD<render>

    @property
    def place(self) -> str:
        """Returns which of the machine's it is, in a form that no other has."""
        at = f"{self.domain:04x}:{self.location >> 8 & 0xFF:02x}:{self.location >> 3 & 0x1F:02x}.{self.location & 7}"
        return f"{at}/{self.gpu_id}"


def uuids(kind: Vendor, root: Path | None = None) -> list[str]:
    """The cards that this process may use, before any variable hides some, in the driver's order; "" for an unknown uuid.
    Empty where they cannot be told for certain."""
    root = ROOT if root is None else root
    if kind == "hip":
        return [card.unique_id for card in amd(root)]
    return _nvml_uuids() if kind == "cuda" and root == Path("/") else _nvidia_in_proc(root) if kind == "cuda" else []


def estimate(kind: Vendor, root: Path | None = None) -> int:
    """Returns how many cards there are, from files of the kernel. A container that hides cards may make it too many."""
    root = ROOT if root is None else root
    if kind == "hip":
        return len(amd(root))
    if kind == "cuda":
        listed = len(_entries(root / "proc/driver/nvidia/gpus"))
        return listed or sum(_made_by(node, "0x10de") for node in _entries(root / "sys/class/drm"))
    return 0


def addresses(kind: Vendor, root: Path | None = None) -> list[str]:
    """Returns where on the PCI bus each card of `uuids` is, as 0000:17:00.0; "" for one that the kernel does not tell."""
    root = ROOT if root is None else root
    if kind == "hip":
        return [card.place.partition("/")[0] for card in amd(root)]
    places = {uuid: address for address, uuid in _nvidia_cards(root) if uuid}
    return [places.get(uuid, "") for uuid in uuids(kind, root)]


# --- AMD


def amd(root: Path | None = None) -> list[AmdCard]:
    """Returns AMD's cards in the order in which ROCm numbers them. One that this process may not use is left out: the
    kernel lets it not read that node's properties."""
    nodes = _entries((ROOT if root is None else root) / "sys/class/kfd/kfd/topology/nodes")
    numbered = sorted((int(node.name), node) for node in nodes if node.name.isdecimal())
    found = (_amd_card(node) for _, node in numbered)
    return [card for card in found if card is not None]


def _amd_card(node: Path) -> AmdCard | None:
    try:
        lines = (node / "properties").read_text("ascii", "replace").splitlines()
        gpu_id = (node / "gpu_id").read_text("ascii", "replace").strip() if (node / "gpu_id").exists() else "0"
    except OSError:
        return None
    says = {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdecimal()}
    if not says.get("simd_count"):  # a CPU
        return None
    unique = says.get("unique_id", 0)
    return AmdCard(
        int(gpu_id) if gpu_id.isdecimal() else 0,
        f"{unique:016x}" if unique else "",
        says.get("domain", 0),
        says.get("location_id", 0),
        says.get("drm_render_minor", 0),
    )


# --- NVIDIA


def _nvml_uuids() -> list[str]:
    """Asks the library that comes with the driver, as `torch.cuda._raw_device_uuid_nvml` does. Where a card is cut
    into MIG devices, a process does not see cards: then nothing is certain."""
    try:
        nvml = ctypes.CDLL(_NVML)
        if nvml.nvmlInit_v2():
            return []
    except (OSError, AttributeError):
        return []
    try:
        return _told_by(nvml)
    except AttributeError:  # a driver older than what is asked
        return []
    finally:
        nvml.nvmlShutdown()


def _told_by(nvml: Any) -> list[str]:
    count = ctypes.c_uint(0)
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    found: list[str] = []
    for index in range(count.value):
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            return []
        now, next_ = ctypes.c_uint(0), ctypes.c_uint(0)
        if not nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(now), ctypes.byref(next_)) and now.value:
            return []
        if nvml.nvmlDeviceGetUUID(handle, text, _UUID):
            return []
        found.append(text.value.decode("ascii", "replace"))
    return found


def _nvidia_in_proc(root: Path) -> list[str]:
    """Reads a tree of files that stands for a machine: each card says its uuid."""
    return [uuid for _, uuid in _nvidia_cards(root)]


def _nvidia_cards(root: Path) -> list[tuple[str, str]]:
    """Returns the address and the uuid of each card, as the driver's files tell."""
    found = []
    for card in sorted(_entries(root / "proc/driver/nvidia/gpus")):
        text = (card / "information").read_text("ascii", "replace")
        lines = (line.partition(":") for line in text.splitlines())
        found.append((card.name, next((value.strip() for name, _, value in lines if name == "GPU UUID"), "")))
    return found


# --- files


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _made_by(node: Path, maker: str) -> bool:
    """Returns whether a node of the kernel's graphics devices is of that PCI vendor; each card has one render node."""
    if not node.name.startswith("renderD"):
        return False
    try:
        return (node / "device/vendor").read_text("ascii", "replace").strip() == maker
    except OSError:
        return False
