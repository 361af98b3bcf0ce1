"""The differences between vendors, NVIDIA's CUDA and AMD's HIP (ROCm), beside their lists of cards (`cards`, `visible`).

Torch built for ROCm calls its devices `cuda`, its streams, IPC and graphs are those of `torch.cuda`, and its collectives are
`nccl` (RCCL). So nothing else asks for a vendor; what has to is in these files. Which vendor it is, torch says
(`torch.version.hip`, `torch.version.cuda`), not what lies in /dev. MONARCH_GPU_PLATFORM and MONARCH_SKIP_TRITON_DEEPBIND,
which other implementations read, are not read at all: there is nothing to build and nothing to load before torch.

Torch is never imported here but where a function says so.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from monarch._devices import cards, visible
from monarch._devices.visible import Vendor

_DRIVERS: dict[Vendor, str] = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so", "cpu": ""}
_HSA = "libhsa-runtime64.so"


# --- which vendor, and how many devices


def built_for() -> Vendor:
    """Returns which vendor's devices the torch of this environment was built for; "cpu" for none, and without torch.

    Where torch is not loaded, the file in which it keeps its version is read, and torch stays unloaded.
    """
    hip, cuda = _versions()
    return "hip" if hip else "cuda" if cuda else "cpu"


def vendor() -> Vendor:
    """`built_for()`, but "cpu" where this process has no device of that vendor to use: see `count`."""
    kind = built_for()
    return kind if kind != "cpu" and count() else "cpu"


def count() -> int:
    """Devices that this process can use; 0 makes it a CPU rank.

    Torch is asked where it is loaded, for what it tells without initialising the driver: that reads the visible-devices
    variables once and for all. So `torch.cuda.is_available()`, which does initialise it, is not asked. Without torch, what
    the kernel shows of the machine's cards is counted and cut down to what the variables leave: an estimate, which a
    container that hides cards may get wrong.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not hasattr(torch, "version"):
        return estimate(built_for(), os.environ)
    if getattr(torch.version, "hip", None) and not cuda.is_initialized():  # type: ignore[union-attr]
        found = estimate("hip", os.environ)  # without amdsmi, torch would ask the driver
        if found:
            return found
    try:
        return int(cuda.device_count())
    except RuntimeError:  # variables that torch refuses; who uses a device is told by torch
        return 0


def estimate(kind: Vendor, environ: Mapping[str, str], root: Path | None = None) -> int:
    """Cards below `root`, as the kernel lists them, that the environment leaves visible."""
    present = cards.estimate(kind, root)
    try:
        entries = visible.listed(kind, environ)
        if entries and isinstance(entries[0], str):
            return min(len(entries), present)  # which uuids there are is not looked up
        return len(visible.shown(kind, environ, [""] * present) or ())
    except ValueError:
        return 0


def addresses(environ: Mapping[str, str], root: Path | None = None) -> list[str]:
    """Returns where on the PCI bus the cards are that the environment leaves visible, in the order of their numbers; none
    where there is none. ValueError where that cannot be told."""
    kind = built_for()
    if not estimate(kind, environ, root):
        return []
    places = cards.addresses(kind, root)
    chosen = visible.physical(kind, environ, cards.uuids(kind, root))
    found = [places[index] for index in chosen or ()]
    if not found or not all(found):
        raise ValueError(
            "neither the driver nor /proc says which PCI devices they are, as with MIG and in some containers"
        )
    return found


def _versions() -> tuple[Any, Any]:
    """Returns torch's `version.hip` and `version.cuda`."""
    version: Any = getattr(sys.modules.get("torch"), "version", None)
    if version is None:
        version = _version_file()
    return getattr(version, "hip", None), getattr(version, "cuda", None)


def _version_file() -> Any:
    try:
        torch = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if torch is None or not torch.origin:
        return None
    spec = importlib.util.spec_from_file_location("_torch_version", Path(torch.origin).with_name("version.py"))
    if spec is None or spec.loader is None:
        return None
    version = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(version)
    except Exception:  # a torch of another shape: it is as if there was none until somebody loads it
        return None
    return version


# --- what to tell processes


def visible_variables(kind: Vendor | None = None) -> tuple[str, ...]:
    """The variables that say which devices a process may use, all with the same list; none for a CPU rank."""
    return visible.SET[vendor() if kind is None else kind]


def visible_environment(devices: Iterable[int | str], kind: Vendor | None = None) -> dict[str, str]:
    """The environment of a process that is to see these devices (indices or uuids) and no others."""
    listed = ",".join(map(str, devices))
    return {name: listed for name in visible_variables(kind)}


