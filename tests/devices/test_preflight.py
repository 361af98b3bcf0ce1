"""Tests of what this machine has to offer before anything of ours is asked for: where one fails here, others fail for
its reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scripts import Scripts

pytestmark = [pytest.mark.device, pytest.mark.procs]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

LENT = """
    import torch
    import torch.multiprocessing as mp

    def other(lent, taken, ready):
        tensor = lent.get()
        tensor.add_(1)
        torch.cuda.synchronize()
        del tensor
        taken.put(None)
        ready.get()

    if __name__ == "__main__":
        mp.set_start_method("spawn")
        queues = mp.Queue(), mp.Queue(), mp.Queue()
        process = mp.Process(target=other, args=queues)
        process.start()
        tensor = torch.zeros(1000, device="cuda")
        queues[0].put(tensor)
        queues[1].get(timeout=100)
        print(int(tensor.sum().item()))
        queues[2].put(None)
        process.join()
"""


def test_torch_lends_memory_of_a_card_to_another_process(scripts: Scripts) -> None:
    assert scripts.run(LENT).stdout == "1000\n"


def test_the_benchmark_of_memory_of_a_card_has_figures() -> None:
    command = [sys.executable, str(BENCHMARKS / "rdma_gpu.py"), "--quick", "--only", "floor,ours"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "ours" in done.stdout
