"""Vendors: faked versions of torch, faked files of drivers, faked driver libraries."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import monarch._devices as devices
from monarch._devices import cards, vendors


class FakeTorch(types.SimpleNamespace):
    """Torch as built for a vendor, in a process that has `cards`."""

    def __init__(self, hip: str | None = None, cuda: str | None = None, cards: int = 0) -> None:
        available = types.SimpleNamespace(
            is_available=lambda: cards > 0, device_count=lambda: cards, is_initialized=lambda: False
        )
        super().__init__(version=types.SimpleNamespace(hip=hip, cuda=cuda), cuda=available)


@pytest.fixture
def torch_is(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(**kwargs: Any) -> None:
        monkeypatch.setitem(sys.modules, "torch", FakeTorch(**kwargs))

    return install


ROCM = {"hip": "7.1.25424", "cards": 8}
CUDA = {"cuda": "13.0", "cards": 8}


def test_torch_says_which_vendor_it_was_built_for(torch_is: Any) -> None:
    torch_is(**ROCM)
    assert (devices.built_for(), devices.vendor(), devices.count()) == ("hip", "hip", 8)
    torch_is(**CUDA)
    assert (devices.built_for(), devices.vendor(), devices.count()) == ("cuda", "cuda", 8)
    torch_is()
    assert (devices.built_for(), devices.vendor(), devices.count()) == ("cpu", "cpu", 0)


@pytest.mark.parametrize("build", [{"hip": "7.1"}, {"cuda": "13.0"}])
def test_no_device_makes_a_cpu_rank(torch_is: Any, build: dict[str, str]) -> None:
    torch_is(**build)
    assert devices.built_for() != "cpu"
    assert (devices.vendor(), devices.count()) == ("cpu", 0)
    assert devices.visible_environment([0, 1]) == {}


def test_under_hip_both_variables_say_the_same_and_rocr_is_left_alone(torch_is: Any) -> None:
    torch_is(**ROCM)
    assert devices.visible_environment([2, 5]) == {"HIP_VISIBLE_DEVICES": "2,5", "CUDA_VISIBLE_DEVICES": "2,5"}
    torch_is(**CUDA)
    assert devices.visible_environment(["GPU-1", "GPU-2"]) == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    assert devices.visible_variables("cpu") == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("MONARCH_GPU_PLATFORM", "rocm"), ("MONARCH_GPU_PLATFORM", "nonsense"), ("MONARCH_SKIP_TRITON_DEEPBIND", "1")],
)
def test_variables_of_other_implementations_change_nothing(
    torch_is: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    torch_is(**CUDA)
    assert (devices.vendor(), devices.count()) == ("cuda", 8)


def test_without_torch_the_file_of_its_version_is_read_and_torch_is_not_loaded() -> None:
    program = "import sys, monarch._devices as d; print(d.built_for(), d.count(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    import torch

    kind = "hip" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    assert done.stdout.split()[0] == kind
    assert done.stdout.split()[2] == "False"


def test_a_torch_that_is_still_being_imported_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setattr(vendors, "_version_file", lambda: types.SimpleNamespace(hip="7.0", cuda=None))
    monkeypatch.setattr(cards, "estimate", lambda kind, root: 3)
    assert devices.built_for() == "hip"
    assert devices.count() == vendors.estimate("hip", {}) == 3


# --- cards without torch


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def amd(tmp_path: Path) -> Path:
    """A machine with two CPUs and three AMD cards."""
    for node, units in enumerate((0, 0, 304, 304, 304)):
        write(
            tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}/properties", f"cpu_cores_count 1\nsimd_count {units}\n"
        )
    return tmp_path


@pytest.fixture
def nvidia(tmp_path: Path) -> Path:
    for bus in ("0000:1b:00.0", "0000:43:00.0"):
        write(tmp_path / "proc/driver/nvidia/gpus" / bus / "information", "")
    return tmp_path


def test_cards_are_those_the_driver_lists(amd: Path) -> None:
    assert vendors.estimate("hip", {}, amd) == 3
    assert vendors.estimate("cuda", {}, amd) == 0
    assert vendors.estimate("cpu", {}, amd) == 0


def test_nvidias_are_in_proc_or_else_among_the_render_nodes(nvidia: Path) -> None:
    assert vendors.estimate("cuda", {}, nvidia) == 2
    other = nvidia / "other"
    for number, maker in enumerate(("0x10de", "0x1002", "0x10de", "0x10de")):
        write(other / f"sys/class/drm/renderD{128 + number}/device/vendor", f"{maker}\n")
        write(other / f"sys/class/drm/card{number}/device/vendor", f"{maker}\n")
    assert vendors.estimate("cuda", {}, other) == 3


def test_what_the_environment_hides_is_not_counted(amd: Path, nvidia: Path) -> None:
    assert vendors.estimate("cuda", {"CUDA_VISIBLE_DEVICES": ""}, nvidia) == 0
    assert vendors.estimate("cuda", {"CUDA_VISIBLE_DEVICES": "1"}, nvidia) == 1
    assert vendors.estimate("cuda", {"CUDA_VISIBLE_DEVICES": "0,1,7"}, nvidia) == 2
    assert vendors.estimate("cuda", {"CUDA_VISIBLE_DEVICES": "-1"}, nvidia) == 0
    assert vendors.estimate("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-8f5e,GPU-11aa"}, nvidia) == 2
    # ROCR filters first: of what it leaves, HIP's are chosen, or CUDA's where HIP's is not set
    assert vendors.estimate("hip", {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "0"}, amd) == 1
    assert vendors.estimate("hip", {"CUDA_VISIBLE_DEVICES": "0,2"}, amd) == 2
    assert (
        vendors.estimate("hip", {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "0,1,2"}, amd) == 0
    )  # as torch


# --- collectives, identity, IPC


def test_collectives_are_ncclss_for_both_vendors_and_gloo_on_cpus() -> None:
    assert devices.collective_backend("cuda") == "nccl"
    assert devices.collective_backend("cpu") == "gloo"
    assert devices.collective_backend("xpu") == "xccl"


def device(kind: str, properties: Any) -> tuple[Any, Any]:
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(get_device_properties=lambda _: properties))
    return torch, types.SimpleNamespace(type=kind)


def test_a_card_is_known_by_its_uuid_or_by_its_place_on_the_bus() -> None:
    told = types.SimpleNamespace(uuid="8f5e1d02-1111-2222-3333-444455556666", pci_bus_id=3)
    assert vendors.identity(*device("cuda", told)) == "8f5e1d02-1111-2222-3333-444455556666"
    zeros = types.SimpleNamespace(uuid="00000000-0000-0000-0000-000000000000", pci_bus_id=0x1B, pci_domain_id=1)
    assert vendors.identity(*device("cuda", zeros)) == "pci-0001:1b:00"
    assert vendors.identity(*device("cuda", types.SimpleNamespace())) == ""
    assert vendors.identity(*device("mps", told)) == ""


def ipc(hip: str | None, integrated: int, methods: tuple[str, ...]) -> Any:
    storage = type("UntypedStorage", (), dict.fromkeys(methods))
    properties = types.SimpleNamespace(is_integrated=integrated)
    return types.SimpleNamespace(
        UntypedStorage=storage,
        version=types.SimpleNamespace(hip=hip),
        cuda=types.SimpleNamespace(get_device_properties=lambda _: properties),
    )


def test_ipc_is_there_on_both_vendors_and_says_why_where_it_is_not() -> None:
    both = ("_share_cuda_", "_new_shared_cuda")
    cuda = types.SimpleNamespace(type="cuda")
    assert vendors.ipc_obstacle(ipc(None, 0, both), cuda) == ""
    assert vendors.ipc_obstacle(ipc("7.1", 0, both), cuda) == ""
    assert vendors.ipc_obstacle(ipc("7.1", 1, both), cuda) == ""
    assert "integrated" in vendors.ipc_obstacle(ipc(None, 1, both), cuda)
    assert "no IPC" in vendors.ipc_obstacle(ipc(None, 0, both[:1]), cuda)
    assert "xpu" in vendors.ipc_obstacle(ipc(None, 0, both), types.SimpleNamespace(type="xpu"))


def test_the_torch_that_is_here_has_the_names_that_ipc_needs() -> None:
    import torch

    assert (
        vendors.ipc_obstacle(ipc(None, 0, tuple(dir(torch.UntypedStorage))), types.SimpleNamespace(type="cuda")) == ""
    )


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"])
def test_expandable_segments_are_what_the_environment_says(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert not vendors.expandable_segments()
    monkeypatch.setenv(name, "max_split_size_mb:64, expandable_segments: True")
    assert vendors.expandable_segments()


# --- dma-buf


class Driver:
    """A driver library that answers `code`; to a thread that uses another device, or none, as the real ones do."""

    OWN = 3  # the device whose memory it is

    def __init__(self, prefix: str, code: int = 0) -> None:
        self.code = code
        self.asked: list[tuple[int, int, int, int]] = []
        self.cleared = 0
        self.retained = 0
        self.thread = threading.local()
        setattr(self, f"{prefix}MemGetHandleForAddressRange", self._export)

    def _export(self, file: Any, address: Any, size: Any, kind: Any, flags: Any) -> int:
        if self._current() != self.OWN:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        self.asked.append((address.value, size.value, kind.value, flags.value))
        if not self.code:
            ctypes.cast(file, ctypes.POINTER(ctypes.c_int))[0] = 77
        return self.code

    def _current(self) -> int | None:
        """Returns what this thread uses: a thread of CUDA's driver nothing at first, one of HIP's device 0."""
        if not hasattr(self, "hipMemGetHandleForAddressRange"):
            stack = self._stack()
            return stack[-1] if stack else None
        return getattr(self.thread, "device", 0)

    def _stack(self) -> list[int]:
        stack: list[int] = self.thread.__dict__.setdefault("stack", [])
        return stack

    def cuDeviceGet(self, number: Any, ordinal: Any) -> int:
        ctypes.cast(number, ctypes.POINTER(ctypes.c_int))[0] = ordinal.value + 10
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, number: Any) -> int:
        self.retained += 1
        ctypes.cast(context, ctypes.POINTER(ctypes.c_void_p))[0] = number.value + 90
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, number: Any) -> int:
        self.retained -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self._stack().append(context.value - 100)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self._stack().pop()
        return 0

    def hipGetDevice(self, device: Any) -> int:
        ctypes.cast(device, ctypes.POINTER(ctypes.c_int))[0] = getattr(self.thread, "device", 0)
        return 0

    def hipSetDevice(self, device: Any) -> int:
        self.thread.device = device.value
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"operation not supported"
        return 0

    class _Said:
        restype: Any = None

        def __call__(self, code: int) -> bytes:
            return b"hipErrorInvalidValue"

    hipGetErrorString = _Said()

    def hipGetLastError(self) -> int:
        self.cleared += 1
        return self.code


PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("kind", "prefix"), [("cuda", "cu"), ("hip", "hip")])
def test_a_dma_buf_is_of_whole_pages(kind: Any, prefix: str) -> None:
    driver = Driver(prefix)
    found = devices.dma_buf(10 * PAGE + 512, PAGE, 3, kind, driver)
    assert found == (77, 512, 2 * PAGE)
    assert driver.asked == [(10 * PAGE, 2 * PAGE, 1, 0)]


@pytest.mark.parametrize(("kind", "prefix", "before"), [("cuda", "cu", None), ("hip", "hip", 0)])
def test_a_thread_that_has_used_no_device_exports_memory_of_any(kind: Any, prefix: str, before: int | None) -> None:
    driver = Driver(prefix)
    seen: list[Any] = []

    def export() -> None:
        seen.append(devices.dma_buf(PAGE, PAGE, 3, kind, driver).file)
        seen.append(driver._current())

    thread = threading.Thread(target=export)
    thread.start()
    thread.join()
    assert seen == [77, before]  # and it uses what it used before
    assert driver.retained == 0


def test_a_context_that_cannot_be_used_says_whose(torch_is: Any) -> None:
    driver = Driver("cu")
    driver.cuDevicePrimaryCtxRetain = lambda context, number: 2  # type: ignore[method-assign]
    with pytest.raises(devices.DmaBufError, match=r"cuDevicePrimaryCtxRetain of device 3 said 2 "):
        devices.dma_buf(PAGE, PAGE, 3, "cuda", driver)


def test_a_driver_that_refuses_is_quoted(torch_is: Any) -> None:
    with pytest.raises(
        devices.DmaBufError, match=r"cuMemGetHandleForAddressRange said 801 \(operation not supported\)"
    ):
        devices.dma_buf(PAGE, 100, 3, "cuda", Driver("cu", 801))
    driver = Driver("hip", 1)
    with pytest.raises(devices.DmaBufError, match=r"hipMemGetHandleForAddressRange said 1 \(hipErrorInvalidValue\)"):
        devices.dma_buf(PAGE, 100, 3, "hip", driver)
    assert driver.cleared == 1  # or the next call of torch's would raise it
    with pytest.raises(devices.DmaBufError, match="update it"):
        devices.dma_buf(PAGE, 100, 3, "cuda", object())
    torch_is()
    with pytest.raises(devices.DmaBufError, match="no device"):
        devices.dma_buf(PAGE, 100, 3)


def test_of_hip_only_the_copy_that_torch_loaded_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f0000-7f1000 r-xp 00000000 00:00 0\n7f2000-7f3000 r-xp 00000000 08:01 5    /a b/torch/lib/libamdhip64.so.7\n"
    )
    assert vendors._mapped("libamdhip64.so", str(maps)) == "/a b/torch/lib/libamdhip64.so.7"
    assert vendors._mapped("libcuda.so", str(maps)) == ""
    monkeypatch.setattr(vendors, "_mapped", lambda name: "")
    with pytest.raises(devices.DmaBufError, match="import torch"):
        devices.dma_buf(PAGE, 100, 3, "hip")