def collective_backend(device_type: str) -> str:
    """The backend of torch.distributed for tensors on such devices: "nccl" for "cuda", of both vendors (RCCL under HIP),
    "gloo" for "cpu", and what torch itself would take for others. Only the last imports torch.
    """
    if device_type == "cuda":
        return "nccl"
    if device_type == "cpu":
        return "gloo"
    import torch.distributed

    return str(torch.distributed.get_default_backend_for_device(device_type))


# --- cards


def identity(torch: Any, device: Any) -> str:
    """Returns what names the card behind a device in every process of the machine, however each numbers them; "" where
    torch does not say."""
    module = getattr(torch, device.type, None)
    properties = getattr(module, "get_device_properties", None)
    if properties is None:
        return ""
    found = properties(device)
    uuid = str(getattr(found, "uuid", "") or "")
    if uuid.strip("0-"):  # some devices say nothing but zeros
        hip = getattr(getattr(torch, "version", None), "hip", None)
        return _with_partition(module, device, uuid) if hip else uuid
    bus = getattr(found, "pci_bus_id", None)
    if not isinstance(bus, int):
        return ""
    domain, slot = getattr(found, "pci_domain_id", 0), getattr(found, "pci_device_id", 0)
    return f"pci-{domain:04x}:{bus:02x}:{slot:02x}"


def _with_partition(cuda: Any, device: Any, uuid: str) -> str:
    """Partitions of one card have its uuid (an MI300 in CPX mode is eight devices), and torch tells no more of them. The
    kernel's list of cards does, in the order in which ROCm numbers them. "" where they cannot be told apart.
    """
    here = cards.amd()
    if len({card.unique_id for card in here}) == len(here):
        return uuid
    try:
        seen = visible.physical("hip", os.environ, [card.unique_id for card in here])
    except ValueError:
        return ""
    index = cuda.current_device() if device.index is None else device.index
    if seen is None or len(seen) != cuda.device_count() or index >= len(seen):
        return ""
    return f"{uuid}/{here[seen[index]].place}"


def ipc_obstacle(torch: Any, device: Any) -> str:
    """Returns why memory of that device cannot be shown to other processes by torch's CUDA (HIP) IPC; "" where it
    can."""
    if device.type != "cuda":
        return f"torch shares memory of cuda devices only, not of {device.type}"
    if not hasattr(torch.UntypedStorage, "_share_cuda_") or not hasattr(torch.UntypedStorage, "_new_shared_cuda"):
        return "this torch has no IPC for device memory"
    if getattr(torch.cuda.get_device_properties(device), "is_integrated", 0) and not torch.version.hip:
        return "integrated NVIDIA devices have no IPC"  # AMD's APUs have
    return ""


