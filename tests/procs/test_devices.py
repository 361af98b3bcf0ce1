"""Tests of which device real processes use, on a machine that is made up: a stub of torch over a driver with four cards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ProcMesh
from tests.support.scripts import ROOT, Scripts
from tests.support.tiers import full

pytestmark = pytest.mark.procs

# What processes import first: the driver's file is there.
_SITE = """
import os
_exists = os.path.exists
os.path.exists = lambda path: path == "/dev/nvidiactl" or _exists(path)
"""
# Read without torch, to learn what it was built for; here it also says what NVML would.
_VERSION = """
hip, cuda, __version__ = None, "13.0", "2.5"
from monarch._devices import cards
cards._nvml_uuids = lambda: [f"GPU-{index:04d}" for index in range(4)]
"""
_TORCH = """
import types
from torch import version, cuda
default_generator = types.SimpleNamespace(seed=lambda: 0)  # what processes have of a torch that was loaded before they began
get_num_threads, set_num_threads = lambda: 4, lambda count: None
"""
_CUDA = """
import sys
from tests._devices.driver import FakeCuda, FakeDriver
_cuda = FakeCuda(FakeDriver(4))
globals().update((name, getattr(_cuda, name)) for name in dir(_cuda) if name == "_lazy_call" or name[0] != "_")
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of programs that run there."""
    torch = tmp_path / "stub" / "torch"
    (torch / "cuda").mkdir(parents=True)
    (torch.parent / "sitecustomize.py").write_text(_SITE)
    (torch / "__init__.py").write_text(_TORCH)
    (torch / "version.py").write_text(_VERSION)
    (torch / "cuda" / "__init__.py").write_text(_CUDA)
    return {"PYTHONPATH": os.pathsep.join([str(torch.parent), str(ROOT)]), "CUDA_VISIBLE_DEVICES": ""}


_PROGRAM = """
import os, threading
os.environ.pop("CUDA_VISIBLE_DEVICES")
from monarch.actor import Actor, endpoint, this_host
from monarch.config import configure

class Rank(Actor):
    @endpoint
    def counted(self):
        import torch
        return torch.cuda.device_count()

    @endpoint
    def where(self):
        "The cards of this thread, of a new one, and of cuda:<place>; whether torch had begun; what is seen."
        import torch
        before = torch.cuda.is_initialized()
        found = [torch.cuda.where()]
        thread = threading.Thread(target=lambda: found.append(torch.cuda.where()))
        thread.start()
        thread.join(60)
        return found, before, os.environ.get("CUDA_VISIBLE_DEVICES"), len(torch.cuda.driver.seen)

    @endpoint
    def below(self):
        procs = this_host().spawn_procs({"gpus": 1}, env=dict(PROBE="1"))
        try:
            return procs.spawn("below", Rank).where.call_one().get(300)
        finally:
            procs.stop().get(300)

def ask(mesh):
    return mesh.where.call().get(300).values()

if __name__ == "__main__":
    helper = this_host().spawn_procs()
    first = this_host().spawn_procs({"replica": 2, "gpus": 1}, name="first")
    ranks, other = first.spawn("ranks", Rank), first.spawn("other", Rank)
    print(ranks.counted.call().get(300).values(), other.counted.call().get(300).values())
    print(ask(ranks))
    print([found for found, *_ in ask(other)])
    second = this_host().spawn_procs({"gpus": 2}, name="second")
    print(ask(second.spawn("ranks", Rank)))
    second.restart(gpus=1).get(300)
    print(ask(second.slice(gpus=1).spawn("again", Rank)))
    print(second.slice(gpus=1).spawn("spawner", Rank).below.call_one().get(300))
    own = this_host().spawn_procs({"gpus": 2}, name="own", env={"CUDA_VISIBLE_DEVICES": "3,2"})
    print(ask(own.spawn("ranks", Rank)))
    crowd = this_host().spawn_procs({"gpus": 3}, name="crowd")
    print([found for found, *_ in ask(crowd.spawn("ranks", Rank))])
    configure(share_devices=False)
    print([found for found, *_ in ask(this_host().spawn_procs({"gpus": 2}).spawn("ranks", Rank))])
"""


@full
def test_ranks_and_meshes_share_out_the_cards(scripts: Scripts, machine: dict[str, str]) -> None:
    done = scripts.run(_PROGRAM, env=machine)
    assert done.stdout.splitlines() == [
        "[4, 4] [4, 4]",
        "[([0, 0], False, None, 4), ([1, 1], False, None, 4)]",
        "[[0, 0], [1, 1]]",
        "[([2, 2], False, '2,3,0,1', 4), ([3, 3], False, '2,3,0,1', 4)]",
        "[([3, 3], False, '2,3,0,1', 4)]",
        "([0, 0], False, None, 4)",
        "[([3, 3], False, '3,2', 2), ([2, 2], False, '3,2', 2)]",
        "[[0, 0], [1, 1], [2, 2]]",
        "[[0, 0], [0, 0]]",
    ]
    said = "mesh 'crowd' has 3 processes on this host, which has 4 devices: rank 0 and mesh 'first' share device 0;"
    assert done.stderr.count(said) == 1


@full  # processes import torch
def test_a_process_without_devices_says_so(procs2: ProcMesh) -> None:
    pytest.importorskip("torch")
    from monarch.memory import device_memory, reset_peak_memory

    found: Any = device_memory(procs2).get(300)
    assert found.extent == procs2.extent
    assert [one.device for one in found.values()] == ["", ""]
    assert "no device, or none used yet" in str(found.item(gpus=1))
    assert len({one.pid for one in found.values()}) == 2
    reset_peak_memory(procs2).get(300)
    assert len(device_memory(procs2.slice(gpus=0)).get(300)) == 1
    with pytest.raises(TypeError, match="ProcMesh"):
        device_memory(found)
