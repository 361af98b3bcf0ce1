"""The history of the memory of the workers' accelerators, as torch records it."""

from __future__ import annotations

import os
import pickle
from typing import Any

import torch

from monarch._linux import private_files
from monarch.tensor.remote.remote_function import Remote
from monarch.tensor.worker import current


def record() -> None:
    """Has torch record each allocation of this worker from now on."""
    _memory()._record_memory_history()


def dump(folder: str) -> None:
    """Writes what was recorded to `snapshot_<rank>.pickle` in a folder, which is made."""
    rank = current.worker().executor.rank
    os.makedirs(folder, exist_ok=True)
    private_files.write_output(os.path.join(folder, f"snapshot_{rank}.pickle"), pickle.dumps(_memory()._snapshot()))


def _memory() -> Any:
    if not torch.cuda.is_available():
        raise RuntimeError(
            "torch records the history of memory on CUDA and ROCm devices only, and this process has none"
        )
    return torch.cuda.memory


_record, _dump = Remote(record, "inspect"), Remote(dump, "inspect")


def record_memory_history() -> None:
    """Lets the processes of the active mesh record allocations on their devices from here on. CUDA and ROCm only."""
    _record()


def dump_memory_snapshot(dir_snapshots: str) -> None:
    """Each process of the active mesh writes `<dir_snapshots>/snapshot_<rank>.pickle` on its host, for
    pytorch.org/memory_viz."""
    _dump(os.fspath(dir_snapshots))
