"""--numa-binding: which processors ranks get, on machines of files; beside torch's own choice."""

from __future__ import annotations

import io
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._linux import processors
from monarch._linux.processors import Topology, parse_list
from monarch.job.torchrun import numa_binding
from monarch.job.torchrun.numa_binding import MODES, HostLayout

# Two sockets with two NUMA nodes each, of which each has four cores of two threads; two cores share a cache.
CORES = 16
EVERY = set(range(2 * CORES))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machine")
    system = root / "sys/devices/system"
    write(system / "node/possible", "0-3")
    for node in range(4):
        first = 4 * node
        write(system / f"node/node{node}/cpulist", f"{first}-{first + 3},{CORES + first}-{CORES + first + 3}")
    for one in EVERY:
        core = one % CORES
        folder = system / f"cpu/cpu{one}"
        write(folder / "topology/physical_package_id", str(core // 8))
        write(folder / "topology/thread_siblings_list", f"{core},{core + CORES}")
        pair = core // 2 * 2
        for index, (level, kind, shared) in enumerate(
            [
                (1, "Data", f"{core},{core + CORES}"),
                (1, "Instruction", f"{core},{core + CORES}"),
                (3, "Unified", f"{pair}-{pair + 1},{pair + CORES}-{pair + CORES + 1}"),
                (9, "Instruction", "0-31"),
            ]
        ):
            write(folder / f"cache/index{index}/level", str(level))
            write(folder / f"cache/index{index}/type", kind)
            write(folder / f"cache/index{index}/shared_cpu_list", shared)
    # In the order of their addresses the cards are on nodes 3, 3, none, 1.
    at = {"0000:1b:00.0": 3, "0000:1c:00.0": 3, "0000:43:00.0": -1, "0001:1b:00.0": 1}
    for uuid, (address, node) in enumerate(at.items()):
        write(root / "proc/driver/nvidia/gpus" / address / "information", f"Model: x\nGPU UUID: GPU-{uuid}")
        write(root / "sys/bus/pci/devices" / address / "numa_node", str(node))
    return root


@pytest.fixture
def topology(machine: Path) -> Topology:
    return processors.topology(EVERY, machine / "sys")


def bound(mode: str, count: int, layout: HostLayout) -> list[set[int]]:
    return [parse_list(bind["cpus"]) for bind in numa_binding.binds(mode, count, "node7", layout)]


def cores(*numbers: int) -> set[int]:
    return {one for core in numbers for one in (core, core + CORES)}


def test_each_mode(topology: Topology) -> None:
    layout = HostLayout(topology, [3, 3, 0, 1])
    assert bound("node", 4, layout) == [cores(12, 13, 14, 15)] * 2 + [cores(0, 1, 2, 3), cores(4, 5, 6, 7)]
    assert bound("socket", 3, layout) == [cores(*range(8, 16))] * 2 + [cores(*range(8))]
    assert bound("exclusive", 3, layout) == [cores(12, 13), cores(14, 15), cores(0, 1, 2, 3)]
    assert bound("core-complex", 3, layout) == [cores(12, 13), cores(14, 15), cores(0, 1)]


def test_fewer_ranks_than_devices_leave_the_others_their_share(topology: Topology) -> None:
    assert bound("exclusive", 1, HostLayout(topology, [3, 3, 3])) == [cores(12, 13)]
    assert bound("exclusive", 3, HostLayout(topology, [3, 3, 3]))[1:] == [cores(14), cores(15)]


def test_a_host_without_devices_spreads_its_ranks(topology: Topology) -> None:
    layout = HostLayout(topology, [])
    assert bound("node", 2, layout) == [cores(0, 1, 2, 3), cores(8, 9, 10, 11)]
    assert bound("exclusive", 8, layout)[:3] == [cores(0, 1), cores(2, 3), cores(4, 5)]
    assert set().union(*bound("exclusive", 16, layout)) == EVERY
    with pytest.raises(
        ValueError, match=r"node7 has 4 core\(s\) on NUMA node 0 .* and 5 would each have one of their own"
    ):
        bound("exclusive", 17, layout)


def test_the_devices_are_those_that_ranks_see(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip=None, cuda="13.0")))
    assert numa_binding.look({}, EVERY, machine).devices == [3, 3, 0, 1]
    assert numa_binding.look({"CUDA_VISIBLE_DEVICES": "3,0"}, EVERY, machine).devices == [1, 3]
    assert numa_binding.look({"CUDA_VISIBLE_DEVICES": "GPU-2"}, EVERY, machine).devices == [0]
    assert numa_binding.look({"CUDA_VISIBLE_DEVICES": ""}, EVERY, machine).devices == []
    parts = numa_binding.look({"CUDA_VISIBLE_DEVICES": "MIG-1"}, EVERY, machine)
    with pytest.raises(ValueError, match=r"--numa-binding node: node7 does not tell where its devices are \(neither"):
        bound("node", 1, parts)