def expandable_segments() -> bool:
    """Returns whether torch's allocator makes segments that grow, as the environment says."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    texts = [os.environ.get(name, "").replace(" ", "").lower() for name in names]
    return any("expandable_segments:true" in text for text in texts)


# --- dma-buf

_DMA_BUF = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, hipMemRangeHandleTypeDmaBufFd


class DmaBuf(NamedTuple):
    """Device memory as a file descriptor (the caller's to close). The memory that was asked for begins at `offset` and ends
    within `size` bytes.
    """

    file: int
    offset: int
    size: int


class DmaBufError(OSError):
    """The driver gives out no descriptor for the memory; the text has its words and the range."""


def dma_buf(
    address: int, size: int, device: int, kind: Vendor | None = None, library: Any = None, hsa: Any = None
) -> DmaBuf:
    """Memory of that device (torch's number for it) of this process as a dma-buf, for the drivers of other devices
    (ibv_reg_dmabuf_mr). On any thread, also on one that has used no device yet.

    The range grows to whole pages, which lie in the same allocation: device allocations are of whole pages. Torch has to
    be loaded, the device in use. DmaBufError where there is no driver, where it does not know the call (CUDA before 11.7),
    and where it refuses. Source: the CUDA driver API's cuMemGetHandleForAddressRange and HIP's
    hipMemGetHandleForAddressRange; ROCm before 7.0 has that one level lower, as hsa_amd_portable_export_dmabuf. Never run
    on hardware.
    """
    kind = vendor() if kind is None else kind
    if kind == "cpu":
        raise DmaBufError("no dma-buf: this process has no device")
    page = os.sysconf("SC_PAGE_SIZE")
    start = address // page * page
    length = -(-(address + size) // page) * page - start
    driver = _driver(kind) if library is None else library
    name = "cuMemGetHandleForAddressRange" if kind == "cuda" else "hipMemGetHandleForAddressRange"
    try:
        call = getattr(driver, name)
    except AttributeError:
        if kind == "hip":
            return _hsa_dma_buf(address, size, hsa)
        raise DmaBufError(f"no dma-buf: the driver has no {name}; update it") from None
    file = ctypes.c_int(-1)
    with _using(driver, kind, device):
        code = call(
            ctypes.byref(file),
            ctypes.c_void_p(start),
            ctypes.c_size_t(length),
            ctypes.c_int(_DMA_BUF),
            ctypes.c_ulonglong(0),
        )
    if code:
        raise DmaBufError(
            f"no dma-buf for {length} bytes at {start:#x} ({size} at {address:#x}): {name} said {_words(driver, kind, code)}"
        )
    return DmaBuf(file.value, address - start, length)


def _hsa_dma_buf(address: int, size: int, library: Any = None) -> DmaBuf:
    """Asks the runtime under HIP. The descriptor is of the whole allocation, and it says where in that the memory
    begins."""
    if library is None:
        loaded = _mapped(_HSA)
        if not loaded:
            raise DmaBufError(
                f"no dma-buf: HIP has no hipMemGetHandleForAddressRange (ROCm before 7.0), and no {_HSA} is loaded"
            )
        library = ctypes.CDLL(loaded)
    file, offset = ctypes.c_int(-1), ctypes.c_uint64(0)
    name = "hsa_amd_portable_export_dmabuf"
    try:
        call = getattr(library, name)
    except AttributeError:
        raise DmaBufError(f"no dma-buf: neither HIP nor {_HSA} can export memory; update ROCm") from None
    code = call(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.byref(file), ctypes.byref(offset))
    if code:
        text = ctypes.c_char_p()
        library.hsa_status_string(code, ctypes.byref(text))
        said = f"{code} ({text.value.decode(errors='replace')})" if text.value else str(code)
        raise DmaBufError(f"no dma-buf for {size} bytes at {address:#x}: {name} said {said}")
    return DmaBuf(file.value, offset.value, offset.value + size)


@contextmanager
def _using(driver: Any, kind: Vendor, device: int) -> Iterator[None]:
    """Makes that device this thread's for a `with` block, for calls to the driver itself: CUDA's answer a thread
    without a context with 201, CUDA_ERROR_INVALID_CONTEXT. It is the context that torch uses, the device's primary
    one."""
    before, number = ctypes.c_int(0), ctypes.c_int(0)
    context = ctypes.c_void_p()

    def do(name: str, *args: Any) -> None:
        code = getattr(driver, name)(*args)
        if code:
            raise DmaBufError(f"no dma-buf: {name} of device {device} said {_words(driver, kind, code)}")

    if kind == "hip":
        do("hipGetDevice", ctypes.byref(before))
        do("hipSetDevice", ctypes.c_int(device))
        try:
            yield
        finally:
            do("hipSetDevice", before)
        return
    do("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
    do("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    try:
        do("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            do("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    finally:
        do("cuDevicePrimaryCtxRelease_v2", number)


def _driver(kind: Vendor) -> Any:
    """The copy that torch uses. A second copy of HIP's beside torch's own ends the process."""
    name = _DRIVERS[kind]
    try:
        if kind == "hip":
            loaded = _mapped(name)
            if not loaded:
                raise DmaBufError(f"no dma-buf: {name} is not loaded; import torch and use the device first")
            return ctypes.CDLL(loaded)
        return ctypes.CDLL(name)
    except OSError as exc:
        if isinstance(exc, DmaBufError):
            raise
        raise DmaBufError(f"no dma-buf: {exc}") from exc


def _mapped(name: str, maps: str = "/proc/self/maps") -> str:
    """The path of a library that this process has mapped; "" when it has not."""
    try:
        with open(maps, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                path = line.rstrip("\n").partition("/")[2]
                if path.rpartition("/")[2].startswith(name):
                    return f"/{path}"
    except OSError:
        pass
    return ""


def _words(driver: Any, kind: Vendor, code: int) -> str:
    """An error as the driver says it. HIP keeps the last one and would raise it in the next call of torch's: it is taken."""
    if kind == "hip":
        driver.hipGetLastError()
        driver.hipGetErrorString.restype = ctypes.c_char_p
        text = driver.hipGetErrorString(code)
    else:
        found = ctypes.c_char_p()
        text = found.value if not driver.cuGetErrorString(code, ctypes.byref(found)) else None
    return f"{code} ({text.decode(errors='replace')})" if text else str(code)
