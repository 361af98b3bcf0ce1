"""Tests of which devices: what /sys says (a tree of files), and nearness."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from monarch._linux import processors
from monarch.rdma.backends.ibverbs import sysfs
from monarch.rdma.backends.ibverbs.nic_choice import Locality, Nic, nearest, node_of, place_of_target
from monarch.rdma.backends.ibverbs.pairing import ChoiceError, Gid
from tests.rdma.ibverbs_fake import nic_tree


def nic(name: str, pci: str = "", node: int = -1, ethernet: bool = True, gids: tuple[Gid, ...] = ()) -> Nic:
    return Nic(name, tuple(pci.split("/")) if pci else (), node, ethernet, gids)


def raw(address: str) -> bytes:
    return ipaddress.IPv6Address(address).packed


# --- /sys


def test_what_a_machine_has(tmp_path: Path) -> None:
    nic_tree(tmp_path, "mlx5_0", "mlx5_1", mlx5_1={"node": 1, "link_layer": "InfiniBand", "gids": (("fe80::5", ""),)})
    (first, second), why = sysfs.usable(tmp_path)
    assert not why
    assert first == Nic(
        "mlx5_0",
        ("pci0000:00", "0000:00:00.0", "0000:01:00.0"),
        0,
        True,
        (Gid(0, raw("fe80::1"), "IB/RoCE v1"), Gid(1, raw("::ffff:10.0.0.1"), "RoCE v2")),
        100_000,
        (0xFFFF,),
    )
    assert (second.node, second.ethernet, second.gids) == (1, False, (Gid(0, raw("fe80::5"), ""),))
    assert sysfs.present(tmp_path) == ["mlx5_0", "mlx5_1"]


def test_devices_that_are_of_no_use(tmp_path: Path) -> None:
    nic_tree(tmp_path, "efa_0", "iw_0", "mlx5_0", efa_0={"node_type": "7: <unknown>"}, iw_0={"node_type": "4: RNIC"},
             mlx5_0={"state": "1: DOWN"})  # fmt: skip
    nics, why = sysfs.usable(tmp_path)
    assert nics == []
    assert why == (
        "efa_0 is of type 7: <unknown>, not a channel adapter; iw_0 is of type 4: RNIC, not a channel adapter; "
        "port 1 of mlx5_0 is not active (1: DOWN)"
    )


@pytest.mark.parametrize(
    ("text", "rate"),
    [("400 Gb/sec (4X NDR)", 400_000), ("2.5 Gb/sec (1X SDR)", 2_500), ("800 Gb/sec", 800_000), ("", 0), ("fast", 0)],
)
def test_rates(tmp_path: Path, text: str, rate: int) -> None:
    nic_tree(tmp_path, "mlx5_0", mlx5_0={"rate": text})
    ((only,), _) = sysfs.usable(tmp_path)
    assert only.rate == rate


def test_partition_tables(tmp_path: Path) -> None:
    nic_tree(tmp_path, "mlx5_0", mlx5_0={"pkeys": (0x7FFF, 0, 0x8001)})
    ((only,), _) = sysfs.usable(tmp_path)
    assert only.pkeys == (0x7FFF, 0, 0x8001)
    (tmp_path / "class/infiniband/mlx5_0/ports/1/pkeys/1").write_text("rubbish\n")
    ((only,), _) = sysfs.usable(tmp_path)
    assert only.pkeys == (0x7FFF, 0, 0x8001)


def test_a_machine_without_any(tmp_path: Path) -> None:
    assert sysfs.usable(tmp_path) == ([], "this machine has no RDMA device")
    assert sysfs.distances(tmp_path) == {} and processors.of_nodes(tmp_path) == {}
    assert sysfs.pci_place("0000:17:00.0", tmp_path) == Locality(-1, ())


def test_entries_that_are_not_in_use_are_left_out(tmp_path: Path) -> None:
    nic_tree(tmp_path, "mlx5_0", mlx5_0={"gids": (("fe80::", ""), ("fe80::2", "RoCE v2"))})
    (tmp_path / "class/infiniband/mlx5_0/ports/1/gids/2").write_text("rubbish\n")
    (only,), _ = sysfs.usable(tmp_path)
    assert only.gids == (Gid(1, raw("fe80::2"), "RoCE v2"),)


def test_numa_nodes(tmp_path: Path) -> None:
    for node, (cpus, row) in enumerate([("0-2,7\n", "10 21\n"), ("3-6\n", "21 10\n")]):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
        (folder / "distance").write_text(row)
    assert sysfs.distances(tmp_path) == {0: (10, 21), 1: (21, 10)}
    nodes = processors.of_nodes(tmp_path)
    assert nodes == {0: frozenset((0, 1, 2, 7)), 1: frozenset((3, 4, 5, 6))}
    assert node_of((0, 7), nodes) == 0 and node_of((3,), nodes) == 1
    assert node_of((2, 3), nodes) == -1 and node_of((), nodes) == -1


def test_where_a_gpu_is(tmp_path: Path) -> None:
    nic_tree(tmp_path, "mlx5_0", mlx5_0={"pci": "pci0000:17/0000:17:01.0/0000:18:00.0", "node": 1})
    assert sysfs.pci_place("0000:18:00.0", tmp_path) == Locality(1, ("pci0000:17", "0000:17:01.0", "0000:18:00.0"))


# --- nearness

SWITCH = "pci0000:10/0000:10:01.0/0000:11:00.0"
BEHIND_IT = nic("switch", f"{SWITCH}/0000:12:00.0", 0)
FARTHER_BELOW = nic("deeper", f"{SWITCH}/0000:12:01.0/0000:13:00.0", 0)
ROOT = nic("root", "pci0000:10/0000:10:02.0/0000:20:00.0", 0)
NODE = nic("node", "pci0000:30/0000:30:01.0/0000:31:00.0", 0)
NEXT = nic("next", "pci0000:40/0000:40:01.0/0000:41:00.0", 1)
LAST = nic("last", "pci0000:50/0000:50:01.0/0000:51:00.0", 2)
ALL = [LAST, NEXT, NODE, ROOT, FARTHER_BELOW, BEHIND_IT]
DISTANCES = {0: (10, 20, 30), 1: (20, 10, 20), 2: (30, 20, 10)}


def test_a_gpu_takes_the_nearest() -> None:
    gpu = Locality(0, tuple(f"{SWITCH}/0000:12:05.0".split("/")))
    left = list(ALL)
    order = []
    while left:
        (one,) = nearest(left, gpu, DISTANCES, 0, None)
        order.append(one.name)
        left.remove(one)
    assert order == ["switch", "deeper", "root", "node", "next", "last"]


def test_memory_of_the_host_takes_its_node_and_spreads() -> None:
    near = ["deeper", "node", "root", "switch"]
    assert [one.name for one in nearest(ALL, Locality(0), DISTANCES, 0, None)] == near
    assert [one.name for one in nearest(ALL, Locality(0), DISTANCES, 5, 2)] == ["node", "root"]
    assert [one.name for one in nearest(ALL, Locality(2), DISTANCES, 3, None)] == ["last"]
    assert len(nearest(ALL, Locality(), DISTANCES, 0, None)) == len(ALL)  # a process that runs everywhere
    assert nearest([], Locality(0), DISTANCES, 0, None) == []


def test_a_name_is_a_name() -> None:
    assert nearest(ALL, Locality(name="last"), DISTANCES, 0, None) == [LAST]
    with pytest.raises(ChoiceError, match=r"RDMA_IBVERBS_TARGET.*'mlx5_7'.*usable: last, next"):
        nearest(ALL, Locality(name="mlx5_7"), DISTANCES, 0, None)


def test_targets() -> None:
    gpus = {3: Locality(1, ("pci",))}
    assert place_of_target("", gpus.__getitem__) is None
    assert place_of_target("cpu:1", gpus.__getitem__) == Locality(1)
    assert place_of_target("gpu:3", gpus.__getitem__) == gpus[3]
    assert place_of_target("nic:mlx5_0", gpus.__getitem__) == Locality(name="mlx5_0")


@pytest.mark.parametrize("target", ["mlx5_0", "cpu:", "cpu:x", "cpu:-1", "gpu:1.5", "nic:", "tpu:1", ":", "cpu:\u0661"])
def test_targets_that_mean_nothing(target: str) -> None:
    with pytest.raises(ChoiceError, match=r"RDMA_IBVERBS_TARGET.*expected cpu:"):
        place_of_target(target, lambda ordinal: Locality())
