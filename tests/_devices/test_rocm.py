"""AMD's cards on a machine without any: the kernel's list of cards, amdsmi, and ROCm's libraries as stubs in C."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from monarch._devices import cards, measures, vendors, visible
from tests._devices import rocm

UUIDS = ["8f3c000000000001", "8f3c000000000002"]


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in visible.VARIABLES["hip"]:
        monkeypatch.delenv(name, raising=False)


def test_cards_are_read_in_rocms_order(tmp_path: Path) -> None:
    rocm.tree(tmp_path, [f"{index:016x}" for index in range(1, 12)])  # eleven: node 10 comes after node 9
    found = cards.amd(tmp_path)
    assert [card.gpu_id for card in found] == list(range(1002, 1013))
    assert cards.uuids("hip", tmp_path) == [f"{index:016x}" for index in range(1, 12)]
    assert cards.estimate("hip", tmp_path) == 11
    assert cards.amd(tmp_path / "nowhere") == []


def test_a_card_that_the_process_may_not_use_is_none(tmp_path: Path) -> None:
    rocm.tree(tmp_path, UUIDS, unreadable=0)
    assert cards.uuids("hip", tmp_path) == [UUIDS[1]]
    assert vendors.estimate("hip", {"ROCR_VISIBLE_DEVICES": "0"}, tmp_path) == 1


class Torch(types.SimpleNamespace):
    """ROCm's torch, which tells the uuid of the card for each of its partitions."""

    def __init__(self, uuids: list[str]) -> None:
        cuda = types.SimpleNamespace(
            get_device_properties=lambda device: types.SimpleNamespace(uuid=uuids[device.index]),
            device_count=lambda: len(uuids),
        )
        super().__init__(cuda=cuda, version=types.SimpleNamespace(hip="6.4"))

    def identities(self) -> list[str]:
        devices = [types.SimpleNamespace(type="cuda", index=index) for index in range(self.cuda.device_count())]
        return [vendors.identity(self, device) for device in devices]


def test_partitions_of_one_card_are_different_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    monkeypatch.setattr(cards, "ROOT", rocm.tree(tmp_path, UUIDS, partitions=8))
    every = Torch([uuid for uuid in UUIDS for _ in range(8)]).identities()
    assert len(set(every)) == 16
    # another process of the machine, which sees some in another order, calls them the same
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "4,9,2")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1,0")
    assert Torch([UUIDS[1], UUIDS[0]]).identities() == [every[9], every[4]]
    # one for which the kernel's list and torch's do not agree: better none than another's
    assert Torch(UUIDS[:1]).identities() == [""]


def test_whole_cards_are_known_by_their_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> None:
    monkeypatch.setattr(cards, "ROOT", rocm.tree(tmp_path, UUIDS))
    assert Torch(UUIDS).identities() == UUIDS
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert Torch(UUIDS[1:]).identities() == UUIDS[1:]


class Amdsmi(types.ModuleType):
    """The package amdsmi, as far as torch asks it to count."""

    class AmdSmiException(Exception):
        err_code = 1

    def __init__(self, uuids: list[str]) -> None:
        super().__init__("amdsmi")
        self.uuids = uuids

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.uuids)))

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, str]:
        return {"asic_serial": f"0x{self.uuids[handle].upper()}"}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, 2),
        ({"HIP_VISIBLE_DEVICES": f"GPU-{UUIDS[1]}"}, 1),
        ({"HIP_VISIBLE_DEVICES": "GPU-8f3c"}, 0),  # which of the two
        ({"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "1,0,5"}, 2),
    ],
)
def test_with_amdsmi_torch_counts_as_we_do(
    monkeypatch: pytest.MonkeyPatch, clean: None, tmp_path: Path, environ: dict[str, str], wanted: int
) -> None:
    torch: Any = pytest.importorskip("torch")
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "_HAS_AMDSMI", True, raising=False)
    monkeypatch.setattr(torch.cuda, "amdsmi", Amdsmi(UUIDS), raising=False)
    found = visible.shown("hip", environ, cards.uuids("hip", rocm.tree(tmp_path, UUIDS)))
    assert torch.cuda._device_count_amdsmi() == len(found or ()) == wanted