def test_amds_cards_say_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip="7.1", cuda=None)))
    for number, location in enumerate((0x1B00, 0x4308)):
        told = f"simd_count 304\ndomain 0\nlocation_id {location}\nunique_id {number + 1}"
        write(tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}/properties", told)
    write(tmp_path / "sys/bus/pci/devices/0000:43:01.0/numa_node", "1")
    assert numa_binding.look({}, EVERY, tmp_path).devices == [0, 1]
    assert numa_binding.look({"HIP_VISIBLE_DEVICES": "1"}, EVERY, tmp_path).devices == [1]


def test_what_cannot_be(topology: Topology, machine: Path) -> None:
    with pytest.raises(ValueError, match=r"node7 shows 1 device\(s\) for 2 ranks: give --nproc-per-node 1 or fewer"):
        bound("node", 2, HostLayout(topology, [0]))
    left = processors.topology({0, 1}, machine / "sys")
    with pytest.raises(
        ValueError, match=r"device 0 of node7 is at NUMA node 2, of whose processors ranks may use none"
    ):
        bound("node", 1, HostLayout(left, [2]))
    with pytest.raises(ValueError, match=r"node7 does not tell which processors share a cache \(/sys/.*/cpu0/cache\)"):
        bound("core-complex", 1, HostLayout(topology._replace(caches={}), []))


def test_a_kernel_that_tells_nothing_has_one_node(tmp_path: Path) -> None:
    assert processors.topology({1, 2}, tmp_path) == ({0: [1, 2]}, {1: 0, 2: 0}, {1: 1, 2: 2}, {})
    assert bound("socket", 2, HostLayout(processors.topology({1, 2}, tmp_path), [])) == [{1, 2}, {1, 2}]


def test_this_machine() -> None:
    allowed = os.sched_getaffinity(0)
    layout = numa_binding.look({"CUDA_VISIBLE_DEVICES": ""}, allowed)
    assert set().union(*layout.topology.nodes.values()) == allowed == set(layout.topology.cores)
    for mode in ("node", "socket", "exclusive"):
        [own] = bound(mode, 1, layout)
        assert own and own <= allowed


@pytest.mark.parametrize("mode", MODES)
def test_torchrun_chooses_the_same(machine: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    theirs = pytest.importorskip("torch.numa.binding", reason="compares with torchrun")
    rng = random.Random(mode)
    root = str(machine)
    monkeypatch.setattr(theirs, "open", lambda path: io.StringIO(Path(root + path).read_text()), raising=False)
    compared = 0
    for _ in range(100):
        allowed = set(rng.sample(sorted(EVERY), rng.randint(8, 32)))
        devices = [rng.randrange(4) for _ in range(rng.randint(1, 6))]
        here = SimpleNamespace(
            path=os.path, listdir=lambda path: os.listdir(root + path), sched_getaffinity=lambda _pid, got=allowed: got
        )
        monkeypatch.setattr(theirs, "os", here)
        monkeypatch.setattr(theirs, "_get_gpu_count", lambda got=devices: len(got))
        monkeypatch.setattr(theirs, "_get_numa_node_index_for_gpu_index", lambda gpu_index, got=devices: got[gpu_index])
        layout = HostLayout(processors.topology(allowed, machine / "sys"), devices)
        if set(layout.topology.nodes) != {0, 1, 2, 3}:  # torch's fails then, whichever node is wanted
            continue
        try:
            ours: Any = bound(mode, len(devices), layout)
        except ValueError:
            ours = None
        options = theirs.NumaOptions(theirs.AffinityMode(mode))
        choose = theirs._get_logical_cpus_to_bind_to
        try:
            expected: Any = [choose(gpu_index=rank, numa_options=options) for rank in range(len(devices))]
        except RuntimeError:
            expected = None
        assert ours == expected
        compared += 1
    assert compared > 50
