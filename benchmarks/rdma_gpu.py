"""How fast does one process read and write the memory of a GPU that another's tensor is in? The floor is torch's own copy_
within one process, between two tensors of the card or the card and pinned memory.
"""

from __future__ import annotations

import sys

from _harness import main
from _question import Measure, Question, Run
from _stats import GIGABYTES_PER_SECOND, MICROSECONDS, Aim

KIB, MIB = 1 << 10, 1 << 20
SCRIPTS = {"floor": "gpu_floor.py", "ours": "monarch_rdma_gpu.py"}


def run(size: int, place: str, small: bool, aims: tuple[Aim, ...] = ()) -> Run:
    """One transfer at a time between another process's tensor on the card and one of ours at `place`."""
    unit = MICROSECONDS if small else GIGABYTES_PER_SECOND
    shown = f"{size // KIB} KiB" if small else f"{size // MIB} MiB"
    return Run(
        "transfer" if small else "throughput",
        (
            Measure(f"read_into of {shown}, card to {place}", "read", unit, aims),
            Measure(f"write_from of {shown}, {place} to card", "write", unit, aims),
        ),
        {"size": size, "place": place, "warmup": 20, "count": 200 if small else 30},
        {"count": 50 if small else 10},
        contenders=("floor", "ours"),
        needs_torch=True,
        scripts=SCRIPTS,
    )


QUESTION = Question(
    "rdma_gpu",
    "How fast does one process read and write another's memory on a GPU?",
    (
        run(4 * KIB, "card", small=True),
        run(64 * MIB, "card", small=False),
        run(1024 * MIB, "card", small=False, aims=(Aim(1 / 0.9, against="floor"),)),
        run(256 * MIB, "host", small=False),
    ),
)


def no_gpu() -> str:
    """Why there is nothing to measure; "" when there is."""
    try:
        import torch
    except ImportError:
        return "this interpreter has no torch"
    if torch.cuda.is_available():
        return ""
    return f"torch {torch.__version__} sees no GPU (torch.cuda.is_available() is False)"


if __name__ == "__main__":
    if missing := no_gpu():
        print(f"rdma_gpu: nothing to measure here: {missing}")
        sys.exit(0)
    sys.exit(main(QUESTION))