def test_without_amdsmi_the_driver_is_not_asked(monkeypatch: pytest.MonkeyPatch, clean: None, tmp_path: Path) -> None:
    """torch would ask HIP itself then, which reads the variables once and for all."""

    def ask() -> int:
        raise AssertionError("the driver was initialised")

    torch = types.ModuleType("torch")
    torch.version = types.SimpleNamespace(hip="6.4", cuda=None)  # type: ignore[attr-defined]
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: False, device_count=ask, is_available=ask)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(cards, "ROOT", rocm.tree(tmp_path, UUIDS))
    assert vendors.count() == 2
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert vendors.count() == 1


def test_measures_need_no_amdsmi(tmp_path: Path) -> None:
    place = tmp_path / "card0" / "device"
    place.mkdir(parents=True)
    (place / "mem_info_vram_total").write_text("206141652992\n")
    (place / "mem_info_vram_used").write_text("296587264\n")
    (row,) = measures.SysfsMeasure(str(tmp_path))()
    assert row["memory_total_bytes"] == 206141652992
    assert measures.SysfsMeasure(str(tmp_path)).at("device")["memory_used_bytes"] == 296587264
    with pytest.raises(LookupError, match="0000:17:00"):
        measures.SysfsMeasure(str(tmp_path)).at("0000:17:00.0")
    with pytest.raises(FileNotFoundError):
        measures.SysfsMeasure(str(tmp_path / "card0"))


# --- dma-buf, through ctypes and a library in C. In a process of its own: a library stays mapped.

_PROGRAM = """
import ctypes, os, sys
for path in sys.argv[1:]:
    loaded = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
from monarch._devices import vendors

def ask(address):
    try:
        file, offset, size = vendors.dma_buf(address, 100, 0, kind="hip")
    except vendors.DmaBufError as exc:
        return str(exc)
    os.fstat(file)
    os.close(file)
    return f"{offset} {size}"

print(ask(5 * 65536 + 512))
print(ask(512))
print(ctypes.CDLL(sys.argv[1]).hipPeekAtLastError())
"""


def asked(*libraries: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM), *map(str, libraries)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_hip_exports_memory_and_its_last_error_is_taken(tmp_path: Path) -> None:
    hip = rocm.library(tmp_path, "libamdhip64.so.7", rocm.HIP)
    given, refused, last = asked(hip)
    assert given == "512 4096"
    assert "hipMemGetHandleForAddressRange said 1 (invalid argument)" in refused
    assert last == "0"  # or the next call of torch's would raise it


def test_before_rocm_7_the_runtime_under_hip_exports(tmp_path: Path) -> None:
    hip = rocm.library(tmp_path, "libamdhip64.so.6", rocm.HIP, "-DOLD")
    hsa = rocm.library(tmp_path, "libhsa-runtime64.so.1", rocm.HSA)
    given, refused, _ = asked(hip, hsa)
    assert given == "512 612"
    assert "hsa_amd_portable_export_dmabuf said 4097 (HSA_STATUS_ERROR_INVALID_ARGUMENT)" in refused


def test_where_neither_exports_that_is_said(tmp_path: Path) -> None:
    hip = rocm.library(tmp_path, "libamdhip64.so.6", rocm.HIP, "-DOLD")
    assert "no libhsa-runtime64.so is loaded" in asked(hip)[0]
    hsa = rocm.library(tmp_path, "libhsa-runtime64.so.1", rocm.HSA, "-DOLD")
    assert "neither HIP nor libhsa-runtime64.so can export memory; update ROCm" in asked(hip, hsa)[0]
