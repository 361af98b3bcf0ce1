"""Which devices: what /sys says (a tree of files), nearness, addresses, pairs, stripes."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma.backends import ibverbs_sysfs as sysfs
from monarch.rdma.backends.ibverbs_choice import (
    PAGE,
    PAIRS,
    ChoiceError,
    Gid,
    Nic,
    Place,
    affinity,
    choose_gid,
    nearest,
    node_of,
    pairs,
    place_of_target,
    stripes,
)
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


def test_a_machine_without_any(tmp_path: Path) -> None:
    assert sysfs.usable(tmp_path) == ([], "this machine has no RDMA device")
    assert sysfs.distances(tmp_path) == {} and sysfs.processors(tmp_path) == {}
    assert sysfs.pci_place("0000:17:00.0", tmp_path) == Place(-1, ())


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
    nodes = sysfs.processors(tmp_path)
    assert nodes == {0: frozenset((0, 1, 2, 7)), 1: frozenset((3, 4, 5, 6))}
    assert node_of((0, 7), nodes) == 0 and node_of((3,), nodes) == 1
    assert node_of((2, 3), nodes) == -1 and node_of((), nodes) == -1


def test_where_a_gpu_is(tmp_path: Path) -> None:
    nic_tree(tmp_path, "mlx5_0", mlx5_0={"pci": "pci0000:17/0000:17:01.0/0000:18:00.0", "node": 1})
    assert sysfs.pci_place("0000:18:00.0", tmp_path) == Place(1, ("pci0000:17", "0000:17:01.0", "0000:18:00.0"))


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
    gpu = Place(0, tuple(f"{SWITCH}/0000:12:05.0".split("/")))
    left = list(ALL)
    order = []
    while left:
        (one,) = nearest(left, gpu, DISTANCES, 0, None)
        order.append(one.name)
        left.remove(one)
    assert order == ["switch", "deeper", "root", "node", "next", "last"]


def test_memory_of_the_host_takes_its_node_and_spreads() -> None:
    near = ["deeper", "node", "root", "switch"]
    assert [one.name for one in nearest(ALL, Place(0), DISTANCES, 0, None)] == near
    assert [one.name for one in nearest(ALL, Place(0), DISTANCES, 5, 2)] == ["node", "root"]
    assert [one.name for one in nearest(ALL, Place(2), DISTANCES, 3, None)] == ["last"]
    assert len(nearest(ALL, Place(), DISTANCES, 0, None)) == len(ALL)  # a process that runs everywhere
    assert nearest([], Place(0), DISTANCES, 0, None) == []


def test_a_name_is_a_name() -> None:
    assert nearest(ALL, Place(name="last"), DISTANCES, 0, None) == [LAST]
    with pytest.raises(ChoiceError, match=r"RDMA_IBVERBS_TARGET.*'mlx5_7'.*usable: last, next"):
        nearest(ALL, Place(name="mlx5_7"), DISTANCES, 0, None)


def test_targets() -> None:
    gpus = {3: Place(1, ("pci",))}
    assert place_of_target("", gpus.__getitem__) is None
    assert place_of_target("cpu:1", gpus.__getitem__) == Place(1)
    assert place_of_target("gpu:3", gpus.__getitem__) == gpus[3]
    assert place_of_target("nic:mlx5_0", gpus.__getitem__) == Place(name="mlx5_0")


@pytest.mark.parametrize("target", ["mlx5_0", "cpu:", "cpu:x", "cpu:-1", "gpu:1.5", "nic:", "tpu:1", ":", "cpu:\u0661"])
def test_targets_that_mean_nothing(target: str) -> None:
    with pytest.raises(ChoiceError, match=r"RDMA_IBVERBS_TARGET.*expected cpu:"):
        place_of_target(target, lambda ordinal: Place())


# --- addresses


@pytest.mark.parametrize(
    ("gids", "slot"),
    [
        ([("fe80::1", "RoCE v2"), ("::ffff:10.0.0.1", "IB/RoCE v1"), ("::ffff:10.0.0.1", "RoCE v2")], 2),
        ([("2001:db8::1", "RoCE v2"), ("::ffff:10.0.0.1", "RoCE v2")], 1),
        ([("fe80::1", "RoCE v2"), ("2001:db8::1", "RoCE v2")], 1),
        ([("::ffff:169.254.3.4", "RoCE v2"), ("2001:db8::1", "RoCE v2")], 1),
        ([("::ffff:10.0.0.1", "IB/RoCE v1"), ("fe80::1", "RoCE v2")], 1),
        ([("::ffff:10.0.0.1", "IB/RoCE v1"), ("fe80::1", "IB/RoCE v1")], 0),
        ([("::ffff:10.0.0.1", "RoCE v2"), ("::ffff:10.0.0.2", "RoCE v2")], 0),
    ],
)  # fmt: skip
def test_routable_addresses_come_first(gids: list[tuple[str, str]], slot: int) -> None:
    table = tuple(Gid(number, raw(address), kind) for number, (address, kind) in enumerate(gids))
    assert choose_gid(nic("n", gids=table)).slot == slot


def test_addresses_of_infiniband() -> None:
    table = (Gid(1, raw("fe80::2"), ""), Gid(0, raw("fe80::1"), ""))
    assert choose_gid(nic("n", ethernet=False, gids=table)).slot == 0
    with pytest.raises(ChoiceError, match="no GID"):
        choose_gid(nic("n"))


# --- pairs


def test_who_may_pair() -> None:
    assert affinity("")("a", "b") and affinity("any")("a", "b")
    assert affinity("match_name")("a", "a") and not affinity("match_name")("a", "b")
    groups = affinity("groups:a, b|c")
    assert groups("a", "b") and groups("c", "c")
    assert not groups("a", "c") and not groups("x", "x") and not groups("x", "a")


@pytest.mark.parametrize("text", ["all", "groups:", "groups:a,|b", "groups:a|a", "groups:a,a", "match"])
def test_affinities_that_mean_nothing(text: str) -> None:
    with pytest.raises(ChoiceError, match=r"RDMA_PEER_DEVICE_AFFINITY.*expected any, match_name"):
        affinity(text)


def test_pairs() -> None:
    every = affinity("any")
    assert pairs(["a", "b"], ["x", "y"], every) == [("a", "x"), ("b", "y")]
    assert pairs(["a"], ["x", "y"], every) == [("a", "x"), ("a", "y")]
    assert pairs(["a", "b", "c"], ["x", "y"], every) == [("a", "x"), ("b", "y"), ("c", "x")]
    assert pairs(["a", "b"], ["b", "a"], affinity("match_name")) == [("a", "a"), ("b", "b")]
    assert pairs(["a"], ["b"], affinity("match_name")) == []


names = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@given(names, names, st.sampled_from(["any", "match_name", "groups:a,b|c,d,e"]))
def test_pairs_are_allowed_and_use_what_can_be_used(here: list[str], there: list[str], text: str) -> None:
    may = affinity(text)
    found = pairs(here, there, may)
    assert all(one in here and other in there and may(one, other) for one, other in found)
    assert len(set(found)) == len(found) <= PAIRS
    assert bool(found) == any(may(one, other) for one in here for other in there)


@given(st.integers(1, 1 << 40), st.integers(1, 16), st.integers(0, 1 << 30))
def test_stripes_cover_all_and_are_long_enough(size: int, ways: int, least: int) -> None:
    parts = stripes(size, ways, least)
    assert sum(count for _, count in parts) == size
    assert [at for at, _ in parts] == [sum(count for _, count in parts[:index]) for index in range(len(parts))]
    assert len(parts) <= ways
    if len(parts) > 1:
        assert all(count >= least and count % PAGE == 0 for _, count in parts[:-1])
    assert all(count > 0 for _, count in parts)


def test_stripes_of_a_small_transfer() -> None:
    assert stripes(1000, 4, 512 << 10) == [(0, 1000)]
    assert stripes(1 << 20, 4, 512 << 10) == [(0, 512 << 10), (512 << 10, 512 << 10)]
    assert stripes(0, 4, 1) == [(0, 0)]
